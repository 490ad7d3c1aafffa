"""Copies of a workspace between a server and a database change nothing that can be read."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import apsw
import pytest
from tests.postgres_server import PostgresServer

from callboard.adapters.storage.sqlite import open_store as open_sqlite
from callboard.ports.store import Append, Delete, LeaseHolder, Put, Store
from callboard.types.errors import Conflict, StoreDamaged, UsageError

psycopg = pytest.importorskip("psycopg", reason="the extra callboard[postgres] is not installed")

from callboard.adapters.storage.postgres.address import parse_address  # noqa: E402 - only with the extra
from callboard.adapters.storage.postgres.store import PostgresStore, open_store  # noqa: E402 - only with the extra
from callboard.adapters.storage.postgres.transfer import export_workspace, import_workspace  # noqa: E402 - only with the extra

pytestmark = pytest.mark.anyio
BLOBS = (b"", b"small", bytes(range(256)) * 9_000)


async def fill(store: Store) -> list[str]:
    """Write one of everything, and return the digests of the blobs."""
    for number in range(5):
        await store.commit(
            Append("s", b"%d" % number, id=f"id {number}"),
            Append("long/ü", b"text " * 500),
            Put("k/1", b"%d" % number),
            Put("k/2", b"row " * 1_000),
        )
    await store.commit(Delete("k/1"), Put("gone", b""), Delete("gone"))
    for _ in range(2):
        lease = await store.acquire("host")
        assert not isinstance(lease, LeaseHolder)
        await lease.release()
    return [await store.put_blob(data) for data in BLOBS]


async def contents(store: Store, digests: list[str]) -> object:
    streams = [(name, await store.last(name), list(await store.read(name))) for name in ("s", "long/ü", "none")]
    return streams, list(await store.keys("")), [await store.get_blob(digest) for digest in digests]


async def same_future(store: Store) -> object:
    """What the next writers get: ids that are known, revisions of deleted keys, numbers of leases."""
    numbers = await store.commit(Append("s", b"again", id="id 3"), Append("s", b"new"), Put("k/1", b"new", expected=0))
    with pytest.raises(Conflict):
        await store.commit(Put("k/2", b"", expected=4))
    lease = await store.acquire("host")
    assert not isinstance(lease, LeaseHolder)
    number = lease.fence.number
    await lease.release()
    return numbers, number


async def opened(server: PostgresServer) -> PostgresStore:
    return await open_store(parse_address(server.url), os.urandom(8).hex())


async def test_there_and_back_changes_nothing(server: PostgresServer, tmp_path: Path) -> None:
    first = await open_sqlite(tmp_path / "first")
    digests = await fill(first)
    middle = await opened(server)
    (tmp_path / "scratch").mkdir()
    copied = await anyio.to_thread.run_sync(import_workspace, middle, tmp_path / "first", tmp_path / "scratch")
    assert copied == {"stream": 2, "record": 10, "row": 3, "lease": 1, "damaged": 0, "blob": 3}
    (tmp_path / "last").mkdir(mode=0o700)
    assert await anyio.to_thread.run_sync(export_workspace, middle, tmp_path / "last") == copied
    last = await open_sqlite(tmp_path / "last")
    stores: list[Store] = [first, middle, last]
    assert len({repr(await contents(store, digests)) for store in stores}) == 1
    assert [await store.check() for store in (first, middle, last)] == [(), (), ()]
    futures = [await same_future(store) for store in stores]
    assert futures == [((4, 6, 7), 3)] * 3
    assert len({repr(await contents(store, digests)) for store in stores}) == 1
    for store in stores:
        await store.aclose()


async def test_a_copy_goes_only_to_an_empty_workspace_and_all_or_nothing(
    server: PostgresServer, tmp_path: Path
) -> None:
    source = await open_sqlite(tmp_path / "s")
    digests = await fill(source)
    await source.aclose()
    scratches = iter(range(9))

    def copy(store: PostgresStore) -> None:
        scratch = tmp_path / f"scratch{next(scratches)}"
        scratch.mkdir()
        import_workspace(store, tmp_path / "s", scratch)

    taken = await opened(server)
    await taken.commit(Put("k", b""))
    with pytest.raises(UsageError, match="already: nothing was copied"):
        await anyio.to_thread.run_sync(copy, taken)
    (tmp_path / "s" / "blobs" / digests[2][:2] / digests[2]).write_bytes(b"damaged")
    empty = await opened(server)
    with pytest.raises(StoreDamaged, match="no longer matches its digest"):
        await anyio.to_thread.run_sync(copy, empty)
    assert (await empty.keys(""), await empty.last("s")) == ([], 0)
    for store in (taken, empty):
        await store.aclose()


async def test_a_value_that_was_set_aside_leaves_its_gap_in_the_copy(server: PostgresServer, tmp_path: Path) -> None:
    source = await open_sqlite(tmp_path / "s")
    digests = await fill(source)
    await source.aclose()
    database = apsw.Connection(str(tmp_path / "s" / "callboard.db"))
    database.execute("UPDATE record SET data = x'00' WHERE id = 'id 1'")
    database.close()
    source = await open_sqlite(tmp_path / "s")
    assert len(await source.check()) == 1
    (tmp_path / "scratch").mkdir()
    target = await opened(server)
    await anyio.to_thread.run_sync(import_workspace, target, tmp_path / "s", tmp_path / "scratch")
    assert [record.seq for record in await target.read("s")] == [1, 3, 4, 5]
    assert await contents(target, digests) == await contents(source, digests)
    for store in (source, target):
        await store.aclose()
    again = await open_store(target.address, "another workspace")
    assert again.damage == ()
    await again.aclose()
