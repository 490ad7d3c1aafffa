"""Server processes: each in a session of its own behind `server_child.py`, which ends all of its kind with it.

The runtime holds three descriptors: what the server reads, what it writes, and the one whose end ends it. So a runtime
that is killed leaves no server behind. Standard error goes to a file with a bound.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread

from callboard.adapters.processes import kill_session, reap

LOG_BYTES = 2_000_000
"""Bytes of standard error that are kept of one start."""
POLITE = 1.0
"""Seconds that a server has to end by itself once nothing more is written to it, before it is told to."""
PATIENCE = 6.0
"""Seconds that our own process gets to end the server (TERM, 2 s, KILL) before it is killed itself."""
_CHILD = str(Path(__file__).with_name("server_child.py"))
_CONTROL = 3


@dataclass(frozen=True, slots=True)
class Started:
    """A server's process. `pid`: of our process that watches it. The descriptors are this owner's to close."""

    pid: int
    watched: int
    control: int
    stdin: int
    stdout: int
    log: Path


def start(program: str, words: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path) -> Started:
    """Start a program as a server. `words`: its argv. Raises OSError. Blocks for a millisecond or two."""
    log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if log.exists():
        log.replace(log.with_suffix(".old"))
    arguments = [sys.executable, "-I", "-S", _CHILD, str(log), str(LOG_BYTES), str(folder), program, *words]
    ends: list[int] = []
    try:
        for _ in range(3):
            ends += os.pipe()
        server_in, stdin, stdout, server_out, control_read, control = ends
        # Above the numbers that the child gets, so that none of them is overwritten before it is used.
        theirs = [os.dup(one) if one < 4 else one for one in (server_in, server_out, control_read)]
        ends += [one for one in theirs if one not in ends]
        pid = _spawn(arguments, environment, theirs)
    except BaseException:
        for one in ends:
            os.close(one)
        raise
    for one in ends:
        if one not in (stdin, stdout, control):
            os.close(one)
    for one in (stdin, stdout):
        os.set_blocking(one, False)
    return Started(pid, os.pidfd_open(pid), control, stdin, stdout, log)


def _spawn(arguments: list[str], environment: Mapping[str, str], theirs: Sequence[int]) -> int:
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        pairs = zip((*theirs, null), (0, 1, _CONTROL, 2), strict=True)
        return os.posix_spawn(
            arguments[0],
            arguments,
            dict(environment),
            file_actions=[(os.POSIX_SPAWN_DUP2, source, number) for source, number in pairs],
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
        )
    finally:
        os.close(null)


async def end(started: Started, *, died: bool = False) -> int | None:
    """End the server and all that came from it. Its exit code where it ended by itself. Closes every descriptor.

    First what it reads ends, as the protocol wants; then TERM, 2 s, KILL. `died`: it writes no more, so it is about to
    end by itself. Not to be interrupted.
    """
    code, alone = None, False
    with anyio.CancelScope(shield=True):
        alone = died and await _over(started.watched, POLITE)
        os.close(started.stdin)
        ended = alone or await _over(started.watched, POLITE)
        os.close(started.control)
        if not ended and not await _over(started.watched, PATIENCE):
            _kill(started.watched)
            await anyio.wait_readable(started.watched)
        code = reap(started.pid)
        await anyio.to_thread.run_sync(kill_session, started.pid)
        os.close(started.watched)
        os.close(started.stdout)
    return code if alone else None


def last_words(log: Path, most: int = 400) -> str:
    """The end of what a server said on standard error, one line, for a person who asks why it failed."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - 4_000))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    told = [line.strip() for line in lines if line.strip()]
    return " | ".join(told[-3:])[-most:]


async def _over(watched: int, seconds: float) -> bool:
    """Whether the process ended within that time."""
    with anyio.move_on_after(seconds) as scope:
        await anyio.wait_readable(watched)
    return not scope.cancelled_caught


def _kill(watched: int) -> None:
    try:
        signal.pidfd_send_signal(watched, signal.SIGKILL)
    except ProcessLookupError:
        return  # it has just ended
