"""Identity of processes: a pid with its start time, because the kernel reuses pids; valid within one boot.

Reads only the process table, and ends no process by name. A zombie counts as gone, because it has no effect.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

from callboard.adapters.kernel.exits import open_process
from callboard.adapters.kernel.process_table import boot_id, row_of, rows


def started_at(pid: int) -> float | None:
    """Return the start time of the process in the units of `ProcessRow.started`.

    None if the process does not exist, or is a zombie.
    """
    row = row_of(pid)
    return None if row is None else row.started


def this_boot() -> str:
    """Return the kernel's id of this boot; empty if it is unavailable, or start times differ between boots anyway."""
    return boot_id()


def is_same(pid: int, started: float) -> bool:
    """Return True if `pid` is still the process with this start time."""
    return pid > 0 and started_at(pid) == started


def open_pid(pid: int, started: float) -> int | None:
    """Return a descriptor of exactly that process, for waiting and signals; None if it is gone.

    The descriptor is opened before the start time is compared, so that a reused pid is detected.
    """
    try:
        descriptor = open_process(pid)
    except OSError:
        return None
    if is_same(pid, started):
        return descriptor
    os.close(descriptor)
    return None


def in_session(session: int) -> Iterator[int]:
    """Return the living processes of a session, by the pid of its leader.

    The leader may be gone: its number stays reserved.
    """
    return (row.pid for row in rows() if row.session == session)


def kill_session(session: int, mark: str = "") -> None:
    """Kill the rest of a session that a child process led, repeatedly until no new process was created in between.

    `mark` (`NAME=value`): only processes that were started with this variable. Use it if the leader may have been gone
    for so long that its number was reused.
    """
    for _ in range(10):
        pids = [pid for pid in in_session(session) if pid != os.getpid() and (not mark or has_mark(pid, mark))]
        if not pids:
            return
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it has just ended


def has_mark(pid: int, mark: str) -> bool:
    """Return True if the process was started with this mark in its environment (`NAME=value`).

    False without /proc, where the environment of a process cannot be read reliably.
    """
    try:
        return mark.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False  # it has ended, or belongs to another user


def reap(pid: int) -> int | None:
    """Reap an ended child and return its exit code, 128 + n after signal n. Else return None."""
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    if not ended:
        return None
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
