"""Descriptions of a schedule's times, such as `at 09:00 on weekdays, Europe/Berlin`.

A person checks an expression by its description.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from callboard.core.scheduling.cron import Cron
from callboard.core.scheduling.trigger import Interval, OneTime, When

_WEEKDAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_MOST_TIMES = 6
"""Maximum number of listed times of day. Above it, minutes and hours are named separately."""


def describe(when: When) -> str:
    """Return the expression in words, with its time zone. For an `every` without an anchor (0), no start is given."""
    match when:
        case OneTime(at=at):
            local = datetime.fromtimestamp(at, when.zone)
            return f"once at {local:%H:%M{':%S' if local.second else ''}} on {local:%A} {_date(local)}, {when.timezone}"
        case Interval(anchor=0):
            return f"every {_duration_text(when.period)}"
        case Interval(anchor=anchor):
            local = datetime.fromtimestamp(anchor, when.zone)
            return f"every {_duration_text(when.period)} from {local:%H:%M} on {_date(local)}, {when.timezone}"
        case Cron():
            return _cron_words(when)


def local_time(when: When, at: float) -> str:
    """Return a moment as local time in the expression's zone: `Mon 2026-03-30 09:00 CEST`."""
    return f"{datetime.fromtimestamp(at, when.zone):%a %Y-%m-%d %H:%M %Z}"


def _cron_words(cron: Cron) -> str:
    time = _time(cron)
    days = _days(cron)
    if not days and time.startswith("at ") and len(cron.hours) < 24:
        days = "every day"
    months = "" if len(cron.months) == 12 else f"in {_list_text(sorted(cron.months), _MONTHS, 1)}"
    return " ".join(part for part in (time, days, months) if part) + f", {cron.timezone}"


def _date(local: datetime) -> str:
    """Return a date as `1 December 2026`."""
    return f"{local.day} {_MONTHS[local.month - 1]} {local.year}"


def _duration_text(seconds: int) -> str:
    """Return the text after `every`: `20 minutes`, `hour`, `1 hour and 30 minutes`."""
    parts: list[str] = []
    for name, size in (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1)):
        count, seconds = divmod(seconds, size)
        parts += [f"{count} {name}{'' if count == 1 else 's'}"] if count else []
    return parts[0].removeprefix("1 ") if len(parts) == 1 else _join_with_and(parts)


def _time(cron: Cron) -> str:
    minutes = sorted(cron.minutes)
    hours = sorted(cron.hours)
    if len(minutes) * len(hours) <= _MOST_TIMES:
        return "at " + _join_with_and([f"{hour:02}:{minute:02}" for hour in hours for minute in minutes])
    every = _period(minutes, 60)
    if every is not None:
        span = "every minute" if every == 1 else f"every {every} minutes"
        return span if len(hours) == 24 else f"{span} {_hours(hours)}"
    named = f"at minute{'s' if len(minutes) > 1 else ''} {_list_text(minutes)}"
    return f"{named} of every hour" if len(hours) == 24 else f"{named} {_hours(hours)}"


def _hours(hours: Sequence[int]) -> str:
    every = _period(hours, 24)
    if every is not None:
        return f"of every {every} hours from 00:00"
    return f"of the hour{'s' if len(hours) > 1 else ''} {_list_text(hours)}"


def _period(values: Sequence[int], size: int) -> int | None:
    """Return the step if the values are 0, step, 2 step, ... and wrap around evenly, otherwise None."""
    step = size // len(values)
    return step if list(values) == list(range(0, size, step)) and size % step == 0 and step < size else None


def _days(cron: Cron) -> str:
    dates = "" if len(cron.days) == 31 else _dates(sorted(cron.days))
    weekdays = "" if len(cron.weekdays) == 7 else _named_weekdays(cron.weekdays)
    if not cron.both_days:
        return f"{dates} or {weekdays}" if dates and weekdays else ""
    if dates and weekdays:
        return f"{dates} if that is {weekdays.removeprefix('on ')}"
    return dates or weekdays


def _dates(days: Sequence[int]) -> str:
    return f"on day{'s' if len(days) > 1 else ''} {_list_text(days)} of the month"


def _named_weekdays(weekdays: Collection[int]) -> str:
    if set(weekdays) == {1, 2, 3, 4, 5}:
        return "on weekdays"
    from_monday = sorted(weekdays, key=lambda day: (day - 1) % 7)
    return "on " + _join_with_and([_WEEKDAYS[day] for day in from_monday])


def _list_text(values: Sequence[int], names: Sequence[str] = (), first: int = 0) -> str:
    """Return a list as text: `1, 3 and 5 to 9`. Runs of three or more become a range."""
    runs: list[list[int]] = []
    for value in values:
        if runs and runs[-1][-1] == value - 1:
            runs[-1].append(value)
        else:
            runs.append([value])

    def label(value: int) -> str:
        return names[value - first] if names else str(value)

    parts: list[str] = []
    for run in runs:
        parts += [f"{label(run[0])} to {label(run[-1])}"] if len(run) > 2 else map(label, run)
    return _join_with_and(parts)


def _join_with_and(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
