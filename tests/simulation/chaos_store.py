"""The store of a chaos: in memory or on SQLite, and with faults: killed, full, frozen until another host has its lease.

`Unkind` also looks on: no journal is written without a lease, and none by a host whose lease has gone to another.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, Protocol, TypeVar

import anyio
from anyio.from_thread import BlockingPortal, start_blocking_portal
from anyio.lowlevel import checkpoint

from callboard.adapters.storage.feed import Feed, Sleepers
from callboard.adapters.storage.memory import Crashed, MemoryLease, MemoryStore
from callboard.adapters.storage.sqlite import open_store
from callboard.ports.store import (
    Append,
    Changes,
    Delete,
    Fence,
    Lease,
    LeaseHolder,
    PresentProcess,
    Put,
    Record,
    Records,
    Row,
    Store,
    Write,
)
from callboard.types.errors import StoreFull

T = TypeVar("T")
Wrong = Literal["", "killed_before", "killed_after", "full", "frozen", "dropped", "drained"]


class Inner(Store, Protocol):
    """A store that can die and be opened anew."""

    def kill(self) -> None: ...


@dataclass
class Looks:
    """What was seen of the writes of all processes of a run."""

    newest: int = 0
    """The number of the newest lease under which somebody wrote."""
    broken: list[str] = field(default_factory=list[str])
    commits: int = 0

    def saw(self, writes: Sequence[Write], fence: Fence | None) -> None:
        self.commits += 1
        journals = [w.stream for w in writes if isinstance(w, Append) and w.stream.startswith("j/")]
        if fence is None and journals:
            self.broken.append(f"{journals[0]} was written without a lease")
        elif fence is not None and fence.number < self.newest:
            self.broken.append(f"host {fence.number} wrote after host {self.newest} had begun")
        elif fence is not None:
            self.newest = fence.number


class Unkind:
    """A `Store` that goes wrong at one of its writes. `stops` is set when it did."""

    def __init__(self, inner: Inner, looks: Looks, wrong: Wrong = "", at: int = 0, thaw: float = 0.0) -> None:
        self.inner, self._looks = inner, looks
        self.wrong, self._at, self._thaw = wrong, at, thaw
        self.writes = 0
        self.stops = anyio.Event()

    async def commit(self, *writes: Write, fence: Fence | None = None) -> tuple[int, ...]:
        self.writes += 1
        due = self.writes == self._at
        if due and self.wrong in ("dropped", "drained"):
            self.stops.set()
        if due and self.wrong == "full":
            self.stops.set()
            raise StoreFull("the store is full (a fault of the chaos): nothing was written")
        if due and self.wrong == "frozen":
            self.stops.set()
            await anyio.sleep(self._thaw)
        if due and self.wrong == "killed_before":
            self._die()
        numbers = await self.inner.commit(*writes, fence=fence)
        self.landed(writes, numbers, fence)
        if due and self.wrong == "killed_after":
            self._die()
        return numbers

    def landed(self, writes: Sequence[Write], numbers: Sequence[int], fence: Fence | None) -> None:
        """A commit has taken effect."""
        self._looks.saw(writes, fence)

    def _die(self) -> None:
        self.stops.set()
        self.inner.kill()
        raise Crashed(f"{self.wrong} write {self.writes} (a fault of the chaos)")

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> Sequence[Record]:
        return await self.inner.read(stream, after, limit)

    async def last(self, stream: str) -> int:
        return await self.inner.last(stream)

    async def announce(self, about: bytes) -> None:
        await self.inner.announce(about)

    async def present(self) -> Sequence[PresentProcess]:
        return await self.inner.present()

    def follow(self, stream: str, after: int = 0) -> AbstractAsyncContextManager[Records]:
        return self.inner.follow(stream, after)

    async def get(self, key: str) -> Row | None:
        return await self.inner.get(key)

    async def keys(self, prefix: str) -> Sequence[Row]:
        return await self.inner.keys(prefix)

    def watch(self, prefix: str) -> AbstractAsyncContextManager[Changes]:
        return self.inner.watch(prefix)

    async def put_blob(self, data: bytes) -> str:
        return await self.inner.put_blob(data)

    async def get_blob(self, digest: str) -> bytes:
        return await self.inner.get_blob(digest)

    async def acquire(self, lease_name: str) -> Lease | LeaseHolder:
        return await self.inner.acquire(lease_name)

    async def holder(self, lease_name: str) -> LeaseHolder | None:
        return await self.inner.holder(lease_name)

    async def aclose(self) -> None:
        await self.inner.aclose()


class InlineSqlite:
    """The SQLite store without threads to be seen: each call is made whole while virtual time stands still, so that a
    seed is one run here too."""

    def __init__(self, folder: Path, portal: BlockingPortal) -> None:
        self._folder, self._portal = folder, portal
        self._store = portal.call(partial(open_store, folder, durability="process"))
        self._bells = Sleepers[Feed[Record] | Feed[Row]]()
        self._dead = False

    async def commit(self, *writes: Write, fence: Fence | None = None) -> tuple[int, ...]:
        numbers = await self._now(partial(self._store.commit, *writes, fence=fence))
        streams = [write.stream for write in writes if isinstance(write, Append)]
        keys = [write.key for write in writes if isinstance(write, Put | Delete)]
        self._ring(self._bells.sleepers_of(streams, keys))
        return numbers

    def kill(self) -> None:
        """As memory does: all later calls raise `Crashed`. The file and the leases are let go."""
        if not self._dead:
            self._dead = True
            self._portal.call(self._store.aclose)
            self._ring(self._bells.all_sleepers())

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> Sequence[Record]:
        return await self._now(partial(self._store.read, stream, after, limit))

    async def last(self, stream: str) -> int:
        return await self._now(partial(self._store.last, stream))

    async def get(self, key: str) -> Row | None:
        return await self._now(partial(self._store.get, key))

    async def keys(self, prefix: str) -> Sequence[Row]:
        return await self._now(partial(self._store.keys, prefix))

    async def put_blob(self, data: bytes) -> str:
        return await self._now(partial(self._store.put_blob, data))

    async def get_blob(self, digest: str) -> bytes:
        return await self._now(partial(self._store.get_blob, digest))

    async def acquire(self, lease_name: str) -> Lease | LeaseHolder:
        return await self._now(partial(self._store.acquire, lease_name))

    async def holder(self, lease_name: str) -> LeaseHolder | None:
        return await self._now(partial(self._store.holder, lease_name))

    async def aclose(self) -> None:
        await checkpoint()
        self.kill()

    @asynccontextmanager
    async def follow(self, stream: str, after: int = 0) -> AsyncGenerator[Records]:
        async def fetch(position: int) -> tuple[Sequence[Record], int]:
            records = await self.read(stream, position)
            return records, records[-1].seq if records else position

        feed = Feed(fetch, after)
        self._bells.add(feed, stream=stream)
        try:
            yield feed
        finally:
            self._bells.remove(feed)

    @asynccontextmanager
    async def watch(self, prefix: str) -> AsyncGenerator[Changes]:
        seen: dict[str, int] = {}

        async def fetch(position: int) -> tuple[Sequence[Row], int]:
            newer = [row for row in await self.keys(prefix) if row.revision > seen.get(row.key, 0)]
            seen.update({row.key: row.revision for row in newer})
            return newer, position

        feed = Feed(fetch, 0)
        self._bells.add(feed, prefix=prefix)
        try:
            yield feed
        finally:
            self._bells.remove(feed)

    async def _now(self, call: Callable[[], Awaitable[T]]) -> T:
        await checkpoint()
        if self._dead:
            raise Crashed("this store was killed")
        return self._portal.call(call)

    def _ring(self, feeds: set[Feed[Record] | Feed[Row]]) -> None:
        for feed in feeds:
            feed.ring()


class Disk:
    """What the processes of a run leave to each other; each opens it anew."""

    def __init__(self) -> None:
        self._memory: MemoryStore | None = MemoryStore()
        self._folder, self._portal = Path(), None
        self._open: Inner | None = None

    @classmethod
    @asynccontextmanager
    async def made(cls, *, sqlite: bool) -> AsyncGenerator[Disk]:
        """In memory, or in a folder of its own on SQLite."""
        disk = cls()
        async with AsyncExitStack() as stack:
            if sqlite:
                disk._memory = None
                disk._folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                disk._portal = stack.enter_context(start_blocking_portal())
            try:
                yield disk
            finally:
                if disk._open is not None:
                    disk._open.kill()

    @property
    def shared(self) -> bool:
        """Two processes of this run can have it open at once."""
        return self._memory is not None

    def reopened(self) -> Inner:
        """As the next process opens it: the one before is dead."""
        if self._memory is not None:
            self._open = self._memory = self._memory.reopen()
        else:
            assert self._portal is not None, "made by `made`"
            if self._open is not None:
                self._open.kill()
            self._open = InlineSqlite(self._folder, self._portal)
        return self._open

    def joined(self) -> Inner:
        """As a process of another host opens it, which leaves those of the other hosts alone."""
        assert self._memory is not None, "only a store that is shared"
        return self._memory.second_store()

    def beside(self, lease: Lease | None) -> Inner:
        """As a second process opens it that takes the lease of one which does not answer any more."""
        assert self._memory is not None, "only a store that is shared"
        assert isinstance(lease, MemoryLease), "of the store in memory"
        lease.drop()
        self._open = self._memory = self._memory.second_store()
        return self._open
