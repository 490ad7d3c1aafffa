"""The SQLite store: implements `callboard.ports.store` with the other modules of this package.

Callers may run in any event loop and any thread of the process that opened the store; a forked child may not use it.

A blob is a file next to the database, named by its content, because tens of megabytes should not pass through the log
and its lock. It is written under a temporary name, made durable and then renamed, so an existing blob is complete. A
blob that no longer matches its name is set aside when it is read.

A lease is a file lock for as long as the process lives, and a number that increases with every holder. The kernel frees
the lock when the process dies for any reason; no clock is used. The lock is not inherited: an executed program has the
descriptor closed, and a forked child closes it at once. All probing happens inside a write transaction of the store, so
that a process that looks up the holder of a lease never appears to be a holder.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar
from weakref import WeakMethod

import anyio
import apsw
from anyio import to_thread
from anyio.lowlevel import checkpoint, checkpoint_if_cancelled

from callboard.adapters.kernel.process_table import row_of
from callboard.adapters.storage.durable import DamageReport, DurableStore
from callboard.adapters.storage.feed import Doorbell, DurableFeeds
from callboard.adapters.storage.patience import Patience, Tell, with_room
from callboard.adapters.storage.sqlite import opening, statements
from callboard.adapters.storage.sqlite.faults import translate_error
from callboard.adapters.storage.sqlite.place import erase_blobs, get_blob, open_lock, put_blob, try_lock
from callboard.adapters.storage.sqlite.schema import VERSION, connect
from callboard.adapters.storage.sqlite.statements import Transaction, next_fence
from callboard.adapters.storage.sqlite.writer import Hooks, WriteLock, Writer
from callboard.adapters.storage.threads import Readers, Workers
from callboard.ports.store import Changes, Fence, Lease, LeaseHolder, PresentProcess, Record, Records, Row, Write
from callboard.types.errors import StoreDamaged, ValueDamaged, heart_of
from callboard.types.lazy_dataclass import dataclass

T = TypeVar("T")

Durability = Literal["full", "process"]
"""`full` survives a power cut. `process` survives only the death of processes; a commit takes a third of the time."""

READERS = 2
WRITERS_OF_FILES = 4
"""Threads that write blobs and other files: several, so that their syncs share the turns of a slow disk."""


async def open_store(folder: Path, *, durability: Durability = "full", notice: Tell | None = None) -> SqliteStore:
    """Open the store in `folder`, creating it (0700) if it does not exist, and check it.

    `damage` reports data that was set aside. Raises `WorkspaceUnusable` (of another user, read-only, a network file
    system, a newer schema), `StoreFull`, and `StoreDamaged` if the database cannot be used: it is then kept under
    another name, which the message contains.

    `notice` is called from another thread with the reason for a wait of the opening, or of a write without a host.
    Cancelling ends the wait.
    """
    opened: opening.OpenFolder | None = None
    patience = Patience(notice)
    work = partial(opening.open_folder, Path(folder), durable=durability == "full", patience=patience)
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(_close_at_cancel, patience)
            opened = await to_thread.run_sync(work)
            group.cancel_scope.cancel()
    except BaseExceptionGroup as failed:
        await checkpoint_if_cancelled()  # the end of a cancelled wait is not a fault of the store
        raise heart_of(failed) from failed
    assert opened is not None, "the group ended without an error"
    return SqliteStore(opened, Patience(notice))  # the opening's own `Patience` ended with the group


async def _close_at_cancel(patience: Patience) -> None:
    try:
        await anyio.sleep_forever()
    finally:
        patience.close()


class SqliteStore(DurableStore):
    """Store in one folder of this machine, created by `open_store`."""

    def __init__(self, opened: opening.OpenFolder, patience: Patience) -> None:
        self._opened = opened
        self._folder = opened.folder
        self._durable = opened.durable
        self._damage = opened.damage
        self._pid = os.getpid()
        self._closed = False
        self._feeds = DurableFeeds()
        self._leases: list[HeldLease] = []
        self._announced: HeldLease | None = None
        self.patience = patience
        """Waiting rules of writes for a full disk or a lock; a host of sessions makes waits unlimited."""
        self._synced: set[str] = set()
        """Digests of the blobs whose folders this process has synced, and the names of synced folders. The blobs may be
        damaged or missing since."""
        self._looked = statements.LookedChanges()
        hooks = Hooks(self._committed, self._others_changed, self.patience)
        self._writer = Writer(opened.folder, opened.connection, WriteLock(opened.write_lock), hooks)
        self._readers = Readers(partial(connect, opened.folder, durable=opened.durable, reading=True), READERS)
        self._files = Workers("files", WRITERS_OF_FILES, shielded=True)
        self._doorbell = Doorbell(opened.folder / "run", self._feeds.handle_ring, self._writer.look)
        # A fork copies the descriptors, and a file lock lasts as long as any copy, so the child closes its copies at
        # once (test_a_lease_is_free_when_its_process_was_killed_though_its_children_live). The hook cannot be removed
        # again, so it holds the store weakly.
        forked = WeakMethod(self._forked)
        os.register_at_fork(after_in_child=lambda: (method := forked()) and method())

    @property
    def damage(self) -> tuple[DamageReport, ...]:
        """Return all damage that was found and set aside, and is still stored.

        Damage is found at this opening, since then, or earlier.
        """
        return self._damage

    @property
    def folder(self) -> Path:
        return self._folder

    async def commit(self, *writes: Write, fence: Fence | None = None) -> tuple[int, ...]:
        self._usable()
        return await self._writer.commit(writes, fence)

    async def read(self, stream: str, after: int = 0, limit: int | None = None) -> Sequence[Record]:
        return await self._ask(lambda connection: statements.read(connection, stream, after, limit))

    async def last(self, stream: str) -> int:
        return await self._ask(lambda connection: statements.last(connection, stream))

    @asynccontextmanager
    async def follow(self, stream: str, after: int = 0) -> AsyncGenerator[Records, None]:
        async def fetch(position: int) -> tuple[Sequence[Record], int]:
            # In pages, so that a follower that starts at the beginning of a long journal does not load all of it into
            # memory.
            records = await self.read(stream, position, limit=1_000)
            return records, records[-1].seq if records else position

        self._usable()
        async with self._feeds.open(fetch, after, listen=self._doorbell.listen, stream=stream) as feed:
            yield feed

    async def get(self, key: str) -> Row | None:
        return await self._ask(lambda connection: statements.get(connection, key))

    async def keys(self, prefix: str) -> Sequence[Row]:
        return await self._ask(lambda connection: statements.keys(connection, prefix))

    @asynccontextmanager
    async def watch(self, prefix: str) -> AsyncGenerator[Changes, None]:
        async def fetch(position: int) -> tuple[Sequence[Row], int]:
            return await self._ask(lambda connection: statements.changes(connection, prefix, position))

        self._usable()
        async with self._feeds.open(fetch, 0, listen=self._doorbell.listen, prefix=prefix) as feed:
            yield feed

    async def put_blob(self, data: bytes) -> str:
        self._usable()
        return await self.patiently(
            partial(put_blob, self._folder, data, synced=self._synced if self._durable else None)
        )

    async def patiently(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, run in a thread.

        Repeat `work` while the disk is full and this process hosts sessions. Raises `StoreFull` if it hosts none. A
        cancelled caller waits for its end.
        """
        await checkpoint_if_cancelled()
        again = f"{self._folder} can be written again: nothing was lost"
        return await with_room(self.patience, partial(self._in_thread, work), again=again)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            return await self._files.do(work)
        except OSError as error:
            raise translate_error(error, self._folder) from error

    async def get_blob(self, digest: str) -> bytes:
        self._usable()
        try:
            return await to_thread.run_sync(get_blob, self._folder, digest)
        except OSError as error:
            raise translate_error(error, self._folder) from error
        except StoreDamaged:
            await self._retell()
            raise

    async def acquire(self, lease_name: str) -> Lease | LeaseHolder:
        self._usable()
        taking = LeaseAttempt(self._folder, lease_name)
        lease: HeldLease | LeaseHolder | None = None
        with anyio.CancelScope(shield=True):  # a caller that is cancelled here would hold a lease without knowing it
            lease = await self._writer.do(taking.work, taking.undo)
        assert lease is not None
        if isinstance(lease, HeldLease):
            self._leases.append(lease)
        return lease

    async def holder(self, lease_name: str) -> LeaseHolder | None:
        self._usable()
        return await self._writer.do(partial(holder, self._folder, lease_name))

    async def announce(self, about: bytes) -> None:
        self._usable()
        if self._announced is None:
            for place in range(_PLACES):
                lease = await self.acquire(f"{_ANNOUNCED}{place}")
                if isinstance(lease, HeldLease):
                    self._announced = lease
                    break
        if self._announced is not None:
            await self._writer.do(partial(_announce, self._announced, about))

    async def present(self) -> Sequence[PresentProcess]:
        self._usable()
        return await self._writer.do(partial(_present, self._folder))

    async def describe(self) -> Mapping[str, str]:
        version = apsw.sqlite_lib_version()
        files = [*self._folder.glob("callboard.db*"), *(self._folder / "blobs").rglob("*")]
        return {
            "place": str(self._folder),
            "engine": f"SQLite {version}, schema {VERSION}",
            "size": f"{sum(opening.size(path) for path in files if path.is_file()):,} bytes with blobs",
            "durability": "full" if self._durable else "process",
        }

    async def check(self) -> tuple[DamageReport, ...]:
        """Read everything, set aside values that fail their checksum, and return all damage. As slow as the disk."""
        for damage in await self._ask(lambda connection: list(opening.scan(connection))):
            await self._writer.do(opening.set_aside(damage))
        await self._retell()
        return self._damage

    async def stored_bytes(self, names: Sequence[str]) -> int:
        return await self._ask(lambda connection: statements.stored_bytes(connection, names))

    async def erase_streams(self, streams: Sequence[str]) -> None:
        self._usable()
        while await self._writer.do(lambda transaction: statements.erase_records(transaction.connection, streams)):
            pass

    async def erase_keys(self, keys: Sequence[str]) -> None:
        self._usable()
        await self._writer.do(lambda transaction: statements.erase_keys(transaction.connection, keys))

    async def erase_blobs(self, unused: float) -> tuple[int, int]:
        before = time.time() - unused  # before the values are read: what is put meanwhile is newer
        named: set[str] = set()
        for table in statements.VALUE_COLUMNS:
            place = -1
            while place:
                found, place = await self._ask(partial(statements.digests_in, table=table, after=place))
                named.update(digest.decode() for digest in found)
        try:
            return await to_thread.run_sync(partial(erase_blobs, self._folder, named, before))
        except OSError as error:
            raise translate_error(error, self._folder) from error

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):
            if self._closed or os.getpid() != self._pid:
                return
            self._closed = True
            self.patience.close()
            self._feeds.close()
            await to_thread.run_sync(self._stop)

    def _stop(self) -> None:
        self._files.stop()
        self._readers.stop()
        self._writer.stop()
        self._doorbell.close()  # after the last commit, of which other processes must be notified
        for held in self._leases:  # after the last commit under these leases
            held.drop()
        opening.close_folder(self._opened)

    def _usable(self) -> None:
        if self._closed:
            raise RuntimeError("the store is closed")
        if os.getpid() != self._pid:
            raise RuntimeError("this store belongs to the process that opened it: open it again in the child")

    async def _ask(self, look: Callable[[apsw.Connection], T]) -> T:
        """Return the result of the look-up. Sets aside and reports damaged data."""
        self._usable()
        try:
            return await self._readers.do(look)
        except statements.ChecksumMismatch as damage:
            await self._writer.do(opening.set_aside(damage))
            await self._retell()
            raise ValueDamaged(
                f"{damage.what} in {self._folder} failed its checksum and was set aside (table damaged). "
                "It is no longer read; everything else is",
                damage.where,
            ) from None
        except (apsw.Error, OSError) as error:
            raise translate_error(error, self._folder) from error

    async def _retell(self) -> None:
        self._damage = await self._readers.do(lambda connection: opening.reports(connection, self._folder))

    def _committed(self, touched: statements.TransactionChanges) -> None:
        """Wake the waiting readers, here and in other processes.

        Called in the writer's thread, after each transaction.
        """
        self._feeds.wake(touched.streams, touched.keys)
        self._doorbell.ring(touched.streams, touched.keys)

    def _others_changed(self, connection: apsw.Connection) -> None:
        """Wake the readers whose streams and keys changed since the last look. Called in the writer's thread."""
        changes = self._looked.since_last_look(connection, self._feeds.streams())
        self._feeds.wake(changes.streams, changes.keys)

    def _forked(self) -> None:
        """Release the parent's locks in a forked child, so that they end with the parent."""
        for held in self._leases:
            held.abandon()
        self._opened.abandon()


