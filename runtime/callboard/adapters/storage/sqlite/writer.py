"""The single thread that writes: it takes the queued jobs, and commits them as one transaction with one fsync.

A conflict fails only its own job: a commit is decided before anything is written, and other work has a savepoint. The
commits of a batch are written together. A transaction that fails as a whole is retried job by job, so that only the job
that the disk refuses fails. A result is returned after the fsync, never before. One lock file makes
write transactions and checkpoints of all processes mutually exclusive.

A wait for that lock can be cancelled, and its holder can be identified. The kernel wakes waiting processes, so that
they take turns without polling. A wait in the kernel cannot be ended, so a separate thread waits there.
"""

from __future__ import annotations

import fcntl
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

import apsw

from callboard.adapters.storage.patience import LOCK_WAIT, TELL_AFTER, ObstacleWait, Patience
from callboard.adapters.storage.sqlite.faults import lost_database, translate_error
from callboard.adapters.storage.sqlite.place import DATABASE, try_lock
from callboard.adapters.storage.sqlite.schema import BUSY_MS
from callboard.adapters.storage.sqlite.sql import pragma, run
from callboard.adapters.storage.sqlite.statements import Transaction, TransactionChanges
from callboard.adapters.storage.threads import AnswerWaiter, ClosableQueue, wake
from callboard.ports.store import Fence, Write
from callboard.types.errors import StoreBusy, StoreFull
from callboard.types.lazy_dataclass import dataclass

T = TypeVar("T")

BATCH = 256
"""Most jobs in one transaction. Limits how long the first job waits for the last."""
CHECKPOINT_BYTES = 4 * 1024 * 1024
"""Bytes of pages in the log at which it is copied into the database."""
SHRINK_BYTES = 16 * CHECKPOINT_BYTES
"""Bytes of pages in the log at which a checkpoint restarts it from its beginning, if no reader needs it."""
NOT_AGAIN = 60.0
"""Seconds without another checkpoint after a reader blocked one: each costs two syncs, and the reader may be a program
of the user that runs for hours.
"""
LOOK = 0.25
"""Seconds between two checks of a reason to stop waiting."""


def _nothing() -> None:
    return None


def _identity(file: str) -> tuple[int, int]:
    """Return the device and inode of this file, to notice a replacement; zeros if the file does not exist."""
    try:
        status = os.stat(file)  # noqa: PTH116 - once for each transaction: a third of the time of Path.stat
    except OSError:
        return (0, 0)
    return (status.st_dev, status.st_ino)


@dataclass(eq=False)
class Job(Generic[T]):
    """One caller's work in a transaction. `undo` is called if the transaction failed after `work` had returned."""

    work: Callable[[Transaction], T]
    waiter: AnswerWaiter[T]
    undo: Callable[[], None] = _nothing
    drafts: bool = False
    """True for work that writes nothing itself (`Transaction.draft`)."""


@dataclass(frozen=True, slots=True)
class _Stop:
    pass


@dataclass(frozen=True, slots=True)
class _Look:
    pass


@dataclass(frozen=True, slots=True)
class Hooks:
    """Callbacks of a writer to its store, called in the writer's thread."""

    changed: Callable[[TransactionChanges], None]
    """Called with the streams and keys that a transaction changed."""
    others_changed: Callable[[apsw.Connection], None]
    """Called with the writing connection when another process has committed."""
    patience: Patience


