"""Identity of processes: a pid with its start time, because the kernel reuses pids; valid within one boot.

Reads only /proc, and ends no process by name. A zombie counts as gone, because it has no effect.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path


def _fields(pid: int | str) -> list[str] | None:
    """Return the fields of /proc/<pid>/stat from the state on (man 5 proc_pid_stat, field 3 is index 0)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def started_at(pid: int) -> float | None:
    """Return the start time of the process in clock ticks since boot.

    None if the process does not exist, or is a zombie.
    """
    fields = _fields(pid)
    if fields is None or fields[0] in {"Z", "X"}:
        return None
    return float(fields[19])


def this_boot() -> str:
    """Return the kernel's id of this boot (man 5 proc_sys_kernel, random/boot_id); empty if it is unavailable."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def is_same(pid: int, started: float) -> bool:
    """Return True if `pid` is still the process with this start time."""
    return pid > 0 and started_at(pid) == started


def open_pid(pid: int, started: float) -> int | None:
    """Return a descriptor of exactly that process, for waiting and signals; None if it is gone.

    The descriptor is opened before the start time is compared, so that a reused pid is detected.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return None
    if is_same(pid, started):
        return descriptor
    os.close(descriptor)
    return None


def in_session(session: int) -> Iterator[int]:
    """Yield the living processes of a session, by the pid of its leader.

    The leader may be gone: its number stays reserved.
    """
    for entry in os.listdir("/proc"):  # noqa: PTH208 - names only, a thousand of them
        if not entry.isdigit():
            continue
        fields = _fields(entry)
        if fields is not None and fields[0] not in {"Z", "X"} and int(fields[3]) == session:
            yield int(entry)


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
    """Return True if the process was started with this mark in its environment (`NAME=value`)."""
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
