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

Streams, keys and leases are named by text (`callboard.core.names`); what is kept is bytes, whole and unread. Numbers of
records count from 1 in each stream; revisions are numbers of commits, so they rise over all keys together.

Every method that is awaited raises `StoreDamaged` when what it wants no longer fits its checksum, once for each: it is
set aside and read no more. It raises `WorkspaceUnusable` when the disk or the folder fails it, and `RuntimeError` when
the store is closed, which is a bug of the caller. A method names what it raises beside these.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from callboard.words.writes import Append, Delete, Fence, Put, Write

__all__ = ["Append", "Changes", "Delete", "Fence", "Lease", "LeaseHolder", "Put", "Record", "Row", "Store", "Write"]


@dataclass(frozen=True, slots=True)
class Record:
    """One entry of a stream."""

    seq: int
    """Its number in the stream, from 1, without gaps."""
    data: bytes
    """As it was appended."""


@dataclass(frozen=True, slots=True)
class Row:
    """One key's value, and the revision to compare with."""

    key: str
    value: bytes | None
    """None in a `watch`, when the key was deleted; never None from `get` and `keys`."""
    revision: int
    """What a `Put` or `Delete` must expect; 0 stands for no such key."""


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """The process that holds a lease."""

    pid: int
    started: float
    """Its start time, in clock ticks since boot: another process that got its id later has another one."""


class Lease(Protocol):
    """A held lease. Released by `release`, or by the death of the process: never by a clock on one machine."""

    @property
    def fence(self) -> Fence:
        """What writes under this lease carry; the next holder's is higher, and these are then `Fenced`."""
        ...

    async def release(self) -> None:
        """Give it back: anybody may take it now. Idempotent; raises nothing."""
        ...


class Changes(Protocol):
    """Rows as they change: an async iterator of one after the other."""

    def __aiter__(self) -> AsyncIterator[Row]: ...

    async def __anext__(self) -> Row: ...

    def at_hand(self) -> Sequence[Row]:
        """Those that were found together with the last one, taken without waiting: with them every commit is whole."""
        ...


class Store(Protocol):
    """Everything durable. Thread-safe towards its own process; any number of processes share one store."""

    async def commit(self, *writes: Write, fence: Fence | None = None) -> tuple[int, ...]:
        """Do all writes or none; one number for each, in their order: the seq of an append (the old one, where its id
        was seen), the revision of a put, 0 of a delete. Without any write: nothing, and no number.

        Raises `Conflict` (its `what` names the stream or key that was not as expected), `Fenced`, and `StoreFull` for
        a full disk or a quota; in each case nothing happened.
        Cancelling the caller does not undo a commit that was handed over: shield it where that matters.
        """
        ...

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> Sequence[Record]:
        """The records after number `after`, in order, at most `limit` (None: all); none of a stream that is not there.

        A record that was damaged and set aside is left out: its number is missing.
        """
        ...

    async def last(self, stream: str) -> int:
        """The last sequence number, 0 for an empty stream."""
        ...

    def follow(self, stream: str, after: int = 0) -> AbstractAsyncContextManager[AsyncIterator[Record]]:
        """Every record after number `after`: those there are, then each that comes, woken and not polled.

        It ends when the store is closed. A record that was set aside is left out, as by `read`.
        """
        ...

    async def get(self, key: str) -> Row | None:
        """The row of this key, None without one."""
        ...

    async def keys(self, prefix: str) -> Sequence[Row]:
        """All rows whose key begins with `prefix`, sorted by key."""
        ...

    def watch(self, prefix: str) -> AbstractAsyncContextManager[Changes]:
        """The rows whose key begins with `prefix`, then each change of one, deletions included.

        Of several changes of a key in a row only the newest may be seen. It ends when the store is closed.
        """
        ...

    async def put_blob(self, data: bytes) -> str:
        """Keep bytes by content; the digest (sha256, 64 hex digits) gets them back. Durable when it returns.

        Idempotent. Raises `StoreFull`.
        """
        ...

    async def get_blob(self, digest: str) -> bytes:
        """The bytes. Raises `KeyError` for a digest that is not kept."""
        ...

    async def acquire(self, lease_name: str) -> Lease | LeaseHolder:
        """Take the lease, or tell at once who holds it, without waiting. One of a dead process is free."""
        ...

    async def holder(self, lease_name: str) -> LeaseHolder | None:
        """Who holds the lease now; None when nobody alive does."""
        ...

    async def aclose(self) -> None:
        """Finish what was handed over, end followers, give back leases, close. Idempotent."""
        ...
