"""Damage is detected, set aside, and reported; it is never read as data, and never as absence."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from callboard.adapters.storage.sqlite import SqliteStore, copy, open_store, opening
from callboard.adapters.storage.sqlite.schema import VERSION, refuse_old_sqlite
from callboard.ports.store import Append, Delete, Put
from callboard.types.errors import StoreBusy, StoreDamaged, WorkspaceUnusable

pytestmark = pytest.mark.anyio


async def fill(folder: Path) -> dict[str, object]:
    """Create a store with every kind of content, and return the content."""
    store = await open_store(folder)
    for number in range(40):
        data = f"record-{number}-".encode() * 40
        await store.commit(Append(f"s{number % 4}", data, id=f"id-{number}"), Put(f"k{number % 7}", data))
    await store.commit(Delete("k3"))
    held = await contents(store)
    await store.aclose()
    return held


async def contents(store: SqliteStore) -> dict[str, object]:
    held: dict[str, object] = {row.key: (row.value, row.revision) for row in await store.keys("")}
    for stream in ("s0", "s1", "s2", "s3"):
        held |= {f"{stream}/{record.seq}": record.data for record in await store.read(stream)}
    for number in range(40):  # a known id appends nothing
        held[f"id-{number}"] = await store.commit(Append(f"s{number % 4}", b"again", id=f"id-{number}"))
    return held


def flip(file: Path, offset: int) -> None:
    data = bytearray(file.read_bytes())
    data[offset] ^= 0x10
    file.write_bytes(bytes(data))


async def test_a_damaged_record_is_set_aside_and_told_at_opening(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    await fill(folder)
    database = folder / "callboard.db"
    with closing(apsw.Connection(str(database))) as connection:
        ((stored,),) = connection.execute("SELECT data FROM record WHERE id = 'id-20'").fetchall()
    flip(database, database.read_bytes().rindex(stored) + len(stored) // 2)
    store = await open_store(folder)
    assert [report.what for report in store.damage] == ["record 6 of stream s0"]
    for found in store.damage:
        assert str(folder) in found.where
        assert "table damaged" in found.set_aside
    await store.aclose()


async def test_a_damaged_record_leaves_a_hole_and_the_rest_stays(tmp_path: Path) -> None:
    store = await open_store(tmp_path / "s")
    await store.commit(Append("s", b"one", id="1"), Append("s", b"two", id="2"), Append("s", b"three", id="3"))
    damage_in_tables(tmp_path / "s", "UPDATE record SET data = x'00' WHERE id = '3'")
    with pytest.raises(StoreDamaged, match="record 3 of stream s"):
        await store.read("s")
    assert [report.what for report in store.damage] == ["record 3 of stream s"]
    assert [record.seq for record in await store.read("s")] == [1, 2]
    assert await store.last("s") == 3
    assert await store.commit(Append("s", b"three", id="3"), Append("s", b"four", expected=3)) == (3, 4)
    await store.aclose()
    again = await open_store(tmp_path / "s")
    assert [report.what for report in again.damage] == ["record 3 of stream s"]
    assert [record.seq for record in await again.read("s")] == [1, 2, 4]
    await again.aclose()


async def test_a_follower_is_told_and_then_goes_on_behind_the_hole(tmp_path: Path) -> None:
    store = await open_store(tmp_path / "s")
    await store.commit(Append("s", b"one"), Append("s", b"two"))
    damage_in_tables(tmp_path / "s", "UPDATE record SET crc = crc + 1 WHERE data = CAST('one' AS BLOB)")
    async with store.follow("s") as records:
        with pytest.raises(StoreDamaged):
            await anext(records)
        assert (await anext(records)).seq == 2
    await store.aclose()


async def test_a_damaged_key_is_set_aside_and_told(tmp_path: Path) -> None:
    store = await open_store(tmp_path / "s")
    revision, _ = await store.commit(Put("schedules/1", b"daily"), Put("schedules/2", b"hourly"))
    damage_in_tables(tmp_path / "s", "UPDATE row SET value = x'' WHERE key = 'schedules/1'")
    with pytest.raises(StoreDamaged, match="key schedules/1"):
        await store.keys("schedules/")
    assert [row.key for row in await store.keys("schedules/")] == ["schedules/2"]
    assert (await store.commit(Put("schedules/1", b"daily", expected=0)))[0] > revision
    await store.aclose()


async def test_a_damaged_blob_is_set_aside_and_can_be_put_again(tmp_path: Path) -> None:
    store = await open_store(tmp_path / "s")
    digest = await store.put_blob(b"a long result")
    (file,) = (tmp_path / "s" / "blobs").rglob(digest)
    flip(file, 3)
    with pytest.raises(StoreDamaged, match="set aside"):
        await store.get_blob(digest)
    assert [report.what for report in store.damage] == [f"blob {digest}"]
    with pytest.raises(KeyError):
        await store.get_blob(digest)
    assert await store.put_blob(b"a long result") == digest
    assert await store.get_blob(digest) == b"a long result"
    await store.aclose()


def damage_in_tables(folder: Path, statement: str) -> None:
    connection = apsw.Connection(str(folder / "callboard.db"))
    connection.execute(statement)
    connection.close()


def emptied(file: Path) -> None:
    file.write_bytes(b"")


def garbage(file: Path) -> None:
    file.write_bytes(random.Random(1).randbytes(50_000))


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9_000])


def cut_in_a_page(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:100])


def header_flipped(file: Path) -> None:
    flip(file, 3)


def page_zeroed(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[:8192] + bytes(4096) + data[12288:])


@pytest.mark.parametrize("damage", [emptied, garbage, cut, cut_in_a_page, header_flipped, page_zeroed])
async def test_a_damaged_file_is_kept_and_told_and_never_becomes_nothing(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    folder = tmp_path / "s"
    await fill(folder)
    damage(folder / "callboard.db")
    bytes_then = (folder / "callboard.db").read_bytes()
    with pytest.raises(StoreDamaged, match="kept as"):
        await open_store(folder)
    (aside,) = folder.glob("callboard.db.damaged-*Z")
    assert aside.read_bytes() == bytes_then
    store = await open_store(folder)
    assert [report.set_aside for report in store.damage] == [str(aside)]
    assert await store.read("s0") == []
    await store.aclose()


async def test_a_file_cut_in_the_last_page_of_a_large_value_is_kept_and_told(tmp_path: Path) -> None:
    store = await open_store(tmp_path / "s")
    await store.commit(Put("large", random.Random(1).randbytes(50_000)))
    await store.aclose()
    file = tmp_path / "s" / "callboard.db"
    file.write_bytes(file.read_bytes()[:-100])  # SQLite's own check does not read the content of such pages
    with pytest.raises(StoreDamaged, match="kept as"):
        await open_store(tmp_path / "s")
    await (await open_store(tmp_path / "s")).aclose()


async def test_a_log_without_its_database_is_kept_and_told(tmp_path: Path) -> None:
    store = await open_store(tmp_path / "s")
    await store.commit(Append("s", b"x"))
    shutil.copytree(tmp_path / "s", tmp_path / "copy", ignore=shutil.ignore_patterns("callboard.db", "run"))
    with pytest.raises(StoreDamaged, match="only its log"):
        await open_store(tmp_path / "copy")
    assert list((tmp_path / "copy").glob("callboard.db.damaged-*-wal"))
    await store.aclose()


@pytest.mark.slow
async def test_a_flipped_byte_is_never_silent(tmp_path: Path) -> None:
    held = await fill(tmp_path / "sound")
    size = (tmp_path / "sound" / "callboard.db").stat().st_size
    chance, noticed = random.Random(7), 0
    for number in range(60):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "sound", folder)
        flip(folder / "callboard.db", offset := chance.randrange(size))
        noticed += await is_told_or_harmless(folder, held, f"byte {offset}")
    assert noticed > 8  # the others hit free space


async def test_a_flipped_byte_in_the_log_is_never_silent(tmp_path: Path) -> None:
    store = await open_store(tmp_path / "live")
    for number in range(40):
        await store.commit(Append(f"s{number % 4}", b"x" * 500, id=f"id-{number}"), Put(f"k{number % 7}", b"y"))
    held = await contents(store)
    size = (tmp_path / "live" / "callboard.db-wal").stat().st_size
    await store.commit(Append("last", b"may look torn"), Put("z", b"z"))
    chance, noticed = random.Random(8), 0
    for number in range(40):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "live", folder, ignore=shutil.ignore_patterns("run", "*-shm"))
        flip(folder / "callboard.db-wal", offset := chance.randrange(size))
        noticed += await is_told_or_harmless(folder, held | {"z": (b"z", 41)}, f"byte {offset}")
    assert noticed > 20
    await store.aclose()


@pytest.mark.parametrize("offset", [0, 9, 17, 22, 26, 31])
async def test_a_log_with_a_damaged_header_is_kept_and_told(tmp_path: Path, offset: int) -> None:
    store = await open_store(tmp_path / "live")
    await store.commit(Append("s", b"x"))
    shutil.copytree(tmp_path / "live", tmp_path / "copy", ignore=shutil.ignore_patterns("run", "*-shm"))
    flip(tmp_path / "copy" / "callboard.db-wal", offset)
    with pytest.raises(StoreDamaged, match="damaged from its beginning"):
        await open_store(tmp_path / "copy")
    copy = await open_store(tmp_path / "copy")
    assert [report.what for report in copy.damage] == ["the log"]
    await copy.aclose()
    await store.aclose()


async def is_told_or_harmless(folder: Path, held: dict[str, object], where: str) -> bool:
    """Return whether the damage was reported; fail if it was neither reported nor harmless."""
    try:
        store = await open_store(folder)
    except StoreDamaged:
        assert list(folder.glob("callboard.db.damaged-*")), where
        return True
    except WorkspaceUnusable:
        return True  # header marks: the file seems to belong to another program, or a newer version
    if not store.damage:
        assert await contents(store) == held, where
    told = bool(store.damage)
    await store.aclose()
    return told


async def test_a_newer_schema_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    await fill(tmp_path / "s")
    damage_in_tables(tmp_path / "s", f"PRAGMA user_version = {VERSION + 1}")
    bytes_then = (tmp_path / "s" / "callboard.db").read_bytes()
    with pytest.raises(WorkspaceUnusable, match="newer Callboard"):
        await open_store(tmp_path / "s")
    assert (tmp_path / "s" / "callboard.db").read_bytes() == bytes_then


async def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir(mode=0o700)
    connection = apsw.Connection(str(tmp_path / "s" / "callboard.db"))
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    with pytest.raises(WorkspaceUnusable, match="another program"):
        await open_store(tmp_path / "s")


@pytest.mark.parametrize("version", ["3.7.0", "3.40.1", "3.50.6", "3.51.2"])
def test_a_sqlite_that_can_corrupt_its_log_is_refused(version: str) -> None:
    with pytest.raises(WorkspaceUnusable, match="apsw"):
        refuse_old_sqlite(version)


@pytest.mark.parametrize("version", ["3.50.7", "3.51.3", "3.54.0", "4.0.0"])
def test_a_mended_sqlite_is_taken(version: str) -> None:
    refuse_old_sqlite(version)


async def test_check_reads_everything_and_tells(tmp_path: Path) -> None:
    store = await open_store(tmp_path / "s")
    await store.commit(Append("s", b"one"), Put("k", b"v"))
    assert await store.check() == ()
    damage_in_tables(tmp_path / "s", "UPDATE record SET data = x'00'; UPDATE row SET revision = revision + 1")
    assert sorted(report.what for report in await store.check()) == ["key k", "record 1 of stream s"]
    await store.aclose()


@pytest.mark.parametrize("way", ["VACUUM", "ANALYZE", "VACUUM INTO"])
async def test_what_sqlites_own_commands_leave_is_a_sound_store(tmp_path: Path, way: str) -> None:
    held = await fill(tmp_path / "s")
    database = tmp_path / "s" / "callboard.db"
    if way == "VACUUM INTO":
        damage_in_tables(tmp_path / "s", f"VACUUM INTO '{tmp_path / 'copy.db'}'")
        (tmp_path / "copy.db").rename(database)
    else:
        damage_in_tables(tmp_path / "s", way)
    store = await open_store(tmp_path / "s")
    assert store.damage == ()
    assert await contents(store) == held
    beside = await open_store(tmp_path / "s")
    await beside.commit(Append("s", b"x"))
    assert [record.data for record in await store.read("s")] == [b"x"]
    await beside.aclose()
    await store.aclose()


async def test_opening_gives_up_while_another_program_holds_the_lock_of_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_store(tmp_path / "s")
    await store.commit(Put("k", b"v"))
    shutil.copytree(tmp_path / "s", tmp_path / "cut", ignore=shutil.ignore_patterns("run"))  # with its log
    await store.aclose()
    monkeypatch.setattr(opening, "LOCK_WAIT", 0.1)
    descriptor = os.open(tmp_path / "cut" / "write.lock", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        with pytest.raises(StoreBusy, match=f"process {os.getpid()} "):
            await open_store(tmp_path / "cut")
    finally:
        os.close(descriptor)


@pytest.mark.slow
async def test_what_is_readable_beside_any_destroyed_page_is_salvaged(tmp_path: Path) -> None:
    whole, damaged = tmp_path / "whole", tmp_path / "damaged.db"
    store = await open_store(whole)
    for number in range(300):
        await store.commit(Append(f"s{number % 3}", f"record-{number}-".encode() * 20))
    await store.aclose()
    good = (whole / "callboard.db").read_bytes()
    size = int.from_bytes(good[16:18], "big")
    draw, most = random.Random(5), 0
    for page in range(1, len(good) // size):
        damaged.write_bytes(good[: page * size] + draw.randbytes(size) + good[(page + 1) * size :])
        folder = tmp_path / f"page-{page}"
        folder.mkdir()
        try:
            salvaged = copy.salvage(damaged, folder)
        except StoreDamaged:
            continue  # a page that all others depend on
        most = max(most, salvaged.records)
        assert not [one for one in folder.iterdir() if one.is_dir()], "no scratch folder is left"
    assert 200 < most <= 300
