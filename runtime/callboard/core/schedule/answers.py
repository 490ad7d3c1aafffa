"""When an expression fires, asked and answered in JSON, a line each: for programs that want the rules and no scheduler.

A question is `{"expr": "0 9 * * 1-5", "tz": "Europe/Berlin", "base": "2026-03-27T12:00:00Z", "count": 2}`; an answer is
`{"next": ["2026-03-30T09:00:00+02:00", …]}`, strictly after `base`, or `{"error": what is wrong and what to write,
"field": which part of the question}`. Pure: the time comes in as an argument.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import cast
from zoneinfo import ZoneInfo

from callboard.core.schedule.clock import FIRST_MOMENT, LAST_MOMENT, shown
from callboard.core.schedule.cron import CronInvalid, zone_named
from callboard.core.schedule.fires import fires_between
from callboard.core.schedule.when import Once, parse_when

USUAL_COUNT = 5
MOST_COUNT = 1_000
LONGEST_LINE = 65_536
"""Bytes of a question; the longest sensible one has some hundred."""

_MEANT = (("timezone", "tz"), ("zone", "tz"), ("from", "base"), ("after", "base"), ("cron", "expr"))
"""Names that are none here, and the ones that are: a question with the wrong name must not be answered in UTC."""


class QuestionWrong(ValueError):
    """A question that has no answer. `field`: `expr`, `minute`, `hour`, `day of month`, `month`, `day of week`,
    `timezone`, `base` or `count`; `str(error)` says what to write instead."""

    def __init__(self, field: str, what: str) -> None:
        super().__init__(f"{field}: {what}")
        self.field = field


def answer_line(line: bytes, now: float) -> dict[str, object]:
    """The answer to the question on a line of JSON (UTF-8). Never raises.

    `base` is left out for `now` (unix seconds), `tz` for UTC, `count` for 5; other names are passed over.
    """
    try:
        return {"next": _answer(_object(line), now)}
    except CronInvalid as wrong:
        return {"error": str(wrong), "field": "expr" if wrong.field == "expression" else wrong.field}
    except QuestionWrong as wrong:
        return {"error": str(wrong), "field": wrong.field}
    except Exception as bug:  # noqa: BLE001  whoever feeds thousands of lines gets an answer to each of them
        return {"error": f"a bug of ours: {type(bug).__name__}: {str(bug)!a}"[:300], "field": "expr"}


def next_times(expr: str, tz: str, base: float, count: int) -> list[datetime]:
    """The next moments after `base` (unix seconds) as the zone's clocks show them; `every` is counted from there.

    Raises `CronInvalid`, and `QuestionWrong` for an expression that does not fire after `base`.
    """
    when = parse_when(expr, tz, base)
    found = fires_between(when, base, LAST_MOMENT, cap=count)
    if not found:
        past = "its time is past: write a later one, or an earlier base"
        why = past if isinstance(when, Once) else "the calendar ends in the year 9000: write an earlier base"
        raise QuestionWrong("expr", f"never fires after the base: {why}")
    return [datetime.fromtimestamp(at, when.zone) for at in found]


def base_of(text: str, zone: ZoneInfo) -> float:
    """A moment as ISO 8601 (unix seconds): without an offset by the zone's clocks, of two such times the first.

    Raises `QuestionWrong`.
    """
    try:
        given = datetime.fromisoformat(text.strip(" \t\r\n"))
        at = (given if given.tzinfo else given.replace(tzinfo=zone)).timestamp()
    except (ValueError, OverflowError) as wrong:
        help_ = "write ISO 8601, such as 2026-03-29T01:30:00+01:00, or without an offset for the time zone's own time"
        raise QuestionWrong("base", f"{shown(text)} is no moment: {help_}") from wrong
    if not FIRST_MOMENT <= at < LAST_MOMENT:
        raise QuestionWrong("base", f"{shown(text)} is out of range: write a year from 1000 to 8999")
    return at


def _answer(question: Mapping[str, object], now: float) -> Sequence[str]:
    for wrong, right in _MEANT:
        if wrong in question and question.get(right) is None:
            raise QuestionWrong("timezone" if right == "tz" else right, f"there is no {wrong!r} here: write {right!r}")
    expr = _text(question, "expr", "expr", "five fields, as in '0 9 * * 1-5'")
    if expr is None:
        raise QuestionWrong("expr", "is missing: write five fields, as in '0 9 * * 1-5'")
    tz = _text(question, "tz", "timezone", "a name such as Europe/Berlin")
    zone = zone_named("UTC" if tz is None else tz)
    base = _text(question, "base", "base", "ISO 8601, such as 2026-03-29T01:30:00+01:00")
    count = question.get("count")
    if count is not None and (not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MOST_COUNT):
        raise QuestionWrong("count", f"write a whole number from 1 to {MOST_COUNT}")
    begin = now if base is None else base_of(base, zone)
    times = next_times(expr, zone.key, begin, USUAL_COUNT if count is None else count)
    return [at.isoformat(timespec="seconds") for at in times]


def _text(question: Mapping[str, object], name: str, field: str, what: str) -> str | None:
    """A text of the question; None: it is left out, or null. Raises `QuestionWrong`."""
    value = question.get(name)
    if value is None or isinstance(value, str):
        return value
    raise QuestionWrong(field, f"{name!r} is to be a text: write {what}")


def _object(line: bytes) -> Mapping[str, object]:
    """The JSON object on the line. Raises `QuestionWrong`."""
    if len(line) > LONGEST_LINE:
        raise QuestionWrong("expr", f"the line is over {LONGEST_LINE:,} bytes: write one question a line")
    try:
        given: object = json.loads(line.decode("utf-8"), object_pairs_hook=_once_each)
    except UnicodeDecodeError as wrong:
        raise QuestionWrong("expr", f"the line is not UTF-8 (byte {wrong.start}): write JSON in UTF-8") from wrong
    except QuestionWrong:
        raise
    except RecursionError as wrong:
        raise QuestionWrong("expr", "the JSON of the line is nested too deep: write one flat object") from wrong
    except ValueError as wrong:  # also a number with more digits than Python reads
        raise QuestionWrong("expr", f"the line is not JSON: {str(wrong)[:200]}") from wrong
    if not isinstance(given, dict):
        raise QuestionWrong("expr", 'the line is no JSON object: write {"expr": "0 9 * * 1-5", "tz": "UTC"}')
    return cast("Mapping[str, object]", given)


def _once_each(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise QuestionWrong("expr", "a name comes twice in the JSON of the line: write each once")
    return found
