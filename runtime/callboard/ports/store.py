"""Port of the store: five primitives under everything durable (docs/design.md, "The store").

Rules, tested for every adapter by `tests/adapters/storage/store_conformance.py`:

1. `commit` is all or nothing, and durable when it returns.
2. A stream's sequence numbers are 1, 2, 3 ... without gaps. A record whose `id` the stream already has is not appended,
   and its old number is returned: exactly-once appends for writers that can name their records.
3. `expected` (stream) is the last number, 0 for an empty stream; `expected` (key) is the revision, 0 for a missing key.
   A mismatch is `Conflict`, and nothing of the commit happens. `Expect` compares a stream and writes nothing.
4. A key's revision is 1 for its first value and rises by 1 with every put and deletion. It never falls, not even after
   a deletion. Revisions of different keys cannot be compared: nothing in the store counts across keys, because every
   commit of every host would have to wait for one counter (docs/decisions/0045-a-store-for-several-machines.md).
5. A write with a fence that is no longer the newest of its lease is `Fenced`, and nothing of the commit happens.
6. A follower sees every record once, in order, however many processes write. A watcher has a position of its own, which
   only its store understands.
7. Readers are woken after the commit that they wait for, never inside it. A wake-up carries no data and may get lost or
   arrive twice: the data is always read from the store, which is also checked once a second while a reader follows.
8. A lease belongs to one process. On one machine it ends with the process, because the kernel holds it. Across machines
   it ends with the process's connection, or when the process has been silent for longer than the store allows, by the
   clock of the store's server; a process that cannot reach the store ends its own work before that.

Streams, keys and leases are named by text (`callboard.core.keys`). Values are bytes, which the store never interprets.
Numbers of records count from 1 in each stream, revisions from 1 for each key. (SQLite stores of earlier versions
numbered the commits, so revisions in them may be larger.)

Every awaited method raises `StoreDamaged`, once for each value, if a value does not match its checksum: it is set aside
and not read again. It raises `WorkspaceUnusable` if the disk or the folder fails, and `RuntimeError` if the store is
closed, which is a bug of the caller. A method names any further exceptions.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from callboard.types.lazy_dataclass import dataclass
from callboard.types.store_writes import Append, Delete, Expect, Fence, Put, Write

__all__ = [
    "Append",
    "Changes",
    "Commit",
    "Delete",
    "Expect",
    "Fence",
    "Lease",
    "LeaseHolder",
    "PresentProcess",
    "Put",
    "Record",
    "Records",
    "Row",
    "Store",
    "Write",
]


@dataclass(frozen=True, slots=True)
class Record:
    """One entry of a stream."""

    seq: int
    """Number in the stream, from 1, without gaps."""
    data: bytes
    """The appended bytes."""


@dataclass(frozen=True, slots=True)
class Row:
    """Value of one key, and the revision to compare with."""

    key: str
    value: bytes | None
    """None in a `watch` if the key was deleted; never None from `get` and `keys`."""
    revision: int
    """Revision that a `Put` or `Delete` must expect; 0 for a missing key."""


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """Process that holds a lease."""

    pid: int
    started: float
    """Start time in clock ticks since boot. It distinguishes the process from a later one with the same pid."""
    machine: str = ""
    """Name of the machine of a process that this one cannot see; empty for a process of this machine."""


@dataclass(frozen=True, slots=True)
class PresentProcess:
    """Process that holds a lease of the store, or has announced itself."""

    holder: LeaseHolder
    machine: str
    """Name of its machine, also if that is this one."""
    silent: float = 0.0
    """Seconds since its last sign of life, by the store's clock; 0 on one machine, where the kernel tells its end."""
    about: bytes = b""
    """Its own statement (`Store.announce`); empty if it has made none."""
    leases: tuple[str, ...] = ()
    """Names of the leases that it holds, sorted."""


class Commit(Protocol):
    """`Store.commit` with a fence or a condition of the caller's own."""

    async def __call__(self, *writes: Write) -> tuple[int, ...]: ...