_LARGEST = 16_384
_ANNOUNCED = "announced/"
"""Beginning of the names of leases whose files have a statement of their holder."""
_PLACES = 256
"""Most processes of one store that announce themselves."""


@dataclass(frozen=True, slots=True)
class _LeaseFile:
    """Content of the file of a held lease."""

    lease: str
    pid: int
    started: float
    about: str = ""


class HeldLease(Lease):
    """A lease of this process."""

    def __init__(self, fence: Fence, descriptor: int) -> None:
        self._fence = fence
        self._descriptor = descriptor

    @property
    def fence(self) -> Fence:
        return self._fence

    async def release(self) -> None:
        await checkpoint()
        self.drop()

    def write(self, content: _LeaseFile) -> None:
        """Write the file that others read."""
        if self._descriptor >= 0:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, json.dumps(asdict(content)).encode(), 0)

    def read(self) -> _LeaseFile | None:
        """Return what this process has written; None after the release."""
        return _content(self._descriptor) if self._descriptor >= 0 else None

    def drop(self) -> None:
        """Free the lock now. Idempotent."""
        if self._descriptor >= 0:
            # Erased while the lock is held, so that no process takes this one for the holder of a free lease.
            os.ftruncate(self._descriptor, 0)
            self.abandon()

    def abandon(self) -> None:
        """Close the descriptor without releasing the lock of the parent process."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class LeaseAttempt:
    """One attempt to take a lease: `work` inside a write transaction, `undo` if that transaction fails."""

    def __init__(self, folder: Path, lease: str) -> None:
        self._path = _file(folder, lease)
        self._lease = lease
        self._held: HeldLease | None = None

    def work(self, transaction: Transaction) -> HeldLease | LeaseHolder:
        """Take the lease, or return its holder. Raises `OSError`, `apsw.Error`."""
        descriptor = open_lock(self._path)
        try:
            if not try_lock(descriptor, fcntl.LOCK_EX):
                return _holder(descriptor)
            number = next_fence(transaction.connection, self._lease)
            # The start time distinguishes the holder from a process with a reused pid; a reader compares both.
            row = row_of(os.getpid())
            started = 0.0 if row is None else row.started
            self._held = HeldLease(Fence(self._lease, number), descriptor)
            self._held.write(_LeaseFile(self._lease, os.getpid(), started))
            return self._held
        finally:
            if self._held is None:
                os.close(descriptor)

    def undo(self) -> None:
        """Release the lock that `work` took."""
        if self._held is not None:
            self._held.drop()
            self._held = None


def holder(folder: Path, lease: str, _transaction: Transaction) -> LeaseHolder | None:
    """Return the holder of the lease. Call it only inside a write transaction. Raises `OSError`."""
    path = _file(folder, lease)
    if not path.exists():
        return None
    descriptor = open_lock(path)
    try:
        return None if try_lock(descriptor, fcntl.LOCK_SH) else _holder(descriptor)
    finally:
        os.close(descriptor)


def _file(folder: Path, lease: str) -> Path:
    """Return a file name of fixed length for any name of a lease."""
    return folder / "leases" / f"{hashlib.sha256(lease.encode()).hexdigest()[:32]}.lock"


def _content(descriptor: int) -> _LeaseFile | None:
    try:
        content: Any = json.loads(os.pread(descriptor, _LARGEST, 0))
        return _LeaseFile(
            str(content["lease"]), int(content["pid"]), float(content["started"]), str(content.get("about", ""))
        )
    except (ValueError, KeyError, TypeError):
        return None


def _holder(descriptor: int) -> LeaseHolder:
    """Return the holder written into the locked file.

    The pid is 0 if the holder is about to leave and has already erased it.
    """
    content = _content(descriptor)
    return LeaseHolder(0, 0.0) if content is None else LeaseHolder(content.pid, content.started)


def _announce(lease: HeldLease, about: bytes, _transaction: Transaction) -> None:
    content = lease.read()
    if content is not None:
        lease.write(replace(content, about=about.decode()))


def _present(folder: Path, _transaction: Transaction) -> Sequence[PresentProcess]:
    """Return the processes that hold leases. Call it only inside a write transaction. Raises `OSError`."""
    held: dict[tuple[int, float], list[_LeaseFile]] = {}
    for path in (folder / "leases").glob("*.lock"):
        if not opening.size(path):
            continue  # its holder has left in order
        descriptor = open_lock(path)
        try:
            content = None if try_lock(descriptor, fcntl.LOCK_SH) else _content(descriptor)
        finally:
            os.close(descriptor)
        if content is not None:
            held.setdefault((content.pid, content.started), []).append(content)
    return [
        PresentProcess(
            LeaseHolder(*process),
            socket.gethostname(),
            about=max(file.about for file in files).encode(),
            leases=tuple(sorted(file.lease for file in files if not file.lease.startswith(_ANNOUNCED))),
        )
        for process, files in sorted(held.items())
    ]
