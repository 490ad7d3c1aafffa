"""What a cron expression says, and what is refused with which field named."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.scheduling.cron_refused import REFUSED, ZONES

from callboard.core.scheduling import CronInvalid, describe, local_time, next_fire, next_three, parse_cron, parse_when

ALL_DAYS = frozenset(range(1, 32))
ALL_WEEKDAYS = frozenset(range(7))


@pytest.mark.parametrize(
    ("text", "part", "values"),
    [
        ("5 * * * *", "minutes", {5}),
        ("*/20 * * * *", "minutes", {0, 20, 40}),
        ("50/4 * * * *", "minutes", {50, 54, 58}),
        ("10-20/5,59 * * * *", "minutes", {10, 15, 20, 59}),
        ("*/60 * * * *", "minutes", {0}),
        ("0 22/1 * * *", "hours", {22, 23}),
        ("0 0 */10 * *", "days", {1, 11, 21, 31}),
        ("0 0 1 jan,MAR-May *", "months", {1, 3, 4, 5}),
        ("0 0 1 feb/5 *", "months", {2, 7, 12}),
        ("0 0 * * 7", "weekdays", {0}),
        ("0 0 * * 0-7", "weekdays", set(range(7))),
        ("0 0 * * 5-7", "weekdays", {5, 6, 0}),
        ("0 0 * * Mon-fRi", "weekdays", {1, 2, 3, 4, 5}),
        ("0 0 * * fri-7", "weekdays", {5, 6, 0}),
        ("0 0 * * 5/2", "weekdays", {5, 0}),
        ("0 0 * * */2", "weekdays", {0, 2, 4, 6}),
        ("@hourly", "minutes", {0}),
        ("@WEEKLY", "weekdays", {0}),
        ("\t@yearly \n", "months", {1}),
        ("  07\t08  09 10 *  ", "days", {9}),
    ],
)
def test_a_field_names_these_numbers(text: str, part: str, values: set[int]) -> None:
    assert getattr(parse_cron(text), part) == values


@pytest.mark.parametrize("field", REFUSED)
def test_text_that_is_not_understood_is_refused_with_its_field(field: str) -> None:
    for text in REFUSED[field]:
        with pytest.raises(CronInvalid) as refused:
            parse_when(text)
        told = str(refused.value)
        assert refused.value.field == field, (text, told)
        assert told.startswith(f"{field}: "), text
        assert told.isprintable(), text
        assert len(told) < 300, text


def test_hundreds_of_texts_are_tried() -> None:
    assert len({text for texts in REFUSED.values() for text in texts}) >= 300


@pytest.mark.parametrize("zone", ZONES)
def test_an_unknown_time_zone_is_refused(zone: str) -> None:
    for text in ("@daily", "every 20m", "at 2026-12-01T09:00"):
        with pytest.raises(CronInvalid) as refused:
            parse_when(text, zone)
        assert refused.value.field == "timezone"
        assert len(str(refused.value)) < 200


@pytest.mark.parametrize(("given", "meant"), [("berlin", "Europe/Berlin"), ("New_York", "America/New_York")])
def test_a_city_alone_is_told_with_its_zone(given: str, meant: str) -> None:
    with pytest.raises(CronInvalid, match=f"did you mean {meant}"):
        parse_cron("@daily", given)


def test_a_misspelt_time_zone_is_told_with_the_likely_one() -> None:
    with pytest.raises(CronInvalid, match="did you mean Europe/Berlin"):
        parse_cron("@daily", "europe/berln")


@pytest.mark.parametrize("text", ["0 0 29 2 *", "0 0 29 2 */7", "0 0 31 2 1", "0 0 31 2,3 *"])
def test_a_rare_date_is_accepted_and_comes(text: str) -> None:
    after_the_century_without_leap_day = 3_990_000_000.0
    assert next_fire(parse_cron(text), after_the_century_without_leap_day) is not None


@settings(max_examples=250, deadline=None)
@given(
    text=st.one_of(
        st.text(),
        st.text("0123456789*/-,LW#?@ \tjanmonsuft", max_size=24),
        st.text("0123456789mhdw ", max_size=8).map("every {}".format),
        st.text("0123456789-T:Z+ ", max_size=24).map("at 20{}".format),
    ),
    zone=st.sampled_from(["UTC", "no"]),
)
def test_whatever_the_text_either_it_fires_or_it_is_refused(text: str, zone: str) -> None:
    try:
        when = parse_when(text, zone)
    except CronInvalid:
        return
    assert next_fire(when, -30_000_000_000.0) is not None
    assert describe(when)


def test_a_very_long_text_is_refused_without_being_read() -> None:
    with pytest.raises(CronInvalid):
        parse_cron("*," * 5_000_000 + "* * * * *")
    for text in ("@" + "x" * 5_000_000, "every " + "1m" * 5_000_000, "at " + "2" * 5_000_000):
        with pytest.raises(CronInvalid):
            parse_when(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0 9 * * 1-5", "at 09:00 on weekdays, Europe/Berlin"),
        ("* * * * *", "every minute, Europe/Berlin"),
        ("*/5 * * * *", "every 5 minutes, Europe/Berlin"),
        ("@daily", "at 00:00 every day, Europe/Berlin"),
        ("@hourly", "at minute 0 of every hour, Europe/Berlin"),
        ("5,35 * * * *", "at minutes 5 and 35 of every hour, Europe/Berlin"),
        ("30 8,17 * * sat,7", "at 08:30 and 17:30 on Saturday and Sunday, Europe/Berlin"),
        ("*/15 9-17 * * mon", "every 15 minutes of the hours 9 to 17 on Monday, Europe/Berlin"),
        ("0 0 13 * 5", "at 00:00 on day 13 of the month or on Friday, Europe/Berlin"),
        ("0 0 */14 * 1", "at 00:00 on days 1, 15 and 29 of the month if that is Monday, Europe/Berlin"),
        ("0 0 1-31 * 1", "at 00:00 every day, Europe/Berlin"),
        ("0 6 1 1,6-9 *", "at 06:00 on day 1 of the month in January and June to September, Europe/Berlin"),
        ("5 */2 * * *", "at minute 5 of every 2 hours from 00:00 every day, Europe/Berlin"),
        ("*/40 2 * * *", "at 02:00 and 02:40 every day, Europe/Berlin"),
        ("*/7 2 * * *", "at minutes 0, 7, 14, 21, 28, 35, 42, 49 and 56 of the hour 2 every day, Europe/Berlin"),
    ],
)
def test_an_expression_is_told_in_words(text: str, words: str) -> None:
    assert describe(parse_cron(text, "Europe/Berlin")) == words


def test_the_next_three_fires_are_shown_as_the_zone_sees_them() -> None:
    cron = parse_cron("0 9 * * 1-5", "Europe/Berlin")
    friday = 1_774_602_000.0  # 2026-03-27 09:00 UTC; the clocks go forward on the Sunday
    assert [local_time(cron, at) for at in next_three(cron, friday)] == [
        "Mon 2026-03-30 09:00 CEST",
        "Tue 2026-03-31 09:00 CEST",
        "Wed 2026-04-01 09:00 CEST",
    ]
