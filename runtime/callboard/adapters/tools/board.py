"""The task board's tools: create, look, claim, finish, change. The laws are `callboard.core.tasks`; this writes them.

Every change is one compare-and-swap on the row that was read, so that of two claims one runs again and is refused.
Whether a plan must be approved first is the gate's affair, not the board's.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from callboard.adapters.tools.store_tool import Input, look_tool, store_tool
from callboard.core import tasks
from callboard.core.names import short_id, task_key
from callboard.core.tasks import Holder
from callboard.ports.store import Put
from callboard.ports.tool import Tool, ToolContext, ToolOutcome
from callboard.words.errors import ToolRefused
from callboard.words.events import TaskHeld
from callboard.words.values import Task, TaskStatus

_CREATE = """\
Put a task on the board that the whole team sees. Any idle teammate may claim it by itself once everything in \
blocked_by is completed. Write the description so that someone without your context can do it: the goal, the files, \
how to tell that it is done. Make tasks that do not touch the same files, so that they can be done at once."""
_UPDATE = """\
Change a task that has not ended: its subject, its description, or what it waits for (blocked_by replaces the whole \
list). status 'cancelled' takes a task off the board that nobody needs any more; status 'pending' opens a failed task \
for another try. To take or finish a task use claim_task, complete_task, fail_task, release_task."""
_LIST = "List the tasks of the board: status, owner, what each waits for. Filter by status if you like."
_GET = "Show one task whole: description, owner, what it waits for, result and evidence."
_CLAIM = """\
Take a ready task as yours before you work on it. You can have one in progress at a time. Someone else may be faster: \
then you are told which are still ready."""
_COMPLETE = """\
Your task is done: say what came out of it in result, and in evidence what shows that (the tests you ran and how they \
ended, the files you changed). Complete it only after you checked it. The answer tells which tasks it made ready."""
_FAIL = """\
Your task cannot be done as it stands: say why, and what would have to change. What waits for it stays blocked until \
it is opened again or they stop waiting for it."""
_RELEASE = (
    "Give your task back to the board unfinished; say in note how far you came, so that the next one goes on there."
)


class _Create(Input):
    subject: str = Field(description="One line, as an order: 'Write the parser for cron fields'")
    description: str = Field(default="", description="Everything its owner needs to know")
    blocked_by: tuple[str, ...] = Field(default=(), description="Ids of tasks that have to be completed first")


class _Update(Input):
    task_id: str
    subject: str = Field(default="", description="The new subject; left out: as it is")
    description: str = Field(default="", description="The new description; left out: as it is")
    blocked_by: tuple[str, ...] | None = Field(default=None, description="The new whole list; left out: as it is")
    status: Literal["", "pending", "cancelled"] = Field(default="", description="Left out: as it is")


class _List(Input):
    status: Literal["", "ready", "pending", "in_progress", "completed", "failed", "cancelled"] = ""


class _One(Input):
    task_id: str


class _Complete(Input):
    task_id: str
    result: str = Field(default="", description="What came out of it")
    evidence: str = Field(default="", description="What shows that it is done")


class _Fail(Input):
    task_id: str
    reason: str = Field(min_length=1, description="Why, and what would have to change")


class _Release(Input):
    task_id: str
    note: str = Field(default="", description="How far you came")


def board_tools() -> tuple[Tool, ...]:
    """The eight tools of the task board."""
    return (
        store_tool("create_task", _CREATE, _Create, _create_task),
        store_tool("update_task", _UPDATE, _Update, _update_task),
        look_tool("list_tasks", _LIST, _List, _list_tasks),
        look_tool("get_task", _GET, _One, _get_task),
        store_tool("claim_task", _CLAIM, _One, _claim_task),
        store_tool("complete_task", _COMPLETE, _Complete, _complete_task),
        store_tool("fail_task", _FAIL, _Fail, _fail_task),
        store_tool("release_task", _RELEASE, _Release, _release_task),
    )


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


def task_line(task: Task, board: tasks.Tasks) -> str:
    """One task on one line: `task_… [in_progress, alice] Write the parser`."""
    waits = tasks.blockers(task, board)
    facts = [task.status if task.status != "pending" or waits else "ready"]
    if task.owner:
        facts.append(task.owner)
    if waits and task.status in {"pending", "failed"}:
        facts.append("waits for " + ", ".join(waits))
    return f"{task.id} [{', '.join(facts)}] {task.subject}"


def _board(context: ToolContext) -> dict[str, Task]:
    return tasks.by_id(context.board.tasks())


def _me(context: ToolContext) -> Holder:
    return Holder(context.spec.name, context.incarnation)


def _create_task(given: _Create, context: ToolContext) -> ToolOutcome:
    board = _board(context)
    task = tasks.create(
        Task(
            id=short_id("task", context.call),
            subject=given.subject,
            description=given.description,
            blocked_by=given.blocked_by,
            created_by=context.spec.name,
            created_at=context.now,
            updated_at=context.now,
        ),
        board,
    )
    text = f"Created {task_line(task, {**board, task.id: task})}"
    return ToolOutcome(text, writes=(put_task(context, task, 0),), data={"task_id": task.id})


def _update_task(given: _Update, context: ToolContext) -> ToolOutcome:
    old, revision = find_task(context, given.task_id)
    board = _board(context)
    task, writes = old, ()
    if given.status == "cancelled":
        task = tasks.cancel(task, context.spec.name, context.now)
    elif given.status == "pending":
        task = tasks.reopen(task, context.spec.name, context.now)
    if given.subject or given.description or given.blocked_by is not None:
        change = tasks.Change(given.subject or None, given.description or None, given.blocked_by)
        task = tasks.update(task, change, board, context.now)
    if task == old:
        raise ToolRefused("nothing to change: give subject, description, blocked_by or status")
    if added := set(task.blocked_by) - set(old.blocked_by):
        writes = _held_still(context, added, board)
    text = f"Updated {task_line(task, {**board, task.id: task})}"
    return ToolOutcome(text, writes=(put_task(context, task, revision), *writes), data={"task_id": task.id})


def _held_still(context: ToolContext, added: set[str], board: tasks.Tasks) -> tuple[Put, ...]:
    """The rows behind new dependencies, written unchanged: no other change can close a circle beside this one."""
    found = [find_task(context, task_id) for task_id in tasks.behind(added, board)]
    return tuple(put_task(context, task, revision) for task, revision in found)


def _list_tasks(given: _List, context: ToolContext) -> ToolOutcome:
    board = _board(context)
    shown = [task for task in board.values() if _is_wanted(task, given.status, board)]
    shown.sort(key=lambda task: (task.created_at, task.id))
    none = f"No task is {given.status}." if given.status else "The board is empty."
    data = {"tasks": [task.model_dump(mode="json") for task in shown]}
    return ToolOutcome("\n".join(task_line(task, board) for task in shown) or none, data=data)


def _is_wanted(task: Task, status: TaskStatus | Literal["", "ready"], board: tasks.Tasks) -> bool:
    return tasks.is_ready(task, board) if status == "ready" else status in {"", task.status}


def _get_task(given: _One, context: ToolContext) -> ToolOutcome:
    task, _ = find_task(context, given.task_id)
    lines = [task_line(task, _board(context)), f"created by {task.created_by}, attempts: {task.attempts}"]
    for title, text in (("Description", task.description), ("Result", task.result), ("Evidence", task.evidence)):
        if text:
            lines += ["", f"{title}:", text]
    return ToolOutcome("\n".join(lines), data={"task": task.model_dump(mode="json")})


def _claim_task(given: _One, context: ToolContext) -> ToolOutcome:
    old, revision = find_task(context, given.task_id)
    if _me(context).holds(old):
        return ToolOutcome(f"{old.id} is yours already: go on with it.", data={"task_id": old.id})
    board = _board(context)
    task = tasks.claim(old, _me(context), board, context.now, one_at_a_time=context.spec.kind != "lead")
    text = f"{task.id} is yours: {task.subject}"
    if task.description:
        text += f"\n\n{task.description}"
    if task.result:
        text += f"\n\nFrom the last try: {task.result}"
    return _changed(context, task, revision, text, held=True)


def _complete_task(given: _Complete, context: ToolContext) -> ToolOutcome:
    old, revision = find_task(context, given.task_id)
    task = tasks.complete(old, _me(context), context.now, given.result, given.evidence)
    freed = tasks.unblocked_by(task, _board(context))
    text = f"Completed {task.id}."
    if freed:
        text += " Ready now: " + "; ".join(f"{other.id} {other.subject}" for other in freed)
    return _changed(context, task, revision, text, unblocked=[other.id for other in freed])


def _fail_task(given: _Fail, context: ToolContext) -> ToolOutcome:
    old, revision = find_task(context, given.task_id)
    task = tasks.fail(old, _me(context), context.now, given.reason)
    stuck = tasks.waiting_for(task, _board(context))
    text = f"{task.id} is failed."
    if stuck:
        text += f" Still waiting for it: {', '.join(other.id for other in stuck)}."
    return _changed(context, task, revision, text, blocked=[other.id for other in stuck])


def _release_task(given: _Release, context: ToolContext) -> ToolOutcome:
    old, revision = find_task(context, given.task_id)
    task = tasks.release(old, _me(context), context.now, given.note)
    return _changed(context, task, revision, f"{task.id} is back on the board.")


def _changed(
    context: ToolContext, task: Task, revision: int, text: str, *, held: bool = False, **data: object
) -> ToolOutcome:
    """The outcome of taking or giving up a task: its row, and what the agent holds, in one commit."""
    event = TaskHeld(at=context.now, task=task.id, subject=task.subject, held=held)
    return ToolOutcome(
        text, writes=(put_task(context, task, revision),), events=(event,), data={"task_id": task.id, **data}
    )
