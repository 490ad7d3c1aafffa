"""`tasks`: the task board of a session, once or with each change, and the user's actions on a task.

Changes are refused inside a tool call: an agent has its own tools for that, with permissions.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
import click

from callboard.adapters.processes.tool_ancestry import refuse_inside_tool
from callboard.cli.commands.options import Invocation, as_json, everywhere, of_session, refuse_before_command
from callboard.cli.commands.output import notice_of, terminal_of, with_handle
from callboard.cli.terminal.live_page import can_paint
from callboard.cli.terminal.terminal import Line, style_lines, wants_color
from callboard.cli.terminal.watch import open_page, say_line, watch_size
from callboard.cli.views.tasks import STATUSES, change_line, matches_status, task_block, tasks_table
from callboard.sessions.handle import SessionHandle
from callboard.sessions.inspect.inspector import open_handle
from callboard.sessions.inspect.resources import TASKS, BoardTask
from callboard.sessions.inspect.tasks import NewTask
from callboard.types.records import Task


@click.group(invoke_without_command=True)
@click.option("-w", "--watch", is_flag=True, help="Show changes as they happen, until Ctrl-C.")
@click.option("--status", type=click.Choice(STATUSES), default=None, help="Show only tasks with this status.")
@of_session
@as_json
@everywhere
@click.pass_context
def tasks(context: click.Context, /, *, watch: bool, status: str | None, session: str | None, json_: bool) -> None:
    """Show the task board of a session.

    Shows the owner, dependencies and files of each task. Without a terminal --watch prints a line for each change; with
    --json an object for each.
    """
    if context.invoked_subcommand is not None:
        refuse_before_command(context)
        return
    invocation: Invocation = context.obj
    if watch:
        anyio.run(_watch, invocation, session, status or "", json_)
        return

    async def read(handle: SessionHandle) -> tuple[Sequence[Task], Sequence[Task]]:
        board = handle.board.tasks()
        return [task for task in board.values() if matches_status(task, status or "", board)], list(board.values())

    visible, all_ = with_handle(invocation, session, read)
    board = {task.id: task for task in all_}
    with terminal_of(invocation) as terminal:
        if json_:
            terminal.record(json.dumps(TASKS.records([BoardTask(task, board) for task in visible]), indent=2))
        else:
            terminal.rows(tasks_table(visible, board, status or ""))


@tasks.command()
@click.argument("task_id", metavar="ID")
@of_session
@as_json
@everywhere
@click.pass_obj
def show(invocation: Invocation, /, task_id: str, session: str | None, json_: bool) -> None:
    """Show a task in full: description, check, result, evidence.

    ID is shown by `callboard tasks`; a prefix is enough.
    """

    async def read(handle: SessionHandle) -> tuple[Task, Any]:
        return handle.board.task_named(task_id), handle.board.tasks()

    task, board = with_handle(invocation, session, read)
    with terminal_of(invocation) as terminal:
        if json_:
            terminal.record(json.dumps(TASKS.record(BoardTask(task, board)), indent=2))
        else:
            terminal.rows(task_block(task, board))


@tasks.command()
@click.argument("subject")
@click.option("--description", default="", metavar="TEXT", help="Everything that its owner needs to know.")
@click.option("--after", multiple=True, metavar="ID", help="Task that must be completed first; repeatable.")
@click.option(
    "--file", "files", multiple=True, metavar="PATH", help="Path or glob of files that the task concerns; repeatable."
)
@click.option(
    "--check", default="", metavar="COMMAND", help="Command that must succeed before the task counts as completed."
)
@click.option(
    "--owner", default="", metavar="AGENT", help="Assign the task to this agent, which takes it when it is idle."
)
@of_session
@everywhere
@click.pass_obj
def add(invocation: Invocation, /, subject: str, session: str | None, **values: Any) -> None:
    """Add a task to the board.

    An idle teammate that can change files claims it by itself; the lead takes only tasks assigned to it with --owner.
    """
    refuse_inside_tool("Adding a task")
    blocked_by = tuple(values.pop("after"))
    files = tuple(values.pop("files"))
    new = NewTask(subject=subject, blocked_by=blocked_by, files=files, **values)
    _perform(invocation, session, lambda handle: handle.board.add(new))


@tasks.command()
@click.argument("task_id", metavar="ID")
@click.argument("agent")
@of_session
@everywhere
@click.pass_obj
def assign(invocation: Invocation, /, task_id: str, agent: str, session: str | None) -> None:
    """Assign a task to an agent, which starts it when it is idle.

    An agent that is working on it must stop, and can no longer complete it.
    """
    refuse_inside_tool("Assigning a task")
    _perform(invocation, session, lambda handle: handle.board.assign(task_id, agent))


@tasks.command()
@click.argument("task_id", metavar="ID")
@of_session
@everywhere
@click.pass_obj
def release(invocation: Invocation, /, task_id: str, session: str | None) -> None:
    """Take a task from its owner and return it to the board."""
    refuse_inside_tool("Releasing a task")
    _perform(invocation, session, lambda handle: handle.board.release(task_id))


@tasks.command()
@click.argument("task_id", metavar="ID")
@of_session
@everywhere
@click.pass_obj
def cancel(invocation: Invocation, /, task_id: str, session: str | None) -> None:
    """Cancel a task. An agent that is working on it must stop."""
    refuse_inside_tool("Cancelling a task")
    _perform(invocation, session, lambda handle: handle.board.cancel(task_id))


@tasks.command()
@click.argument("task_id", metavar="ID")
@of_session
@everywhere
@click.pass_obj
def reopen(invocation: Invocation, /, task_id: str, session: str | None) -> None:
    """Allow another attempt at a failed task."""
    refuse_inside_tool("Reopening a task")
    _perform(invocation, session, lambda handle: handle.board.reopen(task_id))


def _perform(invocation: Invocation, session: str | None, act: Callable[[SessionHandle], Awaitable[Task]]) -> None:
    """Perform an action, and print the resulting task."""

    async def doing(handle: SessionHandle) -> tuple[Task, Any]:
        task = await act(handle)
        return task, {**handle.board.tasks(), task.id: task}

    task, board = with_handle(invocation, session, doing)
    with terminal_of(invocation) as terminal:
        terminal.rows(tasks_table([task], board))


async def _watch(invocation: Invocation, session: str | None, status: str, json_: bool) -> None:
    """Follow the board until the process is interrupted, or its output is closed."""
    async with open_handle(invocation.workspace, session, notice=notice_of(invocation)) as handle:
        if json_ or not can_paint(sys.stdout):
            color = wants_color(invocation.color, sys.stdout, os.environ)
            await handle.board.watch(lambda task: _say(task, handle, status, color=color, json_=json_))
            return
        await _paint(invocation, handle, status)


def _say(task: Task, handle: SessionHandle, status: str, *, color: bool, json_: bool) -> None:
    board = handle.board.tasks()
    if not matches_status(task, status, board):
        return
    if json_:
        say_line(json.dumps(TASKS.record(BoardTask(task, board))))
    else:
        say_line(style_lines([change_line(task, board)], color=color).removesuffix("\n"))


async def _paint(invocation: Invocation, handle: SessionHandle, status: str) -> None:
    """Show the table on an alternate screen, painted again at each change."""

    def page(width: int, height: int | None) -> Sequence[Line]:
        board = handle.board.tasks()
        visible = [task for task in board.values() if matches_status(task, status, board)]
        return tasks_table(visible, board, status).lines_for(width)[:height]

    with open_page(page, color=wants_color(invocation.color, sys.stdout, os.environ)) as paint:
        async with anyio.create_task_group() as group:
            group.start_soon(watch_size, paint)
            paint()
            await handle.board.watch(lambda task: paint())
