"""The status line: the next schedule, in a person's words."""

from __future__ import annotations

from datetime import datetime

from callboard.faces.prompt.status import next_of, next_words
from callboard.words.schedules import Schedule

NOON = datetime(2026, 12, 1, 12, 0).astimezone().timestamp()


def schedule(cron: str, **given: object) -> Schedule:
    row = {"id": f"cron_{cron[:2].strip()}", "cron": cron, "prompt": "p", "created_at": NOON, "jitter": 0.0, **given}
    return Schedule.model_validate(row)


def test_the_next_of_all_is_named() -> None:
    rows = [
        schedule("0 3 * * *", name="late"),
        schedule("*/30 * * * *", name="soon"),
        schedule("5 12 * * *", state="paused"),
    ]
    found = next_of(rows)
    assert found is not None
    assert found[1] == "soon"
    assert next_of([]) is None


def test_the_time_is_this_machines_and_has_a_day_unless_it_is_todays() -> None:
    assert next_words(None, NOON) == ""
    assert next_words((NOON + 1800, "standup"), NOON) == "next 12:30 standup"
    assert next_words((NOON + 86_400, "standup"), NOON) == "next Wed 02 Dec 12:00 standup"
    assert next_words((NOON - 1, "standup"), NOON) == "next now standup"
