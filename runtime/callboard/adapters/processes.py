"""Which process is meant: a pid with its start time, since the kernel gives a pid away again, within one boot.

Reads /proc only, ends nothing by name. A zombie counts as gone: it has no effect any more.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path


def _fields(pid: int | str) -> list[str] | None:
    """The fields of /proc/<pid>/stat from the state on (man 5 proc_pid_stat, field 3 is index 0)."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return told.rpartition(")")[2].split()


def started_at(pid: int) -> float | None:
    """When the process started, in clock ticks since boot; None when there is none, or only its zombie."""
    fields = _fields(pid)
    if fields is None or fields[0] in {"Z", "X"}:
        return None
    return float(fields[19])


def this_boot() -> str:
    """The id that the kernel gave this boot (man 5 proc_sys_kernel, random/boot_id); empty where it is not told."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def is_same(pid: int, started: float) -> bool:
    """Whether `pid` is still the process that started then."""
    return pid > 0 and started_at(pid) == started


def open_pid(pid: int, started: float) -> int | None:
    """A descriptor that stands for exactly that process, to be waited for and signalled; None when it is gone.

    The descriptor is opened first and the start time compared after, so that a pid given away in between is seen.
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
    """The living processes of a session, by the pid of its leader. The leader may be gone: its number stays taken."""
    for entry in os.listdir("/proc"):  # noqa: PTH208 - names only, a thousand of them
        if not entry.isdigit():
            continue
        fields = _fields(entry)
        if fields is not None and fields[0] not in {"Z", "X"} and int(fields[3]) == session:
            yield int(entry)


def kill_session(session: int, mark: str = "") -> None:
    """Kill what is left of a session whose leader was ours, again until nothing new has been born meanwhile.

    `mark` (`NAME=value`): only what was started with that in its environment, where the leader may be gone for so long
    that its number is another's by now.
    """
    for _ in range(10):
        left = [pid for pid in in_session(session) if pid != os.getpid() and (not mark or has_mark(pid, mark))]
        if not left:
            return
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it has ended by itself


def has_mark(pid: int, mark: str) -> bool:
    """Whether the process was started with this in its environment (`NAME=value`)."""
    try:
        return mark.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False  # it has ended, or is not this user's


def reap(pid: int) -> int | None:
    """Take the exit status of a child of ours that has ended: its code, 128 + n after signal n. Else None."""
    try:
        found, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    if not found:
        return None
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
