"""`sessions`, `team`: what stands in the store, also while another process works on it; and `team stop`, `kill`,
`resume` and `budget`, which are told to the process that hosts the session."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from typing import Literal, TypeVar

import anyio
import click

from callboard.core.schedule.spending import budget_words
from callboard.desks.desk import Desk, list_sessions, open_desk
from callboard.desks.team import TeamSeen
from callboard.faces.cli.limits import limits_given
from callboard.faces.cli.options import Given, as_json, everywhere, of_session
from callboard.faces.cli.run import terminal_of
from callboard.faces.pages.listings import as_json as json_of
from callboard.faces.pages.listings import sessions_table
from callboard.faces.pages.team import agent_json, changes_block, team_json, tree_block
from callboard.faces.painting import can_paint
from callboard.faces.terminal import Block, Line, Terminal, block, styled, wants_color
from callboard.faces.watching import painted, resized, say_line
from callboard.words.values import Budget

Row = TypeVar("Row")
Found = TypeVar("Found")

_GATHER = 0.05
"""Seconds in which a burst of changes becomes one."""
_WIDTH = 100
"""Columns where there is no screen."""


@click.command()
@as_json
@everywhere
@click.pass_obj
def sessions(given: Given, /, json_: bool) -> None:
    """List the sessions of this workspace.

    The newest comes first.
    """
    print_rows(given, anyio.run(list_sessions, given.workspace), sessions_table, json_=json_)


@click.group(invoke_without_command=True)
@click.option("-w", "--watch", is_flag=True, help="Show each change as it comes, until Ctrl-C.")
@of_session
@as_json
@everywhere
@click.pass_context
def team(context: click.Context, /, watch: bool, session: str | None, json_: bool) -> None:
    """Show the agents of a session.

    A tree of the lead, its teammates and their subagents: state, what each does or waits for, since when and until when
    at most, tokens and cost. Without a terminal --watch prints a line for each change; with --json an object for each.
    """
    if context.invoked_subcommand is not None:
        return
    given: Given = context.obj
    if watch:
        anyio.run(_watch, given, session, json_)
        return

    async def look(desk: Desk) -> TeamSeen:
        return await desk.agents.look()

    seen = at_desk(given, session, look)
    with terminal_of(given) as terminal:
        if json_:
            terminal.record(json.dumps([agent_json(one) for one in seen.agents], indent=2))
        else:
            terminal.rows(tree_block(seen, _columns(terminal)))


Act = Literal["stop", "kill", "resume"]


@team.command()
@click.argument("name")
@click.option("--why", default="", metavar="TEXT", help="Kept with the order.")
@of_session
@everywhere
@click.pass_obj
def stop(given: Given, /, name: str, why: str, session: str | None) -> None:
    """Stop an agent: what it does is settled, its tasks come free, and its life ends."""
    _act(given, session, "stop", name, why)


@team.command()
@click.argument("name")
@click.option("--why", default="", metavar="TEXT", help="Kept with the order.")
@of_session
@everywhere
@click.pass_obj
def kill(given: Given, /, name: str, why: str, session: str | None) -> None:
    """End an agent that does not stop, whatever it does: with its processes, its subagents and its requests."""
    _act(given, session, "kill", name, why)


@team.command("resume")
@click.argument("name")
@of_session
@everywhere
@click.pass_obj
def resume_(given: Given, /, name: str, session: str | None) -> None:
    """Let an agent go on that was parked after crashes."""
    _act(given, session, "resume", name, "")


@team.command()
@click.argument("name")
@click.argument("limits", metavar="KIND=N...", nargs=-1, required=True)
@of_session
@everywhere
@click.pass_obj
def budget(given: Given, /, name: str, limits: Sequence[str], session: str | None) -> None:
    """Raise what an agent may use in all: cost_usd, tokens, steps or seconds.

    The new limit takes the place of the one that it was given when it started. What stands above it still holds.
    """
    more = limits_given(limits, "team budget")

    async def raising(desk: Desk) -> tuple[Budget, bool]:
        return await desk.agents.raise_budget(name, more), desk.agents.seen().host is not None

    now, hosted = at_desk(given, session, raising)
    words = f"{name} may use {budget_words(now)} in all; `callboard send --to {name} TEXT` has it go on"
    with terminal_of(given) as terminal:
        terminal.rows(block(words if hosted else f"{words}, once a process hosts the session again"))


_DONE = {"stop": "has stopped", "kill": "is ended", "resume": "goes on"}


def _act(given: Given, session: str | None, what: Act, name: str, why: str) -> None:
    async def acting(desk: Desk) -> tuple[bool, bool]:
        agents = desk.agents
        match what:
            case "stop":
                done = await agents.stop(name, why)
            case "kill":
                done = await agents.kill(name, why)
            case "resume":
                done = await agents.resume(name)
        return done, agents.seen().host is not None

    done, hosted = at_desk(given, session, acting)
    with terminal_of(given) as terminal:
        terminal.rows(told_of(what, name, done=done, hosted=hosted))


def told_of(what: Act, name: str, *, done: bool, hosted: bool) -> Block:
    """What came of an order about an agent."""
    if done:
        return block(f"{name} {_DONE[what]}", "good")
    if not hosted:
        return block(f"{name} is told to {what}: no process hosts the session, so that it happens at the next resume")
    return block(f"{name} is told to {what}, and has not yet: `callboard team --watch` shows when", "warn")


async def _watch(given: Given, session: str | None, json_: bool) -> None:
    """Follow the team until the process is interrupted, or nobody reads any more."""
    with ExitStack() as stack:
        async with open_desk(given.workspace, session) as desk, anyio.create_task_group() as group:
            show = _shower(given, json_, stack)
            moved = anyio.Event()

            def changed() -> None:
                moved.set()

            group.start_soon(desk.agents.watch, changed)
            group.start_soon(resized, changed)
            while True:
                await moved.wait()
                await anyio.sleep(_GATHER)
                moved = anyio.Event()
                show(desk.agents.seen())


def _shower(given: Given, json_: bool, stack: ExitStack) -> Callable[[TeamSeen], None]:
    """What shows the team: as lines of JSON, on a screen that is painted, or as a line for each change."""
    if json_:
        return _records()
    color = wants_color(given.color, sys.stdout, os.environ)
    if not can_paint(sys.stdout):
        return _changes(color)
    last: list[TeamSeen] = []

    def page(width: int, height: int | None) -> Sequence[Line]:
        return [line for seen in last for line in tree_block(seen, width, height).lines]

    paint = stack.enter_context(painted(page, color=color))

    def show(seen: TeamSeen) -> None:
        last[:] = [seen]
        paint()

    return show


def _records() -> Callable[[TeamSeen], None]:
    """An object for each change; one that says nothing new but its time is left out."""
    before: list[str] = [""]

    def show(seen: TeamSeen) -> None:
        told = team_json(seen)
        same = json.dumps({**told, "at": 0})
        if same != before[0]:
            before[0] = same
            say_line(json.dumps(told))

    return show


def _changes(color: bool) -> Callable[[TeamSeen], None]:
    before: list[TeamSeen] = []

    def show(seen: TeamSeen) -> None:
        lines = changes_block(before[-1] if before else None, seen).lines
        before[:] = [seen]
        if lines:
            say_line(styled(lines, color=color).removesuffix("\n"))

    return show


def _columns(terminal: Terminal) -> int:
    return shutil.get_terminal_size((_WIDTH, 24)).columns if terminal.out_is_tty else _WIDTH


def at_desk(given: Given, session: str | None, work: Callable[[Desk], Awaitable[Found]]) -> Found:
    """What `work` returns at the desk of a session (None: the current one). Raises the errors of `open_desk`."""

    async def working() -> Found:
        async with open_desk(given.workspace, session) as desk:
            return await work(desk)

    return anyio.run(working)


def print_rows(given: Given, rows: Sequence[Row], as_table: Callable[[Sequence[Row]], Block], *, json_: bool) -> None:
    """Print a listing for a person or as JSON."""
    with terminal_of(given) as terminal:
        if json_:
            terminal.record(json_of(rows))
        else:
            terminal.rows(as_table(rows))
