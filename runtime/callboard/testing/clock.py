"""Clock that jumps to the next due timer: a night of waiting passes in milliseconds."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio

from callboard.types.errors import UsageError

T = TypeVar("T")


class _Jumping(selectors.DefaultSelector):
    """Selector that advances the clock instead of waiting for a timer."""

    def __init__(self) -> None:
        super().__init__()
        self.passed = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:  # only another thread or process can wake this loop: there is no timer to jump to
            return super().select(None)
        self.passed += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Event loop whose time is that of its selector."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.passed


def run_virtual(main: Callable[..., Awaitable[T]], *args: object) -> T:
    """Run `main(*args)` on a new event loop whose clock jumps over every wait, and return its result.

    For code in memory: threads, processes and sockets are not awaited while a timer can be jumped to, so their timeouts
    pass at once. `Rehearsal` uses none. On asyncio; under trio, use `trio.testing.MockClock` with
    `autojump_threshold=0`. Raises the exceptions of `main`, and `UsageError` inside a running loop.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        options: dict[str, Any] = {"loop_factory": VirtualLoop}
        return anyio.run(main, *args, backend="asyncio", backend_options=options)
    raise UsageError("run_virtual makes an event loop of its own: call it from a test that is not async")