class Lease(Protocol):
    """Held lease. Released by `release` or by the death of the process; on one machine never by a clock (rule 8)."""

    @property
    def fence(self) -> Fence:
        """Return the fence for writes under this lease.

        The next holder's number is higher; writes with this one are then `Fenced`.
        """
        ...

    async def release(self) -> None:
        """Release the lease, so that another process can acquire it. Idempotent; raises nothing."""
        ...


class Changes(Protocol):
    """Changed rows, as an async iterator."""

    def __aiter__(self) -> AsyncIterator[Row]: ...

    async def __anext__(self) -> Row: ...

    def at_hand(self) -> Sequence[Row]:
        """Return, without waiting, the rows that were read together with the last one.

        With them every commit is complete.
        """
        ...

    async def existing(self) -> Sequence[Row]:
        """Return the rows that exist now, without waiting for a change; none if there are none.

        Call it before the iteration, which then yields only what changes from here on.
        """
        ...


class Records(Protocol):
    """New records, as an async iterator."""

    def __aiter__(self) -> AsyncIterator[Record]: ...

    async def __anext__(self) -> Record: ...

    def at_hand(self) -> Sequence[Record]:
        """Return, without waiting, the records that were read together with the last one."""
        ...


class Store(Protocol):
    """Durable storage. Thread-safe within a process; any number of processes share one store."""

    async def commit(self, *writes: Write, fence: Fence | None = None) -> tuple[int, ...]:
        """Perform all writes or none.

        Return one number for each, in order: the seq of an append (the old one if its id exists), the revision of a
        put, 0 for a delete or an expectation. Without writes, do nothing.

        Raises `Conflict` (its `what` names the stream or key with an unexpected state), `Fenced`, and `StoreFull` for a
        full disk or a quota; in each case nothing was written.

        Cancelling the caller does not undo a commit that was handed over: shield it if that matters.
        """
        ...

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> Sequence[Record]:
        """Return the records after number `after`, in order, at most `limit` (None: all); none for a missing stream.

        A damaged record that was set aside is left out: its number is missing.
        """
        ...

    async def last(self, stream: str) -> int:
        """Return the last sequence number, 0 for an empty stream."""
        ...

    def follow(self, stream: str, after: int = 0) -> AbstractAsyncContextManager[Records]:
        """Yield every record after number `after`: the existing ones, then each new one, without polling.

        Ends when the store is closed. A record that was set aside is left out, as in `read`.
        """
        ...

    async def get(self, key: str) -> Row | None:
        """Return the row of this key, or None."""
        ...

    async def keys(self, prefix: str) -> Sequence[Row]:
        """Return all rows whose key begins with `prefix`, sorted by key."""
        ...

    def watch(self, prefix: str) -> AbstractAsyncContextManager[Changes]:
        """Yield the rows whose key begins with `prefix`, then each change of one, including deletions.

        Of several changes of a key in quick succession only the newest may appear. Ends when the store is closed.
        """
        ...

    async def put_blob(self, data: bytes) -> str:
        """Store bytes by content and return the digest (sha256, 64 hex digits).

        Durable when it returns. Idempotent. Raises `StoreFull`.
        """
        ...

    async def get_blob(self, digest: str) -> bytes:
        """Return the bytes of a digest. Raises `KeyError` for an unknown digest."""
        ...

    async def acquire(self, lease_name: str) -> Lease | LeaseHolder:
        """Acquire the lease, or return its current holder at once, without waiting.

        The lease of a dead process is free.
        """
        ...

    async def holder(self, lease_name: str) -> LeaseHolder | None:
        """Return the process that holds the lease now; None if no living process does."""
        ...

    async def announce(self, about: bytes) -> None:
        """Let `present` show these bytes for this process until the store is closed. They replace earlier ones."""
        ...

    async def present(self) -> Sequence[PresentProcess]:
        """Return the living processes that hold a lease or have announced themselves, by machine and pid."""
        ...

    async def aclose(self) -> None:
        """Finish accepted writes, end followers, release leases, and close. Idempotent."""
        ...
