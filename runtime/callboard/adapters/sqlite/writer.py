"""The one thread that writes: it takes what is queued, and commits it as one transaction with one fsync.

Each job has a savepoint of its own, so that a conflict of one fails that one alone. A transaction that the disk refuses
is tried again job by job, so that one that is too large fails alone too. An answer is given after the fsync, never
before. Write transactions and checkpoints of all processes exclude each other by one lock file.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import apsw

from callboard.adapters.sqlite.faults import gone, translated
from callboard.adapters.sqlite.place import DATABASE, locked
from callboard.adapters.sqlite.sql import pragma, run
from callboard.adapters.sqlite.statements import Touched, Transaction
from callboard.adapters.sqlite.threads import Gate, Waiter, wake
from callboard.words.errors import StoreDamaged

T = TypeVar("T")

BATCH = 256
"""Jobs in one transaction, at most: bounds how long the first one waits for the last."""
CHECKPOINT_PAGES = 1_000
"""Pages in the log (4 KiB each) after which it is copied into the database."""
SHRINK_PAGES = 16_000
"""Pages in the log after which readers are waited for, so that it starts again from its beginning."""


def _nothing() -> None:
    return None


def _identity(file: Path) -> tuple[int, int]:
    """What tells this file from another one of the same name; zeros for none."""
    try:
        found = os.stat(file)  # noqa: PTH116 - once for each transaction: half the time of Path.stat
    except OSError:
        return (0, 0)
    return (found.st_dev, found.st_ino)


@dataclass(eq=False)
class Job(Generic[T]):
    """One caller's work in a transaction. `undo` is called if the transaction failed after `work` had returned."""

    work: Callable[[Transaction], T]
    waiter: Waiter[T]
    undo: Callable[[], None] = _nothing


@dataclass(frozen=True, slots=True)
class _Stop:
    pass


@dataclass(frozen=True, slots=True)
class _Look:
    pass


class Writer:
    """Owns the writing connection and the thread. `changed` hears in that thread what a transaction touched;
    `others_changed` is called when another process committed."""

    def __init__(
        self,
        folder: Path,
        connection: apsw.Connection,
        lock: int,
        changed: Callable[[Touched], None],
        others_changed: Callable[[], None],
    ) -> None:
        self._folder = folder
        self._connection = connection
        self._lock = lock
        self._changed, self._others_changed = changed, others_changed
        self._queue = Gate[Job[Any] | _Stop | _Look]()
        self._log_pages = 0
        self._file = folder / DATABASE
        self._identity = _identity(self._file)
        self._version = pragma(connection, "data_version")
        connection.set_wal_hook(self._note_log)
        self._thread = threading.Thread(target=self._run, name="callboard-store-writer", daemon=True)
        self._thread.start()

    async def do(self, work: Callable[[Transaction], T], undo: Callable[[], None] = _nothing) -> T:
        """What `work` returns, once it is durable; or what it raises, rolled back. Cancelling does not undo it."""
        waiter = Waiter[T]()
        self._queue.put(Job(work, waiter, undo))
        return await waiter.wait()

    def look(self) -> None:
        """See whether another process committed. From any thread, returns at once."""
        try:
            self._queue.put(_Look())
        except RuntimeError:
            return  # the store is closing: nobody follows any more

    def stop(self) -> None:
        """Finish what was handed over and end the thread. Blocks until it ended; the connection stays open."""
        self._queue.close(_Stop())
        self._thread.join()

    def _run(self) -> None:
        while True:
            batch, signal = self._take()
            if batch:
                self._commit(batch)
                wake(job.waiter for job in batch)
            if isinstance(signal, _Look):
                self._look()
            elif signal is not None:
                return

    def _take(self) -> tuple[list[Job[Any]], _Stop | _Look | None]:
        """What is queued, up to the first signal; waits for the first entry."""
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
        try:
            touched = self._transact(batch)
        except (apsw.Error, OSError, StoreDamaged) as error:
            told = error if isinstance(error, StoreDamaged) else translated(error, self._folder)
            for job in batch:
                if job.waiter.error is None:
                    job.undo()
                job.waiter.error = told
            if len(batch) > 1:
                for job in batch:
                    job.waiter.error = None
                    self._commit([job])
            return
        if touched:
            self._changed(touched)

    def _transact(self, batch: list[Job[Any]]) -> Touched:
        """One transaction. Raises `apsw.Error`, `OSError` or `StoreDamaged` with nothing of it done."""
        touched = Touched()
        with locked(self._lock):
            if _identity(self._file) != self._identity:
                raise gone(self._folder)  # SQLite would go on writing to the file that has no name any more
            try:
                run(self._connection, "BEGIN IMMEDIATE")
                for job in batch:
                    self._attempt(job, touched)
                run(self._connection, "COMMIT")
            finally:
                if self._connection.in_transaction:
                    run(self._connection, "ROLLBACK")
            self._tidy_log()
        return touched

    def _attempt(self, job: Job[Any], touched: Touched) -> None:
        """Run one job in its savepoint. Raises `apsw.Error` and `OSError` only: these fail the whole transaction."""
        transaction = Transaction(self._connection)
        run(self._connection, "SAVEPOINT job")
        try:
            job.waiter.result = job.work(transaction)
        except (apsw.Error, OSError):
            raise
        except Exception as error:  # noqa: BLE001 - a conflict or a caller's bug: it is raised in the caller
            run(self._connection, "ROLLBACK TO job")
            job.waiter.error = error
        else:
            touched.streams |= transaction.touched.streams
            touched.keys |= transaction.touched.keys
        run(self._connection, "RELEASE job")

    def _note_log(self, _connection: apsw.Connection, _database: str, pages: int) -> int:
        self._log_pages = pages
        return apsw.SQLITE_OK

    def _tidy_log(self) -> None:
        """Copy a long log into the database. A failure costs nothing: the log holds all; the next commit retries."""
        if self._log_pages < CHECKPOINT_PAGES:
            return
        mode = apsw.SQLITE_CHECKPOINT_RESTART if self._log_pages > SHRINK_PAGES else apsw.SQLITE_CHECKPOINT_PASSIVE
        try:
            self._connection.wal_checkpoint(mode=mode)
        except apsw.Error:
            return  # a full disk, a reader in the way: what was committed is in the log and stays there
        self._log_pages = 0

    def _look(self) -> None:
        try:
            version = pragma(self._connection, "data_version")
        except apsw.Error:
            return  # a look only saves waiting; the next read tells whoever asks what is wrong
        if version != self._version:
            self._version = version
            self._others_changed()
