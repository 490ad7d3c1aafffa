"""What the tools of the task board share: rows as they are read and written, and who the caller is to the board."""

from __future__ import annotations

from callboard.core.names import task_key
from callboard.core.tasks import laws as tasks
from callboard.core.tasks.laws import Holder
from callboard.ports.store import Fence, Put
from callboard.ports.tool import ToolContext, ToolOutcome
from callboard.words.errors import ToolRefused
from callboard.words.events import TaskHeld
from callboard.words.values import Task


def find_task(context: ToolContext, task_id: str) -> tuple[Task, int]:
    """A task and its revision. Raises `ToolRefused` naming those there are."""
    found = context.board.task(task_id)
    if found is None:
        known = ", ".join(task.id for task in context.board.tasks())
        raise ToolRefused(f"no task {task_id} on the board; there {'are ' + known if known else 'is none'}")
    return found


def put_task(context: ToolContext, task: Task, expected: int) -> Put:
    """The write of a task over the revision that it was read at (0: it is new)."""
    return Put(task_key(context.session, task.id), task.encode(), expected)


def board_of(context: ToolContext) -> dict[str, Task]:
    """The board as it stands now."""
    return tasks.by_id(context.board.tasks())


def holder_of(context: ToolContext) -> Holder:
    """The caller as the board knows it."""
    lease = context.lease or Fence("", 0)
    shell = "bash" in context.spec.tools
    return Holder(context.spec.name, context.incarnation, lease.lease, lease.number, shell)


def taken_or_let_go(
    context: ToolContext, task: Task, revision: int, text: str, *, held: bool = False, **data: object
) -> ToolOutcome:
    """The outcome of taking or giving up a task: its row, and what the agent holds, in one commit."""
    event = TaskHeld(at=context.now, task=task.id, subject=task.subject, held=held)
    writes = (put_task(context, task, revision),)
    return ToolOutcome(text, writes=writes, events=(event,), data={"task_id": task.id, **data})
