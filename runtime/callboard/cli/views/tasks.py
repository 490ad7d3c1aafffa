"""Task board for a person: a table, a task in full, a line for each change. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from callboard.cli.terminal.terminal import Block, Line, Style, block, stacked
from callboard.cli.views.listings import render_listing
from callboard.core.tasks.board import Tasks, by_id, is_ready
from callboard.core.tasks.file_claims import ClaimIndex
from callboard.core.tasks.format import task_line, task_words
from callboard.sessions.inspect.resources import TASKS, BoardTask, when
from callboard.types.records import Task

STATUSES = ("ready", "pending", "in_progress", "completed", "failed", "cancelled")
"""Values of `--status`: the states of a task, and `ready` for tasks that may be claimed now."""


def matches_status(task: Task, status: str, board: Tasks) -> bool:
    """Return True if a listing of this status includes the task; an empty status includes all."""
    return is_ready(task, board) if status == "ready" else status in ("", task.status)


def tasks_table(rows: Sequence[Task], board: Tasks | None = None, status: str = "") -> Block:
    """Return the id, state, owner, open dependencies, files and subject of each task.

    The agents that work on the same files follow. `board`: all tasks, if `rows` are only those of `status`.
    """
    board = by_id(rows) if board is None else board
    nothing = f"no task has the status {status}" if board else ""
    listed = render_listing(TASKS, [BoardTask(row, board) for row in rows], nothing=nothing)
    return stacked(listed, *(Line(text, "warn") for text in _pairs_on_same_file(rows, board)))


def task_block(task: Task, board: Tasks) -> Block:
    """Return all fields of one task."""
    return block(task_words(task, board))


def change_line(task: Task, board: Tasks) -> Line:
    """Return a task in its current state, with the time of its newest change."""
    style = _STYLES.get(task.status, "plain")
    return Line(f"{when(task.updated_at or task.created_at)} {task_line(task, board)}", style)


_STYLES: Mapping[str, Style] = {"completed": "good", "failed": "bad", "cancelled": "dim"}


def _pairs_on_same_file(rows: Sequence[Task], board: Tasks) -> list[str]:
    """Return each pair of tasks in progress that share a file, once."""
    meetings: list[str] = []
    claims = ClaimIndex(board)
    for row in rows:
        if row.status != "in_progress":
            continue
        for other, files in claims.overlaps(row):
            if (row.created_at, row.id) < (other.created_at, other.id):
                meetings.append(f"{row.owner} and {other.owner} work on the same files: {', '.join(files)}")
    return meetings
