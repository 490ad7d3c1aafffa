"""Ctrl-C, SIGTERM and SIGHUP while a session runs: the first Ctrl-C stops the turn, a second within two seconds leaves.

A lost terminal also leads to an orderly exit. Leaving cancels; the journal remains, and `callboard resume` continues
it. This module does not end the process itself.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import field
from types import FrameType
from typing import Any, Self

import anyio

from callboard.adapters.storage.patience import PROCESS_ENDS, one_command
from callboard.cli.terminal import hangup
from callboard.cli.terminal.terminal import Terminal
from callboard.types.lazy_dataclass import dataclass

TWICE = 2.0
"""Seconds within which a second Ctrl-C leaves."""

HEARD_WITHIN = 1.0
"""Seconds within which an interrupt is written, unless the disk is full or its lock is held."""


_ENDED_BY = {129: "the terminal was closed", 130: "ended by Ctrl-C", 143: "ended by SIGTERM"}
_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
_UNREAD = 2
"""Most signals that may wait unread. One more ends the process immediately, since nothing reads them."""


class Signals:
    """SIGINT and SIGTERM received during the block, in order; none is lost.

    An event loop calls its own handlers: it drops a signal that arrives while it ends, and a later SIGINT is raised
    during its cleanup. The interpreter calls these handlers instead. They put the number into a queue and wake the loop
    through a pipe.
    """

    def __init__(self, *numbers: signal.Signals) -> None:
        self._numbers = numbers
        self._unread: deque[signal.Signals] = deque()
        self._before: list[tuple[signal.Signals, Callable[[int, FrameType | None], Any] | int | None]] = []
        self._reader = self._writer = -1

    def __enter__(self) -> Self:
        # Non-blocking: a signal handler must not wait for a full pipe.
        self._reader, self._writer = hangup.open_pipe()
        for number in self._numbers:
            self._before.append((number, signal.signal(number, self._note)))
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._before:
            signal.signal(number, handler)
        os.close(self._reader)
        os.close(self._writer)

    def _note(self, number: int, frame: FrameType | None) -> None:
        # Nothing reads the signals (test_a_third_signal_that_nobody_reads_ends_the_process).
        if len(self._unread) >= _UNREAD:
            sys.exit(_CODES[signal.Signals(number)])
        self._unread.append(signal.Signals(number))
        os.write(self._writer, b"s")

    async def next(self) -> signal.Signals:
        """Wait for the next signal, and take it."""
        while not self._unread:
            await anyio.wait_readable(self._reader)
            os.read(self._reader, 4096)
        return self._unread.popleft()

    def take_unread(self) -> Sequence[signal.Signals]:
        """Take the signals that nothing has waited for."""
        unread = tuple(self._unread)
        self._unread.clear()
        return unread


@dataclass(slots=True)
class ExitRequests:
    """Requests to leave that signals made. `code` is the resulting exit code; None while the run continues."""

    code: int | None = None
    interrupted: bool = False
    signals: Signals = field(default_factory=Signals)

    def leave(self, code: int, scope: anyio.CancelScope) -> None:
        """Cancel the run, which ends with this code."""
        self.code = code
        PROCESS_ENDS.set()
        scope.cancel()


def ended_by(code: int) -> str:
    """Return the reason of the end of a run that a signal ended, by its exit code."""
    return _ENDED_BY.get(code, "ended by a signal")


def run_with_signals(
    go: Callable[[ExitRequests], Awaitable[int]],
    terminal: Terminal,
    numbers: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM),
) -> int:
    """Run `go` in an event loop and return its exit code, or that of a signal.

    `numbers`: the signals that are recorded, from before the loop begins until after its end. After a signal the exit
    does not wait for a slow reader.
    """
    with Signals(*numbers) as signals:
        leaving = ExitRequests(signals=signals)
        with one_command():
            code = anyio.run(go, leaving)
        # A signal that arrived while the loop was ending
        # (test_a_signal_that_comes_while_its_reader_is_cancelled_gives_the_exit_code).
        for number in signals.take_unread():
            leaving.code = leaving.code or _CODES[number]
    if hangup.unread():
        leaving.code = leaving.code or hangup.HANGUP
    if leaving.code is not None or leaving.interrupted:
        terminal.leave()
    return leaving.code or code


async def handle_signals(
    leaving: ExitRequests,
    scope: anyio.CancelScope,
    interrupt: Callable[[], Awaitable[bool]],
    *,
    task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Handle signals until cancelled.

    SIGTERM and a second Ctrl-C cancel `scope`; a first Ctrl-C calls `interrupt`, which returns True if there was a turn
    to stop.
    """
    async with anyio.create_task_group() as group:
        group.start_soon(_leave_at_hangup, leaving, scope)
        await _leave_at_signals(leaving, scope, interrupt, task_status)
        group.cancel_scope.cancel()


async def next_hangup() -> hangup.Hangup:
    """Wait for a SIGHUP, or for the loss of the terminal in which this process was started."""
    hangups = hangup.listen()
    with hangups.terminal_watch() as watch:
        async with anyio.create_task_group() as group:

            async def signalled() -> None:
                await anyio.wait_readable(hangups.reader)
                group.cancel_scope.cancel()

            # A terminal can vanish without a SIGHUP for this process, if it is not in the foreground.
            async def watched(epoll: select.epoll) -> None:
                while not hangups.terminal_gone():
                    await anyio.wait_readable(epoll.fileno())
                    epoll.poll(0)  # edge-triggered: unread input wakes it once
                group.cancel_scope.cancel()

            group.start_soon(signalled)
            if watch is not None:
                group.start_soon(watched, watch)
    return hangups.take()


async def _leave_at_hangup(leaving: ExitRequests, scope: anyio.CancelScope) -> None:
    await next_hangup()
    leaving.leave(hangup.HANGUP, scope)


async def _leave_at_signals(
    leaving: ExitRequests,
    scope: anyio.CancelScope,
    interrupt: Callable[[], Awaitable[bool]],
    task_status: anyio.abc.TaskStatus[None],
) -> None:
    last = float("-inf")
    task_status.started()
    while True:
        received = await leaving.signals.next()
        now = anyio.current_time()
        try:
            if received != signal.SIGTERM and now - last > TWICE and await _interrupted(interrupt):
                last = now
                leaving.interrupted = True
                continue
        except anyio.get_cancelled_exc_class():
            # The run ends at this moment. Without a code, its exit would wait for the reader
            # (test_a_ctrl_c_that_is_being_handled_when_the_run_ends_gives_the_exit_code).
            leaving.code = leaving.code or _CODES[received]
            raise
        leaving.leave(_CODES[received], scope)
        return


async def _interrupted(interrupt: Callable[[], Awaitable[bool]]) -> bool:
    """Return True if there was a turn to stop.

    Also False if the store does not accept the interrupt, so that the person can only leave.
    """
    # On a full disk the interrupt cannot be written, and Ctrl-C must still end the run
    # (test_a_first_ctrl_c_ends_a_run_that_cannot_write).
    with anyio.move_on_after(HEARD_WITHIN):
        return await interrupt()
    return False


async def handle_end(
    leaving: ExitRequests,
    scope: anyio.CancelScope,
    *,
    task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Cancel `scope` at SIGTERM, if Ctrl-C is read as a key.

    An exception raised at an arbitrary point of the process could leave its threads waiting forever.
    """
    async with anyio.create_task_group() as group:
        group.start_soon(_leave_at_hangup, leaving, scope)
        task_status.started()
        leaving.leave(_CODES[await leaving.signals.next()], scope)
        group.cancel_scope.cancel()
