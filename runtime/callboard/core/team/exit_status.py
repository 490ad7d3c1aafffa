"""Descriptions of the end of a command, and a check that a record of a command still identifies a process. Pure."""

from __future__ import annotations

import signal
from typing import Literal

LOST = (
    "its end is unknown: its process is gone and left no exit code (killed, or the machine went down). Look at "
    "what it has done before you run it again"
)


def status_of(code: int | None) -> Literal["completed", "failed", "lost"]:
    """Return the status for an exit code; None: the code is unknown."""
    if code is None:
        return "lost"
    return "completed" if code == 0 else "failed"


def exit_words(code: int | None) -> str:
    """Return the exit code as text: `exit code 137 (killed by SIGKILL)`.

    A shell reports 128 + n for a process killed by signal n (man 1 bash, EXIT STATUS).
    """
    if code is None:
        return "exit code unknown"
    try:
        by = signal.Signals(code - 128).name if code > 128 else ""
    except ValueError:
        by = ""
    return f"exit code {code} (killed by {by})" if by else f"exit code {code}"


def process_of(pid: int, started: float, boot: str, current_boot: str) -> tuple[int, float]:
    """Return the process of a record as pid and start time; a pid of 0 if it ran before the current boot.

    If no boot was recorded, only the pid and its start time identify the process.
    """
    return (0, 0.0) if boot and current_boot and boot != current_boot else (pid, started)