class Writer:
    """Owner of the writing connection and the thread."""

    def __init__(
        self,
        folder: Path,
        connection: apsw.Connection,
        lock: WriteLock,
        hooks: Hooks,
    ) -> None:
        self._folder = folder
        self._connection = connection
        self._lock = lock
        self._changed = hooks.changed
        self._others_changed = hooks.others_changed
        self._patience = hooks.patience
        self._queue = ClosableQueue[Job[Any] | _Stop | _Look]()
        self._log_pages = 0
        self._page_bytes = pragma(connection, "page_size")
        self._not_before = 0.0
        self._file = str(folder / DATABASE)
        self._identity = _identity(self._file)
        # This number changes only with commits of other connections (sqlite.org/pragma.html), so own commits wake no
        # reader twice.
        self._version = pragma(connection, "data_version")
        # After `schema.connect`: its pragma wal_autocheckpoint sets the same hook, and would replace this one.
        connection.set_wal_hook(self._note_log)
        self._thread = threading.Thread(target=self._run, name="callboard-store-writer", daemon=True)
        self._thread.start()

    async def commit(self, writes: Sequence[Write], fence: Fence | None) -> tuple[int, ...]:
        """Perform the writes in order, and return one number for each once they are durable. See `do`."""
        waiter: AnswerWaiter[tuple[int, ...]] = AnswerWaiter()
        self._queue.put(Job(lambda transaction: transaction.draft(writes, fence), waiter, drafts=True))
        return await waiter.wait()

    async def do(self, work: Callable[[Transaction], T], undo: Callable[[], None] = _nothing) -> T:
        """Run `work` and return its result once it is durable.

        If it raises, it is rolled back. Cancelling does not undo it.
        """
        waiter: AnswerWaiter[T] = AnswerWaiter()
        self._queue.put(Job(work, waiter, undo))
        return await waiter.wait()

    def look(self) -> None:
        """Check for commits of other processes. Called from any thread; returns at once."""
        try:
            self._queue.put(_Look())
        except RuntimeError:
            return  # the store is closing: no reader follows

    def stop(self) -> None:
        """Finish the queued jobs and end the thread. Blocks until it has ended; the connection stays open."""
        self._queue.close(_Stop())
        self._thread.join()

    def _run(self) -> None:
        while True:
            batch, signal = self._take()
            if batch:
                self._commit(batch)
                wake([job.waiter for job in batch])
            if isinstance(signal, _Look):
                self._look()
            elif signal is not None:
                return

    def _take(self) -> tuple[list[Job[Any]], _Stop | _Look | None]:
        """Return the queued jobs, up to the first signal; waits for the first entry."""
        batch: list[Job[Any]] = []
        entry = self._queue.get()
        while isinstance(entry, Job):
            batch.append(entry)
            if len(batch) == BATCH:
                return batch, None
            try:
                entry = self._queue.get_nowait()
            except queue.Empty:
                return batch, None
        return batch, entry

    def _commit(self, batch: list[Job[Any]]) -> None:
        failure = self._run_transaction(batch)
        if failure is None:
            return
        if len(batch) > 1:
            for job in batch:
                self._commit([job])
            return
        # For the callers, a commit on a full disk only takes longer (docs/decisions/0030-a-full-disk-is-waited-for.md,
        # test_a_run_waits_for_room_on_the_disk).
        wait = ObstacleWait(self._patience, alone=0.0)
        while isinstance(failure, StoreFull) and wait.goes_on(f"{failure}. Waiting for that"):
            failure = self._run_transaction(batch)
        if failure is None:
            wait.over(f"{self._folder} can be written again: nothing was lost")
        else:
            batch[0].waiter.error = failure

    def _run_transaction(self, batch: list[Job[Any]]) -> Exception | None:
        """Run the jobs as one transaction. Return the error if it failed and was rolled back."""
        # The disk may have refused only one large job. Each is tried alone, so that the others succeed
        # (test_one_commit_too_large_for_the_disk_does_not_fail_the_others).
        for job in batch:
            job.waiter.error = None
        try:
            touched = self._transact(batch)
        except Exception as error:  # noqa: BLE001 - the callers get any exception: a name that no table can hold
            for job in batch:
                if job.waiter.error is None:
                    # The job took a file lock that no rollback releases.
                    job.undo()
            return translate_error(error, self._folder) if isinstance(error, apsw.Error | OSError) else error
        if touched:
            # After the COMMIT: a woken reader must find the records.
            self._changed(touched)
        return None

    def _take_lock(self) -> None:
        """Take the lock that excludes the writes of other processes. Raises `StoreBusy`."""
        if self._lock.try_take():
            return
        wait = ObstacleWait(self._patience, alone=LOCK_WAIT, tell_after=TELL_AFTER)

        def may_wait() -> None:
            holder = self._lock.in_the_way(self._folder)
            if not wait.goes_on(f"{holder}. Waiting for that", pause=0.0):
                raise StoreBusy(f"{holder}. Nothing was written")

        self._lock.take(may_wait)
        wait.over("the lock of the store is free again")

    def _transact(self, batch: list[Job[Any]]) -> TransactionChanges:
        """Run one transaction. Raises any exception of its writes, or `StoreDamaged`, after a rollback."""
        transaction = Transaction(self._connection)
        self._take_lock()
        try:
            # SQLite would continue to write to a file without a name
            # (test_a_database_that_vanished_while_open_takes_no_more_writes).
            if _identity(self._file) != self._identity:
                raise lost_database(self._folder)
            try:
                # A transaction that begins as a reader cannot become a writer after another program has written: SQLite
                # refuses that at once, without waiting (sqlite.org/lang_transaction.html).
                run(self._connection, "BEGIN IMMEDIATE")
                self._attempt_all(batch, transaction)
                run(self._connection, "COMMIT")
            finally:
                # After some errors SQLite itself has rolled back, and another ROLLBACK would fail.
                if self._connection.in_transaction:
                    run(self._connection, "ROLLBACK")
            # Still under the lock: in SQLite up to 3.51.2, a checkpoint during another process's write corrupts files
            # (docs/decisions/0002-apsw-and-one-writer-thread.md).
            self._tidy_log()
        finally:
            self._lock.release()
        return transaction.touched

    def _attempt_all(self, batch: list[Job[Any]], transaction: Transaction) -> None:
        """Run the jobs in order. Work that reads the tables finds the commits before it."""
        for job in batch:
            if not job.drafts:
                transaction.write_drafts()
            self._attempt(job, transaction)
        transaction.write_drafts()

    def _attempt(self, job: Job[Any], transaction: Transaction) -> None:
        """Run one job. Raises only what fails the whole transaction."""
        try:
            if job.drafts:
                job.waiter.result = job.work(transaction)
            else:
                self._work(job, transaction)
        except (apsw.Error, OSError):
            raise
        except Exception as error:  # noqa: BLE001 - the caller gets any exception: a conflict, or a bug of its own
            job.waiter.error = error

    def _work(self, job: Job[Any], transaction: Transaction) -> None:
        """Run a job that writes itself, in a savepoint."""
        run(self._connection, "SAVEPOINT job")
        own = Transaction(self._connection)
        try:
            job.waiter.result = job.work(own)
        except (apsw.Error, OSError):
            raise
        except Exception:
            run(self._connection, "ROLLBACK TO job")
            run(self._connection, "RELEASE job")
            raise
        run(self._connection, "RELEASE job")
        transaction.touched.add(own.touched)

    def _note_log(self, _connection: apsw.Connection, _database: str, pages: int) -> int:
        self._log_pages = pages
        return apsw.SQLITE_OK

    def _tidy_log(self) -> None:
        """Copy a long log into the database, without waiting for other processes: the log contains all commits."""
        now = time.monotonic()
        length = self._log_pages * self._page_bytes
        if length < CHECKPOINT_BYTES or now < self._not_before:
            return
        mode = apsw.SQLITE_CHECKPOINT_RESTART if length > SHRINK_BYTES else apsw.SQLITE_CHECKPOINT_PASSIVE
        # A checkpoint never waits for a reader, which may be a program of the user that runs for hours.
        self._connection.set_busy_timeout(0)
        try:
            pages, copied = self._connection.wal_checkpoint(mode=mode)
        except apsw.Error:  # a reader blocks it, or the disk is full
            pages = 1
            copied = 0
        finally:
            self._connection.set_busy_timeout(BUSY_MS)
        if copied < pages:
            self._not_before = now + NOT_AGAIN
        else:
            self._log_pages = 0

    def _look(self) -> None:
        try:
            version = pragma(self._connection, "data_version")
            if version != self._version:
                self._others_changed(self._connection)
                self._version = version  # last: after an error the next look tries again
        except apsw.Error:
            return  # this check only saves time; the next read reports any error


