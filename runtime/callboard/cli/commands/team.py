"""`sessions`, `team`: the sessions and agents in the store, even while another process hosts them.

`team stop`, `kill`, `resume` and `budget` are sent to the host.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Literal, TypeVar

import anyio
import click

from callboard.cli.commands.options import Invocation, as_json, everywhere, of_session, refuse_before_command
from callboard.cli.commands.output import notice_of, print_rows, terminal_of, with_handle
from callboard.cli.terminal.live_page import can_paint
from callboard.cli.terminal.terminal import Block, Line, Terminal, block, style_lines, wants_color
from callboard.cli.terminal.watch import open_page, say_line, watch_size
from callboard.cli.views.status import sessions_table
from callboard.cli.views.team import changes_block, ended_block, team_json, tree_block
from callboard.core.scheduling.budget import budget_words
from callboard.ports.notifier import Notifier
from callboard.sessions.handle import SessionHandle
from callboard.sessions.inspect.inspector import list_sessions, open_handle
from callboard.sessions.inspect.resources import SESSIONS, agent_record
from callboard.sessions.inspect.team import TeamOverview, limits_given
from callboard.types.records import Budget

Row = TypeVar("Row")
Found = TypeVar("Found")

_GATHER = 0.05
"""Seconds in which changes are combined into one."""
_PAGE = 50
"""Number of ended agents to list at once."""
_WIDTH = 100
"""Columns without a terminal."""


@click.command()
@as_json
@everywhere
@click.pass_obj
def sessions(invocation: Invocation, /, json_: bool) -> None:
    """List the sessions of this workspace.

    The newest comes first.
    """
    rows = anyio.run(list_sessions, invocation.workspace, notice_of(invocation))
    print_rows(invocation, rows, sessions_table, json_=json_, record=SESSIONS.record)


@click.group(invoke_without_command=True)
@click.option("-w", "--watch", is_flag=True, help="Show changes as they happen, until Ctrl-C.")
@of_session
@as_json
@everywhere
@click.pass_context
def team(context: click.Context, /, watch: bool, session: str | None, json_: bool) -> None:
    """Show the agents of a session.

    Prints a tree of the lead, its teammates and their subagents: state, activity or wait, start and latest end, tokens
    and cost. The newest 20 ended agents are listed, without subagents; the others are counted: `callboard team ended`
    lists them. Without a terminal --watch prints a line for each change; with --json an object for each.
    """
    if context.invoked_subcommand is not None:
        refuse_before_command(context)
        return
    invocation: Invocation = context.obj
    if watch:
        anyio.run(_watch, invocation, session, json_)
        return

    async def look(handle: SessionHandle) -> TeamOverview:
        return await handle.agents.look()

    seen = with_handle(invocation, session, look)
    with terminal_of(invocation) as terminal:
        if json_:
            terminal.record(json.dumps([agent_record(agent) for agent in seen.agents], indent=2))
        else:
            terminal.rows(tree_block(seen, _columns(terminal)))


@team.command()
@click.option("--skip", type=click.IntRange(0), default=0, metavar="N", help="Leave out the newest N.")
@click.option(
    "--limit", type=click.IntRange(1), metavar="N", default=_PAGE, show_default=True, help="Show at most this many."
)
@of_session
@as_json
@everywhere
@click.pass_obj
def ended(invocation: Invocation, /, *, skip: int, limit: int, session: str | None, json_: bool) -> None:
    """List the ended agents, newest first."""

    async def look(handle: SessionHandle) -> TeamOverview:
        seen = handle.agents.overview()
        return replace(seen, agents=handle.agents.ended_agents(skip, limit))

    seen = with_handle(invocation, session, look)
    with terminal_of(invocation) as terminal:
        if json_:
            terminal.record(json.dumps([agent_record(agent) for agent in seen.agents], indent=2))
        else:
            terminal.rows(ended_block(seen.agents, skip, seen.ended.count, seen.at))


Act = Literal["stop", "kill", "resume"]


@team.command()
@click.argument("name")
@click.option("--why", default="", metavar="TEXT", help="Reason, stored with the order.")
@of_session
@everywhere
@click.pass_obj
def stop(invocation: Invocation, /, name: str, why: str, session: str | None) -> None:
    """Stop an agent: settle its calls, release its tasks, and end it."""
    _act(invocation, session, "stop", name=name, reason=why)


@team.command()
@click.argument("name")
@click.option("--why", default="", metavar="TEXT", help="Reason, stored with the order.")
@of_session
@everywhere
@click.pass_obj
def kill(invocation: Invocation, /, name: str, why: str, session: str | None) -> None:
    """End an agent that does not stop, with its processes, its subagents and its requests."""
    _act(invocation, session, "kill", name=name, reason=why)


@team.command("resume")
@click.argument("name")
@of_session
@everywhere
@click.pass_obj
def resume_(invocation: Invocation, /, name: str, session: str | None) -> None:
    """Resume an agent that was parked after crashes."""
    _act(invocation, session, "resume", name=name, reason="")


@team.command()
@click.argument("name")
@click.argument("limits", metavar="KIND=N...", nargs=-1, required=True)
@of_session
@everywhere
@click.pass_obj
def budget(invocation: Invocation, /, name: str, limits: Sequence[str], session: str | None) -> None:
    """Raise an agent's total budget: cost_usd, tokens, steps or seconds.

    The new limit replaces the one that it started with. Budgets of its parents and of the session still apply.
    """
    raised = limits_given(limits, "team budget")

    async def raising(handle: SessionHandle) -> tuple[Budget, bool]:
        return await handle.agents.raise_budget(name, raised), handle.agents.overview().host is not None

    now, hosted = with_handle(invocation, session, raising)
    text = f"{name} may use {budget_words(now)} in all; `callboard send --to {name} TEXT` lets it continue"
    with terminal_of(invocation) as terminal:
        terminal.rows(block(text if hosted else f"{text}, once a process hosts the session again"))


_DONE = {"stop": "has stopped", "kill": "is ended", "resume": "goes on"}


def _act(invocation: Invocation, session: str | None, action: Act, *, name: str, reason: str) -> None:
    async def acting(handle: SessionHandle) -> tuple[bool, bool]:
        agents = handle.agents
        match action:
            case "stop":
                done = await agents.stop(name, reason)
            case "kill":
                done = await agents.kill(name, reason)
            case "resume":
                done = await agents.resume(name)
        return done, agents.overview().host is not None

    done, hosted = with_handle(invocation, session, acting)
    with terminal_of(invocation) as terminal:
        terminal.rows(order_message(action, name, done=done, hosted=hosted))


def order_message(action: Act, name: str, *, done: bool, hosted: bool) -> Block:
    """Return the message about the result of an order about an agent."""
    if done:
        return block(f"{name} {_DONE[action]}", "good")
    if not hosted:
        return block(f"asked {name} to {action}. No process hosts the session: it happens at the next resume")
    return block(f"asked {name} to {action}; it has not happened yet: `callboard team --watch` shows when", "warn")


async def _watch(invocation: Invocation, session: str | None, json_: bool) -> None:
    """Follow the team until the process is interrupted, or its output is closed."""
    with ExitStack() as stack:
        async with (
            open_handle(invocation.workspace, session, notice=notice_of(invocation)) as handle,
            anyio.create_task_group() as group,
        ):
            show = _shower(invocation, json_, stack)
            changed = Notifier()
            group.start_soon(handle.agents.watch, changed.notify)
            group.start_soon(watch_size, changed.notify)
            changes = changed.changes
            while True:
                await changed.changed(changes)
                await anyio.sleep(_GATHER)
                changes = changed.changes
                show(handle.agents.overview())


def _shower(invocation: Invocation, json_: bool, stack: ExitStack) -> Callable[[TeamOverview], None]:
    """Return a function that shows the team: as lines of JSON, on an alternate screen, or as a line for each change."""
    if json_:
        return _records()
    color = wants_color(invocation.color, sys.stdout, os.environ)
    if not can_paint(sys.stdout):
        return _changes(color)
    last: list[TeamOverview] = []

    def page(width: int, height: int | None) -> Sequence[Line]:
        return [line for seen in last for line in tree_block(seen, width, height).lines]

    paint = stack.enter_context(open_page(page, color=color))

    def show(seen: TeamOverview) -> None:
        last[:] = [seen]
        paint()

    return show


def _records() -> Callable[[TeamOverview], None]:
    """Return a function that prints an object for each change, except changes of only the time."""
    before: list[str] = [""]

    def show(seen: TeamOverview) -> None:
        record = team_json(seen)
        same = json.dumps({**record, "at": 0})
        if same != before[0]:
            before[0] = same
            say_line(json.dumps(record))

    return show


def _changes(color: bool) -> Callable[[TeamOverview], None]:
    before: list[TeamOverview] = []

    def show(seen: TeamOverview) -> None:
        lines = changes_block(before[-1] if before else None, seen).lines
        before[:] = [seen]
        if lines:
            say_line(style_lines(lines, color=color).removesuffix("\n"))

    return show


def _columns(terminal: Terminal) -> int:
    return shutil.get_terminal_size((_WIDTH, 24)).columns if terminal.out_is_tty else _WIDTH
