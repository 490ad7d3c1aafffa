"""Simulated runs: virtual time that jumps to whatever is due next, and an order of tasks that a seed decides."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
from trio._core import _run as scheduler  # no public way: trio shuffles its batches, and a seed must decide how
from trio.testing import MockClock

T = TypeVar("T")


def run_virtual(main: Callable[..., Awaitable[T]], *args: object, seed: int = 0) -> T:
    """Run `main(*args)` to its end on a virtual clock. The same seed is the same run."""
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True
    scheduler._r.seed(seed)
    clock = MockClock(autojump_threshold=0)
    return anyio.run(main, *args, backend="trio", backend_options={"clock": clock})
