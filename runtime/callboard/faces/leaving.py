"""Ctrl-C and SIGTERM while a session runs: the first Ctrl-C stops the turn, a second within two seconds leaves.

Leaving cancels; what is journalled stays, and `callboard resume` goes on with it. It refuses to end the process itself.
"""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio

TWICE = 2.0
"""Seconds within which a second Ctrl-C leaves."""


@dataclass(slots=True)
class Leaving:
    """What signals asked for. `code` is the exit code they call for, None while they call for none."""

    code: int | None = None
    interrupted: bool = False


async def heed_signals(
    leaving: Leaving,
    scope: anyio.CancelScope,
    interrupt: Callable[[], Awaitable[bool]],
    *,
    task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Until cancelled: SIGTERM and a second Ctrl-C cancel `scope`; a first Ctrl-C calls `interrupt`, which returns
    whether there was a turn to stop. `task_status` is told once signals are heeded."""
    last = float("-inf")
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for received in signals:
            now = anyio.current_time()
            if received == signal.SIGTERM:
                leaving.code = 143
            elif now - last <= TWICE or not await interrupt():
                leaving.code = 130
            else:
                last, leaving.interrupted = now, True
                continue
            scope.cancel()
            return


async def heed_end(
    leaving: Leaving, scope: anyio.CancelScope, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """Until cancelled: SIGTERM cancels `scope`; where Ctrl-C is a key. An exception that is raised wherever the signal
    finds the process could leave its threads behind, waiting for ever."""
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            leaving.code = 143
            scope.cancel()
            return
