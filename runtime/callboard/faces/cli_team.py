"""`sessions`, `team`, `tasks`: what stands in the store, also while another process works on it. Reads only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio
import click

from callboard.app import AgentSummary
from callboard.desk import Desk, list_sessions, open_desk
from callboard.faces.cli_options import Given, as_json, everywhere, of_session
from callboard.faces.cli_run import terminal_of
from callboard.faces.listings import as_json as json_of
from callboard.faces.listings import sessions_table, tasks_table, team_table
from callboard.faces.terminal import Block
from callboard.words.values import Task

Row = TypeVar("Row")
Found = TypeVar("Found")


@click.command()
@as_json
@everywhere
@click.pass_obj
def sessions(given: Given, /, json_: bool) -> None:
    """List the sessions of this workspace.

    The newest comes first.
    """
    print_rows(given, anyio.run(list_sessions, given.workspace), sessions_table, json_=json_)


@click.command()
@of_session
@as_json
@everywhere
@click.pass_obj
def team(given: Given, /, session: str | None, json_: bool) -> None:
    """Show the agents of a session.

    What each is doing, its steps and what they cost.
    """

    async def read(desk: Desk) -> Sequence[AgentSummary]:
        return await desk.team()

    print_rows(given, at_desk(given, session, read), team_table, json_=json_)


@click.command()
@of_session
@as_json
@everywhere
@click.pass_obj
def tasks(given: Given, /, session: str | None, json_: bool) -> None:
    """Show the task board of a session."""

    async def read(desk: Desk) -> Sequence[Task]:
        return desk.tasks()

    print_rows(given, at_desk(given, session, read), tasks_table, json_=json_)


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
