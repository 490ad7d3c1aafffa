"""The SQLite store follows the store's rules, on asyncio and trio."""

from __future__ import annotations

from pathlib import Path

import anyio
import apsw
import pytest
from tests.adapters.storage.store_conformance import StoreConformance, anyio_backend, pytestmark  # noqa: F401 - pytest collects them here

from callboard.adapters.storage.sqlite import open_store, writer
from callboard.ports.store import Append, Store


class TestSqliteStore(StoreConformance):
    async def open(self, place: Path) -> Store:
        return await open_store(place / "state")


async def test_a_program_that_reads_the_database_slows_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "CHECKPOINT_PAGES", 10)
    monkeypatch.setattr(writer, "SHRINK_PAGES", 20)
    store = await open_store(tmp_path / "s")
    await store.commit(Append("s", b"x"))
    reader = apsw.Connection(str(tmp_path / "s" / "callboard.db"))
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM record").fetchall()
    with anyio.fail_after(writer.BUSY_MS / 1_000):  # a single busy wait would take as long
        for _ in range(30):
            await store.commit(Append("s", b"x" * 20_000))
    assert (tmp_path / "s" / "callboard.db-wal").stat().st_size > 500_000, "the reader stops the log from being reset"
    reader.close()
    await store.aclose()
