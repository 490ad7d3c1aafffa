"""`tasks`: the task board of a session, once or as it changes, and what a person does to one task.

Changes are refused inside a tool call: an agent has tools of its own for that, which are judged.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
import click

from callboard.desks.desk import Desk, open_desk
from callboard.desks.tasks import NewTask
from callboard.faces.cli.options import Given, as_json, everywhere, of_session, refuse_tools
from callboard.faces.cli.run import terminal_of
from callboard.faces.cli.team import at_desk
from callboard.faces.pages.listings import as_json as json_of
from callboard.faces.pages.listings import plain_row
from callboard.faces.pages.tasks import STATUSES, change_line, task_block, tasks_table, wanted
from callboard.faces.painting import can_paint
from callboard.faces.terminal import Line, styled, wants_color
from callboard.faces.watching import painted, resized, say_line
from callboard.words.values import Task


@click.group(invoke_without_command=True)
@click.option("-w", "--watch", is_flag=True, help="Show each change as it comes, until Ctrl-C.")
@click.option("--status", type=click.Choice(STATUSES), default=None, help="Only these tasks.")
@of_session
@as_json
@everywhere
@click.pass_context
def tasks(context: click.Context, /, watch: bool, status: str | None, session: str | None, json_: bool) -> None:
    """Show the task board of a session.

    Who works on what, what each task waits for and which files it is about. Without a terminal --watch prints a line
    for each change; with --json an object for each.
    """
    if context.invoked_subcommand is not None:
        return
    given: Given = context.obj
    if watch:
        anyio.run(_watch, given, session, status or "", json_)
        return

    async def read(desk: Desk) -> tuple[Sequence[Task], Sequence[Task]]:
        board = desk.board.tasks()
        return [task for task in board.values() if wanted(task, status or "", board)], list(board.values())

    shown, all_ = at_desk(given, session, read)
    with terminal_of(given) as terminal:
        if json_:
            terminal.record(json_of(shown))
        else:
            terminal.rows(tasks_table(shown, {task.id: task for task in all_}))


@tasks.command()
@click.argument("task_id", metavar="ID")
@of_session
@as_json
@everywhere
@click.pass_obj
def show(given: Given, /, task_id: str, session: str | None, json_: bool) -> None:
    """Show one task whole: description, check, result, evidence.

    ID is what `callboard tasks` shows, or a beginning of it.
    """

    async def read(desk: Desk) -> tuple[Task, Any]:
        return desk.board.one(task_id), desk.board.tasks()

    task, board = at_desk(given, session, read)
    with terminal_of(given) as terminal:
        if json_:
            terminal.record(json.dumps(plain_row(task), indent=2))
        else:
            terminal.rows(task_block(task, board))


@tasks.command()
@click.argument("subject")
@click.option("--description", default="", metavar="TEXT", help="Everything that its owner needs to know.")
@click.option("--after", multiple=True, metavar="ID", help="A task that has to be completed first; repeatable.")
@click.option("--file", "files", multiple=True, metavar="PATH", help="A path or glob that it is about; repeatable.")
@click.option("--check", default="", metavar="COMMAND", help="A command that must pass before it is completed.")
@click.option("--owner", default="", metavar="AGENT", help="Only this agent may claim it, and does so when it is idle.")
@of_session
@everywhere
@click.pass_obj
def add(given: Given, /, subject: str, session: str | None, **asked: Any) -> None:
    """Put a task on the board.

    An idle teammate that can change files claims it by itself; the lead takes only what --owner gives to it.
    """
    refuse_tools("Adding a task")
    blocked_by, files = tuple(asked.pop("after")), tuple(asked.pop("files"))
    new = NewTask(subject=subject, blocked_by=blocked_by, files=files, **asked)
    _do(given, session, lambda desk: desk.board.add(new))


@tasks.command()
@click.argument("task_id", metavar="ID")
@click.argument("agent")
@of_session
@everywhere
@click.pass_obj
def assign(given: Given, /, task_id: str, agent: str, session: str | None) -> None:
    """Give a task to an agent, which takes it when it is idle.

    Who has it in progress is told to stop, and can complete it no more.
    """
    refuse_tools("Giving a task away")
    _do(given, session, lambda desk: desk.board.assign(task_id, agent))


@tasks.command()
@click.argument("task_id", metavar="ID")
@of_session
@everywhere
@click.pass_obj
def release(given: Given, /, task_id: str, session: str | None) -> None:
    """Take a task from its owner and put it back for anybody."""
    refuse_tools("Taking a task away")
    _do(given, session, lambda desk: desk.board.release(task_id))


@tasks.command()
@click.argument("task_id", metavar="ID")
@of_session
@everywhere
@click.pass_obj
def cancel(given: Given, /, task_id: str, session: str | None) -> None:
    """Take a task off the board; who has it in progress is told to stop."""
    refuse_tools("Cancelling a task")
    _do(given, session, lambda desk: desk.board.cancel(task_id))


@tasks.command()
@click.argument("task_id", metavar="ID")
@of_session
@everywhere
@click.pass_obj
def reopen(given: Given, /, task_id: str, session: str | None) -> None:
    """Let a failed task be tried again."""
    refuse_tools("Opening a task again")
    _do(given, session, lambda desk: desk.board.reopen(task_id))


def _do(given: Given, session: str | None, act: Callable[[Desk], Awaitable[Task]]) -> None:
    """Do it, and print the task as it stands then."""

    async def doing(desk: Desk) -> tuple[Task, Any]:
        task = await act(desk)
        return task, {**desk.board.tasks(), task.id: task}

    task, board = at_desk(given, session, doing)
    with terminal_of(given) as terminal:
        terminal.rows(tasks_table([task], board))


async def _watch(given: Given, session: str | None, status: str, json_: bool) -> None:
    """Follow the board until the process is interrupted, or nobody reads any more."""
    async with open_desk(given.workspace, session) as desk:
        if json_ or not can_paint(sys.stdout):
            color = wants_color(given.color, sys.stdout, os.environ)
            await desk.board.watch(lambda task: _say(task, desk, status, color=color, json_=json_))
            return
        await _paint(given, desk, status)


def _say(task: Task, desk: Desk, status: str, *, color: bool, json_: bool) -> None:
    board = desk.board.tasks()
    if not wanted(task, status, board):
        return
    line = json.dumps(plain_row(task)) if json_ else styled([change_line(task, board)], color=color).removesuffix("\n")
    say_line(line)


async def _paint(given: Given, desk: Desk, status: str) -> None:
    """The table on a screen of its own, painted anew at each change."""

    def page(width: int, height: int | None) -> Sequence[Line]:
        board = desk.board.tasks()
        shown = [task for task in board.values() if wanted(task, status, board)]
        return tasks_table(shown, board).lines[:height]

    with painted(page, color=wants_color(given.color, sys.stdout, os.environ)) as paint:
        async with anyio.create_task_group() as group:
            group.start_soon(resized, paint)
            paint()
            await desk.board.watch(lambda task: paint())
