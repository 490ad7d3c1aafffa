"""Signals are recorded from before the event loop begins until after its end."""

from __future__ import annotations

import io
import os
import signal

import anyio
import pytest

from callboard.cli.terminal.signals import ExitRequests, Signals, handle_signals, run_with_signals
from callboard.cli.terminal.terminal import Terminal


async def _nothing_to_stop() -> bool:
    return False


async def _sends_at_the_end(leaving: ExitRequests, sent: signal.Signals) -> int:
    """Send a signal in the same step of the loop in which its reader is cancelled."""
    async with anyio.create_task_group() as group:
        await group.start(handle_signals, leaving, group.cancel_scope, _nothing_to_stop)
        group.cancel_scope.cancel()
        os.kill(os.getpid(), sent)
    return 0


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_that_comes_while_its_reader_is_cancelled_gives_the_exit_code(sent: signal.Signals, code: int) -> None:
    terminal = Terminal(io.StringIO(), io.StringIO())

    async def go(leaving: ExitRequests) -> int:
        return await _sends_at_the_end(leaving, sent)

    assert run_with_signals(go, terminal) == code
    terminal.close()


def test_a_ctrl_c_that_is_being_handled_when_the_run_ends_gives_the_exit_code() -> None:
    terminal = Terminal(io.StringIO(), io.StringIO())
    handled = anyio.Event()

    async def interrupt() -> bool:
        handled.set()
        await anyio.sleep_forever()
        return True

    async def go(leaving: ExitRequests) -> int:
        async with anyio.create_task_group() as group:
            await group.start(handle_signals, leaving, group.cancel_scope, interrupt)
            os.kill(os.getpid(), signal.SIGINT)
            await handled.wait()
            group.cancel_scope.cancel()
        return 0

    assert run_with_signals(go, terminal) == 130
    terminal.close()


def test_the_handlers_of_before_are_back_afterwards() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Signals(signal.SIGTERM) as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.take_unread() == (signal.SIGTERM,)
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_third_signal_that_nobody_reads_ends_the_process() -> None:
    with Signals(signal.SIGTERM):
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(SystemExit) as ended:
            os.kill(os.getpid(), signal.SIGTERM)
    assert ended.value.code == 143
