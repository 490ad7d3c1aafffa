"""Imports of large packages without garbage collections in between."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache

_YOUNG = 5_000
"""New objects before a collection of the youngest generation. Python's 700 is below what one step of an agent makes."""


@contextmanager
def collector_paused() -> Generator[None]:
    """Pause the garbage collector of the process during a large import.

    An import creates hundreds of thousands of objects and almost no garbage. Without the pause, the first request of
    `callboard run` leaves 150 ms later, a tenth of the whole start (`bench/start.py`, Python 3.11). The collector runs
    afterwards only if it ran before. If the process has frozen objects (`freeze_imports`), it freezes the imported ones
    too.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if gc.get_freeze_count():
            gc.freeze()
        if was_enabled:
            gc.enable()


def freeze_imports() -> None:
    """Exempt what is imported, now and by `collector_paused`, from garbage collection, and collect less often.

    Only for a process of Callboard's own: an application that embeds it may have garbage of its own at this moment,
    which would stay. Each collection of the oldest generation examines 230,000 objects of modules and classes, which
    live as long as the process; with both measures, a start costs a fifth less CPU and a step 6 % (`bench/step.py`).
    """
    gc.freeze()
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])


@cache
def freeze_opened() -> None:
    """Freeze what the first session of a process of Callboard's own has loaded, once."""
    if gc.get_freeze_count():
        gc.freeze()
