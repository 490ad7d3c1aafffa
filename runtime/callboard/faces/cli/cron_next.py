"""`cron next`: when an expression fires, for a person before it is given, and for programs a line of JSON each."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import anyio
import click

from callboard.core.schedule.answers import LONGEST_LINE, MOST_COUNT, USUAL_COUNT, QuestionWrong, answer_line, base_of
from callboard.core.schedule.clock import LAST_MOMENT
from callboard.core.schedule.cron import CronInvalid, zone_named
from callboard.core.schedule.describe import describe, local_time
from callboard.core.schedule.fires import fires_between
from callboard.core.schedule.tally import upcoming
from callboard.core.schedule.when import When, parse_when, when_of
from callboard.desks.all_schedules import open_schedules
from callboard.faces.cli.options import Given, as_json, everywhere, of_session
from callboard.faces.cli.run import terminal_of
from callboard.faces.terminal import Block, Line
from callboard.words.errors import UsageError
from callboard.words.schedules import Schedule


@dataclass(frozen=True, slots=True)
class _Told:
    """An expression, or a schedule, and when it fires next."""

    when: When
    times: Sequence[float]
    schedule: Schedule | None = None


@click.command("next")
@click.argument("wanted", metavar="[EXPR]", nargs=-1)
@click.option("--stdin", is_flag=True, help="One JSON question a line on stdin, one JSON answer a line on stdout.")
@click.option("--timezone", metavar="ZONE", help="Such as Europe/Berlin; left out: UTC, or the schedule's own.")
@click.option("--from", "base", metavar="TIME", help="After this moment (ISO 8601); left out: now.")
@click.option(
    "--count", type=click.IntRange(1, MOST_COUNT), default=USUAL_COUNT, show_default=True, help="So many times."
)
@of_session
@as_json
@everywhere
@click.pass_obj
def next_(given: Given, /, wanted: tuple[str, ...], stdin: bool, json_: bool, **asked: str | int | None) -> None:
    """Say in words when EXPR fires, and its next times.

    EXPR is five fields in quotes ('0 9 * * 1-5'), @daily and the like, every 20m, at 2026-12-01T09:00; or the ID or the
    name of a schedule.

    --stdin reads {"expr", "tz", "base", "count"} and answers {"next": [...]}, times in ISO 8601 strictly after base, or
    {"error", "field"}, until the input ends. `every` is counted from base.
    """
    if stdin:
        if wanted:
            raise UsageError("with --stdin the expressions come on stdin: leave EXPR out")
        _answer_lines()
        return
    if not wanted:
        raise UsageError("give an expression, as in: callboard cron next '0 9 * * 1-5'; or --stdin for many")
    told = _told(given, " ".join(wanted), asked)
    with terminal_of(given) as terminal:
        if json_:
            terminal.record(json.dumps(_json(told), indent=2))
        else:
            terminal.rows(_block(told))


def _answer_lines() -> None:
    """One answer for each line, whatever it holds, written before the next one is read. When nobody reads the answers
    any more that is the end of the questions, too."""
    try:
        for line in _lines():
            sys.stdout.write(f"{json.dumps(answer_line(line, time.time()))}\n")
            sys.stdout.flush()
    except BrokenPipeError:  # click would make a failure of it; what is left in the buffer has nowhere to go at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _lines() -> Iterator[bytes]:
    """The lines of stdin. One that is too long is cut, so that it is never held whole."""
    while line := sys.stdin.buffer.readline(LONGEST_LINE + 1):
        rest = line
        while not rest.endswith(b"\n") and (rest := sys.stdin.buffer.readline(LONGEST_LINE)):
            pass
        yield line


def _told(given: Given, wanted: str, asked: dict[str, str | int | None]) -> _Told:
    """What is asked for. Raises `UsageError`."""
    timezone, base, count = asked["timezone"], asked["base"], int(asked["count"] or USUAL_COUNT)
    try:
        zone = zone_named(str(timezone or "UTC"))
        begin = time.time() if base is None else base_of(str(base), zone)
        try:
            when = parse_when(wanted, zone.key, begin)
        except CronInvalid:
            if len(wanted.split()) != 1 or wanted.startswith("@"):
                raise
            return _scheduled(given, wanted, asked, begin)
    except (CronInvalid, QuestionWrong) as wrong:
        raise UsageError(str(wrong)) from wrong
    times = fires_between(when, begin, LAST_MOMENT, cap=count)
    if not times:
        raise UsageError(f"{wanted}: never fires after {local_time(when, begin)}: its time is past")
    return _Told(when, times)


def _scheduled(given: Given, wanted: str, asked: dict[str, str | int | None], begin: float) -> _Told:
    """A schedule of the session, by its id or name. Raises `UsageError` for an unknown one."""
    if asked["timezone"] is not None:
        raise UsageError("--timezone is for an expression: a schedule has its own")

    async def read() -> Schedule:
        async with open_schedules(
            given.workspace, None if asked["session"] is None else str(asked["session"])
        ) as every:
            return every.desk_of(wanted).one(wanted)

    schedule = anyio.run(read)
    when = when_of(schedule)
    if asked["base"] is not None:
        begin = base_of(str(asked["base"]), when.zone)
    return _Told(when, upcoming(schedule, begin, int(asked["count"] or USUAL_COUNT)), schedule)


def _block(told: _Told) -> Block:
    lines = [Line(describe(told.when), "strong")]
    lines += [Line(f"  {local_time(told.when, at)}") for at in told.times]
    if not told.times and told.schedule is not None:
        lines.append(Line(f"  never again: {told.schedule.id} is {told.schedule.state}", "warn"))
    return Block(tuple(lines))


def _json(told: _Told) -> dict[str, object]:
    times = [datetime.fromtimestamp(at, told.when.zone).isoformat(timespec="seconds") for at in told.times]
    who = {"id": told.schedule.id, "state": told.schedule.state} if told.schedule is not None else {}
    return {**who, "expr": told.when.text, "tz": told.when.timezone, "words": describe(told.when), "next": times}
