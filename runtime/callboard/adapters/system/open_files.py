"""Limit of open files of this process: each hosted session needs a dozen.

The soft limit of most machines is 1,024, for programs that use select(2), which this one does not. Programs that it
starts may use it: they get the original limit back.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable

MOST = 65_536
"""Most open files, if the machine allows as many."""

OPEN_MAX = 10_240
"""Open files that every macOS allows."""


def raise_limit() -> Callable[[], object]:
    """Raise the soft limit as far as the machine allows, and return a function that restores it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return lambda: None
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except ValueError:  # macOS has a limit of its own below an unlimited hard limit (man 2 setrlimit, OPEN_MAX)
        if soft >= OPEN_MAX:
            return lambda: None
        resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_MAX, hard))
    os.environ[_ORIGINAL] = str(soft)
    return lambda: (resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard)), os.environ.pop(_ORIGINAL, None))


def sessions_that_fit() -> int:
    """Return the number of sessions that one process may host within its limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if soft == resource.RLIM_INFINITY else max(1, (soft - SPARE) // OF_A_SESSION)


def too_many() -> str:
    """Return the message for the user when no more files can be opened, with the remedy."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"too many files are open: this process may open {soft:,}. Raise the limit (`ulimit -n 65536`, or LimitNOFILE "
        "of the unit), or run another `callboard serve` beside it"
    )


OF_A_SESSION = 5
"""Open files of an idle session, rounded up: 4.4 on average with 230 sessions."""
SPARE = 100
"""Files for the store, and for the work of sessions."""
_ORIGINAL = "CALLBOARD_NOFILE"
"""Variable that passes the original limit of this process to the programs that start others for it."""


def give_back(pid: int) -> None:
    """Restore the original soft limit of this process in a program that was just started."""
    soft = os.environ.get(_ORIGINAL, "")
    if not soft.isdecimal() or not hasattr(resource, "prlimit"):
        return
    try:
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (min(int(soft), hard), hard))
    except (OSError, ValueError):
        return  # it has already ended, or belongs to another user: its limit does not matter
