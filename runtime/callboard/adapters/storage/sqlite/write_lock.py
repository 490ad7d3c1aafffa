"""The lock for write transactions. A wait for it can be cancelled, and its holder can be identified.

The kernel wakes waiting processes, so that they take turns without polling. A wait in the kernel cannot be ended, so a
separate thread waits there.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from callboard.adapters.storage.sqlite.place import try_lock

LOOK = 0.25
"""Seconds between two checks of whether to keep waiting."""


class WriteLock:
    """A file lock with one descriptor, for one thread at a time."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._mutex = threading.Lock()
        self._granted = threading.Event()
        self._waiting: threading.Thread | None = None
        self._wanted = False

    @contextmanager
    def held(self, may_wait: Callable[[], None]) -> Generator[None]:
        """Hold the lock. While another process has it, `may_wait` is called repeatedly; it raises to give up."""
        self._take(may_wait)
        try:
            yield
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def in_the_way(self, folder: Path) -> str:
        """Return a text that says why a write to the store waits, and the remedy."""
        return in_the_way(self._descriptor, folder)

    def _take(self, may_wait: Callable[[], None]) -> None:
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
                # The lock was granted while the caller gave up: nobody would ever release it.
                if self._granted.is_set():
                    self._granted.clear()
                    fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            raise
        self._granted.clear()

    def _begin_to_wait(self) -> None:
        # The copy shares its lock with the descriptor, and is still there when that is closed meanwhile.
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
    """The process that holds a lock."""

    pid: int
    name: str
    stopped: bool


def holder_of(descriptor: int, locks: Path = Path("/proc/locks")) -> LockHolder | None:
    """Return the process that holds an exclusive lock of this file; None if the kernel does not say (man 5
    proc_locks)."""
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
    """Return a text that says why a write to the store waits, and the remedy."""
    holder = holder_of(descriptor)
    if holder is None:
        return f"another process holds the lock of the store in {folder}"
    if not holder.stopped:
        return f"process {holder.pid} ({holder.name}) holds the lock of the store in {folder}"
    return (
        f"process {holder.pid} ({holder.name}) holds the lock of the store in {folder} and is stopped: "
        f"`kill -CONT {holder.pid}` lets it continue, `kill -9 {holder.pid}` ends it; nothing that was saved is lost"
    )
