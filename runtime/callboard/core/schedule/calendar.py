"""Which local minute of the calendar an expression names next. Zones and clock changes are left aside here."""

from __future__ import annotations

from calendar import monthrange
from datetime import date, datetime, time, timedelta

from callboard.core.schedule.cron import Cron

_MINUTE = timedelta(minutes=1)
_DAY = timedelta(days=1)


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
    year, month, first = day.year, day.month, day.day
    while True:
        found = _in_month(cron, year, month, first) if month in cron.months else None
        if found is not None:
            return found
        year, month, first = (year, month + 1, 1) if month < 12 else (year + 1, 1, 1)


def _in_month(cron: Cron, year: int, month: int, first: int) -> date | None:
    weekday, length = monthrange(year, month)  # that of the first day, Monday is 0
    for number in range(first, length + 1):
        if _matches(cron, number, (weekday + number) % 7):
            return date(year, month, number)
    return None


def _named(cron: Cron, day: date) -> bool:
    return day.month in cron.months and _matches(cron, day.day, day.isoweekday() % 7)


def _matches(cron: Cron, day: int, weekday: int) -> bool:
    if cron.both_days:
        return day in cron.days and weekday in cron.weekdays
    return day in cron.days or weekday in cron.weekdays
