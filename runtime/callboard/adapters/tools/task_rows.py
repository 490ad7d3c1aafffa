"""Common parts of the task board's tools: reading and writing rows, and the caller in the form for the board."""

from __future__ import annotations

from callboard.core.keys import task_key
from callboard.core.tasks import board as task_rules
from callboard.core.tasks.board import Holder
from callboard.ports.store import Fence, Put
from callboard.ports.tool import CallContext, ToolOutcome
from callboard.types.errors import ToolRefused
from callboard.types.events import TaskHeld
from callboard.types.records import Task


def find_task(context: CallContext, task_id: str) -> tuple[Task, int]:
    """Return a task and its revision. Raises `ToolRefused` with the existing tasks."""
    entry = context.board.task(task_id)
    if entry is None:
        ids = task_rules.some_ids(context.board.tasks())
        raise ToolRefused(f"no task {task_id} on the board; there {'are ' + ids if ids else 'is none'}")
    return entry


def put_task(context: CallContext, task: Task, expected: int) -> Put:
    """Return the write of a task over the revision that was read (0: a new task)."""
    return Put(task_key(context.session, task.id), task.encode(), expected)


def board_of(context: CallContext) -> dict[str, Task]:
    """Return the current board."""
    return task_rules.by_id(context.board.tasks())


def holder_of(context: CallContext) -> Holder:
    """Return the caller in the form for the board."""
    lease = context.lease or Fence("", 0)
    shell = "bash" in context.spec.tools
    return Holder(context.spec.name, context.incarnation, lease.lease, lease.number, shell)


def claim_outcome(
    context: CallContext, task: Task, revision: int, text: str, *, held: bool = False, **data: object
) -> ToolOutcome:
    """Return the outcome of taking or giving up a task: its row, and the agent's tasks, in one commit."""
    event = TaskHeld(at=context.now, task=task.id, subject=task.subject, held=held)
    writes = (put_task(context, task, revision),)
    return ToolOutcome(text, writes=writes, events=(event,), data={"task_id": task.id, **data})
