"""The SQLite store follows the store's rules, on asyncio and trio."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anyio
import apsw
import pytest
from tests.adapters.storage.older_stores import older_database
from tests.adapters.storage.store_conformance import StoreConformance, anyio_backend, pytestmark  # noqa: F401 - pytest collects them here

from callboard.adapters.storage.packing import row_crc
from callboard.adapters.storage.sqlite import open_store, place, writer
from callboard.adapters.storage.sqlite.place import sync_folder
from callboard.adapters.storage.sqlite.schema import connect
from callboard.adapters.storage.sqlite.statements import Transaction, next_fence
from callboard.ports.store import Append, Delete, Fence, Put, Row, Store
from callboard.types.errors import Conflict, Fenced


class TestSqliteStore(StoreConformance):
    async def open(self, place: Path) -> Store:
        return await open_store(place / "state")


async def test_a_store_of_version_2_keeps_its_revisions_and_continues(tmp_path: Path) -> None:
    """It numbered the commits over all keys, and a deleted key has a number, too."""
    database = older_database(tmp_path / "s", 2)
    for key, revision, value in (("a", 7, b"1"), ("b", 9, b"2"), ("c", 8, b"")):
        database.execute(
            "INSERT INTO row (key, revision, crc, value) VALUES (?, ?, ?, ?)",
            (key, revision, row_crc(key, revision, value), value),
        )
    database.execute("UPDATE row SET value = NULL, crc = 0, revision = 10 WHERE key = 'c'")
    database.close()
    for opening in range(2):
        store = await open_store(tmp_path / "s")
        async with store.watch("") as rows:
            known = [await anext(rows), *rows.at_hand()]
            assert known == [Row("a", b"1", 7 + opening), Row("b", b"2", 9)]
            assert await store.commit(Put("a", b"1", expected=7 + opening)) == (8 + opening,)
            assert await anext(rows) == Row("a", b"1", 8 + opening)
        with pytest.raises(Conflict):
            await store.commit(Delete("c", expected=10))
        assert await store.check() == ()
        await store.aclose()
    store = await open_store(tmp_path / "s")
    assert await store.commit(Put("c", b"3", expected=0), Put("d", b"", expected=0)) == (11, 1)
    await store.aclose()


@pytest.mark.parametrize(
    "shrink", [40_960, 81_920], ids=["the first checkpoint restarts the log", "it only copies the log"]
)
async def test_a_program_that_reads_the_database_slows_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shrink: int
) -> None:
    monkeypatch.setattr(writer, "CHECKPOINT_BYTES", 40_960)
    monkeypatch.setattr(writer, "SHRINK_BYTES", shrink)
    monkeypatch.setattr(writer, "NOT_AGAIN", 3_600.0)
    log = tmp_path / "s" / "callboard.db-wal"
    store = await open_store(tmp_path / "s")
    await store.commit(Append("s", os.urandom(50_000) if shrink == 40_960 else b"x"))
    reader = apsw.Connection(str(tmp_path / "s" / "callboard.db"))
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM record").fetchall()
    with anyio.fail_after(writer.BUSY_MS / 1_000):  # a single busy wait would take as long
        for _ in range(30):
            await store.commit(Append("s", os.urandom(20_000)))
    length = log.stat().st_size
    assert length > 500_000, "the reader stops the log from being reset"
    reader.close()
    for _ in range(30):
        await store.commit(Append("s", os.urandom(20_000)))
    assert log.stat().st_size > length + 500_000, "no other checkpoint is tried for a while, which would reset the log"
    await store.aclose()


async def test_a_program_that_reads_delays_no_start_and_no_end(tmp_path: Path) -> None:
    """Emptying the log at a start and at an end waits for no reader, and nothing that was written is lost."""
    reader: apsw.Connection | None = None
    for number in range(3):
        with anyio.fail_after(writer.BUSY_MS / 1_000):  # a single busy wait would take as long
            store = await open_store(tmp_path / "s")
            await store.commit(Append("s", b"%d" % number))
            if reader is None:
                reader = apsw.Connection(str(tmp_path / "s" / "callboard.db"))
                reader.execute("BEGIN")
                reader.execute("SELECT count(*) FROM record").fetchall()
            await store.aclose()
    assert reader is not None
    assert (tmp_path / "s" / "callboard.db-wal").stat().st_size > 0, "the reader stops the log from being emptied"
    reader.close()
    store = await open_store(tmp_path / "s")
    assert [record.data for record in await store.read("s")] == [b"0", b"1", b"2"]
    await store.aclose()


async def test_a_commit_that_no_table_can_hold_fails_alone(tmp_path: Path) -> None:
    """Commits of one moment are written together."""
    store = await open_store(tmp_path / "s")
    outcomes: dict[str, Any] = {}

    async def commit(*writes: Append | Put) -> None:
        name = writes[0].stream if isinstance(writes[0], Append) else writes[0].key
        try:
            outcomes[name] = await store.commit(*writes)
        except (Conflict, UnicodeEncodeError) as error:
            outcomes[name] = type(error)

    async with anyio.create_task_group() as group:
        group.start_soon(commit, Append("a", b"1"), Put("k", b"v"))
        group.start_soon(commit, Append("b", b"1"), Append("c\ud800", b"1"))
        group.start_soon(commit, Put("l\ud800", b"v"))
        group.start_soon(commit, Append("d", b"1", expected=7))
        group.start_soon(commit, Append("e", b"1"), Append("a", b"2"))
    assert outcomes == {
        "a": (outcomes["a"][0], 1),
        "b": UnicodeEncodeError,
        "l\ud800": UnicodeEncodeError,
        "d": Conflict,
        "e": (1, outcomes["e"][1]),
    }
    assert sorted(record.data for record in await store.read("a")) == [b"1", b"2"]
    assert await store.read("b") == []
    await store.aclose()


async def test_a_fence_that_a_failed_commit_has_read_is_read_again_after_other_work(tmp_path: Path) -> None:
    store = await open_store(tmp_path / "s")
    await store.aclose()
    connection = connect(tmp_path / "s", durable=False)
    transaction = Transaction(connection)
    fence = Fence("host", next_fence(connection, "host"))
    with pytest.raises(Conflict):
        transaction.draft([Append("a", b"1", expected=7)], fence)
    transaction.write_drafts()
    next_fence(connection, "host")
    with pytest.raises(Fenced):
        transaction.draft([Append("a", b"1")], fence)
    connection.close()


async def test_a_blob_that_is_there_is_synced_once_and_a_lost_one_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each agent puts the prompt of its type, and each sync is one of the disk."""
    synced: list[Path] = []

    def counting(folder: Path) -> None:
        synced.append(folder)
        sync_folder(folder)

    monkeypatch.setattr(place, "sync_folder", counting)
    store = await open_store(tmp_path / "s")
    digest = await store.put_blob(b"a prompt")
    assert len(synced) == 2
    assert await store.put_blob(b"a prompt") == digest
    assert len(synced) == 2
    (file,) = (tmp_path / "s" / "blobs").rglob(digest)
    file.unlink()
    assert await store.put_blob(b"a prompt") == digest
    assert len(synced) == 3  # the name of its folder is durable already
    assert await store.get_blob(digest) == b"a prompt"
    await store.aclose()
    other = await open_store(tmp_path / "s")
    await other.put_blob(b"a prompt")
    assert len(synced) == 5, "the process that wrote it may not have synced the folder"
    await other.aclose()
