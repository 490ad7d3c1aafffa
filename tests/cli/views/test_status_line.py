"""The status line: its parts, and the next schedule in words for a person."""

from __future__ import annotations

from datetime import datetime

from callboard.cli.views.status_line import StatusPart, fit_parts, next_of, next_words
from callboard.types.schedules import Schedule

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


PARTS = [
    StatusPart("lead: bash pytest -q", 3),
    StatusPart("alice: thinks", 4),
    StatusPart("mode default", 1),
    StatusPart("2 working", 50),
    StatusPart("1 waits for you (/plans)", 0),
    StatusPart("12,345 tokens in (90 % cached), 678 out, $0.12", 60, short="$0.12"),
    StatusPart("next 09:00 standup", 70),
    StatusPart("", 5),
]


def test_a_narrow_line_loses_whole_parts_and_what_waits_for_the_person_last() -> None:
    whole = fit_parts(PARTS, 500).split(" | ")
    assert len(whole) == len(PARTS) - 1
    words = {part.text for part in PARTS} | {"$0.12"}
    before = len(whole)
    for width in range(len(" | ".join(whole)), 24, -1):
        line = fit_parts(PARTS, width)
        assert len(line) <= width
        shown = line.split(" | ")
        assert set(shown) <= words, "no part is cut"
        assert "1 waits for you (/plans)" in shown
        assert len(shown) <= before
        before = len(shown)
    assert "$0.12" in fit_parts(PARTS, 100).split(" | "), "the cost is kept longer than the tokens"
    assert fit_parts(PARTS, 10) == "1 waits f…"


def test_tokens_and_cost_are_kept_at_80_columns() -> None:
    parts = [
        StatusPart("mode acceptEdits", 40),
        StatusPart("3 waiting, 12 working, 4 idle", 50),
        StatusPart("2 wait for you (/plans)", 0),
        StatusPart("lead waits for the rate limit until 14:05 (callboard rate)", 2),
        StatusPart("1,512,345 tokens in (90 % cached), 67,890 out, $12.34", 1, short="1.6M tokens, $12.34"),
        StatusPart("next 09:00 standup", 70),
    ]
    assert fit_parts(parts, 80) == "2 wait for you (/plans) | 1.6M tokens, $12.34"
    assert fit_parts([*parts[:3], *parts[4:]], 80) == (
        "mode acceptEdits | 2 wait for you (/plans) | 1.6M tokens, $12.34"
    )


def test_wide_characters_count_two_columns() -> None:
    assert fit_parts([StatusPart("漢字", 0), StatusPart("x", 1)], 7) == "漢字"
    assert fit_parts([StatusPart("漢字", 0), StatusPart("x", 1)], 8) == "漢字 | x"
