"""The SQLite store keeps the laws, on asyncio and trio."""

from __future__ import annotations

from pathlib import Path

from tests.adapters.store_conformance import StoreConformance, anyio_backend, pytestmark  # noqa: F401

from callboard.adapters.sqlite import open_store
from callboard.ports.store import Store


class TestSqliteStore(StoreConformance):
    async def open(self, place: Path) -> Store:
        return await open_store(place / "state")
