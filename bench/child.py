"""Run a command as a child process and measure its CPU and wall time, without those of the bench.

Every side of a comparison is such a child, with the same environment.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LONGEST_SECONDS = 600.0
"""Seconds after which a child is considered hung and is ended."""

_KEPT = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "VIRTUAL_ENV", "LD_LIBRARY_PATH")


class ChildFailed(Exception):
    """A child exited with a code other than 0; the message contains the end of its output."""


@dataclass(frozen=True)
class Cost:
    """CPU (user and system, all threads and the child's own waited-for children) and wall time, in seconds."""

    cpu: float
    wall: float


def environment(home: Path, **more: str) -> dict[str, str]:
    """Return a small environment without keys, proxies, and user settings, in which byte code is written."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return {**kept, "HOME": str(home), "NO_COLOR": "1", **more}


def run(command: Sequence[str], env: Mapping[str, str], folder: Path) -> Cost:
    """Run a command to its end. Raises `ChildFailed` if it hangs or its exit code is not 0."""
    log = folder / "child.log"
    with log.open("wb") as out:
        started = time.perf_counter()
        child = subprocess.Popen(
            command, env=dict(env), cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
        watch = threading.Timer(LONGEST_SECONDS, end, (child,))
        watch.start()
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - started
        watch.cancel()
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        said = log.read_text(errors="replace")[-2_000:]
        raise ChildFailed(f"{' '.join(command)}: exit code {child.returncode} after {wall:.1f} s\n{said}")
    return Cost(usage.ru_utime + usage.ru_stime, wall)


def end(child: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """End a child and the processes that it started."""
    if child.returncode is None:
        os.killpg(child.pid, signal.SIGKILL)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return text columns, the first aligned left and the others right."""
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) if not column else cell.rjust(width) for column, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(line, widths, strict=True)) for line in lines)
    )
