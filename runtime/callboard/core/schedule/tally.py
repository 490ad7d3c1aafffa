"""What a schedule will do and has done, for a person: its next times, and its fires counted. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from callboard.core.schedule.clock import LAST_MOMENT
from callboard.core.schedule.fires import fires_between
from callboard.core.schedule.when import when_of
from callboard.words.schedules import Fire, Schedule

GOOD = "done"
TRIED = frozenset({"done", "failed", "timed_out", "lost"})
"""Outcomes of fires that were run to some end: the success rate is counted among them."""


@dataclass(frozen=True, slots=True)
class FireStats:
    """The fires of one schedule, counted."""

    schedule: str
    name: str
    fires: int
    """All in its history, those that did not run included."""
    outcomes: Mapping[str, int] = field(default_factory=dict[str, int])
    success_rate: float | None = None
    """0..1 of those that ran to some end; None: there is none."""
    mean_seconds: float | None = None
    last_seconds: float | None = None
    last_outcome: str = ""
    last_at: float | None = None
    """The nominal time of the newest, unix seconds."""
    cost_usd: float = 0.0
    tokens: int = 0
    steps: int = 0


def upcoming(schedule: Schedule, now: float, count: int) -> list[float]:
    """The next moments (unix seconds) that it fires at after `now`, jitter left aside, at most `count`.

    None once it has fired as often as it may, at or after its end, or while it does not fire. Raises `CronInvalid`.
    """
    if not schedule.enabled or schedule.state != "active":
        return []
    if not schedule.recurring:
        count = min(count, 1)
    if schedule.max_runs is not None:
        count = min(count, max(0, schedule.max_runs - schedule.fires))
    after = max(now, schedule.last_slot or 0.0)
    until = LAST_MOMENT if schedule.expires is None else math.nextafter(schedule.expires, 0)
    return fires_between(when_of(schedule), after, until, cap=count)


def newest_first(fires: Iterable[Fire]) -> list[Fire]:
    """By their nominal times, those of one time by when they were decided upon."""
    return sorted(fires, key=lambda one: (one.nominal, one.at, one.id), reverse=True)


def seconds_of(fire: Fire) -> float | None:
    """How long its turn took; None while it has not ended, or never began."""
    if fire.began_at is None or fire.ended_at is None:
        return None
    return max(0.0, fire.ended_at - fire.began_at)


def stats_of(schedule: Schedule, fires: Sequence[Fire]) -> FireStats:
    """`fires`: of this schedule. One that stands for several missed slots counts as so many."""
    ordered = newest_first(fires)
    outcomes = Counter[str]()
    for fire in ordered:
        outcomes[fire.outcome] += max(1, fire.missed)
    tried = sum(outcomes[one] for one in TRIED)
    took = [seconds for fire in ordered if (seconds := seconds_of(fire)) is not None]
    return FireStats(
        schedule=schedule.id,
        name=schedule.name,
        fires=sum(outcomes.values()),
        outcomes=dict(sorted(outcomes.items())),
        success_rate=outcomes[GOOD] / tried if tried else None,
        mean_seconds=sum(took) / len(took) if took else None,
        last_seconds=took[0] if took else None,
        last_outcome=ordered[0].outcome if ordered else "",
        last_at=ordered[0].nominal if ordered else None,
        cost_usd=sum(fire.cost_usd for fire in ordered),
        tokens=sum(fire.tokens for fire in ordered),
        steps=sum(fire.steps for fire in ordered),
    )
