"""`cron next`: the fire times of an expression, for users before they add it, and as lines of JSON for programs.

Such programs need the rules but no scheduler.

A question is `{"expr": "0 9 * * 1-5", "tz": "Europe/Berlin", "base": "2026-03-27T12:00:00Z", "count": 2}`. An answer is
`{"next": ["2026-03-30T09:00:00+02:00", …]}`, strictly after `base`, or `{"error": the fault and the remedy, "field":
the part of the question}`. The functions for programs are pure: the time is an argument.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import cast
from zoneinfo import ZoneInfo

import anyio
import click

from callboard.cli.commands.options import Invocation, as_json, everywhere, of_session, refuse_idle
from callboard.cli.commands.output import notice_of, terminal_of
from callboard.cli.terminal.terminal import Block, Line
from callboard.core.scheduling.cron import CronInvalid, zone_named
from callboard.core.scheduling.describe import describe, local_time
from callboard.core.scheduling.fire_times import fires_between
from callboard.core.scheduling.history import next_fires
from callboard.core.scheduling.timezones import FIRST_MOMENT, LAST_MOMENT, quote_text
from callboard.core.scheduling.trigger import OneTime, When, parse_when, when_of
from callboard.sessions.inspect.schedules import open_schedules
from callboard.types.errors import UsageError
from callboard.types.lazy_dataclass import dataclass
from callboard.types.schedules import Schedule

USUAL_COUNT = 5
MOST_COUNT = 1_000
LONGEST_LINE = 65_536
"""Maximum bytes of a question; sensible questions have a few hundred."""

_MEANT = (("timezone", "tz"), ("zone", "tz"), ("from", "base"), ("after", "base"), ("cron", "expr"))
"""Wrong names, and the correct ones: a question with a wrong name must not be answered in UTC."""


class InvalidQuestion(ValueError):
    """A question that cannot be answered.

    `field`: `expr`, `minute`, `hour`, `day of month`, `month`, `day of week`, `timezone`, `base` or `count`;
    `str(error)` says what to write instead.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field


def answer_line(line: bytes, now: float) -> dict[str, object]:
    """Answer the question on a line of JSON (UTF-8). Never raises.

    Defaults: `now` (unix seconds) for `base`, UTC for `tz`, 5 for `count`. Other names are ignored.
    """
    try:
        return {"next": _answer(_object(line), now)}
    except CronInvalid as wrong:
        return {"error": str(wrong), "field": "expr" if wrong.field == "expression" else wrong.field}
    except InvalidQuestion as wrong:
        return {"error": str(wrong), "field": wrong.field}
    except Exception as bug:  # noqa: BLE001 - each of thousands of lines gets an answer
        return {"error": f"a bug in Callboard: {type(bug).__name__}: {str(bug)!a}"[:300], "field": "expr"}


def next_times(expr: str, tz: str, base: float, count: int) -> list[datetime]:
    """Return the next fire times after `base` (unix seconds) as local times of the zone; `every` counts from `base`.

    Raises `CronInvalid`, and `InvalidQuestion` for an expression that does not fire after `base`.
    """
    when = parse_when(expr, tz, base)
    times = fires_between(when, base, LAST_MOMENT, cap=count)
    if not times:
        past = "its time is past: write a later one, or an earlier base"
        problem = past if isinstance(when, OneTime) else "the calendar ends in the year 9000: write an earlier base"
        raise InvalidQuestion("expr", f"never fires after the base: {problem}")
    return [datetime.fromtimestamp(at, when.zone) for at in times]


def base_of(text: str, zone: ZoneInfo) -> float:
    """Return a moment in ISO 8601 as unix seconds.

    Without an offset it is local time in the zone; an ambiguous time means the first.

    Raises `InvalidQuestion`.
    """
    try:
        moment = datetime.fromisoformat(text.strip(" \t\r\n"))
        at = (moment if moment.tzinfo else moment.replace(tzinfo=zone)).timestamp()
    except (ValueError, OverflowError) as wrong:
        help_ = "write ISO 8601, such as 2026-03-29T01:30:00+01:00, or without an offset for the time zone's own time"
        raise InvalidQuestion("base", f"{quote_text(text)} is not a time: {help_}") from wrong
    if not FIRST_MOMENT <= at < LAST_MOMENT:
        raise InvalidQuestion("base", f"{quote_text(text)} is out of range: write a year from 1000 to 8999")
    return at


