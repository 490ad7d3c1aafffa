"""Cron expressions: five strict fields and a time zone, parsed once into sets of numbers.

Refused, with the name of the field: six and seven fields, `L`, `W`, `#`, `?`, `H`, ranges that wrap, `@reboot`, and a
date that occurs in no year. Accepted expressions mean the same as in the cron of Debian and Fedora: 0 and 7 are Sunday,
`a/step` is `a-max/step`, and day of month and day of week must both match if either begins with a star, otherwise
either is enough.

The parser is not croniter's, although its calendar is used (`fire_times.py`): other expressions that croniter accepts,
or interprets differently, would have to be refused first, with the name of the field. That requires the same parsing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType
from zoneinfo import ZoneInfo

from callboard.core.scheduling.timezones import quote_text, zone_of
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass

LONGEST_TEXT = 512
"""Maximum characters; the longest sensible expression lists every minute, which takes 169."""

NICKNAMES: Mapping[str, str] = MappingProxyType(
    {
        "@yearly": "0 0 1 1 *",
        "@annually": "0 0 1 1 *",
        "@monthly": "0 0 1 * *",
        "@weekly": "0 0 * * 0",
        "@daily": "0 0 * * *",
        "@midnight": "0 0 * * *",
        "@hourly": "0 * * * *",
    }
)

_ITEM = late_pattern(
    r"""(?: (?P<star>\*) | (?P<low>[0-9]+|[a-z]{3}) (?: - (?P<high>[0-9]+|[a-z]{3}) )? )
        (?: / (?P<step>[0-9]+) )?""",
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)
_EXTENSION = late_pattern(
    r"[HR~](\(.*)?(/.*)? | (LW?|WL?)(-[0-9]+W?)? | ([0-9]+|[a-z]{3}) (L|W|LW|WL) | .*[#?~].*",
    re.VERBOSE | re.IGNORECASE | re.ASCII | re.DOTALL,
)


class CronInvalid(ValueError):
    """The text is not a supported cron expression. `field` names the part; `str(error)` says what to write instead.

    `field` is one of `minute`, `hour`, `day of month`, `month`, `day of week`, `timezone`, `expression`.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field


@dataclass(frozen=True, slots=True)
class Cron:
    """One parsed expression. Days of the week count from Sunday = 0."""

    text: str
    timezone: str
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    both_days: bool
    """True if day of month and day of week must both match; otherwise either is enough."""
    follows_clock: bool
    """True if minute or hour begins with a star: runs follow the real clock, and a clock change causes no additional
    run."""
    zone: ZoneInfo = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()

    def number(self, text: str) -> int:
        """Return the value of a number, or of a name in any case. Raises `CronInvalid`."""
        if text.lower() in self.names:
            return self.low + self.names.index(text.lower())
        if not text.isdecimal():
            allowed = f" or a name such as {self.names[1].upper()}" if self.names else ""
            raise CronInvalid(self.name, f"{text!r} is not known here: write a number{allowed}")
        if not self.low <= int(text) <= self.high:
            raise CronInvalid(self.name, f"{quote_text(text)} is out of range: write {self.low} to {self.high}")
        return int(text)


