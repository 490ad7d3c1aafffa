"""When an expression fires, against a walk over minutes that knows the rules and shares no code with the core."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.core.schedule import CronInvalid, fires_between, last_fire, next_fire, parse_cron

SOAK = int(os.environ.get("SOAK", "1"))
MINUTE = 60
DAY = 86_400


def unix(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def fires(text: str, zone: str, after: str, until: str) -> list[str]:
    """The fires as UTC minutes."""
    found = fires_between(parse_cron(text, zone), unix(after), unix(until), cap=1_000)
    return [datetime.fromtimestamp(at, UTC).strftime("%m-%dT%H:%M") for at in found]


def test_a_fixed_job_due_in_a_gap_runs_once_right_after_it() -> None:
    night = ("2026-03-29T00:00+01:00", "2026-03-29T12:00+02:00")
    assert fires("30 2 * * *", "Europe/Berlin", *night) == ["03-29T01:00"]
    assert fires("0,15,30,45 2 * * *", "Europe/Berlin", *night) == ["03-29T01:00"]
    assert fires("0,30 2,3 * * *", "Europe/Berlin", *night) == ["03-29T01:00", "03-29T01:30"]


def test_a_fixed_job_runs_only_in_the_first_pass_of_a_repeated_hour() -> None:
    night = ("2026-10-25T00:00+02:00", "2026-10-25T12:00+01:00")
    assert fires("30 2 * * *", "Europe/Berlin", *night) == ["10-25T00:30"]
    assert fires("0,30 2,3 * * *", "Europe/Berlin", *night) == [
        "10-25T00:00",
        "10-25T00:30",
        "10-25T02:00",
        "10-25T02:30",
    ]


def test_a_star_job_makes_nothing_up_in_a_gap() -> None:
    night = ("2026-03-29T00:00+01:00", "2026-03-29T04:00+02:00")
    assert fires("*/30 2 * * *", "Europe/Berlin", *night) == []
    assert fires("15 * * * *", "Europe/Berlin", *night) == ["03-28T23:15", "03-29T00:15", "03-29T01:15"]


def test_a_star_job_runs_in_both_passes_of_a_repeated_hour() -> None:
    night = ("2026-10-25T01:59+02:00", "2026-10-25T03:00+01:00")
    assert fires("*/30 2 * * *", "Europe/Berlin", *night) == [
        "10-25T00:00",
        "10-25T00:30",
        "10-25T01:00",
        "10-25T01:30",
    ]


def test_half_an_hour_is_repeated_and_left_out_on_lord_howe() -> None:
    autumn = ("2026-04-05T00:00+11:00", "2026-04-05T06:00+10:30")  # 02:00 goes back to 01:30
    assert fires("45 1 * * *", "Australia/Lord_Howe", *autumn) == ["04-04T14:45"]
    assert fires("45 * * * *", "Australia/Lord_Howe", *autumn)[:3] == ["04-04T13:45", "04-04T14:45", "04-04T15:15"]
    spring = ("2026-10-04T00:00+10:30", "2026-10-04T06:00+11:00")  # 02:00 goes on to 02:30
    assert fires("15 2 * * *", "Australia/Lord_Howe", *spring) == ["10-03T15:30"]


def test_a_day_that_apia_left_out_is_made_up_at_its_end() -> None:
    week = ("2011-12-29T12:00-10:00", "2012-01-01T00:00+14:00")  # 30 December 2011 did not exist
    assert fires("0 9 30 12 *", "Pacific/Apia", *week) == ["12-30T10:00"]
    assert fires("0 */6 30 12 *", "Pacific/Apia", *week) == []


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("0 0 13 * 5", ["02-06", "02-13", "02-20", "02-27", "03-06", "03-13"]),  # either is enough
        ("0 0 * * 5", ["02-06", "02-13", "02-20", "02-27", "03-06", "03-13"]),
        ("0 0 */12 * 5", ["02-13", "03-13"]),  # a star first: both must match
        ("0 0 13 * */5", ["02-13", "03-13"]),
        ("0 0 1-31 * 5", [f"02-{day:02}" for day in range(2, 29)] + [f"03-{day:02}" for day in range(1, 16)]),
        ("0 0 1 * 0-7", [f"02-{day:02}" for day in range(2, 29)] + [f"03-{day:02}" for day in range(1, 16)]),
    ],
)
def test_the_rule_of_two_day_fields(text: str, days: list[str]) -> None:
    found = fires(text, "UTC", "2026-02-01T00:00+00:00", "2026-03-15T12:00+00:00")
    assert [at[:5] for at in found] == days


def test_the_next_fire_is_strictly_after() -> None:
    cron = parse_cron("*/5 * * * *")
    assert next_fire(cron, 300.0) == 600.0
    assert next_fire(cron, 299.999) == 300.0
    assert next_fire(cron, 300.5) == 600.0
    assert next_fire(cron, datetime(1970, 1, 1, 2, 5, tzinfo=ZoneInfo("Africa/Lagos"))) == 3_600 + 600.0


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="no time zone"):
        next_fire(parse_cron("@daily"), datetime(2026, 1, 1))  # noqa: DTZ001 - that is what is refused


def test_nothing_fires_past_the_end_of_the_calendar() -> None:
    assert next_fire(parse_cron("@daily"), 1e15) is None


def test_the_cap_keeps_the_oldest() -> None:
    assert fires_between(parse_cron("* * * * *"), 0.0, 1e9, cap=3) == [60.0, 120.0, 180.0]
    assert fires_between(parse_cron("* * * * *"), 0.0, 59.9, cap=3) == []


@dataclass(frozen=True)
class Expression:
    """The numbers that each field was made from, and the text that says so."""

    text: str
    values: tuple[frozenset[int], ...]

    def names(self, wall: datetime) -> bool:
        minutes, hours, days, months, weekdays = self.values
        day, weekday = wall.day in days, wall.isoweekday() % 7 in weekdays
        words = self.text.split(" ")
        days_match = (day and weekday) if "*" in (words[2][0], words[4][0]) else (day or weekday)
        return wall.minute in minutes and wall.hour in hours and wall.month in months and days_match

    @property
    def starred(self) -> bool:
        words = self.text.split(" ")
        return "*" in (words[0][0], words[1][0])


@functools.lru_cache(maxsize=64)
def walls(zone: str, begin: int, end: int) -> list[tuple[int, datetime]]:
    """What the clocks of the zone show at each minute."""
    info = ZoneInfo(zone)
    return [(at, datetime.fromtimestamp(at, info).replace(tzinfo=None, fold=0)) for at in range(begin, end, MINUTE)]


def walk(expression: Expression, zone: str, after: int, until: int) -> Iterator[float]:
    """All fires in (after, until], by looking at every minute, and at what the clocks showed before it."""
    begin = after - after % DAY - 2 * DAY
    clock = walls(zone, begin, until - until % DAY + 2 * DAY)
    latest = clock[0][1]
    for at, wall in clock[1:]:
        if at > until:
            return
        if expression.starred:
            fires_now = expression.names(wall)
        else:
            left_out = int((wall - latest) / timedelta(minutes=1))  # 1 in a plain minute, 0 and less in a second pass
            fires_now = any(expression.names(wall - timedelta(minutes=back)) for back in range(left_out))
        latest = max(latest, wall)
        if fires_now and at > after:
            yield float(at)


def field(low: int, high: int, *, likely: tuple[int, ...]) -> st.SearchStrategy[tuple[str, frozenset[int]]]:
    """One field with the numbers that it means, written in each of the ways there are."""
    number = st.one_of(st.sampled_from(likely), st.integers(low, high))
    step = st.integers(1, high - low + 1)
    single = number.map(lambda n: (str(n), frozenset({n})))
    stars = st.just(("*", frozenset(range(low, high + 1))))
    stepped = step.map(lambda s: (f"*/{s}", frozenset(range(low, high + 1, s))))
    opened = st.tuples(number, step).map(lambda p: (f"{p[0]}/{p[1]}", frozenset(range(p[0], high + 1, p[1]))))
    ranged = st.tuples(number, number, step).map(
        lambda p: (f"{min(p[:2])}-{max(p[:2])}/{p[2]}", frozenset(range(min(p[:2]), max(p[:2]) + 1, p[2])))
    )
    item = st.one_of(single, single, stars, stepped, opened, ranged)
    return st.lists(item, min_size=1, max_size=2).map(
        lambda items: (",".join(text for text, _ in items), frozenset().union(*(values for _, values in items)))
    )


def sundays(values: frozenset[int]) -> frozenset[int]:
    return frozenset(value % 7 for value in values)


days_mostly_any = st.one_of(st.just(("*", frozenset(range(1, 32)))), field(1, 31, likely=(29, 30, 31, 1)))
months_mostly_any = st.one_of(st.just(("*", frozenset(range(1, 13)))), field(1, 12, likely=(3, 4, 10, 11, 12)))
weekdays_mostly_any = st.one_of(st.just(("*", frozenset(range(8)))), field(0, 7, likely=(0, 6, 7)))
expressions = st.tuples(
    field(0, 59, likely=(0, 15, 30, 45)),
    field(0, 23, likely=(0, 1, 2, 3)),
    days_mostly_any,
    months_mostly_any,
    weekdays_mostly_any.map(lambda pair: (pair[0], sundays(pair[1]))),
).map(lambda fields: Expression(" ".join(text for text, _ in fields), tuple(values for _, values in fields)))

CHANGES = [
    ("Europe/Berlin", "2026-03-29T01:00Z"),
    ("Europe/Berlin", "2026-10-25T01:00Z"),
    ("America/New_York", "2026-03-08T07:00Z"),
    ("America/New_York", "2026-11-01T06:00Z"),
    ("Australia/Lord_Howe", "2026-04-04T15:00Z"),
    ("Australia/Lord_Howe", "2026-10-03T15:30Z"),
    ("America/Sao_Paulo", "2018-11-04T03:00Z"),  # a gap at midnight
    ("America/Havana", "2026-11-01T05:00Z"),  # an hour repeated across midnight
    ("Africa/Casablanca", "2026-02-15T02:00Z"),
    ("Pacific/Apia", "2011-12-30T10:00Z"),
    ("Asia/Kolkata", "2026-03-29T01:00Z"),
    ("UTC", "2028-02-29T00:00Z"),
]
changes = st.sampled_from([(zone, int(unix(at.replace("Z", "+00:00")))) for zone, at in CHANGES])


def agree_with_the_walk(expression: Expression, change: tuple[str, int], before: int, most: int) -> None:
    zone, moment = change
    after = moment - before
    until = moment + 30 * 3_600
    try:
        cron = parse_cron(expression.text, zone)
    except CronInvalid:
        assert not any(walk(expression, zone, after, until))
        return
    expected = [at for _, at in zip(range(most), walk(expression, zone, after, until), strict=False)]
    assert fires_between(cron, after, until, cap=most) == expected


@settings(max_examples=80, deadline=None)
@given(expression=expressions, change=changes, before=st.integers(0, 30 * 3_600))
def test_b29_fires_are_those_of_a_walk_over_every_minute(
    expression: Expression, change: tuple[str, int], before: int
) -> None:
    agree_with_the_walk(expression, change, before, most=40)


@pytest.mark.soak
@settings(max_examples=300 * SOAK, deadline=None)
@given(expression=expressions, change=changes, before=st.integers(0, 30 * 3_600))
def test_b29_fires_are_those_of_a_walk_over_every_minute_soak(
    expression: Expression, change: tuple[str, int], before: int
) -> None:
    agree_with_the_walk(expression, change, before, most=200)


@settings(max_examples=60, deadline=None)
@given(expression=expressions, change=changes, span=st.integers(0, 20 * 3_600))
def test_the_last_fire_is_the_last_of_all(expression: Expression, change: tuple[str, int], span: int) -> None:
    zone, moment = change
    after, until = moment - span, moment + 20 * 3_600 - span
    try:
        cron = parse_cron(expression.text, zone)
    except CronInvalid:
        return
    everything = list(walk(expression, zone, after, until))
    assert last_fire(cron, after, until) == (everything[-1] if everything else None)
