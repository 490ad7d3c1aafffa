"""A clock that jumps to whatever is due next: a night of waiting passes in milliseconds."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio

from callboard.words.errors import UsageError

T = TypeVar("T")


class _Jumping(selectors.DefaultSelector):
    """Looks at what is ready, and instead of waiting for a timer moves the clock on to it."""

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


class _VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time is what its selector has passed over."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.passed


def run_virtual(main: Callable[..., Awaitable[T]], *args: object) -> T:
    """Run `main(*args)` to its end on an event loop of its own, whose clock jumps over every wait; what it returns.

    For what runs in memory: a thread, a process or a socket is not waited for while there is a timer to jump to, so
    time-outs of such things are over at once. `Rehearsal` uses none. On asyncio; under trio `trio.testing.MockClock`
    with `autojump_threshold=0` does the same. Raises what `main` raises, and `UsageError` inside a running loop.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        options: dict[str, Any] = {"loop_factory": _VirtualLoop}
        return anyio.run(main, *args, backend="asyncio", backend_options=options)
    raise UsageError("run_virtual makes an event loop of its own: call it from a test that is not async")
