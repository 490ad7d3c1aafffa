"""The in-memory store: the twin of the SQLite one, for tests and simulation. It keeps nothing after the process.

It runs on any event loop, without threads, files or clocks, so a simulated run is decided by its seed alone. It can be
killed at any write (`crash_after`), and its contents opened again by `reopen`, as a new process would. It refuses to be
used from several threads: it has no lock.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Literal

from anyio.lowlevel import checkpoint

from callboard.adapters.feed import Bells, Feed
from callboard.ports.store import Append, Changes, Delete, Fence, Lease, LeaseHolder, Put, Record, Row, Write
from callboard.words.errors import Conflict, Fenced, StoreDamaged, StoreFull

CrashPoint = Literal["before", "after"]


class Crashed(BaseException):
    """The simulated death of the process: like a kill, it passes every `except Exception` on its way out."""


@dataclass
class _Contents:
    """What a disk would hold, and who is attached to it."""

    streams: dict[str, list[Record]] = field(default_factory=dict[str, list[Record]])
    ids: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    rows: dict[str, Row] = field(default_factory=dict[str, Row])
    """By key; a deleted key stays, without a value, so that watchers hear of it."""
    blobs: dict[str, bytes] = field(default_factory=dict[str, bytes])
    fences: dict[str, int] = field(default_factory=dict[str, int])
    revision: int = 0
    held: dict[str, MemoryLease] = field(default_factory=dict[str, "MemoryLease"])
    bells: Bells[Feed[Record] | Feed[Row]] = field(default_factory=Bells[Feed[Record] | Feed[Row]])
    opened: int = 0


@dataclass
class _Draft:
    """What one commit would change, beside the contents until it is whole."""

    contents: _Contents
    streams: dict[str, list[Record]] = field(default_factory=dict[str, list[Record]])
    ids: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    rows: dict[str, Row] = field(default_factory=dict[str, Row])

    def write(self, write: Write) -> int:
        match write:
            case Append():
                return self._append(write)
            case Put():
                return self._set(write.key, bytes(write.value), write.expected)
            case Delete():
                self._set(write.key, None, write.expected)
                return 0

    def merge(self) -> None:
        for stream, records in self.streams.items():
            self.contents.streams.setdefault(stream, []).extend(records)
        self.contents.ids |= self.ids
        for key, row in self.rows.items():  # the newest stand last, so that a watcher walks only what is new
            self.contents.rows.pop(key, None)
            self.contents.rows[key] = row
        self.contents.revision += bool(self.rows)

    def _append(self, write: Append) -> int:
        name = (write.stream, write.id or "")
        seen = self.ids.get(name) or self.contents.ids.get(name)
        if write.id is not None and seen is not None:
            return seen
        drafted = self.streams.setdefault(write.stream, [])
        last = len(self.contents.streams.get(write.stream, [])) + len(drafted)
        if write.expected is not None and write.expected != last:
            raise Conflict(write.stream, write.expected, last)
        drafted.append(Record(last + 1, bytes(write.record)))
        if write.id is not None:
            self.ids[name] = last + 1
        return last + 1

    def _set(self, key: str, value: bytes | None, expected: int | None) -> int:
        row = self.rows.get(key) or self.contents.rows.get(key)
        found = row.revision if row is not None and row.value is not None else 0
        if expected is not None and expected != found:
            raise Conflict(key, expected, found)
        revision = self.contents.revision + 1
        if value is not None or found:
            self.rows[key] = Row(key, value, revision)
        return revision


@dataclass(eq=False)
class MemoryLease(Lease):
    """A lease that dies with its store."""

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
    """A `Store` in memory. `crash_after=N` kills it at its Nth write, before or after that write took effect.

    Commits, new blobs and taken leases count as writes (`writes` says how many there were). A killed store raises
    `Crashed` from every call. While `full` is set, every write raises `StoreFull`, as on a disk without room.
    """

    def __init__(self, *, crash_after: int | None = None, crash_point: CrashPoint = "before") -> None:
        self.writes = 0
        self.full = False
        self._crash_after, self._crash_point = crash_after, crash_point
        self._attach(_Contents())

    @property
    def dead(self) -> bool:
        """Whether it was killed, by its fault or by `reopen`."""
        return self._dead

    def reopen(self, *, crash_after: int | None = None, crash_point: CrashPoint = "before") -> MemoryStore:
        """Kill this store and open its contents anew, as the next process would; its leases are free."""
        self.kill()
        return self._another(crash_after, crash_point)

    def beside(self, *, crash_after: int | None = None, crash_point: CrashPoint = "before") -> MemoryStore:
        """A second store on the same contents, as another process that attaches at the same time."""
        return self._another(crash_after, crash_point)

    def kill(self) -> None:
        """Die now: leases are freed, followers and all later calls raise `Crashed`."""
        self._dead = True
        self._drop_leases()
        for feed in self._feeds:
            feed.ring()

    async def commit(self, *writes: Write, fence: Fence | None = None) -> tuple[int, ...]:
        await self._enter()
        draft = _Draft(self._contents)
        if fence is not None and self._contents.fences.get(fence.lease, 0) != fence.number:
            raise Fenced(f"lease {fence.lease} has a newer holder than number {fence.number}: this process must stop")
        numbers = tuple(draft.write(write) for write in writes)
        self._write(draft.merge)
        streams = [name for name, records in draft.streams.items() if records]
        for feed in self._contents.bells.touched(streams, draft.rows):
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
        return len(self._contents.streams.get(stream, []))

    @asynccontextmanager
    async def follow(self, stream: str, after: int = 0) -> AsyncGenerator[AsyncIterator[Record], None]:
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
            new = takewhile(lambda row: row.revision > position, reversed(self._contents.rows.values()))
            rows = [row for row in new if row.key.startswith(prefix)]
            newer = sorted(rows, key=lambda row: (row.revision, row.key))
            if position == 0:  # the first look: what there is, and nothing of what there was
                there = sorted((row for row in newer if row.value is not None), key=lambda row: row.key)
                return there, max((row.revision for row in rows), default=0)
            return newer, newer[-1].revision if newer else position

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
            raise StoreDamaged(f"blob {digest} no longer fits its digest")
        return data

    async def acquire(self, lease_name: str) -> Lease | LeaseHolder:
        await self._enter()
        if (held := self._contents.held.get(lease_name)) is not None:
            return held.by
        number = self._contents.fences.get(lease_name, 0) + 1
        taken = MemoryLease(self._contents.held, LeaseHolder(self._pid, 0.0), Fence(lease_name, number))
        self._write(lambda: self._contents.fences.__setitem__(lease_name, number))
        self._contents.held[lease_name] = taken
        self._leases.append(taken)
        self._crash("after")
        return taken

    async def holder(self, lease_name: str) -> LeaseHolder | None:
        await self._enter()
        held = self._contents.held.get(lease_name)
        return None if held is None else held.by

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
        for lease in self._leases:
            lease.drop()

    @contextmanager
    def _feeding(
        self, feed: Feed[Record] | Feed[Row], *, stream: str | None = None, prefix: str | None = None
    ) -> Generator[None, None, None]:
        if self._closed:
            raise RuntimeError("the store is closed")
        self._feeds.add(feed)
        self._contents.bells.hang(feed, stream=stream, prefix=prefix)
        try:
            yield
        finally:
            self._feeds.discard(feed)
            self._contents.bells.remove(feed)