def _answer(question: Mapping[str, object], now: float) -> Sequence[str]:
    for wrong, right in _MEANT:
        if wrong in question and question.get(right) is None:
            raise InvalidQuestion(
                "timezone" if right == "tz" else right, f"there is no {wrong!r} here: write {right!r}"
            )
    expr = _text(question, "expr", "expr", "five fields, as in '0 9 * * 1-5'")
    if expr is None:
        raise InvalidQuestion("expr", "is missing: write five fields, as in '0 9 * * 1-5'")
    tz = _text(question, "tz", "timezone", "a name such as Europe/Berlin")
    zone = zone_named("UTC" if tz is None else tz)
    base = _text(question, "base", "base", "ISO 8601, such as 2026-03-29T01:30:00+01:00")
    count = question.get("count")
    if count is not None and (not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MOST_COUNT):
        raise InvalidQuestion("count", f"write a whole number from 1 to {MOST_COUNT}")
    begin = now if base is None else base_of(base, zone)
    times = next_times(expr, zone.key, begin, USUAL_COUNT if count is None else count)
    return [at.isoformat(timespec="seconds") for at in times]


def _text(question: Mapping[str, object], name: str, field: str, examples: str) -> str | None:
    """Return a text field of the question; None if it is missing or null. Raises `InvalidQuestion`."""
    value = question.get(name)
    if value is None or isinstance(value, str):
        return value
    raise InvalidQuestion(field, f"{name!r} must be text: write {examples}")


def _object(line: bytes) -> Mapping[str, object]:
    """Return the JSON object on the line. Raises `InvalidQuestion`."""
    if len(line) > LONGEST_LINE:
        raise InvalidQuestion("expr", f"the line is over {LONGEST_LINE:,} bytes: write one question a line")
    try:
        parsed: object = json.loads(line.decode("utf-8"), object_pairs_hook=_once_each)
    except UnicodeDecodeError as wrong:
        raise InvalidQuestion("expr", f"the line is not UTF-8 (byte {wrong.start}): write JSON in UTF-8") from wrong
    except InvalidQuestion:
        raise
    except RecursionError as wrong:
        raise InvalidQuestion("expr", "the JSON of the line is nested too deeply: write one flat object") from wrong
    except ValueError as wrong:  # includes a number with more digits than Python reads
        raise InvalidQuestion("expr", f"the line is not JSON: {str(wrong)[:200]}") from wrong
    if not isinstance(parsed, dict):
        raise InvalidQuestion("expr", 'the line is not a JSON object: write {"expr": "0 9 * * 1-5", "tz": "UTC"}')
    return cast("Mapping[str, object]", parsed)


