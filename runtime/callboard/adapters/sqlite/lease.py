"""Leases: a file lock for as long as the process lives, and a number that rises with every holder.

The kernel frees the lock when the process dies, however it dies; no clock is asked. The lock is not inherited: a
program that is executed has the descriptor closed, a forked child closes it at once. All probing happens inside a write
transaction of the store, so that one process asking who holds a lease never looks like a holder to another one.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from anyio.lowlevel import checkpoint

from callboard.adapters.sqlite.place import open_lock, try_lock
from callboard.adapters.sqlite.statements import Transaction, next_fence
from callboard.ports.store import Fence, Lease, LeaseHolder

_LARGEST = 4096


class HeldLease(Lease):
    """A lease of this process."""

    def __init__(self, fence: Fence, descriptor: int) -> None:
        self._fence, self._descriptor = fence, descriptor

    @property
    def fence(self) -> Fence:
        return self._fence

    async def release(self) -> None:
        await checkpoint()
        self.drop()

    def drop(self) -> None:
        """Free the lock now. Idempotent."""
        if self._descriptor >= 0:
            os.ftruncate(self._descriptor, 0)
            self.abandon()

    def abandon(self) -> None:
        """Close the descriptor without touching the lock of the process that it was forked from."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class Taking:
    """One try to take a lease: `work` inside a write transaction, `undo` if that transaction fails."""

    def __init__(self, folder: Path, lease: str) -> None:
        self._path, self._lease = _file(folder, lease), lease
        self._held: HeldLease | None = None

    def work(self, transaction: Transaction) -> HeldLease | LeaseHolder:
        """Take it, or tell who has it. Raises `OSError`, `apsw.Error`."""
        descriptor = open_lock(self._path)
        try:
            if not try_lock(descriptor, fcntl.LOCK_EX):
                return _holder(descriptor)
            number = next_fence(transaction.connection, self._lease)
            told = json.dumps({"lease": self._lease, "pid": os.getpid(), "started": started(os.getpid())})
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, told.encode(), 0)
            self._held = HeldLease(Fence(self._lease, number), descriptor)
            return self._held
        finally:
            if self._held is None:
                os.close(descriptor)

    def undo(self) -> None:
        """Give back what `work` took."""
        if self._held is not None:
            self._held.drop()
            self._held = None


def holder(folder: Path, lease: str, _transaction: Transaction) -> LeaseHolder | None:
    """Who holds the lease. Inside a write transaction only. Raises `OSError`."""
    path = _file(folder, lease)
    if not path.exists():
        return None
    descriptor = open_lock(path)
    try:
        return None if try_lock(descriptor, fcntl.LOCK_SH) else _holder(descriptor)
    finally:
        os.close(descriptor)


def started(pid: int) -> float:
    """When the process started, in clock ticks since boot (man 5 proc_pid_stat, field 22); 0 where it is not known."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0.0
    return float(told.rpartition(")")[2].split()[19])  # the name in parentheses may hold anything


def _file(folder: Path, lease: str) -> Path:
    """A name of fixed length for whatever the lease is called."""
    return folder / "leases" / f"{hashlib.sha256(lease.encode()).hexdigest()[:32]}.lock"


def _holder(descriptor: int) -> LeaseHolder:
    """Who wrote himself into the locked file; pid 0 if he is about to leave and wiped it already."""
    try:
        told: Any = json.loads(os.pread(descriptor, _LARGEST, 0))
        return LeaseHolder(int(told["pid"]), float(told["started"]))
    except (ValueError, KeyError, TypeError):
        return LeaseHolder(0, 0.0)
