"""PostgreSQL stores for tests. Import it only where psycopg is installed."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio

from callboard.adapters.storage.postgres.address import parse_address
from callboard.adapters.storage.postgres.store import PostgresStore, open_store


@asynccontextmanager
async def opened(
    url: str, space: str = "", notes: list[str] | None = None, *, direct: str = ""
) -> AsyncGenerator[PostgresStore]:
    """Open a store for the block, which must end within 120 s. `space`: its workspace; empty: a new one."""
    store = await open_store(parse_address(url, direct), space or os.urandom(8).hex(), notice=(notes or []).append)
    try:
        with anyio.fail_after(120):
            yield store
    finally:
        with anyio.CancelScope(shield=True):
            await store.aclose()