class WriteLock:
    """A file lock with one descriptor, for one thread at a time."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._mutex = threading.Lock()
        self._granted = threading.Event()
        self._waiting: threading.Thread | None = None
        self._wanted = False

    def try_take(self) -> bool:
        """Take the lock if it is free; return False otherwise."""
        with self._mutex:
            return self._waiting is None and try_lock(self._descriptor, fcntl.LOCK_EX)

    def release(self) -> None:
        """Release the lock."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def in_the_way(self, folder: Path) -> str:
        """Return a text with the reason for the wait of a write to the store, and the remedy."""
        return in_the_way(self._descriptor, folder)

    def take(self, may_wait: Callable[[], None]) -> None:
        """Take the lock. While another process has it, `may_wait` is called repeatedly; it raises to give up."""
        with self._mutex:
            self._wanted = True
            # A thread of an abandoned wait cannot be stopped in the kernel. This wait takes it over instead of starting
            # another (test_a_command_gives_up_and_names_the_stopped_process gives up twice).
            if self._waiting is None:
                if try_lock(self._descriptor, fcntl.LOCK_EX):
                    return
                self._begin_to_wait()
        try:
            while not self._granted.wait(LOOK):
                may_wait()
        except BaseException:
            with self._mutex:
                self._wanted = False
                # The lock was granted while the caller gave up, so no other code would release it.
                if self._granted.is_set():
                    self._granted.clear()
                    fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            raise
        self._granted.clear()

    def _begin_to_wait(self) -> None:
        # The copy shares its lock with the descriptor, and remains if the descriptor is closed meanwhile.
        copy = os.dup(self._descriptor)
        self._waiting = threading.Thread(target=self._wait, args=(copy,), name="callboard-store-lock", daemon=True)
        self._waiting.start()

    def _wait(self, copy: int) -> None:
        with suppress(OSError):
            fcntl.flock(copy, fcntl.LOCK_EX)
        with self._mutex:
            self._waiting = None
            if self._wanted:
                self._granted.set()
            else:
                fcntl.flock(copy, fcntl.LOCK_UN)
        os.close(copy)


