"""How a command ended, in words; and which process a record of one still names. Pure."""

from __future__ import annotations

import signal
from typing import Literal

LOST = (
    "nobody knows how it ended: its process is gone and left no exit code (killed, or the machine went down). Look at "
    "what it has done before you run it again"
)


def status_of(code: int | None) -> Literal["completed", "failed", "lost"]:
    """By its exit code alone; None: nobody knows it."""
    if code is None:
        return "lost"
    return "completed" if code == 0 else "failed"


def exit_words(code: int | None) -> str:
    """`exit code 137 (killed by SIGKILL)`: a shell says 128 + n of what signal n killed (man 1 bash, EXIT STATUS)."""
    if code is None:
        return "exit code unknown"
    try:
        by = signal.Signals(code - 128).name if code > 128 else ""
    except ValueError:
        by = ""
    return f"exit code {code} (killed by {by})" if by else f"exit code {code}"


def process_of(pid: int, started: float, boot: str, here: str) -> tuple[int, float]:
    """The process that a record names, as pid and start time; a pid of 0 when that was in another boot than `here`.

    An empty boot is one that nobody noted: the pid and its start time are all there is to go by.
    """
    return (0, 0.0) if boot and here and boot != here else (pid, started)
