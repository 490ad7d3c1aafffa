"""When an expression fires: local minutes turned into moments, clock changes included.

A job whose minute or hour begins with a star follows the real clock: nothing is made up inside a gap, and both passes
of a repeated hour run. Any other job runs once right after a gap that it was due in, and only in the first pass of a
repeated hour. `every` counts real seconds, and `at` is one moment: neither knows of clocks. Moments are unix seconds.
"""

from __future__ import annotations

import math
from datetime import datetime

from callboard.core.schedule.calendar import next_local
from callboard.core.schedule.clock import (
    DAY,
    FIRST_MOMENT,
    LAST_MOMENT,
    first_change,
    in_gap,
    local_at,
    moment_of,
    offset_at,
    seconds_of,
)
from callboard.core.schedule.cron import Cron
from callboard.core.schedule.when import Every, Once, When

_LONGEST_PASS = 2 * DAY
"""No change has turned the clocks back by more: Alaska's of 1867 was a day and an hour, all later ones less."""


def next_fire(when: When, after: datetime | float) -> float | None:
    """The first moment strictly after `after` (aware, or unix seconds) at which it fires, as unix seconds.

    None: a one-shot whose time has come, or the end of the calendar, in the year 9000. Raises `ValueError` for a
    datetime without a zone.
    """
    begin = max(math.floor(_unix(after)), FIRST_MOMENT)
    if begin >= LAST_MOMENT:
        return None
    match when:
        case Once():
            return float(when.at) if when.at > begin else None
        case Every():
            return float(when.anchor + when.period * (max(0, begin - when.anchor) // when.period + 1))
        case Cron():
            return float(_next_by_clock(when, begin) if when.follows_clock else _next_once(when, begin))


def fires_between(when: When, after: datetime | float, until: datetime | float, cap: int) -> list[float]:
    """The moments after `after` up to and including `until`, oldest first, at most the first `cap` of them."""
    end = _unix(until)
    fires: list[float] = []
    at = next_fire(when, after)
    while at is not None and at <= end and len(fires) < cap:
        fires.append(at)
        at = next_fire(when, at)
    return fires


def last_fire(when: When, after: datetime | float, until: datetime | float) -> float | None:
    """The last moment after `after` and not past `until`, found by halving, so that a long time away costs no more."""
    end = _unix(until)
    low = next_fire(when, after)
    if low is None or low > end:
        return None
    high = math.floor(end)
    while low < high:
        middle = (int(low) + high) // 2
        at = next_fire(when, middle)
        if at is not None and at <= end:
            low = at
        else:
            high = middle
    return low


def next_three(when: When, after: datetime | float) -> list[float]:
    """The next three moments: what a person is shown when an expression is accepted."""
    return fires_between(when, after, LAST_MOMENT, cap=3)


def _unix(moment: datetime | float) -> float:
    if not isinstance(moment, datetime):
        return moment
    if moment.tzinfo is None:
        raise ValueError(f"{moment.isoformat()} has no time zone: give an aware datetime or unix seconds")
    return moment.timestamp()


def _next_by_clock(cron: Cron, begin: int) -> int:
    """The real clock, stretch by stretch: a stretch is the time between two changes of the zone's offset.

    Only changes that are near can hold a second pass that comes before the next local minute on the calendar: of a
    later one the first pass comes first. So a far minute is looked up at once, and passed over when a gap holds it.
    """
    at, stretch = begin, begin
    while True:
        offset = offset_at(cron.zone, stretch)
        local = next_local(cron, local_at(at, offset))
        candidate = seconds_of(local) - offset
        change = first_change(cron.zone, stretch, min(candidate, stretch + _LONGEST_PASS))
        if change is not None:
            at, stretch = change - 1, change  # the first second of the new stretch may itself be due
        elif candidate <= stretch + _LONGEST_PASS:
            return candidate
        else:
            return _shown_next(cron, local)


def _shown_next(cron: Cron, local: datetime) -> int:
    """When the clocks show this local minute, or the next one named that no gap holds."""
    while in_gap(cron.zone, local):
        local = next_local(cron, local)
    return moment_of(cron.zone, local)


def _next_once(cron: Cron, begin: int) -> int:
    """Each local minute at one moment, in order: `moment_of` never runs backwards, so the first one after is next."""
    local = next_local(cron, local_at(begin, offset_at(cron.zone, begin)))
    while (at := moment_of(cron.zone, local)) <= begin:
        local = next_local(cron, local)
    return at
