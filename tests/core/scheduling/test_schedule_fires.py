"""When an expression fires, against a walk over minutes that knows the rules and shares no code with the core."""

from __future__ import annotations

import itertools
from collections import Counter
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter
from tests.core.scheduling.cron_walk import Triple, triples, walk

from callboard.core.scheduling import CronInvalid, fires_between, last_fire, next_fire, parse_cron


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


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("*/30 2 29 3 *", "2027-03-29T02:00+02:00"),  # that of 2026 lies in the gap
        ("*/30 2-3 29 3 *", "2026-03-29T03:00+02:00"),
        ("*/30 2 25 10 *", "2026-10-25T02:00+02:00"),
        ("30 2 29 3 *", "2026-03-29T03:00+02:00"),
    ],
)
def test_changes_that_are_far_off_count_too(text: str, first: str) -> None:
    assert next_fire(parse_cron(text, "Europe/Berlin"), unix("2026-03-01T00:00+01:00")) == unix(first)


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


def agrees_with_the_walk(triple: Triple) -> bool:
    """Whether the fires in the window are those of the walk: all, or the first forty; and the last is the last."""
    text, end = triple.expression.text, triple.window[1]
    walked = [float(at) for at in itertools.islice(walk(triple), 40)]
    try:
        cron = parse_cron(text, triple.zone)
    except CronInvalid:
        return not walked
    found = fires_between(cron, triple.after, end, cap=40)
    assert found == walked, (text, triple.zone, datetime.fromtimestamp(triple.after, UTC))
    if walked and len(walked) < 40:
        assert last_fire(cron, triple.after, end) == walked[-1], (text, triple.zone, triple.after)
    following = next_fire(cron, triple.after)
    return following is not None and (bool(walked) or following > end)


@pytest.mark.slow
def test_fires_of_500_triples_are_those_of_a_walk_over_every_minute() -> None:
    seen: Counter[str] = Counter()
    for triple in triples(29, 500, each=14):
        assert agrees_with_the_walk(triple), triple
        seen.update(kinds(triple))
    assert all(seen[kind] >= 20 for kind in ("fires", "by clock", "fixed", "both days", "either day")), seen


def kinds(triple: Triple) -> list[str]:
    """What a triple is good for."""
    one = triple.expression
    kinds = ["by clock" if one.follows_clock else "fixed", "both days" if one.both_days else "either day"]
    return [*kinds, "fires"] if next(walk(triple), None) is not None else kinds


@pytest.mark.soak
def test_fires_of_20_000_triples_are_those_of_a_walk_over_every_minute(soak: int) -> None:
    found = triples(7, 20_000 * soak, each=20, anywhere=True)
    assert [triple for triple in found if not agrees_with_the_walk(triple)] == []


def test_croniter_names_the_same_minutes_where_no_clock_is_changed() -> None:
    """It is asked as far as it is right: numbers spelled out, the rule of the two day fields told, no zone."""
    for triple in triples(3, 120, each=1):
        expression, begin = triple.expression, datetime.fromtimestamp(triple.after, UTC).replace(tzinfo=None)
        try:
            cron = parse_cron(expression.text)
        except CronInvalid:
            continue
        theirs = croniter(
            expression.spelled_out, begin, day_or=not expression.both_days, max_years_between_matches=50
        ).get_next(datetime)
        assert next_fire(cron, triple.after) == theirs.replace(tzinfo=UTC).timestamp(), (expression.text, begin)