@dataclass(frozen=True, slots=True)
class LockHolder:
    """Process that holds a lock."""

    pid: int
    name: str
    stopped: bool


def holder_of(descriptor: int, locks: Path = Path("/proc/locks")) -> LockHolder | None:
    """Return the process that holds an exclusive lock of this file.

    None if the kernel does not report it (man 5 proc_locks).
    """
    try:
        inode = os.fstat(descriptor).st_ino
        lines = locks.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        fields = line.split()
        # a waiting process has `->` in the second field; devices differ between views of some file systems
        if len(fields) > 5 and fields[1] == "FLOCK" and fields[3] == "WRITE" and fields[5].endswith(f":{inode}"):
            return _holder(int(fields[4]))
    return None


def _holder(pid: int) -> LockHolder | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None  # in another container, or gone
    # The name of a program may contain spaces and parentheses: the fields begin after the last one.
    name, _, fields = stat.partition("(")[2].rpartition(")")
    return LockHolder(pid, name, fields.split()[0] in ("T", "t"))


def in_the_way(descriptor: int, folder: Path) -> str:
    """Return a text with the reason for the wait of a write to the store, and the remedy."""
    holder = holder_of(descriptor)
    if holder is None:
        return f"another process holds the lock of the store in {folder}"
    if not holder.stopped:
        return f"process {holder.pid} ({holder.name}) holds the lock of the store in {folder}"
    return (
        f"process {holder.pid} ({holder.name}) holds the lock of the store in {folder} and is stopped: "
        f"`kill -CONT {holder.pid}` lets it continue, `kill -9 {holder.pid}` ends it; nothing that was saved is lost"
    )
