"""When an expression fires, found by walking along the clock: the rules of the docs once more, and no code of the core.

An expression is made from numbers and written down, never read. The walk goes from minute to minute (from second to
second where a zone is ahead by odd seconds) and looks at what the clock shows there.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import operator
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

MINUTE, HOUR, DAY = 60, 3_600, 86_400
A_MINUTE = timedelta(minutes=1)
HALF_WINDOW = 36 * HOUR
"""A window is three days long."""


@dataclass(frozen=True)
class Expression:
    """The numbers that each field was made from, and the text that says so. Sunday is 0."""

    text: str
    values: tuple[frozenset[int], ...]
    follows_clock: bool
    """Minute or hour begins with a star."""
    both_days: bool
    """Day of month or day of week begins with a star."""

    def names(self, wall: datetime) -> bool:
        """Whether the fields name this minute of the calendar."""
        minutes, hours, days, months, weekdays = self.values
        if wall.minute not in minutes or wall.hour not in hours or wall.month not in months:
            return False
        day, weekday = wall.day in days, (wall.weekday() + 1) % 7 in weekdays
        return (day and weekday) if self.both_days else (day or weekday)

    @property
    def spelled_out(self) -> str:
        """The same numbers as plain lists."""
        return " ".join(",".join(map(str, sorted(values))) for values in self.values)


@dataclass(frozen=True)
class Triple:
    """An expression, a zone, and a time: unix seconds, inside a window of three days."""

    expression: Expression
    zone: str
    after: int
    window: tuple[int, int]


def walk(triple: Triple) -> Iterator[int]:
    """All fires after the time, to the end of the window."""
    expression = triple.expression
    clock = _clock(triple.zone, *triple.window)
    for at, wall, furthest in clock[bisect.bisect_right(clock, triple.after, key=operator.itemgetter(0)) :]:
        if expression.follows_clock:
            fires = wall.second == 0 and expression.names(wall)
        elif wall - furthest == A_MINUTE:
            fires = expression.names(wall)
        else:  # any minute that was left out, or none in a second pass
            fires = any(map(expression.names, _minutes(furthest, wall)))
        if fires:
            yield at


def _minutes(after: datetime, until: datetime) -> Iterator[datetime]:
    minute = after.replace(second=0) + A_MINUTE
    while minute <= until:
        yield minute
        minute += A_MINUTE


@functools.lru_cache(maxsize=8)
def _clock(zone: str, begin: int, end: int) -> Sequence[tuple[int, datetime, datetime]]:
    """What the clock shows at each step, and the furthest that it had shown before: from two days before the window on,
    since a day came twice in some places. Steps are whole minutes of the clock, and the seconds of the hours in which a
    zone with odd seconds changes.
    """
    info = ZoneInfo(zone)
    steps = sorted({at for at in _steps(info, begin - begin % DAY - 2 * DAY, end) if at <= end})
    walls = [datetime.fromtimestamp(at, info).replace(tzinfo=None, fold=0) for at in steps]
    furthest = itertools.accumulate(walls, max)
    return list(zip(steps[1:], walls[1:], furthest, strict=False))


def _steps(info: ZoneInfo, begin: int, end: int) -> Iterator[int]:
    def ahead(at: int) -> int:
        return int((datetime.fromtimestamp(at, info).utcoffset() or timedelta()).total_seconds())

    for hour in range(begin, end + 1, HOUR):
        odd = [ahead(hour) % MINUTE, ahead(hour + HOUR) % MINUTE]
        changes = any(odd) and ahead(hour) != ahead(hour + HOUR)
        yield from range(hour - odd[0], hour + HOUR, 1 if changes else MINUTE)


# Windows: round clock changes, month ends and leap days

CHANGES: Sequence[tuple[str, str]] = (
    *(("Europe/Berlin", at) for at in ("2026-03-29T01:00", "2026-10-25T01:00")),
    *(("America/New_York", at) for at in ("2026-03-08T07:00", "2026-11-01T06:00")),
    *(("Australia/Lord_Howe", at) for at in ("2026-04-04T15:00", "2026-10-03T15:30")),  # half an hour
    *(("Europe/Dublin", at) for at in ("2026-03-29T01:00", "2026-10-25T01:00")),  # winter is the odd one
    *(("Africa/Casablanca", at) for at in ("2026-02-15T02:00", "2026-03-22T02:00")),  # back for Ramadan
    *(("Antarctica/Troll", at) for at in ("2026-03-29T01:00", "2026-10-25T01:00")),  # two hours
    *(("America/Sao_Paulo", at) for at in ("2018-11-04T03:00", "2019-02-17T02:00")),  # at midnight
    *(("Asia/Beirut", at) for at in ("2026-03-28T22:00", "2026-10-24T21:00")),
    *(("America/Havana", at) for at in ("2026-03-08T05:00", "2026-11-01T05:00")),
    *(("Africa/Cairo", at) for at in ("2026-04-23T22:00", "2026-10-29T21:00")),
    *(("America/St_Johns", at) for at in ("2010-03-14T03:31", "2010-11-07T02:31")),  # at one minute past midnight
    *(("Pacific/Chatham", at) for at in ("2026-04-04T14:00", "2026-09-26T14:00")),
    ("Pacific/Apia", "2011-12-30T10:00"),  # a day left out
    ("Pacific/Kwajalein", "1993-08-21T12:00"),  # another
    ("Pacific/Kwajalein", "1969-09-30T13:00"),  # nearly a day twice
    ("Asia/Pyongyang", "2018-05-04T15:00"),
    ("Asia/Kathmandu", "1985-12-31T18:30"),  # fifteen minutes
    ("Africa/Monrovia", "1972-01-07T00:44"),  # forty-four minutes and a half
    ("Europe/Dublin", "1916-10-01T02:25"),  # odd seconds on one side
)
CALENDAR: Sequence[tuple[str, str]] = (
    *(("UTC", f"{day}T00:00") for day in ("2028-02-29", "2027-03-01", "2100-03-01", "2026-05-01", "2026-12-31")),
    ("Asia/Kolkata", "2028-02-29T18:30"),
    ("Pacific/Auckland", "2024-02-29T11:00"),
    ("America/New_York", "2026-07-31T12:00"),
)


def triples(seed: int, count: int, *, each: int = 8, anywhere: bool = False) -> Iterator[Triple]:
    """So many triples, `each` of one window. `anywhere`: half of the windows lie round changes of whatever zone."""
    rng = random.Random(seed)
    windows = [*CHANGES, *CALENDAR]
    for first in range(0, count, each):
        if anywhere and rng.random() < 0.5:
            zone, moment = _any_change(rng)
        else:
            zone, text = windows[first // each % len(windows)]
            moment = int(datetime.fromisoformat(f"{text}Z").timestamp())
        window = (moment - HALF_WINDOW, moment + HALF_WINDOW)
        for _ in range(min(each, count - first)):
            near = rng.choice((MINUTE, HOUR, 3 * HOUR, HALF_WINDOW - 1))
            yield Triple(_expression(rng), zone, moment + rng.randint(-near, near), window)


def _any_change(rng: random.Random) -> tuple[str, int]:
    """A change of some zone, within a day. A zone without one after the moment drawn is drawn again."""
    zones = sorted(available_timezones() - {"localtime", "Factory"})
    while True:
        zone = rng.choice(zones)
        info = ZoneInfo(zone)
        at = rng.randint(int(datetime(1880, 1, 1, tzinfo=UTC).timestamp()), 2_200_000_000)
        for day in range(at, at + 800 * DAY, DAY):
            if datetime.fromtimestamp(day, info).utcoffset() != datetime.fromtimestamp(day + DAY, info).utcoffset():
                return zone, day + DAY // 2


# Expressions


@dataclass(frozen=True)
class _Part:
    low: int
    high: int
    likely: tuple[int, ...]
    any_share: float
    """How often the field is a plain star."""


_PARTS = (
    _Part(0, 59, (0, 1, 15, 30, 45, 59), 0.15),
    _Part(0, 23, (0, 1, 2, 3, 23), 0.2),
    _Part(1, 31, (1, 28, 29, 30, 31), 0.55),
    _Part(1, 12, (2, 3, 4, 10, 11, 12), 0.8),
    _Part(0, 7, (0, 6, 7), 0.6),
)


def _expression(rng: random.Random) -> Expression:
    drawn = [_field(rng, part) for part in _PARTS]
    values = [numbers for _, numbers in drawn]
    values[4] = frozenset(number % 7 for number in values[4])
    stars = [text.startswith("*") for text, _ in drawn]
    text = " ".join(text for text, _ in drawn)
    return Expression(text, tuple(values), follows_clock=stars[0] or stars[1], both_days=stars[2] or stars[4])


def _field(rng: random.Random, part: _Part) -> tuple[str, frozenset[int]]:
    if rng.random() < part.any_share:
        return "*", frozenset(range(part.low, part.high + 1))
    items = [_item(rng, part) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
    return ",".join(text for text, _ in items), frozenset[int]().union(*(numbers for _, numbers in items))


def _item(rng: random.Random, part: _Part) -> tuple[str, range]:
    step = rng.randint(1, part.high - part.low + 1)
    first, second = sorted((_number(rng, part), _number(rng, part)))
    match rng.choice(("number", "number", "range", "stepped range", "stepped star", "stepped number")):
        case "number":
            return str(first), range(first, first + 1)
        case "range":
            return f"{first}-{second}", range(first, second + 1)
        case "stepped range":
            return f"{first}-{second}/{step}", range(first, second + 1, step)
        case "stepped star":
            return f"*/{step}", range(part.low, part.high + 1, step)
        case _:
            return f"{first}/{step}", range(first, part.high + 1, step)


def _number(rng: random.Random, part: _Part) -> int:
    return rng.choice(part.likely) if rng.random() < 0.5 else rng.randint(part.low, part.high)
