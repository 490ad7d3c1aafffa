"""The other two ways to say when: a period that real seconds are counted for, and one moment."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from callboard.core.scheduling import CronInvalid, describe, fires_between, last_fire, local_time, next_fire, parse_when
from callboard.core.scheduling.trigger import Interval, OneTime, when_of
from callboard.types.schedules import Schedule


def unix(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


MADE = unix("2026-03-28T10:00:07.25+01:00")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("every 1m", 60),
        ("every 60s", 60),
        ("every 20m", 1_200),
        ("EVERY\t20m ", 1_200),
        ("every 1h30m", 5_400),
        ("every 1h 30m", 5_400),
        ("every 090m", 5_400),
        ("every 2 hours", 7_200),
        ("every 1 day 12 hours", 129_600),
        ("every 1w2d3h4m5s", 604_800 + 2 * 86_400 + 3 * 3_600 + 4 * 60 + 5),
        ("every 366d", 31_622_400),
    ],
)
def test_a_period_is_read(text: str, seconds: int) -> None:
    when = parse_when(text)
    assert isinstance(when, Interval)
    assert when.period == seconds


def test_a_period_counts_real_seconds_from_where_it_began() -> None:
    every = parse_when("every 20m", "Europe/Berlin", MADE)
    first = unix("2026-03-28T10:20:07+01:00")
    assert fires_between(every, MADE, MADE + 4_000, cap=9) == [first, first + 1_200, first + 2_400]
    assert next_fire(every, first) == first + 1_200
    assert next_fire(every, first - 0.5) == first
    assert next_fire(every, MADE - 1e9) == first, "it does not fire before it was made"
    assert last_fire(every, MADE, first + 3_000) == first + 2_400
    assert last_fire(every, MADE, first - 1) is None
    night = fires_between(every, unix("2026-03-29T01:30+01:00"), unix("2026-03-29T03:30+02:00"), cap=9)
    assert [local_time(every, at)[15:] for at in night] == ["01:40 CET", "03:00 CEST", "03:20 CEST"]


@pytest.mark.parametrize(
    ("text", "zone", "moment"),
    [
        ("at 2026-12-01T09:00", "UTC", "2026-12-01T09:00Z"),
        ("at 2026-12-01T09:00", "Europe/Berlin", "2026-12-01T09:00+01:00"),
        ("AT 2026-12-01 09:00:07 ", "Europe/Berlin", "2026-12-01T09:00:07+01:00"),
        ("at\t2026-12-01t09:00Z", "Europe/Berlin", "2026-12-01T09:00Z"),
        ("at 2026-12-01T09:00-05:30", "Europe/Berlin", "2026-12-01T09:00-05:30"),
        ("at 2026-03-29T02:30", "Europe/Berlin", "2026-03-29T03:00+02:00"),  # in a gap: when it ends
        ("at 2026-10-25T02:30", "Europe/Berlin", "2026-10-25T02:30+02:00"),  # comes twice: the first
        ("at 2011-12-30T09:00", "Pacific/Apia", "2011-12-31T00:00+14:00"),  # a day left out
        ("at 2028-02-29T00:00", "UTC", "2028-02-29T00:00Z"),
    ],
)
def test_a_moment_is_read_by_the_clocks_of_its_zone(text: str, zone: str, moment: str) -> None:
    once, at = parse_when(text, zone), unix(moment)
    assert isinstance(once, OneTime)
    assert fires_between(once, 0.0, 9e9, cap=9) == [at]
    assert next_fire(once, at - 0.5) == at
    assert next_fire(once, at) is None
    assert last_fire(once, 0.0, at) == at
    assert last_fire(once, 0.0, at - 1) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("every 20m", "every 20 minutes from 10:00 on 28 March 2026, Europe/Berlin"),
        ("every 60m", "every hour from 10:00 on 28 March 2026, Europe/Berlin"),
        ("every 1h30m", "every 1 hour and 30 minutes from 10:00 on 28 March 2026, Europe/Berlin"),
        ("every 2w", "every 14 days from 10:00 on 28 March 2026, Europe/Berlin"),
        ("at 2026-12-01T09:00", "once at 09:00 on Tuesday 1 December 2026, Europe/Berlin"),
        ("at 2026-12-01T09:00:07Z", "once at 10:00:07 on Tuesday 1 December 2026, Europe/Berlin"),
        ("0 9 * * 1-5", "at 09:00 on weekdays, Europe/Berlin"),
    ],
)
def test_each_way_is_told_in_words(text: str, words: str) -> None:
    assert describe(parse_when(text, "Europe/Berlin", MADE)) == words


def test_a_period_without_a_beginning_tells_none() -> None:
    assert describe(parse_when("every 20m")) == "every 20 minutes"


def test_a_row_is_read_with_the_moment_at_which_it_was_made() -> None:
    row = Schedule(id="cron_1", cron="every 2h", prompt="Look", timezone="Asia/Tokyo", created_at=MADE)
    assert when_of(row) == parse_when("every 2h", "Asia/Tokyo", MADE)
    assert next_fire(when_of(row), MADE) == int(MADE) + 7_200
    with pytest.raises(CronInvalid):
        when_of(row.model_copy(update={"cron": "every blue moon"}))


def test_a_period_that_is_out_of_range_is_told_with_what_may_be_written() -> None:
    with pytest.raises(CronInvalid, match=r"'30s' is out of range: write .* every 20m.* from 1 minute to 366 days"):
        parse_when("every 30s")


def test_years_before_and_after_the_calendar_are_none() -> None:
    cron = parse_when("0 0 1 1 *", "Europe/Berlin")
    first = next_fire(cron, -1e15)
    assert first is not None
    assert datetime.fromtimestamp(first, UTC).year in (1000, 1001)
    assert next_fire(cron, 1e15) is None
