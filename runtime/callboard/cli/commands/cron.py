"""`cron add|list|show|next|edit|pause|resume|remove|run|history|stats`: schedules, from any terminal.

Changes are refused inside a tool call: an agent has its own tools for that, with permissions. `core.scheduling.fields`
parses the options of `cron add` and `cron edit`, like the fields of files and of an agent's tool.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import anyio
import click

from callboard.adapters.processes.tool_ancestry import refuse_inside_tool
from callboard.adapters.system.logs import logging_to
from callboard.cli.commands.cron_next import next_
from callboard.cli.commands.options import Invocation, as_json, everywhere, of_session
from callboard.cli.commands.output import notice_of, terminal_of
from callboard.cli.terminal.terminal import Block, Line, block
from callboard.cli.views.listings import as_json as json_of
from callboard.cli.views.schedules import (
    draft_block,
    draft_json,
    fire_json,
    history_table,
    nobody_line,
    schedule_block,
    schedule_json,
    schedules_table,
    sent_words,
    stats_table,
)
from callboard.core.reports.spending import ScheduleSpent
from callboard.core.scheduling.fields import InvalidField
from callboard.core.scheduling.history import FireStats, newest_first
from callboard.ports.store import Store
from callboard.sessions.inspect.resources import SCHEDULES, ScheduleStatus
from callboard.sessions.inspect.schedule_files import file_faults
from callboard.sessions.inspect.schedules import (
    AllSchedules,
    NoSession,
    ScheduleInspector,
    SessionSchedule,
    draft_schedule,
    open_schedules,
)
from callboard.sessions.options import ModelOptions, SessionOptions, WorkspaceOptions
from callboard.sessions.places import find_places
from callboard.sessions.serve import serve_session
from callboard.types.errors import UsageError
from callboard.types.schedules import Fire, Schedule

USUAL = 20
"""Default number of fires to show."""


@click.command()
@click.argument("schedule_id", metavar="[ID]", required=False)
@click.option(
    "--limit",
    type=click.IntRange(1),
    metavar="N",
    default=USUAL,
    show_default=True,
    help="Show at most this many, the newest.",
)
@of_session
@as_json
@everywhere
@click.pass_obj
def history(
    invocation: Invocation, /, *, schedule_id: str | None, limit: int, session: str | None, json_: bool
) -> None:
    """Show the outcome of each fire, newest first; of one schedule, or of all.

    done, failed, timed_out (its deadline), skipped (an earlier one was running), refused (by a hook or a budget),
    missed (too late by its rules), replaced, lost (cut off with its process). Waiting and running fires have not ended.
    """

    async def read(every: AllSchedules) -> tuple[Sequence[Fire], Mapping[str, str]]:
        inspectors = [every.inspector_of(schedule_id)] if schedule_id else every.inspectors
        fires = [fire for inspector in inspectors for fire in await inspector.history(schedule_id)]
        return newest_first(fires)[:limit], {entry.schedule.id: entry.schedule.name for entry in every.entries()}

    fires, names = _with_schedules(invocation, session, read, lambda: ((), {}), named=bool(schedule_id))
    with terminal_of(invocation) as terminal:
        if json_:
            terminal.record(json.dumps([fire_json(fire, names) for fire in fires], indent=2))
        else:
            terminal.rows(history_table(fires, names))


@click.command()
@click.argument("schedule_id", metavar="[ID]", required=False)
@of_session
@as_json
@everywhere
@click.pass_obj
def stats(invocation: Invocation, /, schedule_id: str | None, session: str | None, json_: bool) -> None:
    """Count the fires of each schedule, or of one: outcomes, success rate, duration, cost.

    The success rate is the share of done among those that ran to an end: done, failed, timed_out, lost.
    """

    async def read(every: AllSchedules) -> Sequence[FireStats]:
        inspectors = [every.inspector_of(schedule_id)] if schedule_id else every.inspectors
        return [row for inspector in inspectors for row in await inspector.stats(schedule_id)]

    rows = _with_schedules(invocation, session, read, list, named=bool(schedule_id))
    with terminal_of(invocation) as terminal:
        if json_:
            terminal.record(json_of(rows))
        else:
            terminal.rows(stats_table(rows))


Found = TypeVar("Found")
Command = TypeVar("Command", bound=Callable[..., Any])

_KINDS = "cost_usd, tokens, steps or seconds"
_OPTIONS: Sequence[tuple[str, str, str, bool]] = (
    ("--name", "NAME", "Name to use instead of its id.", False),
    ("--timezone", "ZONE", "Time zone, for example Europe/Berlin; default: UTC.", False),
    ("--misfire", "skip|latest|all", "Which missed times to run; default: latest.", False),
    ("--misfire-cap", "N", "With --misfire all: run only the newest N (default 10).", False),
    ("--window", "SPAN", "Run missed times only up to this delay (default 1h).", False),
    ("--overlap", "skip|queue|replace|parallel", "What to do while an earlier fire is running; default: skip.", False),
    ("--context", "lead|fresh|own", "Conversation of the fire: the lead's, a new agent's, or its own.", False),
    ("--agent-type", "TYPE", "Agent type for --context own or fresh; implies fresh if no context is given.", False),
    ("--deliver", "turn|step", "Start a separate turn, or join the turn that is running.", False),
    ("--jitter", "SPAN", "Delay each fire by a random time up to this (default 1m; 0: none).", False),
    ("--deadline", "SPAN", "Stop a fire's turn after this time.", False),
    ("--retries", "N", "Retry a failed fire up to N times.", False),
    ("--budget", "KIND=N", f"Limit of all fires together: {_KINDS}; repeatable.", True),
    ("--fire-budget", "KIND=N", "Limit of each fire; repeatable.", True),
    ("--permission-mode", "MODE", "Permission mode of its turns; never wider than that of scheduled turns.", False),
    (
        "--allow",
        "RULE",
        "Run without asking only calls that match this rule, for example Bash(npm test); repeatable.",
        True,
    ),
    ("--ask", "RULE", "Permission rule: ask first.", True),
    ("--deny", "RULE", "Permission rule: refuse.", True),
    ("--expires", "TIME", "End of the schedule: a time (2030-12-01T09:00) or a span from now (30d).", False),
    ("--max-runs", "N", "End the schedule after this many fires.", False),
)


def fields(command: Command) -> Command:
    """Add an option for each field."""
    for name, metavar, help_, many in reversed(_OPTIONS):
        command = click.option(name, metavar=metavar, help=help_, multiple=many)(command)
    return command


def budgets(command: Command) -> Command:
    """Add `--budget` and `--fire-budget`."""
    for name, metavar, help_, many in reversed([row for row in _OPTIONS if row[0].endswith("budget")]):
        command = click.option(name, metavar=metavar, help=help_, multiple=many)(command)
    return command


def fields_given(values: Mapping[str, object]) -> dict[str, object]:
    """Return the options of a command that name a field and were given."""
    names = {name.removeprefix("--").replace("-", "_") for name, _, _, _ in _OPTIONS}
    return {name: value for name, value in values.items() if name in names and value not in (None, ())}


@contextmanager
def option_errors(**names: str) -> Generator[None]:
    """Report an invalid field by the name of its option; `names`: other names (`cron`: EXPR). Raises `UsageError`."""
    try:
        yield
    except InvalidField as wrong:
        option = names.get(wrong.field, f"--{wrong.field.replace('_', '-')}")
        raise UsageError(f"{option}: {wrong.what}") from wrong


@click.command()
@click.argument("schedule_id", metavar="ID")
@click.option("--why", default="", metavar="TEXT", help="Reason, stored with the schedule and shown.")
@of_session
@everywhere
@click.pass_obj
def pause(invocation: Invocation, /, schedule_id: str, why: str, session: str | None) -> None:
    """Pause a schedule, by its ID or name, until it is resumed.

    Fires that become due in the meantime never run. A running fire continues.
    """
    refuse_inside_tool("Pausing a schedule")

    async def pausing(inspector: ScheduleInspector) -> str:
        await inspector.pause(schedule_id, why)
        return f"{schedule_id} is paused: callboard cron resume {schedule_id} lets it fire again"

    _change(invocation, session, schedule_id, pausing)


@click.command()
@click.argument("schedule_id", metavar="ID")
@budgets
@of_session
@everywhere
@click.pass_obj
def resume(invocation: Invocation, /, schedule_id: str, session: str | None, **values: Any) -> None:
    """Resume a paused schedule from its next time.

    A given budget replaces the old one; earlier spending counts. Fires that were due during the pause never run.
    """
    refuse_inside_tool("Resuming a schedule")

    async def resuming(inspector: ScheduleInspector) -> str:
        await inspector.resume(schedule_id, fields_given(values))
        return f"{schedule_id} fires again"

    _change(invocation, session, schedule_id, resuming)


@click.command()
@click.argument("schedule_id", metavar="ID")
@of_session
@everywhere
@click.pass_obj
def remove(invocation: Invocation, /, schedule_id: str, session: str | None) -> None:
    """Cancel a schedule, by its ID or name. It stays in the history."""
    refuse_inside_tool("Removing a schedule")

    async def removing(inspector: ScheduleInspector) -> str:
        await inspector.cancel(schedule_id)
        return f"{schedule_id} is cancelled"

    _change(invocation, session, schedule_id, removing)


@click.command()
@click.argument("schedule_id", metavar="ID")
@of_session
@everywhere
@click.pass_obj
def run(invocation: Invocation, /, schedule_id: str, session: str | None) -> None:
    """Fire a schedule now, in addition to its times, even if it is paused."""
    refuse_inside_tool("Running a schedule")

    async def running(inspector: ScheduleInspector) -> str:
        fire = await inspector.run(schedule_id)
        return f"{schedule_id} is sent, as {fire}: {sent_words(await inspector.fired_by())}"

    _change(invocation, session, schedule_id, running)


def _change(
    invocation: Invocation, session: str | None, schedule_id: str, act: Callable[[ScheduleInspector], Awaitable[str]]
) -> None:
    """Perform a change in the session that has the schedule, and print the result."""

    async def changing() -> str:
        async with open_schedules(invocation.workspace, session, notice=notice_of(invocation)) as every:
            with option_errors():
                return await act(every.inspector_of(schedule_id))

    message = anyio.run(changing)
    with terminal_of(invocation) as terminal:
        terminal.rows(block(message, "good"))


DRY = "dry run: nothing was changed"


@click.group()
def cron() -> None:
    """Add, list, edit, pause and run schedules, and see their results."""


@cron.command()
@click.argument("expression", metavar="EXPR")
@click.argument("prompt")
@click.option("--once", is_flag=True, help="Fire once; the schedule then stays in the history.")
@fields
@click.option("--model", metavar="NAME", help="Model of the session, if a new one must be created.")
@click.option("--dry-run", is_flag=True, help="Show the schedule and its next times without adding it.")
@of_session
@as_json
@everywhere
@click.pass_obj
def add(
    invocation: Invocation, /, *, expression: str, prompt: str, session: str | None, json_: bool, **values: Any
) -> None:
    """Add a schedule that runs PROMPT at the times of EXPR.

    EXPR is five fields in quotes ('0 9 * * 1-5'), @daily and similar, every 20m, or at 2030-12-01T09:00 for once. A
    SPAN of time is 90s, 20m, 1h30m or 2d. The prompt goes to the session's lead, unless --context says otherwise.

    When its total budget is used up the schedule pauses, and `cron resume` continues it. A fire whose own budget is
    used up reports the state of its work and ends.
    """
    refuse_inside_tool("Adding a schedule")
    fields = {"cron": expression, "prompt": prompt, **fields_given(values)}
    if values["once"]:
        fields["once"] = True
    dry = bool(values["dry_run"])

    async def adding(every: AllSchedules) -> tuple[Schedule, str]:
        made = every.current.draft(fields)
        await every.check_type(made, every.current)
        if not dry:
            await every.current.add(made)
        return made, await every.fires_here(every.current)

    with option_errors(cron="EXPR", prompt="PROMPT"):
        try:
            made, fired_by = at_schedules(invocation, session, adding)
        except NoSession:
            made = draft_schedule("", 0, fields, time.time())
            fired_by = ""
            if not dry:
                made, fired_by = at_schedules(
                    invocation, session, adding, make=_new_session(invocation, values["model"])
                )
    _show_draft(invocation, made, fired_by, dry=dry, json_=json_)


@cron.command()
@click.argument("schedule_id", metavar="ID")
@click.option("--cron", metavar="EXPR", help="New times, valid from now on.")
@click.option("--prompt", metavar="TEXT", help="New prompt.")
@click.option("--once/--recurring", default=None, help="Fire once, or at each of its times.")
@fields
@click.option("--dry-run", is_flag=True, help="Show the changed schedule and its next times without changing it.")
@of_session
@as_json
@everywhere
@click.pass_obj
def edit(invocation: Invocation, /, schedule_id: str, session: str | None, json_: bool, **values: Any) -> None:
    """Change the given fields of a schedule, by its ID or name.

    Everything else stays: its history, its spending, and whether it is paused. Only the given kinds of a budget change.
    `none` removes a limit, a rule or a name.
    """
    refuse_inside_tool("Editing a schedule")
    fields = {name: values[name] for name in ("cron", "prompt", "once") if values[name] is not None}
    fields |= fields_given(values)
    if not fields:
        raise UsageError(f"give a change, as in: callboard cron edit {schedule_id} --cron '0 10 * * 1-5'")
    dry = bool(values["dry_run"])

    async def editing(every: AllSchedules) -> tuple[Schedule, str]:
        inspector = every.inspector_of(schedule_id)
        with option_errors():
            changed = inspector.preview_edit(schedule_id, fields)
            await every.check_type(changed, inspector)
            changed = changed if dry else await inspector.edit(schedule_id, fields)
        return changed, await every.fires_here(inspector)

    changed, fired_by = at_schedules(invocation, session, editing)
    _show_draft(invocation, changed, fired_by, dry=dry, json_=json_)


@cron.command("list")
@of_session
@as_json
@everywhere
@click.pass_obj
def list_(invocation: Invocation, /, session: str | None, json_: bool) -> None:
    """List the schedules of this workspace, or of one session.

    Reports if no process would fire them, and errors in schedule files.
    """
    places = find_places(invocation.workspace, writable=False)

    async def read(every: AllSchedules) -> tuple[list[SessionSchedule], dict[str, str], tuple[str, ...]]:
        rows = every.entries()
        return rows, await every.fired_by(), await file_faults(places, (row.schedule for row in rows))

    def none() -> tuple[list[SessionSchedule], dict[str, str], tuple[str, ...]]:
        return [], {}, anyio.run(file_faults, places, ())

    rows, fired_by, faults = _with_schedules(invocation, session, read, none)
    now = time.time()
    schedules = [ScheduleStatus(row.schedule, row.session, now, fired_by.get(row.session, "")) for row in rows]
    with terminal_of(invocation) as terminal:
        if json_:
            terminal.record(json.dumps(SCHEDULES.records(schedules), indent=2))
        else:
            terminal.rows(schedules_table(schedules))
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
def show(invocation: Invocation, /, schedule_id: str, session: str | None, json_: bool) -> None:
    """Show a schedule: its state, its times, its rules, its budget and spending."""

    async def read(every: AllSchedules) -> tuple[SessionSchedule, ScheduleSpent, dict[str, str]]:
        inspector = every.inspector_of(schedule_id)
        spent = await inspector.spent_on(schedule_id)
        return SessionSchedule(inspector.schedule_named(schedule_id), inspector.session), spent, await every.fired_by()

    entry, spent, fired_by = at_schedules(invocation, session, read)
    now = time.time()
    schedule = ScheduleStatus(entry.schedule, entry.session, now, fired_by.get(entry.session, ""))
    with terminal_of(invocation) as terminal:
        if json_:
            terminal.record(json.dumps(schedule_json(SCHEDULES.record(schedule), spent), indent=2))
        else:
            terminal.rows(schedule_block(schedule.schedule, spent, now, schedule.fired_by))


for _command in (next_, pause, resume, remove, run, history, stats):
    cron.add_command(_command)


def at_schedules(
    invocation: Invocation,
    session: str | None,
    work: Callable[[AllSchedules], Awaitable[Found]],
    make: Callable[[Store], Awaitable[str]] | None = None,
) -> Found:
    """Return the result of `work` on the schedules of the workspace, or of a session.

    Raises as `open_schedules` does.
    """

    async def working() -> Found:
        async with open_schedules(invocation.workspace, session, make, notice=notice_of(invocation)) as every:
            return await work(every)

    return anyio.run(working)


def _with_schedules(
    invocation: Invocation,
    session: str | None,
    work: Callable[[AllSchedules], Awaitable[Found]],
    none: Callable[[], Found],
    *,
    named: bool = False,
) -> Found:
    """Return the result of `work`, or that of `none` in a workspace without a session.

    `named`: the user named a schedule. Raises as `open_schedules` does for a named session or schedule.
    """
    try:
        return at_schedules(invocation, session, work)
    except NoSession:
        if session is not None or named:
            raise
        return none()


def _new_session(invocation: Invocation, model: str | None) -> Callable[[Store], Awaitable[str]]:
    """Create the session that `callboard serve` keeps, for a schedule that is added before any session exists."""

    async def make(store: Store) -> str:
        with logging_to(find_places(invocation.workspace).state / "log" / "serve.jsonl"):
            return await serve_session(
                SessionOptions(WorkspaceOptions(invocation.workspace), model=ModelOptions(model)), store
            )

    return make


def _show_draft(invocation: Invocation, schedule: Schedule, fired_by: str, *, dry: bool, json_: bool) -> None:
    now = time.time()
    with terminal_of(invocation) as terminal:
        if json_:
            terminal.record(json.dumps({**draft_json(schedule, now), "dry_run": dry, "fired_by": fired_by}, indent=2))
        else:
            terminal.rows(draft_block(schedule, now, note=DRY if dry else ""))
            if not dry and schedule.state == "active":
                line = Line(f"fired by: {fired_by}", "dim") if fired_by else nobody_line()
                terminal.terminal_print(Block((line,)))


def _waits(row: SessionSchedule, fired_by: dict[str, str]) -> bool:
    """Return True if the schedule would fire but no process does it."""
    return row.schedule.state == "active" and row.schedule.enabled and not fired_by.get(row.session)
