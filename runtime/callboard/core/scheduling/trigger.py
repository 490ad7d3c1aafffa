"""Triggers of a schedule: a cron expression, `every 20m`, or `at 2030-12-01T09:00`.

`every` counts real seconds from an anchor, the creation of the schedule: clock changes do not move it. `at` is one
moment in the schedule's zone, or with an explicit offset: a time inside a gap means the end of the gap, and an
ambiguous time means the first of the two, as for a cron job with a fixed time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import field
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from zoneinfo import ZoneInfo

from callboard.core.scheduling.cron import LONGEST_TEXT, Cron, CronInvalid, parse_cron, zone_named
from callboard.core.scheduling.timezones import moment_of, quote_text
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass
from callboard.types.schedules import Schedule

SHORTEST_PERIOD = 60
LONGEST_PERIOD = 366 * 86_400
"""Maximum period in seconds. A longer period is better given by dates, which a clock's drift and a leap day do not
move."""

_UNITS: Mapping[str, int] = MappingProxyType({"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1})
_PART = late_pattern(r"([0-9]{1,8})[ \t]*([a-z]+)[ \t]*", re.ASCII)
_WORDS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("w", "week", "weeks"), "w"),
        **dict.fromkeys(("d", "day", "days"), "d"),
        **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), "h"),
        **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), "m"),
        **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "s"),
    }
)
_LOCAL = late_pattern(
    r"""(?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2}) (?:[Tt]|[ \t]+) (?P<time>[0-9]{2}:[0-9]{2}(?::[0-9]{2})?)
        [ \t]* (?P<offset>[Zz]|[+-][0-9]{2}:[0-9]{2})?""",
    re.VERBOSE | re.ASCII,
)
_EVERY_HELP = "write a period such as every 20m, every 1h30m or every 2d, from 1 minute to 366 days"
_AT_HELP = "write a date and a time such as at 2030-12-01T09:00, with Z or +01:00 behind it for another than the zone's"


@dataclass(frozen=True, slots=True)
class Interval:
    """A period, counted from an anchor."""

    text: str
    timezone: str
    period: int
    """Seconds."""
    anchor: int
    """Unix seconds: it fires one period after this, two periods after it, and so on."""
    zone: ZoneInfo = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class OneTime:
    """One moment."""

    text: str
    timezone: str
    at: int
    """Unix seconds."""
    zone: ZoneInfo = field(compare=False, repr=False)


When = Cron | Interval | OneTime
"""Parsed `Schedule.cron`. Frozen: frequent callers keep it, and parse the text again when it changes."""


def parse_when(text: str, timezone: str = "UTC", anchor: float = 0.0) -> When:
    """Parse the text of a schedule and its zone.

    Raises `CronInvalid`, and nothing else, for any text; `field` is `expression` if `every` or `at` is invalid.

    `anchor`: creation time of the schedule in unix seconds; only `every` counts from it.
    """
    stripped = text.strip(" \t\r\n") if len(text) <= LONGEST_TEXT else ""
    first, _, argument = stripped.replace("\t", " ").partition(" ")
    match first.lower():
        case "every":
            return Interval(stripped, timezone, _period(argument.strip(" ")), math.floor(anchor), zone_named(timezone))
        case "at":
            zone = zone_named(timezone)
            return OneTime(stripped, timezone, _unix_seconds(argument.strip(" "), zone), zone)
        case _:
            return parse_cron(text, timezone)


def when_of(schedule: Schedule) -> When:
    """Return the parsed trigger of a schedule's row. Raises `CronInvalid` for a row that cannot be read."""
    return parse_when(schedule.cron, schedule.timezone, schedule.created_at)


def _period(text: str) -> int:
    """Return the seconds of `1h30m`. Raises `CronInvalid`."""
    seconds = 0
    at = 0
    units = list[str]()
    while at < len(text):
        part = _PART.match(text, at)
        unit = _WORDS.get(part[2]) if part else None
        if part is None or unit is None:
            raise CronInvalid("expression", f"the period {quote_text(text)} is not understood: {_EVERY_HELP}")
        units.append(unit)
        seconds += int(part[1]) * _UNITS[unit]
        at = part.end()
    if not units:
        raise CronInvalid("expression", f"every what? {_EVERY_HELP[0].upper()}{_EVERY_HELP[1:]}")
    if units != [unit for unit in _UNITS if unit in units]:
        raise CronInvalid("expression", f"the units of {quote_text(text)} go up or come twice: {_EVERY_HELP}")
    if not SHORTEST_PERIOD <= seconds <= LONGEST_PERIOD:
        raise CronInvalid("expression", f"the period {quote_text(text)} is out of range: {_EVERY_HELP}")
    return seconds


def _unix_seconds(text: str, zone: ZoneInfo) -> int:
    """Return the unix seconds of a local time, or of a time with an offset. Raises `CronInvalid`."""
    read = _LOCAL.fullmatch(text)
    if read is None:
        raise CronInvalid("expression", f"the time {quote_text(text)} is not understood: {_AT_HELP}")
    try:
        local = datetime.fromisoformat(f"{read['date']}T{read['time']}")
        offset_text = read["offset"]
        offset = datetime.fromisoformat(f"2000-01-01T00:00{offset_text.upper()}").utcoffset() if offset_text else None
    except ValueError as wrong:
        raise CronInvalid(
            "expression", f"there is no such date, time or offset as {quote_text(text)}: {_AT_HELP}"
        ) from wrong
    if not 1000 < local.year < 9000:
        raise CronInvalid("expression", f"the year of {quote_text(text)} is out of range: {_AT_HELP}")
    if offset is None:
        return moment_of(zone, local)
    return (local.replace(tzinfo=UTC) - offset - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1)
