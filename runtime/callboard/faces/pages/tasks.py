"""The task board for a person: a table, a task whole, a line for each change. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from callboard.core.tasks.file_claims import overlaps
from callboard.core.tasks.laws import Tasks, blockers, by_id, is_ready
from callboard.core.tasks.wording import task_line, task_words
from callboard.faces.pages.listings import table, when
from callboard.faces.terminal import Block, Line, block
from callboard.words.values import Task

STATUSES = ("ready", "pending", "in_progress", "completed", "failed", "cancelled")
"""What `--status` takes: a task's own, and `ready` for what may be claimed now."""


def wanted(task: Task, status: str, board: Tasks) -> bool:
    """Whether a listing of this status shows the task; an empty status: of all."""
    return is_ready(task, board) if status == "ready" else status in ("", task.status)


def tasks_table(rows: Sequence[Task], board: Tasks | None = None) -> Block:
    """Id, state, owner, what it still waits for, files, subject; below it, who works on the same files. `board`: all
    tasks, where `rows` are some of them."""
    board = by_id(rows) if board is None else board
    heads = ["TASK", "STATUS", "OWNER", "WAITS FOR", "FILES", "SUBJECT"]
    shown = table(heads, [_cells(row, board) for row in rows], "the board is empty")
    met = [Line(words, "warn") for words in _meetings(rows, board)]
    return Block((*shown.lines, *met))


def task_block(task: Task, board: Tasks) -> Block:
    """Everything of one task."""
    return block(task_words(task, board))


def change_line(task: Task, board: Tasks) -> Line:
    """A task as it stands now, with the time of its newest change."""
    style = {"completed": "good", "failed": "bad", "cancelled": "dim"}.get(task.status, "plain")
    return Line(f"{when(task.updated_at or task.created_at)} {task_line(task, board)}", style)  # type: ignore[arg-type]


def _cells(task: Task, board: Tasks) -> list[str]:
    status = "ready" if is_ready(task, board) else task.status
    owner = task.owner or (f"for {task.reserved_for}" if task.reserved_for else "")
    waits = " ".join(blockers(task, board)) if task.status in ("pending", "failed") else ""
    return [task.id, status, owner, waits, " ".join(task.files), task.subject]


def _meetings(rows: Sequence[Task], board: Tasks) -> list[str]:
    """Each pair of tasks in progress that meet in a file, once."""
    found: list[str] = []
    for row in rows:
        if row.status != "in_progress":
            continue
        for other, files in overlaps(row, board):
            if (row.created_at, row.id) < (other.created_at, other.id):
                found.append(f"{row.owner} and {other.owner} work on the same files: {', '.join(files)}")
    return found
