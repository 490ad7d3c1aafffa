"""In-memory store, the twin of the SQLite store for tests and simulation. Its contents end with the process.

It runs on any event loop, without threads, files or clocks, so a simulated run depends only on its seed. It can be
killed at any write (`crash_after`), and `reopen` opens its contents again, as a new process would. It has no lock and
refuses to be used from several threads.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import field
from functools import partial
from itertools import takewhile
from typing import Literal

from anyio.lowlevel import checkpoint

from callboard.adapters.storage.draft import CommitDraft, StateTables
from callboard.adapters.storage.feed import Feed, Sleepers
from callboard.ports.store import (
    Changes,
    Fence,
    Lease,
    LeaseHolder,
    PresentProcess,
    Record,
    Records,
    Row,
    Write,
)
from callboard.types.errors import StoreDamaged, StoreFull
from callboard.types.lazy_dataclass import dataclass

CrashPoint = Literal["before", "after"]


class Crashed(BaseException):
    """Simulated death of the process. Like a kill, it passes every `except Exception`."""


@dataclass
class _Contents(StateTables):
    """Contents that a disk would have, and the attached stores."""

    streams: dict[str, list[Record]] = field(default_factory=dict[str, list[Record]])
    changed: dict[str, int] = field(default_factory=dict[str, int])
    """Key -> number of the commit that changed its row."""
    blobs: dict[str, bytes] = field(default_factory=dict[str, bytes])
    commits: int = 0
    """Number of commits that changed rows."""
    held: dict[str, MemoryLease] = field(default_factory=dict[str, "MemoryLease"])
    bells: Sleepers[Feed[Record] | Feed[Row]] = field(default_factory=Sleepers[Feed[Record] | Feed[Row]])
    opened: int = 0
    announced: dict[int, bytes] = field(default_factory=dict[int, bytes])
    """Statement of each open store that has made one, by its pid."""

    def last(self, stream: str) -> int:
        return len(self.streams.get(stream, []))

    def merge(self, draft: CommitDraft) -> None:
        for stream, records in draft.records.items():
            self.streams.setdefault(stream, []).extend(Record(seq, data) for seq, data, _ in records)
            self.ids.update({(stream, record_id): seq for seq, _, record_id in records if record_id is not None})
        self.commits += bool(draft.rows)
        for key, row in draft.rows.items():  # the newest come last, so that a watcher reads only new rows
            self.rows.pop(key, None)
            self.rows[key] = row
            self.changed[key] = self.commits


@dataclass(eq=False)
class MemoryLease(Lease):
    """A lease that ends with its store."""

    held: dict[str, MemoryLease]
    by: LeaseHolder
    proof: Fence

    @property
    def fence(self) -> Fence:
        return self.proof

    async def release(self) -> None:
        await checkpoint()
        self.drop()

    def drop(self) -> None:
        if self.held.get(self.proof.lease) is self:
            del self.held[self.proof.lease]


class MemoryStore:
    """Store in memory. `crash_after=N` kills it at its Nth write, before or after that write took effect.

    Commits, new blobs and taken leases count as writes (`writes` is their number). A killed store raises `Crashed` from
    every call. While `full` is set, every write raises `StoreFull`, as on a full disk.
    """

    def __init__(self, *, crash_after: int | None = None, crash_point: CrashPoint = "before") -> None:
        self.writes = 0
        self.full = False
        self._crash_after = crash_after
        self._crash_point = crash_point
        self._attach(_Contents())

    @property
    def dead(self) -> bool:
        """Return True if the store was killed, by its fault or by `reopen`."""
        return self._dead

    def reopen(self, *, crash_after: int | None = None, crash_point: CrashPoint = "before") -> MemoryStore:
        """Kill this store and open its contents again, as the next process would; its leases are free."""
        self.kill()
        return self._another(crash_after, crash_point)

    def second_store(self, *, crash_after: int | None = None, crash_point: CrashPoint = "before") -> MemoryStore:
        """Return a second store on the same contents, like another process that attaches at the same time."""
        return self._another(crash_after, crash_point)

    def kill(self) -> None:
        """Kill the store now: leases are freed; followers and all later calls raise `Crashed`."""
        self._dead = True
        self._drop_leases()
        for feed in self._feeds:
            feed.ring()

    async def commit(self, *writes: Write, fence: Fence | None = None) -> tuple[int, ...]:
        await self._enter()
        draft = CommitDraft(self._contents)
        numbers = draft.commit(writes, fence)
        self._write(partial(self._contents.merge, draft))
        for feed in self._contents.bells.sleepers_of(draft.records, draft.rows):
            feed.ring()
        self._crash("after")
        return numbers

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> Sequence[Record]:
        await self._enter()
        records = self._contents.streams.get(stream, [])
        after = max(after, 0)
        return records[after : None if limit is None else after + max(limit, 0)]

    async def last(self, stream: str) -> int:
        await self._enter()
        return self._contents.last(stream)

    @asynccontextmanager
    async def follow(self, stream: str, after: int = 0) -> AsyncGenerator[Records, None]:
        async def fetch(position: int) -> tuple[Sequence[Record], int]:
            records = await self.read(stream, position)
            return records, records[-1].seq if records else position

        feed = Feed(fetch, after)
        with self._feeding(feed, stream=stream):
            yield feed

    async def get(self, key: str) -> Row | None:
        await self._enter()
        row = self._contents.rows.get(key)
        return row if row is not None and row.value is not None else None

    async def keys(self, prefix: str) -> Sequence[Row]:
        await self._enter()
        rows = self._contents.rows
        return [rows[key] for key in sorted(rows) if key.startswith(prefix) and rows[key].value is not None]

    @asynccontextmanager
    async def watch(self, prefix: str) -> AsyncGenerator[Changes, None]:
        async def fetch(position: int) -> tuple[Sequence[Row], int]:
            await self._enter()
            changed = self._contents.changed
            reached = self._contents.commits
            new = takewhile(lambda row: changed[row.key] > position, reversed(self._contents.rows.values()))
            rows = [row for row in new if row.key.startswith(prefix)]
            if position == 0:  # the first check: existing rows, no deleted ones
                return sorted((row for row in rows if row.value is not None), key=lambda row: row.key), reached
            return sorted(rows, key=lambda row: (changed[row.key], row.key)), reached

        feed = Feed(fetch, 0)
        with self._feeding(feed, prefix=prefix):
            yield feed

    async def put_blob(self, data: bytes) -> str:
        await self._enter()
        digest = hashlib.sha256(data).hexdigest()
        if digest not in self._contents.blobs:
            self._write(lambda: self._contents.blobs.__setitem__(digest, bytes(data)))
            self._crash("after")
        return digest

    async def get_blob(self, digest: str) -> bytes:
        await self._enter()
        data = self._contents.blobs[digest]
        if hashlib.sha256(data).hexdigest() != digest:
            raise StoreDamaged(f"blob {digest} no longer matches its digest")
        return data

    async def acquire(self, lease_name: str) -> Lease | LeaseHolder:
        await self._enter()
        if (held := self._contents.held.get(lease_name)) is not None:
            return held.by
        number = self._contents.fences.get(lease_name, 0) + 1
        lease = MemoryLease(self._contents.held, LeaseHolder(self._pid, 0.0), Fence(lease_name, number))
        self._write(lambda: self._contents.fences.__setitem__(lease_name, number))
        self._contents.held[lease_name] = lease
        self._leases.append(lease)
        self._crash("after")
        return lease

    async def holder(self, lease_name: str) -> LeaseHolder | None:
        await self._enter()
        held = self._contents.held.get(lease_name)
        return None if held is None else held.by

    async def announce(self, about: bytes) -> None:
        await self._enter()
        self._contents.announced[self._pid] = about

    async def present(self) -> Sequence[PresentProcess]:
        await self._enter()
        leases: dict[int, list[str]] = {pid: [] for pid in self._contents.announced}
        for name, held in self._contents.held.items():
            leases.setdefault(held.by.pid, []).append(name)
        about = self._contents.announced
        return [
            PresentProcess(LeaseHolder(pid, 0.0), "memory", about=about.get(pid, b""), leases=tuple(sorted(names)))
            for pid, names in sorted(leases.items())
        ]

    async def aclose(self) -> None:
        await checkpoint()
        self._closed = True
        self._drop_leases()
        for feed in self._feeds:
            feed.end()

    def _attach(self, contents: _Contents) -> None:
        contents.opened += 1
        self._contents = contents
        self._pid = contents.opened
        self._dead = self._closed = False
        self._leases: list[MemoryLease] = []
        self._feeds: set[Feed[Record] | Feed[Row]] = set()

    def _another(self, crash_after: int | None, crash_point: CrashPoint) -> MemoryStore:
        other = MemoryStore(crash_after=crash_after, crash_point=crash_point)
        other._attach(self._contents)
        return other

    async def _enter(self) -> None:
        await checkpoint()
        if self._dead:
            raise Crashed("this store was killed: open its contents with reopen()")
        if self._closed:
            raise RuntimeError("the store is closed")

    def _write(self, effect: Callable[[], object]) -> None:
        if self.full:
            raise StoreFull("the store is full (a simulated fault): nothing was written")
        self.writes += 1
        self._crash("before")
        effect()

    def _crash(self, point: CrashPoint) -> None:
        if self.writes == self._crash_after and point == self._crash_point and not self._dead:
            self.kill()
            raise Crashed(f"killed {point} write {self.writes} took effect")

    def _drop_leases(self) -> None:
        self._contents.announced.pop(self._pid, None)
        for lease in self._leases:
            lease.drop()

    @contextmanager
    def _feeding(
        self, feed: Feed[Record] | Feed[Row], *, stream: str | None = None, prefix: str | None = None
    ) -> Generator[None, None, None]:
        if self._closed:
            raise RuntimeError("the store is closed")
        self._feeds.add(feed)
        self._contents.bells.add(feed, stream=stream, prefix=prefix)
        try:
            yield
        finally:
            self._feeds.discard(feed)
            self._contents.bells.remove(feed)
