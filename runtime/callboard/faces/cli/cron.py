"""`cron add|list|show|next|edit|pause|resume|remove|run|history|stats`: schedules, from any terminal.

It refuses to change schedules inside a tool call: an agent has tools of its own for that, which are judged.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio
import click

from callboard.adapters.logs import logging_to
from callboard.app import Options
from callboard.assembly import find_places
from callboard.core.budget.spending import ScheduleSpent
from callboard.desks.all_schedules import AllSchedules, Kept, NoSession, open_schedules
from callboard.desks.schedules import drafted
from callboard.faces.cli.cron_changes import pause, remove, resume, run
from callboard.faces.cli.cron_fields import fields, fields_given, told_by_option
from callboard.faces.cli.cron_history import history, stats
from callboard.faces.cli.cron_next import next_
from callboard.faces.cli.options import Given, as_json, everywhere, of_session, refuse_tools
from callboard.faces.cli.run import terminal_of
from callboard.faces.pages.schedule import draft_block, draft_json, schedule_block, schedule_json
from callboard.faces.pages.schedules import kept_json, nobody_line, schedules_table
from callboard.faces.terminal import Block, Terminal, block
from callboard.ports.store import Store
from callboard.serving import serve_session
from callboard.words.errors import UsageError
from callboard.words.schedules import Schedule

Found = TypeVar("Found")

DRY = "dry run: nothing was changed"


@click.group()
def cron() -> None:
    """Add, list, edit, pause and run schedules, and see what they did."""


@cron.command()
@click.argument("expression", metavar="EXPR")
@click.argument("prompt")
@click.option("--once", is_flag=True, help="Fire once, then keep it as history.")
@fields
@click.option("--model", metavar="NAME", help="Of the session that is made where there is none yet.")
@click.option("--dry-run", is_flag=True, help="Show what it would be and when it would fire, and add nothing.")
@of_session
@as_json
@everywhere
@click.pass_obj
def add(given: Given, /, expression: str, prompt: str, session: str | None, json_: bool, **asked: Any) -> None:
    """Have PROMPT done whenever EXPR says so.

    EXPR is five fields in quotes ('0 9 * * 1-5'), @daily and the like, every 20m, or at 2026-12-01T09:00 for once. A
    SPAN of time is 90s, 20m, 1h30m or 2d. It goes to the session's lead, unless --context says otherwise.

    When what it may spend in all is used up it pauses, and `cron resume` lets it go on. A fire whose own budget is used
    up says what is done and what is left, and ends.
    """
    refuse_tools("Adding a schedule")
    wanted = {"cron": expression, "prompt": prompt, **fields_given(asked)}
    if asked["once"]:
        wanted["once"] = True
    dry = bool(asked["dry_run"])

    async def adding(every: AllSchedules) -> tuple[Schedule, str]:
        made = every.current.drafted(wanted)
        await every.check_type(made)
        if not dry:
            await every.current.add(made)
        return made, (await every.fired_by()).get(every.current.session, "")

    with told_by_option(cron="EXPR", prompt="PROMPT"):
        try:
            made, fired_by = at_schedules(given, session, adding)
        except NoSession:
            made, fired_by = drafted("", 0, wanted, time.time()), ""
            if not dry:
                made, fired_by = at_schedules(given, session, adding, make=_made(given, asked["model"]))
    _show_draft(given, made, fired_by, dry=dry, json_=json_)


@cron.command()
@click.argument("schedule_id", metavar="ID")
@click.option("--cron", metavar="EXPR", help="Other times; they count from now on.")
@click.option("--prompt", metavar="TEXT", help="What is to be done.")
@click.option("--once/--recurring", default=None, help="Fire once; or at each of its times.")
@fields
@click.option("--dry-run", is_flag=True, help="Show what it would be and when it would fire, and change nothing.")
@of_session
@as_json
@everywhere
@click.pass_obj
def edit(given: Given, /, schedule_id: str, session: str | None, json_: bool, **asked: Any) -> None:
    """Change what is given of a schedule, by its ID or name.

    All else stays: its history, what it has spent, and whether it is paused. Of a budget the kinds that are named are
    changed. `none` takes a limit, a rule or a name away.
    """
    refuse_tools("Editing a schedule")
    wanted = {name: asked[name] for name in ("cron", "prompt", "once") if asked[name] is not None}
    wanted |= fields_given(asked)
    if not wanted:
        raise UsageError(f"nothing to change was given, as in: callboard cron edit {schedule_id} --cron '0 10 * * 1-5'")
    dry = bool(asked["dry_run"])

    async def editing(every: AllSchedules) -> tuple[Schedule, str]:
        desk = every.desk_of(schedule_id)
        with told_by_option():
            changed = desk.edited(schedule_id, wanted)
            await every.check_type(changed)
            changed = changed if dry else await desk.edit(schedule_id, wanted)
        return changed, (await every.fired_by()).get(desk.session, "")

    changed, fired_by = at_schedules(given, session, editing)
    _show_draft(given, changed, fired_by, dry=dry, json_=json_)


@cron.command("list")
@of_session
@as_json
@everywhere
@click.pass_obj
def list_(given: Given, /, session: str | None, json_: bool) -> None:
    """List the schedules of this workspace, or of one session.

    Says when nothing is running that would fire them, and what is wrong with schedule files.
    """

    async def read(every: AllSchedules) -> tuple[list[Kept], dict[str, str], tuple[str, ...]]:
        return every.kept(), await every.fired_by(), await every.faults()

    rows, fired_by, faults = at_schedules(given, session, read)
    now = time.time()
    with terminal_of(given) as terminal:
        if json_:
            terminal.record(json.dumps([kept_json(row, now, fired_by) for row in rows], indent=2))
        else:
            terminal.rows(schedules_table(rows, now))
        for fault in faults:
            terminal.terminal_print(block(fault, "warn"))
        if any(_waits(row, fired_by) for row in rows):
            terminal.terminal_print(Block((nobody_line(),)))


@cron.command()
@click.argument("schedule_id", metavar="ID")
@of_session
@as_json
@everywhere
@click.pass_obj
def show(given: Given, /, schedule_id: str, session: str | None, json_: bool) -> None:
    """Show a schedule: how it stands, when it fires, by which rules, what it may spend and has spent."""

    async def read(every: AllSchedules) -> tuple[Kept, ScheduleSpent, dict[str, str]]:
        desk = every.desk_of(schedule_id)
        spent = await desk.spent(schedule_id)
        return Kept(desk.one(schedule_id), desk.session), spent, await every.fired_by()

    kept, spent, fired_by = at_schedules(given, session, read)
    now = time.time()
    with terminal_of(given) as terminal:
        if json_:
            terminal.record(json.dumps(schedule_json(kept_json(kept, now, fired_by), spent), indent=2))
        else:
            terminal.rows(schedule_block(kept.schedule, spent, now, fired_by.get(kept.session, "")))


for _command in (next_, pause, resume, remove, run, history, stats):
    cron.add_command(_command)


def at_schedules(
    given: Given,
    session: str | None,
    work: Callable[[AllSchedules], Awaitable[Found]],
    make: Callable[[Store], Awaitable[str]] | None = None,
) -> Found:
    """What `work` returns of the schedules of the workspace, or of a session. Raises as `open_schedules` does."""

    async def working() -> Found:
        async with open_schedules(given.workspace, session, make) as every:
            return await work(every)

    return anyio.run(working)


def _made(given: Given, model: str | None) -> Callable[[Store], Awaitable[str]]:
    """Makes the session that `callboard serve` keeps, for a schedule that is added before there is any session."""

    async def make(store: Store) -> str:
        with logging_to(find_places(given.workspace).state / "log" / "serve.jsonl"):
            return await serve_session(Options(given.workspace, model=model), store)

    return make


def _show_draft(given: Given, schedule: Schedule, fired_by: str, *, dry: bool, json_: bool) -> None:
    now = time.time()
    with terminal_of(given) as terminal:
        if json_:
            terminal.record(json.dumps({**draft_json(schedule, now), "dry_run": dry, "fired_by": fired_by}, indent=2))
        else:
            terminal.rows(draft_block(schedule, now, said=DRY if dry else ""))
            _tell_nobody(terminal, schedule, fired_by, dry=dry)


def _tell_nobody(terminal: Terminal, schedule: Schedule, fired_by: str, *, dry: bool) -> None:
    if not dry and not fired_by and schedule.state == "active":
        terminal.terminal_print(Block((nobody_line(),)))


def _waits(row: Kept, fired_by: dict[str, str]) -> bool:
    """It would fire, and nobody is there to do it."""
    return row.schedule.state == "active" and row.schedule.enabled and not fired_by.get(row.session)
