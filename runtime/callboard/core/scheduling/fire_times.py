"""Fire times of an expression: local minutes converted to moments, with clock changes.

The next matching local minute in the calendar is computed without zones and clock changes.

A job whose minute or hour begins with a star follows the real clock: nothing runs for a gap, and both passes of a
repeated hour run. Any other job that was due in a gap runs once right after it, and only in the first pass of a
repeated hour. `every` counts real seconds, and `at` is one moment, so clock changes do not affect them. Moments are
unix seconds.

The days are croniter's: months, leap years and the two day fields. The time within a day is computed from the fields,
which costs microseconds where croniter needs half a millisecond: most next times are on the same day or the next.
"""

from __future__ import annotations

import math
from datetime import date, datetime, time, timedelta

from callboard.core.scheduling.cron import Cron
from callboard.core.scheduling.timezones import (
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
from callboard.core.scheduling.trigger import Interval, OneTime, When

_LONGEST_PASS = 2 * DAY
"""Upper bound for setting the clocks back: Alaska's change of 1867 was a day and an hour, all later ones less."""


def next_fire(when: When, after: datetime | float) -> float | None:
    """Return the first fire time strictly after `after` (aware, or unix seconds), as unix seconds.

    None: a one-shot whose time has passed, or the end of the calendar, in the year 9000. Raises `ValueError` for a
    datetime without a zone.
    """
    begin = max(math.floor(_unix(after)), FIRST_MOMENT)
    if begin >= LAST_MOMENT:
        return None
    match when:
        case OneTime():
            return float(when.at) if when.at > begin else None
        case Interval():
            return float(when.anchor + when.period * (max(0, begin - when.anchor) // when.period + 1))
        case Cron():
            return float(_next_by_clock(when, begin) if when.follows_clock else _next_once(when, begin))


def fires_between(when: When, after: datetime | float, until: datetime | float, cap: int) -> list[float]:
    """Return the fire times after `after` up to and including `until`, oldest first, at most the first `cap`."""
    end = _unix(until)
    fires: list[float] = []
    at = next_fire(when, after)
    while at is not None and at <= end and len(fires) < cap:
        fires.append(at)
        at = next_fire(when, at)
    return fires


def last_fire(when: When, after: datetime | float, until: datetime | float) -> float | None:
    """Return the last fire time after `after` and not past `until`.

    Uses bisection, so that a long absence costs no more.
    """
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
    """Return the next three fire times, which a person sees when an expression is accepted."""
    return fires_between(when, after, LAST_MOMENT, cap=3)


def _unix(moment: datetime | float) -> float:
    if not isinstance(moment, datetime):
        return moment
    if moment.tzinfo is None:
        raise ValueError(f"{moment.isoformat()} has no time zone: give an aware datetime or unix seconds")
    return moment.timestamp()


def _next_by_clock(cron: Cron, begin: int) -> int:
    """Find the next time by the real clock, segment by segment.

    A segment is the time between two changes of the zone's offset.

    Only a near change can contain a second pass that precedes the next local minute on the calendar: for a later
    change, the first pass comes first. So a distant minute is computed directly, and skipped if it is in a gap.
    """
    at = begin
    stretch = begin
    while True:
        offset = offset_at(cron.zone, stretch)
        local = next_local(cron, local_at(at, offset))
        candidate = seconds_of(local) - offset
        change = first_change(cron.zone, stretch, min(candidate, stretch + _LONGEST_PASS))
        if change is not None:
            # the first second of the new segment may itself be due
            at = change - 1
            stretch = change
        elif candidate <= stretch + _LONGEST_PASS:
            return candidate
        else:
            return _shown_next(cron, local)


def _shown_next(cron: Cron, local: datetime) -> int:
    """Return the moment of this local minute, or of the next matching one that is not in a gap."""
    while in_gap(cron.zone, local):
        local = next_local(cron, local)
    return moment_of(cron.zone, local)


def _next_once(cron: Cron, begin: int) -> int:
    """Map each local minute to one moment, in order.

    `moment_of` never runs backwards, so the first moment after is next.
    """
    local = next_local(cron, local_at(begin, offset_at(cron.zone, begin)))
    while (at := moment_of(cron.zone, local)) <= begin:
        local = next_local(cron, local)
    return at


_MINUTE = timedelta(minutes=1)
_DAY = timedelta(days=1)
LONGEST_GAP_YEARS = 50
"""Upper bound for the years between two matching days of any expression: a 29 February on one weekday, across a century
year without it, recurs after at most 40."""


def next_local(cron: Cron, local: datetime) -> datetime:
    """Return the first matching local minute strictly after `local`.

    Takes and returns a datetime without a zone. There is always a match, within 40 years: `parse_cron` refuses
    expressions that never fire, and the rarest date is a 29 February on one weekday with a century year without leap
    day before it.
    """
    start = local.replace(second=0, microsecond=0) + _MINUTE
    day = start.date()
    if _named(cron, day):
        at = _time_from(cron, start.hour, start.minute)
        if at is not None:
            return datetime.combine(day, at)
    return datetime.combine(_day_from(cron, day + _DAY), time(min(cron.hours), min(cron.minutes)))


def _time_from(cron: Cron, hour: int, minute: int) -> time | None:
    """Return the first matching time of day, not before this one. None: the day has no more."""
    if hour in cron.hours:
        later = min((each for each in cron.minutes if each >= minute), default=None)
        if later is not None:
            return time(hour, later)
    next_hour = min((each for each in cron.hours if each > hour), default=None)
    return None if next_hour is None else time(next_hour, min(cron.minutes))


def _day_from(cron: Cron, day: date) -> date:
    """Return the first matching day, not before this one."""
    if _named(cron, day):
        return day
    days = _written(cron.days, 31)
    weekdays = _written(cron.weekdays, 7)
    if not cron.both_days and "*" in (days, weekdays):  # either is enough: croniter would ignore the field with a star
        days = weekdays = "*"
    from croniter import croniter  # noqa: PLC0415 - few commands compute days; the import takes 9 ms

    walk = croniter(
        f"0 0 {days} {_written(cron.months, 12)} {weekdays}",
        datetime.combine(day, time()) - _MINUTE,
        day_or=not cron.both_days,
        max_years_between_matches=LONGEST_GAP_YEARS,
        ret_type=datetime,
    )
    moment: datetime = walk.get_next()
    return moment.date()


def _written(values: frozenset[int], whole: int) -> str:
    """Return the numbers of a field in short form: croniter is slow with each number of a list."""
    first = min(values)
    last = max(values)
    if len(values) == whole:
        return "*"
    if 1 < len(values) == last - first + 1:
        return f"{first}-{last}"
    return ",".join(map(str, sorted(values)))


def _named(cron: Cron, day: date) -> bool:
    if day.month not in cron.months:
        return False
    of_month = day.day in cron.days
    of_week = day.isoweekday() % 7 in cron.weekdays
    return of_month and of_week if cron.both_days else of_month or of_week
