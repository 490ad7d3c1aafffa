"""Faster imports of large packages: no garbage collection runs in between."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from threading import Event

_own_process = Event()
"""Set by `freeze_imports`. `gc.get_freeze_count` would tell too, but it walks over all frozen objects."""
_YOUNG = 20_000
"""New objects before a collection of the youngest generation. Python's 700 is below what one step of an agent makes.
With 500 agents at work, a collection at 5,000 meets the objects of steps in progress, which would be free a moment
later: 0.1 ms of each model call (`bench/fanout.py`)."""


@contextmanager
def collector_paused() -> Generator[None]:
    """Pause the garbage collector of the process during a large import.

    An import creates hundreds of thousands of objects and almost no garbage. Without the pause, the first request of
    `callboard run` leaves 150 ms later, a tenth of the whole start (`bench/start.py`, Python 3.11). The collector runs
    afterwards only if it ran before. After `freeze_imports`, the imported objects are frozen too.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if _own_process.is_set():
            gc.freeze()
        if was_enabled:
            gc.enable()


def freeze_imports() -> None:
    """Exempt what is imported, now and by `collector_paused`, from garbage collection, and collect less often.

    Only for a process of Callboard's own: an application that embeds it may have garbage of its own at this moment,
    which would stay. Each collection of the oldest generation examines 230,000 objects of modules and classes, which
    live as long as the process; with both measures, a start costs a fifth less CPU and a step 6 % (`bench/step.py`).
    """
    _own_process.set()
    gc.freeze()
    young, *older = gc.get_threshold()
    gc.set_threshold(max(young, _YOUNG), *older)


@cache
def freeze_opened() -> None:
    """Freeze what the first session of a process of Callboard's own has loaded, once."""
    if _own_process.is_set():
        gc.freeze()
