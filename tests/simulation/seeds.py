"""Runs from seeds: each is lived once; what raised or broke a promise is told with the command that does it again."""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import TypeVar

from structlog.testing import capture_logs
from tests.simulation.chaos import Run
from tests.simulation.evidence import Evidence
from tests.simulation.virtual import run_virtual

RunT = TypeVar("RunT", bound=Run)

COLLECTED = 10
"""Runs after which what they leave is collected: a world is a circle of some 20 MB."""


def lived(make: Callable[[int], RunT], seed: int, replay: str) -> tuple[RunT, Evidence]:
    """The run of one seed, whatever it broke. `replay`: the command, with `{}` for the seed."""
    run = make(seed)
    try:
        with capture_logs():  # traces of the bugs that we raise: to print them takes longer than the run
            return run, run_virtual(run.whole, seed=seed)
    except BaseException as raised:
        raise AssertionError(f"seed {seed} raised {raised!r}. Again: {replay.format(seed)}") from raised


def live_all(
    make: Callable[[int], RunT], seeds: Iterable[int], replay: str, met: Callable[[RunT, Evidence], None]
) -> None:
    """Live all seeds, each told to `met` and then let go: it holds a whole world. Fails with all that broke."""
    broken: list[str] = []
    with _seldom_collected():
        for number, seed in enumerate(seeds, start=1):
            run, evidence = lived(make, seed, replay)
            met(run, evidence)
            broken += [f"seed {seed}: {what}" for what in run.broken]
            broken += [f"    again: {replay.format(seed)}"] if run.broken else []
            del run, evidence
            if number % COLLECTED == 0:
                gc.collect()
    assert not broken, "\n".join(broken)


@contextmanager
def _seldom_collected() -> Generator[None]:
    """A run makes hundreds of thousands of small values that live for a moment, in a process full of modules that are
    walked for each of them: the collector's own rates cost a tenth of a run."""
    rates = gc.get_threshold()
    gc.set_threshold(50_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*rates)


def twice_the_same(make: Callable[[int], Run], seed: int, replay: str) -> None:
    """One seed is one run, to the event; and it breaks nothing."""
    (first, then), (second, again) = lived(make, seed, replay), lived(make, seed, replay)
    assert [life.events for life in then.lives] == [life.events for life in again.lives]
    assert first.broken == second.broken == []