def _once_each(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise InvalidQuestion("expr", "the JSON of the line has a duplicate name: write each name once")
    return fields


@dataclass(frozen=True, slots=True)
class _TimesAnswer:
    """Expression or schedule, with its next times."""

    when: When
    times: Sequence[float]
    schedule: Schedule | None = None


@click.command("next")
@click.argument("wanted", metavar="[EXPR]", nargs=-1)
@click.option(
    "--stdin", is_flag=True, help="Read one JSON question per line from stdin and print one JSON answer per line."
)
@click.option(
    "--timezone", metavar="ZONE", help="Time zone, for example Europe/Berlin; default: that of the schedule, or UTC."
)
@click.option("--from", "base", metavar="TIME", help="Start after this moment (ISO 8601); default: now.")
@click.option(
    "--count",
    type=click.IntRange(1, MOST_COUNT),
    metavar="N",
    default=USUAL_COUNT,
    show_default=True,
    help="Number of times to show.",
)
@of_session
@as_json
@everywhere
@click.pass_obj
def next_(
    invocation: Invocation, /, wanted: tuple[str, ...], stdin: bool, json_: bool, **values: str | int | None
) -> None:
    """Describe when EXPR fires, and show its next times.

    EXPR is five fields in quotes ('0 9 * * 1-5'), @daily and similar, every 20m, at 2030-12-01T09:00; or the ID or the
    name of a schedule.

    --stdin reads {"expr", "tz", "base", "count"} and answers {"next": [...]}, times in ISO 8601 strictly after base, or
    {"error", "field"}, until the input ends. `every` is counted from base.
    """
    if stdin:
        if wanted:
            raise UsageError("with --stdin the expressions are read from stdin: omit EXPR")
        refuse_idle(("timezone", "base", "count", "session", "json_"), "with --stdin: each line has its own question")
        _answer_lines()
        return
    if not wanted:
        raise UsageError("give an expression, as in: callboard cron next '0 9 * * 1-5'; or --stdin for many")
    answer = _find_times(invocation, " ".join(wanted), values)
    with terminal_of(invocation) as terminal:
        if json_:
            terminal.record(json.dumps(_json(answer), indent=2))
        else:
            terminal.rows(_block(answer))


def _answer_lines() -> None:
    """Write one answer for each line, whatever its content, before reading the next.

    End when no one reads the answers.
    """
    try:
        for line in _lines():
            sys.stdout.write(f"{json.dumps(answer_line(line, time.time()))}\n")
            sys.stdout.flush()
    except BrokenPipeError:  # click would report a failure; the rest of the buffer is discarded
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _lines() -> Iterator[bytes]:
    """Yield the lines of stdin. A line that is too long is cut, so that it is never held in memory as a whole."""
    while line := sys.stdin.buffer.readline(LONGEST_LINE + 1):
        chunk = line
        while not chunk.endswith(b"\n") and (chunk := sys.stdin.buffer.readline(LONGEST_LINE)):
            pass
        yield line


def _find_times(invocation: Invocation, expression: str, values: dict[str, str | int | None]) -> _TimesAnswer:
    """Return the times that the options request. Raises `UsageError`."""
    timezone = values["timezone"]
    base = values["base"]
    count = int(values["count"] or USUAL_COUNT)
    try:
        zone = zone_named(str(timezone or "UTC"))
        begin = time.time() if base is None else base_of(str(base), zone)
        try:
            when = parse_when(expression, zone.key, begin)
        except CronInvalid:
            if len(expression.split()) != 1 or expression.startswith("@"):
                raise
            return _scheduled(invocation, expression, values, begin)
    except (CronInvalid, InvalidQuestion) as wrong:
        raise UsageError(str(wrong)) from wrong
    times = fires_between(when, begin, LAST_MOMENT, cap=count)
    if not times:
        raise UsageError(f"{expression}: never fires after {local_time(when, begin)}: its time is past")
    return _TimesAnswer(when, times)


def _scheduled(invocation: Invocation, name: str, values: dict[str, str | int | None], begin: float) -> _TimesAnswer:
    """Return a schedule of the session, by its id or name. Raises `UsageError` for an unknown one."""
    if values["timezone"] is not None:
        raise UsageError("--timezone is for an expression: a schedule has its own")

    async def read() -> Schedule:
        async with open_schedules(
            invocation.workspace,
            None if values["session"] is None else str(values["session"]),
            notice=notice_of(invocation),
        ) as every:
            return every.inspector_of(name).schedule_named(name)

    schedule = anyio.run(read)
    when = when_of(schedule)
    if values["base"] is not None:
        begin = base_of(str(values["base"]), when.zone)
    return _TimesAnswer(when, next_fires(schedule, begin, int(values["count"] or USUAL_COUNT)), schedule)


def _block(answer: _TimesAnswer) -> Block:
    lines = [Line(describe(answer.when), "strong")]
    lines += [Line(f"  {local_time(answer.when, at)}") for at in answer.times]
    if not answer.times and answer.schedule is not None:
        lines.append(Line(f"  never again: {answer.schedule.id} is {answer.schedule.state}", "warn"))
    return Block(tuple(lines))


def _json(answer: _TimesAnswer) -> dict[str, object]:
    times = [datetime.fromtimestamp(at, answer.when.zone).isoformat(timespec="seconds") for at in answer.times]
    identity = {"id": answer.schedule.id, "state": answer.schedule.state} if answer.schedule is not None else {}
    return {
        **identity,
        "expr": answer.when.text,
        "tz": answer.when.timezone,
        "words": describe(answer.when),
        "next": times,
    }
