"""What people write of a schedule: each field read, and each wrong one named with what to write."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.core.scheduling.fields import (
    FIELDS,
    InvalidField,
    format_duration,
    format_rough_duration,
    read_duration,
    with_fields,
)
from callboard.core.scheduling.history import newest_first, next_fires, stats_of
from callboard.types.records import Budget
from callboard.types.schedules import Fire, Schedule

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC).timestamp()
BLANK = Schedule(id="cron_a", cron="", prompt="", created_at=NOW)
LEAST: dict[str, object] = {"cron": "0 9 * * 1-5", "prompt": "Look."}


def made(**fields: object) -> Schedule:
    return with_fields(BLANK, {**LEAST, **fields}, NOW)


@pytest.mark.parametrize(
    ("field", "written", "name", "value"),
    [
        ("name", " daily ", "name", "daily"),
        ("name", "none", "name", ""),
        ("once", "true", "recurring", False),
        ("recurring", False, "recurring", False),
        ("misfire", "all", "misfire", "all"),
        ("misfire_cap", "7", "misfire_cap", 7),
        ("window", "1h30m", "window", 5_400.0),
        ("window", "none", "window", None),
        ("overlap", "Replace", "overlap", "replace"),
        ("context", "own", "context", "own"),
        ("agent_type", "explore", "target", "explore"),
        ("deliver", "step", "deliver", "step"),
        ("jitter", "0", "jitter", 0.0),
        ("deadline", 600, "deadline", 600.0),
        ("retries", "3", "retries", 3),
        ("budget", ("cost_usd=1.5", "tokens=9"), "budget", Budget(cost_usd=1.5, tokens=9)),
        ("fire_budget", {"steps": "3"}, "fire_budget", Budget(steps=3)),
        ("expires", "2d", "expires", NOW + 172_800),
        ("expires", "2026-11-22T13:00:00+00:00", "expires", NOW + 3_600),
        ("max_runs", "5", "max_runs", 5),
    ],
)
def test_each_field_is_read_as_it_is_written(field: str, written: object, name: str, value: object) -> None:
    assert getattr(made(**{field: written}), name) == value


@pytest.mark.parametrize(
    ("field", "written", "what"),
    [
        ("cron", "61 * * * *", "minute: "),
        ("cron", "every 5s", "every 20m"),
        ("prompt", "  ", "is empty"),
        ("prompt", "a\0b", "NUL"),
        ("prompt", "x" * 100_001, "at most 100,000"),
        ("timezone", "Europe/Berln", "did you mean Europe/Berlin?"),
        ("name", "two words", "not a valid name for a schedule"),
        ("name", "cron_x", "not a valid name for a schedule"),
        ("once", "maybe", "neither true nor false"),
        ("misfire", "lates", "did you mean latest?"),
        ("misfire_cap", "0", "from 1 to 1,000"),
        ("window", "soon", "20m"),
        ("window", "nan", "not a duration"),
        ("window", float("nan"), "out of range"),
        ("window", -1, "out of range"),
        ("window", True, "not a duration"),
        ("deadline", "0", "0 leaves no time"),
        ("jitter", "99999d", "out of range"),
        ("retries", "-1", "from 0 to 10"),
        ("retries", "11", "from 0 to 10"),
        ("agent_type", "Big Type", "not an agent type"),
        ("budget", ("calls=3",), "unknown kind 'calls'"),
        ("budget", ("seconds",), "write KIND=N"),
        ("budget", ("steps=1.5",), "not a whole number"),
        ("budget", {"cost_usd": "inf"}, "not a number from 0 on"),
        ("permission_mode", "acceptEdit", "did you mean acceptEdits?"),
        ("allow", ("Bash(",), "is not a rule"),
        ("expires", "2020-01-01", "is past"),
        ("expires", "tomorrow", "2030-12-01T09:00"),
        ("max_runs", "0", "from 1 to"),
        ("durablee", "x", "choose durable,"),
    ],
)
def test_a_wrong_field_is_named_with_what_to_write(field: str, written: object, what: str) -> None:
    with pytest.raises(InvalidField) as wrong:
        made(**{field: written})
    assert wrong.value.field == field
    assert what in str(wrong.value)


def test_an_agent_type_means_an_agent_of_its_own_and_not_the_lead() -> None:
    assert made(agent_type="explore").context == "fresh"
    own = made(agent_type="explore", context="own")
    assert (own.context, own.target) == ("own", "explore")
    with pytest.raises(InvalidField, match="agent_type: is for separate agents"):
        made(agent_type="explore", context="lead")
    back = with_fields(own, {"context": "lead"}, NOW)
    assert (back.context, back.target) == ("lead", "lead")


def test_what_is_not_given_stays_and_of_a_budget_each_kind_for_itself() -> None:
    first = made(budget=("cost_usd=1", "steps=5"), deny="Bash(rm *), Edit", ask=["Bash"], deadline="20m")
    second = with_fields(first, {"budget": "steps=9", "deny": "none", "deadline": "none"}, NOW)
    assert second.budget == Budget(cost_usd=1, steps=9)
    assert (first.rights.deny, second.rights.deny, second.rights.ask) == (("Bash(rm *)", "Edit"), (), ("Bash",))
    assert (second.deadline, second.cron, second.prompt) == (None, first.cron, first.prompt)
    assert with_fields(first, {"budget": "none"}, NOW).budget == Budget()


def test_an_end_is_read_in_the_schedule_s_own_zone_and_at_means_once() -> None:
    berlin = made(timezone="Europe/Berlin", expires="2026-12-01T09:00")
    assert berlin.expires == datetime(2026, 12, 1, 8, tzinfo=UTC).timestamp()
    assert made(cron="at 2026-12-01T09:00").recurring is False


@given(
    st.dictionaries(st.sampled_from(FIELDS), st.one_of(st.text(max_size=12), st.integers(), st.none(), st.booleans()))
)
def test_whatever_is_written_is_read_or_refused_by_its_field(fields: dict[str, object]) -> None:
    stands = BLANK.model_copy(update={"cron": "@daily", "prompt": "p"})
    told = ""
    try:
        with_fields(stands, fields, NOW)
    except InvalidField as wrong:
        told = wrong.field
    assert told in {"", *fields}


@given(st.integers(0, 3_000 * 86_400))
def test_a_span_in_words_is_read_as_itself(seconds: int) -> None:
    assert read_duration("window", format_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(157_663_559.3, "1824d19h"), (86_400, "1d"), (7_384, "2h3m"), (119.6, "1m59s"), (59.7, "1m"), (0.2, "0s")],
)
def test_a_rough_duration_has_two_units(seconds: float, text: str) -> None:
    assert format_rough_duration(seconds) == text


def test_the_next_times_end_where_the_schedule_ends() -> None:
    daily = made(cron="0 9 * * *")
    assert len(next_fires(daily, NOW, 5)) == 5
    assert len(next_fires(made(cron="0 9 * * *", expires="2026-11-25T09:00"), NOW, 5)) == 2, "none at the end itself"
    assert len(next_fires(daily.model_copy(update={"max_runs": 5, "fires": 3}), NOW, 5)) == 2
    assert len(next_fires(made(cron="0 9 * * *", once=True), NOW, 5)) == 1
    assert next_fires(daily.model_copy(update={"state": "paused"}), NOW, 5) == []


def test_fires_are_counted_with_those_that_stand_for_several() -> None:
    def fire(number: int, outcome: str, **fields: object) -> Fire:
        nominal = NOW + 60 * number
        base = {
            "id": f"schedule:cron_a:{number}",
            "schedule": "cron_a",
            "session": "s",
            "nominal": nominal,
            "at": nominal,
        }
        return Fire.model_validate({**base, "outcome": outcome, **fields})

    fires = [
        fire(1, "done", began_at=NOW, ended_at=NOW + 10, cost_usd=0.5, tokens=100, steps=2),
        fire(2, "failed", began_at=NOW, ended_at=NOW + 30, cost_usd=0.25, tokens=50, steps=1),
        fire(3, "missed", missed=7),
        fire(4, "running", began_at=NOW),
    ]
    told = stats_of(made(), fires)
    assert (told.fires, told.outcomes) == (10, {"done": 1, "failed": 1, "missed": 7, "running": 1})
    assert (told.success_rate, told.mean_seconds, told.last_seconds) == (0.5, 20.0, 30.0)
    assert (told.last_outcome, told.cost_usd, told.tokens, told.steps) == ("running", 0.75, 150, 3)
    assert [one.outcome for one in newest_first(fires)] == ["running", "missed", "failed", "done"]
    assert stats_of(made(), []).success_rate is None
