"""Table of the machine's processes: parents, sessions, start times, and command lines. Zombies are left out.

Linux has it in /proc. Elsewhere (macOS, BSD) the program `ps` prints it. A row is only as good as the moment of its
reading: compare the start time before you act on a pid.

Imports only the standard library, because `launch_child.py` and similar scripts use it too.
"""
# ruff: noqa: PTH123, PTH208 - importing pathlib would take longer than all the rest of a child's start

from __future__ import annotations

import os
import sys
from contextlib import suppress

PS = "/bin/ps"
"""Program that prints the table on a system without /proc. Its path is fixed, so that PATH does not matter."""
_ROWS = ("-axo", "pid=,ppid=,stat=,lstart=")
_COMMANDS = ("-axwwo", "pid=,ppid=,command=")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class ProcessRow:
    """One living process."""

    __slots__ = ("parent", "pid", "session", "started")

    def __init__(self, pid: int, parent: int, session: int, started: float) -> None:
        self.pid = pid
        self.parent = parent
        self.session = session
        """Pid of the leader of its session; 0 if unknown."""
        self.started = started
        """On Linux in clock ticks since boot, elsewhere in seconds since 1970: a value to compare only."""


def rows() -> list[ProcessRow]:
    """Return all living processes."""
    if not has_proc():
        return [row for row in read_rows(_printed(*_ROWS)) if row.pid]
    found = (row_of(int(entry)) for entry in os.listdir("/proc") if entry.isdigit())
    return [row for row in found if row is not None]


def row_of(pid: int) -> ProcessRow | None:
    """Return the process; None if it does not exist, or is a zombie."""
    if not has_proc():
        return next(iter(read_rows(_printed(_ROWS[0].replace("ax", ""), _ROWS[1], "-p", str(pid)))), None)
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # A program can put spaces and parentheses into its name: the fields begin after the last one
            # (man 5 proc_pid_stat, field 3 is index 0).
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    if fields[0] in {b"Z", b"X"}:
        return None
    return ProcessRow(pid, int(fields[1]), int(fields[3]), float(fields[19]))


def command_lines() -> dict[int, tuple[int, list[bytes]]]:
    """Return the parent and the words of the command line of each process of which they are readable.

    Without /proc, a word that contains spaces is several words.
    """
    if not has_proc():
        return read_command_lines(_printed(*_COMMANDS))
    lines: dict[int, tuple[int, list[bytes]]] = {}
    for row in rows():
        try:
            with open(f"/proc/{row.pid}/cmdline", "rb") as file:
                lines[row.pid] = row.parent, file.read().split(b"\0")
        except OSError:
            continue  # it has just ended
    return lines


def boot_id() -> str:
    """Return the kernel's id of this boot (man 5 proc_sys_kernel, random/boot_id); empty if it is unavailable.

    Without /proc, start times are dates, which differ between boots anyway.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ""


def has_proc() -> bool:
    """Return True if this system describes its processes in /proc."""
    return sys.platform.startswith("linux")


def read_rows(text: str) -> list[ProcessRow]:
    """Return the rows that `ps` has printed as `pid ppid stat lstart`. Zombies and unreadable lines are left out."""
    found: list[ProcessRow] = []
    for line in text.splitlines():
        fields = line.split()
        if len(fields) != 8 or fields[2].startswith("Z") or not (fields[0].isdecimal() and fields[1].isdecimal()):
            continue
        started = seconds_of(fields[3:])
        if started is not None:
            pid = int(fields[0])
            found.append(ProcessRow(pid, int(fields[1]), _session_of(pid), started))
    return found


def read_command_lines(text: str) -> dict[int, tuple[int, list[bytes]]]:
    """Return what `ps` has printed as `pid ppid command`: pid -> parent and words."""
    lines: dict[int, tuple[int, list[bytes]]] = {}
    for line in text.splitlines():
        fields = line.split()
        if len(fields) > 2 and fields[0].isdecimal() and fields[1].isdecimal():
            lines[int(fields[0])] = int(fields[1]), [os.fsencode(word) for word in fields[2:]]
    return lines


def seconds_of(fields: list[str]) -> float | None:
    """Return the seconds since 1970 of a date such as `Fri Nov 27 02:00:02 2026` (UTC); None for another text."""
    try:
        _, month, day, clock, year = fields
        hours, minutes, seconds = map(int, clock.split(":"))
        days = _days(int(year), _MONTHS.index(month) + 1, int(day))
    except ValueError:
        return None
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _days(year: int, month: int, day: int) -> int:
    """Return the days since 1970-01-01. Years begin in March here, so that a leap day is their last day."""
    year -= month <= 2
    before = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return year * 365 + year // 4 - year // 100 + year // 400 + before - 719468


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return 0  # it has just ended, or is not visible to this user


def _printed(*arguments: str) -> str:
    """Return the output of `ps`, without its own row; empty if it cannot be run.

    The locale and the time zone are fixed, because they change the form of dates.
    """
    reader, writer = os.pipe()
    # A dup2 of a descriptor to itself leaves it closed on exec: the standard output of `server_child.py` is closed.
    if writer == 1:
        os.set_inheritable(writer, True)
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, writer, 1),
        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
    ]
    try:
        pid = os.posix_spawn(PS, [PS, *arguments], {"LC_ALL": "C", "TZ": "UTC0"}, file_actions=actions)
    except OSError:
        os.close(reader)
        return ""
    finally:
        os.close(writer)
    with open(reader, encoding="utf-8", errors="surrogateescape") as file:
        text = file.read()
    with suppress(ChildProcessError):  # a loop that reaps all children was faster
        os.waitpid(pid, 0)
    return "\n".join(line for line in text.splitlines() if line.split()[:1] != [str(pid)])


def is_alive(pid: int, started: float) -> bool:
    """Return True if this process of this machine still runs."""
    process = row_of(pid)
    return process is not None and process.started == started


def place_here() -> str:
    """Return a text that two processes share if they see each other's pids: same boot, same pid namespace."""
    parts: list[str] = []
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot:
        parts.append(boot.read().strip())
    with suppress(OSError):
        parts.append(str(os.stat("/proc/self/ns/pid").st_ino))  # noqa: PTH116 - see above
    return " ".join(parts) or f"host {os.uname().nodename}"