_MINUTE = _Field("minute", 0, 59)
_HOUR = _Field("hour", 0, 23)
_DAY = _Field("day of month", 1, 31)
_MONTH = _Field("month", 1, 12, ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"))
_WEEKDAY = _Field("day of week", 0, 7, ("sun", "mon", "tue", "wed", "thu", "fri", "sat"))
_FIELDS = (_MINUTE, _HOUR, _DAY, _MONTH, _WEEKDAY)
_LAST_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def parse_cron(text: str, timezone: str = "UTC") -> Cron:
    """Parse an expression and its time zone. Raises `CronInvalid`, and nothing else, for any text."""
    fields = _five_words(text)
    minutes, hours, days, months, weekdays = (_read(*pair) for pair in zip(_FIELDS, fields, strict=True))
    cron = Cron(
        text=text.strip(" \t\r\n"),
        timezone=timezone,
        minutes=minutes,
        hours=hours,
        days=days,
        months=months,
        weekdays=frozenset(day % 7 for day in weekdays),
        both_days=fields[2].startswith("*") or fields[4].startswith("*"),
        follows_clock=fields[0].startswith("*") or fields[1].startswith("*"),
        zone=zone_named(timezone),
    )
    _refuse_never(cron)
    return cron


def zone_named(name: str) -> ZoneInfo:
    """Return the zone of that name.

    Raises `CronInvalid` for the field `timezone`, with a likely name if there is one.
    """
    try:
        return zone_of(name)
    except ValueError as unknown:
        raise CronInvalid("timezone", str(unknown)) from unknown


def _five_words(text: str) -> list[str]:
    """Return the five fields of the text, with nicknames expanded. Raises `CronInvalid` for the field `expression`."""
    if len(text) > LONGEST_TEXT:
        raise CronInvalid("expression", f"has {len(text)} characters: write at most {LONGEST_TEXT}")
    stripped = text.strip(" \t\r\n")
    if stripped.startswith("@"):
        stripped = _written_out(stripped)
    if stripped.upper().startswith(("CRON_TZ=", "TZ=")):
        raise CronInvalid("timezone", "is not part of the expression: give the time zone separately")
    fields = [word for word in re.split(r"[ \t]+", stripped) if word]
    if len(fields) in {6, 7}:
        raise CronInvalid(
            "expression",
            f"has {len(fields)} fields: seconds and years are not understood, write five: "
            "minute, hour, day of month, month, day of week",
        )
    if len(fields) != len(_FIELDS):
        raise CronInvalid(
            "expression",
            f"has {len(fields)} field{'' if len(fields) == 1 else 's'}: write five: minute, hour, day of month, month, "
            "day of week, as in '0 9 * * 1-5'; or every 20m, or at 2030-12-01T09:00",
        )
    return fields


def _written_out(nickname: str) -> str:
    if nickname.lower() == "@reboot":
        raise CronInvalid("expression", "@reboot names no time: write five fields or @daily, @hourly, ...")
    if nickname.lower() not in NICKNAMES:
        raise CronInvalid("expression", f"{quote_text(nickname)} is not known: write one of {', '.join(NICKNAMES)}")
    return NICKNAMES[nickname.lower()]


def _read(spec: _Field, word: str) -> frozenset[int]:
    """Return the numbers of one field. Raises `CronInvalid` for that field."""
    return frozenset(number for item in word.split(",") for number in _read_item(spec, item))


def _read_item(spec: _Field, item: str) -> range:
    match = _ITEM.fullmatch(item)
    if match is None:
        raise CronInvalid(spec.name, _why_not(spec, item))
    low, high = _bounds(spec, match)
    step = int(match["step"] or 1)
    if not 1 <= step <= spec.high - spec.low + 1:
        raise CronInvalid(
            spec.name,
            f"the step of {quote_text(item)} is out of range: write 1 to {spec.high - spec.low + 1}; "
            "a longer period needs the fields further right, or several schedules",
        )
    return range(low, high + 1, step)


def _bounds(spec: _Field, match: re.Match[str]) -> tuple[int, int]:
    if match["star"]:
        return spec.low, spec.high
    low = spec.number(match["low"])
    if match["high"] is None:
        return low, spec.high if match["step"] else low
    high = spec.number(match["high"])
    if low > high:
        raise CronInvalid(
            spec.name,
            f"the range {match['low']}-{match['high']} runs backwards, and ranges do not wrap: "
            f"write {low}-{spec.high},{spec.low if low > spec.low == high else f'{spec.low}-{high}'}",
        )
    return low, high


def _why_not(spec: _Field, item: str) -> str:
    if not item:
        return "an entry of the list is empty: take out the extra comma"
    if _EXTENSION.fullmatch(item):
        return f"{quote_text(item)} uses an extension (L, W, #, ?, H, R, ~) that is not understood: list the numbers"
    if item.startswith("-"):
        return f"{quote_text(item)} begins with a minus: write the number alone, or a range such as 1-5"
    return f"{quote_text(item)} is not understood: write *, a number, a range such as 1-5, or a step such as */15"


def _refuse_never(cron: Cron) -> None:
    """Refuse a day that occurs in none of the months.

    Every other expression fires, since every date eventually falls on every weekday.
    """
    longest = max(_LAST_DAYS[month - 1] for month in cron.months)
    if cron.both_days and min(cron.days) > longest:
        raise CronInvalid(
            "day of month",
            f"day {min(cron.days)} does not occur in these months, so this would never fire: "
            f"write a day up to {longest}, or other months",
        )
