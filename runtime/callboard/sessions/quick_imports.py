"""Imports of large packages without garbage collections in between."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Generator[None]:
    """Pause the garbage collector of the process during a large import.

    An import creates hundreds of thousands of objects and almost no garbage. Without the pause, the first request of
    `callboard run` leaves 150 ms later, a tenth of the whole start (`bench/start.py`, Python 3.11). The collector runs
    afterwards only if it ran before.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
