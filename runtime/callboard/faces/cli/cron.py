"""`cron add|list|show|resume|remove|run`: schedules of a session, from any terminal.

It refuses to change schedules inside a tool call: an agent has tools of its own for that, which are judged.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import click

from callboard.core.budget.spending import ScheduleSpent, Spent
from callboard.desks.desk import Desk
from callboard.desks.schedules import Allowed, CronDesk, schedule_words
from callboard.faces.cli.limits import limits_given
from callboard.faces.cli.options import Given, as_json, everywhere, of_session, refuse_tools
from callboard.faces.cli.run import terminal_of
from callboard.faces.cli.team import at_desk, print_rows
from callboard.faces.pages.listings import schedules_table, when
from callboard.faces.pages.schedule import schedule_block, schedule_json
from callboard.faces.terminal import block
from callboard.words.schedules import Schedule

Command = TypeVar("Command", bound=Callable[..., Any])


def _budgets(command: Command) -> Command:
    """Add `--budget` and `--fire-budget`."""
    kinds = "cost_usd, tokens, steps or seconds"
    add = click.option("--fire-budget", metavar="KIND=N", multiple=True, help="The same for each fire.")
    help_ = f"At most so much in all: {kinds}; repeatable."
    more = click.option("--budget", metavar="KIND=N", multiple=True, help=help_)
    return more(add(command))


def _allowed(budget: Sequence[str], fire_budget: Sequence[str]) -> Allowed:
    return Allowed(limits_given(budget, "--budget"), limits_given(fire_budget, "--fire-budget"))


@click.group()
def cron() -> None:
    """Add, list, resume, remove and run schedules."""


@cron.command()
@click.argument("expression", metavar="EXPR")
@click.argument("prompt")
@click.option("--timezone", default="UTC", show_default=True, metavar="ZONE", help="Such as Europe/Berlin.")
@click.option("--once", is_flag=True, help="Fire once, then keep it as history.")
@_budgets
@of_session
@everywhere
@click.pass_obj
def add(given: Given, /, expression: str, prompt: str, session: str | None, **asked: Any) -> None:
    """Give PROMPT to the session's lead whenever EXPR (five fields, or @daily and the like) says so.

    When what it may spend in all is used up it pauses, and `cron resume` lets it go on. A fire whose own budget is used
    up says what is done and what is left, and ends.
    """
    refuse_tools("Adding a schedule")
    allowed = _allowed(asked["budget"], asked["fire_budget"])

    async def adding(desk: Desk) -> Schedule:
        zone, recurring = str(asked["timezone"]), not asked["once"]
        return await desk.cron.add(expression, prompt, zone, recurring=recurring, allowed=allowed)

    added = at_desk(given, session, adding)
    meaning, times = schedule_words(added, added.created_at)
    lines = [f"{added.id}: {meaning}", *(f"  next: {when(each)}" for each in times)]
    with terminal_of(given) as terminal:
        terminal.rows(block("\n".join(lines)))


@cron.command("list")
@of_session
@as_json
@everywhere
@click.pass_obj
def list_(given: Given, /, session: str | None, json_: bool) -> None:
    """List the schedules of a session."""

    async def read(desk: Desk) -> Sequence[Schedule]:
        return desk.schedules()

    print_rows(given, at_desk(given, session, read), schedules_table, json_=json_)


@cron.command()
@click.argument("schedule_id", metavar="ID")
@of_session
@as_json
@everywhere
@click.pass_obj
def show(given: Given, /, schedule_id: str, session: str | None, json_: bool) -> None:
    """Show a schedule: how it stands, when it fires, what it may spend and has spent."""

    async def read(desk: Desk) -> tuple[Schedule, ScheduleSpent]:
        schedule, spending = desk.cron.one(schedule_id), await desk.cost()
        nothing = ScheduleSpent(schedule.id, 0, Spent())
        return schedule, next((one for one in spending.schedules if one.id == schedule.id), nothing)

    schedule, spent = at_desk(given, session, read)
    with terminal_of(given) as terminal:
        if json_:
            terminal.record(json.dumps(schedule_json(schedule, spent), indent=2))
        else:
            terminal.rows(schedule_block(schedule, spent, time.time()))


@cron.command()
@click.argument("schedule_id", metavar="ID")
@_budgets
@of_session
@everywhere
@click.pass_obj
def resume(given: Given, /, schedule_id: str, session: str | None, **asked: Sequence[str]) -> None:
    """Let a paused schedule fire again, from its next time on.

    A budget that is named takes the place of the old one; what was spent before counts. What would have fired while it
    was paused never runs.
    """
    refuse_tools("Resuming a schedule")
    allowed = _allowed(asked["budget"], asked["fire_budget"])

    async def resuming(desk: Desk) -> Schedule:
        return await desk.cron.resume(schedule_id, allowed)

    at_desk(given, session, resuming)
    with terminal_of(given) as terminal:
        terminal.rows(block(f"{schedule_id} fires again", "good"))


@cron.command()
@click.argument("schedule_id", metavar="ID")
@of_session
@everywhere
@click.pass_obj
def remove(given: Given, /, schedule_id: str, session: str | None) -> None:
    """Cancel a schedule. It is kept as history."""
    refuse_tools("Removing a schedule")

    _change(given, session, CronDesk.cancel, schedule_id, "is cancelled")


@cron.command()
@click.argument("schedule_id", metavar="ID")
@of_session
@everywhere
@click.pass_obj
def run(given: Given, /, schedule_id: str, session: str | None) -> None:
    """Give a schedule's prompt to the lead now, beside its times."""
    refuse_tools("Running a schedule")
    _change(given, session, CronDesk.run, schedule_id, "is in the lead's mailbox")


def _change(
    given: Given, session: str | None, act: Callable[[CronDesk, str], Awaitable[None]], schedule_id: str, said: str
) -> None:
    async def changing(desk: Desk) -> None:
        await act(desk.cron, schedule_id)

    at_desk(given, session, changing)
    with terminal_of(given) as terminal:
        terminal.rows(block(f"{schedule_id} {said}", "good"))
