"""The store: five primitives on which everything durable is written (docs/design.md, "The store").

Laws, held by `tests/adapters/store_conformance.py` for every adapter:

1. `commit` is all or nothing, and durable when it returns.
2. A stream's sequence numbers are 1, 2, 3 ... without gaps. A record whose `id` the stream has seen appends nothing,
   and its old number comes back: exactly-once appends for whoever can name what he appends.
3. `expected` (stream) is the last number, 0 for an empty stream; `expected` (key) is the revision, 0 for no such key.
   A mismatch is `Conflict`, and nothing of the commit happened.
4. A key's revision rises with every put, and never falls, also over deletion: it is the number of the commit.
5. A write with a fence that is no longer the newest of its lease is `Fenced`, and nothing of the commit happened.
6. A follower sees every record once, in order, however many processes write.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from callboard.words.writes import Append, Delete, Fence, Put, Write

__all__ = ["Append", "Delete", "Fence", "Lease", "LeaseHolder", "Put", "Record", "Row", "Store", "Write"]


@dataclass(frozen=True, slots=True)
class Record:
    """One entry of a stream. `seq` counts from 1."""

    seq: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Row:
    """One key's value and the revision to compare with. `value` is None in a `watch` when the key was deleted."""

    key: str
    value: bytes | None
    revision: int


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """Who holds a lease: process id, and its start time in clock ticks since boot (against pid reuse)."""

    pid: int
    started: float


class Lease(Protocol):
    """A held lease. Released by `release`, or by the death of the process: never by a clock on one machine."""

    @property
    def fence(self) -> Fence:
        """The number that writes under this lease carry."""
        ...

    async def release(self) -> None:
        """Give it back. Idempotent."""
        ...


class Store(Protocol):
    """Everything durable. Thread-safe towards its own process; any number of processes share one store."""

    async def commit(self, *writes: Write, fence: Fence | None = None) -> tuple[int, ...]:
        """Do all writes or none; one number for each: the seq of an append, the revision of a put, 0 of a delete.

        Raises `Conflict`, `Fenced`, `StoreFull` (nothing happened in each case), `StoreDamaged`.
        Cancelling the caller does not undo a commit that was handed over: shield it where that matters.
        """
        ...

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> Sequence[Record]:
        """The records after number `after`, in order, at most `limit`."""
        ...

    async def last(self, stream: str) -> int:
        """The last sequence number, 0 for an empty stream."""
        ...

    def follow(self, stream: str, after: int = 0) -> AbstractAsyncContextManager[AsyncIterator[Record]]:
        """Every record after `after`, those there are and those to come, without busy polling."""
        ...

    async def get(self, key: str) -> Row | None: ...

    async def keys(self, prefix: str) -> Sequence[Row]:
        """All rows whose key begins with `prefix`, sorted by key."""
        ...

    def watch(self, prefix: str) -> AbstractAsyncContextManager[AsyncIterator[Row]]:
        """The rows there are, then each change of one (`value=None`: deleted). A burst may coalesce to the newest."""
        ...

    async def put_blob(self, data: bytes) -> str:
        """Keep bytes by content; the digest (sha256, hex) gets them back. Durable when it returns; idempotent."""
        ...

    async def get_blob(self, digest: str) -> bytes:
        """The bytes. Raises `KeyError` for an unknown digest, `StoreDamaged` when they no longer fit it."""
        ...

    async def acquire(self, lease_name: str) -> Lease | LeaseHolder:
        """Take the lease, or tell at once who holds it. Held by a dead process means free."""
        ...

    async def holder(self, lease_name: str) -> LeaseHolder | None:
        """Who holds the lease now, if anyone alive does."""
        ...

    async def aclose(self) -> None:
        """Finish what was handed over, end followers, close. Idempotent."""
        ...
