"""Which local minute of the calendar an expression names next. Zones and clock changes are left aside here.

The days are croniter's: months, leap years and the two day fields. The time within a day is read off the fields, which
costs microseconds where a walk of croniter costs half a millisecond: most next times are of the same day or the next.
"""

from __future__ import annotations

from datetime import date, datetime, time, timedelta

from croniter import croniter

from callboard.core.schedule.cron import Cron

_MINUTE = timedelta(minutes=1)
_DAY = timedelta(days=1)
LONGEST_GAP_YEARS = 50
"""More years than lie between two days of any expression: a 29 February on one weekday, over a century's missing one,
comes after 40 at the latest."""


def next_local(cron: Cron, local: datetime) -> datetime:
    """The first local minute strictly after `local` that the fields name.

    Takes and returns a datetime without a zone. There always is one, within 40 years: `parse_cron` refuses what never
    fires, and the rarest date is a 29 February on one weekday with a century without leap day before it.
    """
    start = local.replace(second=0, microsecond=0) + _MINUTE
    day = start.date()
    if _named(cron, day):
        at = _time_from(cron, start.hour, start.minute)
        if at is not None:
            return datetime.combine(day, at)
    return datetime.combine(_day_from(cron, day + _DAY), time(min(cron.hours), min(cron.minutes)))


def _time_from(cron: Cron, hour: int, minute: int) -> time | None:
    """The first time of day that is named, not before this one. None: the day has no more."""
    if hour in cron.hours:
        later = min((each for each in cron.minutes if each >= minute), default=None)
        if later is not None:
            return time(hour, later)
    next_hour = min((each for each in cron.hours if each > hour), default=None)
    return None if next_hour is None else time(next_hour, min(cron.minutes))


def _day_from(cron: Cron, day: date) -> date:
    """The first day that is named, not before this one."""
    if _named(cron, day):
        return day
    days, weekdays = _written(cron.days, 31), _written(cron.weekdays, 7)
    if not cron.both_days and "*" in (days, weekdays):  # either is enough: croniter would leave out the one with a star
        days = weekdays = "*"
    walk = croniter(
        f"0 0 {days} {_written(cron.months, 12)} {weekdays}",
        datetime.combine(day, time()) - _MINUTE,
        day_or=not cron.both_days,
        max_years_between_matches=LONGEST_GAP_YEARS,
        ret_type=datetime,
    )
    found: datetime = walk.get_next()
    return found.date()


def _written(values: frozenset[int], whole: int) -> str:
    """The numbers of a field, shortly: croniter takes its time with each number of a list."""
    first, last = min(values), max(values)
    if len(values) == whole:
        return "*"
    if 1 < len(values) == last - first + 1:
        return f"{first}-{last}"
    return ",".join(map(str, sorted(values)))


def _named(cron: Cron, day: date) -> bool:
    if day.month not in cron.months:
        return False
    of_month, of_week = day.day in cron.days, day.isoweekday() % 7 in cron.weekdays
    return of_month and of_week if cron.both_days else of_month or of_week
