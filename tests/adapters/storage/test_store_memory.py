"""The in-memory store follows the store's rules, dies where it should, and reopens with the written content."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from tests.adapters.storage.store_conformance import StoreConformance, anyio_backend  # noqa: F401 - pytest collects them here

from callboard.adapters.storage.feed import Feed
from callboard.adapters.storage.memory import Crashed, CrashPoint, MemoryStore
from callboard.ports.store import Append, LeaseHolder, Put, Store
from callboard.types.errors import StoreFull

pytestmark = pytest.mark.anyio


class TestMemoryStore(StoreConformance):
    @pytest.fixture(autouse=True)
    def _contents(self) -> None:
        self.first: MemoryStore | None = None

    async def open(self, place: Path) -> Store:
        if self.first is None:
            self.first = MemoryStore()
            return self.first
        return self.first.second_store()


async def write_three(store: MemoryStore) -> None:
    await store.commit(Append("s", b"1", id="1"))
    await store.put_blob(b"blob")
    await store.commit(Append("s", b"2", id="2"), Put("k", b"v"))


@pytest.mark.parametrize("point", ["before", "after"])
@pytest.mark.parametrize("nth", [1, 2, 3])
async def test_a_store_killed_at_any_write_comes_back_and_ends_the_same(nth: int, point: CrashPoint) -> None:
    store = MemoryStore(crash_after=nth, crash_point=point)
    with pytest.raises(Crashed):
        await write_three(store)
    assert store.dead
    assert store.writes == nth
    with pytest.raises(Crashed):
        await store.read("s")
    store = store.reopen()
    there = [record.data for record in await store.read("s")]
    assert (
        there
        == [b"1", b"2"][: {("before", 1): 0, ("before", 2): 1, ("before", 3): 1, ("after", 3): 2}.get((point, nth), 1)]
    )
    await write_three(store)
    assert [record.data for record in await store.read("s")] == [b"1", b"2"]


async def test_a_crash_passes_except_exception_and_ends_followers() -> None:
    store = MemoryStore(crash_after=1)
    died: list[str] = []

    async def follow() -> None:
        try:
            async with store.follow("s") as records:
                await anext(records)
        except Crashed:
            died.append("follower")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follow)
        await anyio.lowlevel.checkpoint()
        with pytest.raises(Crashed):
            await store.commit(Append("s", b""))
    assert died == ["follower"]
    assert not issubclass(Crashed, Exception)


async def test_leases_of_a_killed_store_are_free() -> None:
    store = MemoryStore()
    lease = await store.acquire("host")
    assert not isinstance(lease, LeaseHolder)
    beside = store.second_store()
    assert isinstance(await beside.acquire("host"), LeaseHolder)
    again = await store.reopen().acquire("host")
    assert not isinstance(again, LeaseHolder)
    assert again.fence.number == 2


async def test_a_full_store_writes_nothing_and_goes_on_when_there_is_room() -> None:
    store = MemoryStore()
    store.full = True
    for write in (store.commit(Append("s", b"")), store.put_blob(b"x"), store.acquire("host")):
        with pytest.raises(StoreFull):
            await write
    store.full = False
    assert await store.commit(Append("s", b"")) == (1,)
    assert not isinstance(await store.acquire("host"), LeaseHolder)


async def test_a_feed_that_was_rung_for_nothing_looks_once_and_sleeps_again() -> None:
    looks: list[int] = []

    async def fetch(position: int) -> tuple[list[str], int]:
        looks.append(position)
        return [], position

    feed = Feed(fetch, 0)

    async def read() -> None:
        await anext(feed)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        for rings in range(1, 4):
            for _ in range(10):
                await anyio.lowlevel.checkpoint()
            assert len(looks) == rings
            feed.ring()
        tasks.cancel_scope.cancel()
