"""The task board's tools: create, look, claim, finish, change. The laws are `core/tasks/laws.py`; this writes them.

Every change is one compare-and-swap on the row that was read, so that of two claims one runs again and is refused.
Whether a plan must be approved first is the gate's affair, not the board's; completing, which may run a check, is
`completing.py`'s.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from callboard.adapters.tools.completing import CompleteTask
from callboard.adapters.tools.mail import GONE, envelope, team
from callboard.adapters.tools.store_tool import Input, look_tool, store_tool
from callboard.adapters.tools.task_rows import board_of, find_task, holder_of, put_task, taken_or_let_go
from callboard.core.bus import authority
from callboard.core.names import short_id
from callboard.core.tasks import laws as tasks
from callboard.core.tasks.wording import board_lines, owner_words, taken_words, task_line, task_words
from callboard.ports.store import Write
from callboard.ports.tool import Tool, ToolContext, ToolOutcome
from callboard.words.errors import ToolRefused
from callboard.words.values import Task, TaskStatus

NOBODY = "nobody"
"""As a new owner: the task is open to anybody again."""

_CREATE = """\
Put a task on the board that the whole team sees. Any idle teammate may claim it by itself once everything in \
blocked_by is completed. Write the description so that someone without your context can do it: the goal, the files, \
how to tell that it is done. In files name the paths and globs that its owner will change, so that others see them; \
make tasks that do not touch the same files, so that they can be done at once. With check, a shell command, it can \
only be completed when that command passes."""
_UPDATE = """\
Change a task that has not ended: its subject, its description, what it waits for, its files (both lists replace the \
whole list), its check. owner gives it to one agent, also when another has it in progress: that one is told and can \
end it no more; owner 'nobody' puts it back for anybody. status 'cancelled' takes a task off the board that nobody \
needs any more; status 'pending' opens a failed task for another try. To take or finish a task yourself use \
claim_task, complete_task, fail_task, release_task."""
_LIST = "List the tasks of the board: status, owner, files, what each waits for. Filter by status if you like."
_GET = "Show one task whole: description, owner, what it waits for, result and evidence."
_CLAIM = """\
Take a ready task as yours before you work on it. You can have one in progress at a time. In files name what you are \
going to change, as far as the task does not: you are told who else works there. Someone else may be faster: then you \
are told which are still ready."""
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
    files: tuple[str, ...] = Field(default=(), description="What its owner changes: 'src/parser.py', 'docs/*.md'")
    check: str = Field(default="", description="A shell command that must end with exit code 0: 'make test'")


class _Update(Input):
    task_id: str
    subject: str = Field(default="", description="The new subject; left out: as it is")
    description: str = Field(default="", description="The new description; left out: as it is")
    blocked_by: tuple[str, ...] | None = Field(default=None, description="The new whole list; left out: as it is")
    status: Literal["", "pending", "cancelled"] = Field(default="", description="Left out: as it is")
    owner: str = Field(default="", description="The agent to give it to, or 'nobody'; left out: as it is")
    files: tuple[str, ...] | None = Field(default=None, description="The new whole list; left out: as it is")
    check: str | None = Field(default=None, description="The new command, '' for none; left out: as it is")


class _List(Input):
    status: Literal["", "ready", "pending", "in_progress", "completed", "failed", "cancelled"] = ""


class _One(Input):
    task_id: str


class _Claim(Input):
    task_id: str
    files: tuple[str, ...] = Field(default=(), description="What you are going to change, beside what it names")


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
        store_tool("claim_task", _CLAIM, _Claim, _claim_task),
        CompleteTask(),
        store_tool("fail_task", _FAIL, _Fail, _fail_task),
        store_tool("release_task", _RELEASE, _Release, _release_task),
    )


def _create_task(given: _Create, context: ToolContext) -> ToolOutcome:
    board = board_of(context)
    task = tasks.create(
        Task(
            id=short_id("task", context.call),
            subject=given.subject,
            description=given.description,
            blocked_by=given.blocked_by,
            files=given.files,
            check=given.check,
            cause=authority.claim(context.spec.name, context.authority),
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
    board, me, now = board_of(context), context.spec.name, context.now
    task = old
    if given.owner:
        task = tasks.assign(task, _new_owner(given.owner, context), me, now)
    if given.status == "cancelled":
        task = tasks.cancel(task, me, now)
    elif given.status == "pending":
        task = tasks.reopen(task, me, now)
    change = _change(given, context)
    if change is not None:
        task = tasks.update(task, change, board, now, me)
    if task == old:
        raise ToolRefused("nothing to change: give subject, description, blocked_by, files, check, owner or status")
    writes = _told(context, old, task)
    if added := set(task.blocked_by) - set(old.blocked_by):
        writes += _held_still(context, added, board)
    text = f"Updated {task_line(task, {**board, task.id: task})}"
    return ToolOutcome(text, writes=(put_task(context, task, revision), *writes), data={"task_id": task.id})


def _change(given: _Update, context: ToolContext) -> tasks.Change | None:
    """What is to be said anew; None: nothing."""
    said = (given.subject or None, given.description or None, given.blocked_by, given.files, given.check)
    if said == (None,) * len(said):
        return None
    return tasks.Change(*said, cause=authority.claim(context.spec.name, context.authority))


def _new_owner(name: str, context: ToolContext) -> str:
    """Whom a task is kept for; the empty text for `nobody`. Raises `ToolRefused` for who takes no task (any more)."""
    if name == NOBODY:
        return ""
    found = context.board.agent(name)
    if found is None or found[0].kind == "subagent" or found[0].life in {"stopping", "stopped", "crashed"}:
        there = [row.name for row in team(context) if row.life not in GONE]
        raise ToolRefused(f"owner: {name!r} takes no task; there are {', '.join(there)}, and {NOBODY!r}")
    return name


def _told(context: ToolContext, old: Task, task: Task) -> tuple[Write, ...]:
    """Who had the task is told that it is taken; who gets it claims it by itself when it is idle."""
    writes: list[Write] = []
    if old.status == "in_progress" and task.status != "in_progress" and old.owner != context.spec.name:
        loser = context.board.agent(old.owner or "")
        if loser is not None and loser[0].incarnation == old.owner_incarnation:
            words = taken_words(task, context.spec.name, task.reserved_for)
            writes.append(envelope(context, loser[0], "message", words, wake=False))
    return tuple(writes)


def _held_still(context: ToolContext, added: set[str], board: tasks.Tasks) -> tuple[Write, ...]:
    """The rows behind new dependencies, written unchanged: no other change can close a circle beside this one."""
    found = [find_task(context, task_id) for task_id in tasks.behind(added, board)]
    return tuple(put_task(context, task, revision) for task, revision in found)


def _list_tasks(given: _List, context: ToolContext) -> ToolOutcome:
    board = board_of(context)
    shown = [task for task in board.values() if _is_wanted(task, given.status, board)]
    shown.sort(key=lambda task: (task.created_at, task.id))
    none = f"No task is {given.status}." if given.status else "The board is empty."
    data = {"tasks": [task.model_dump(mode="json") for task in shown]}
    return ToolOutcome(board_lines(shown, board) or none, data=data)


def _is_wanted(task: Task, status: TaskStatus | Literal["", "ready"], board: tasks.Tasks) -> bool:
    return tasks.is_ready(task, board) if status == "ready" else status in {"", task.status}


def _get_task(given: _One, context: ToolContext) -> ToolOutcome:
    task, _ = find_task(context, given.task_id)
    return ToolOutcome(task_words(task, board_of(context)), data={"task": task.model_dump(mode="json")})


def _claim_task(given: _Claim, context: ToolContext) -> ToolOutcome:
    old, revision = find_task(context, given.task_id)
    board, me = board_of(context), holder_of(context)
    if me.holds(old):
        return _more_files(given, context, old, revision)
    task = tasks.claim(old, me, board, context.now, one_at_a_time=context.spec.kind != "lead")
    task = _with_files(task, given, context)
    more = owner_words(task, {**board, task.id: task})
    text = f"{task.id} is yours: {task.subject}" + (f"\n\n{more}" if more else "")
    return taken_or_let_go(context, task, revision, text, held=True)


def _more_files(given: _Claim, context: ToolContext, old: Task, revision: int) -> ToolOutcome:
    """A second claim of one's own task only says which files it works on as well."""
    task = _with_files(old, given, context)
    if task == old:
        return ToolOutcome(f"{old.id} is yours already: go on with it.", data={"task_id": old.id})
    more = owner_words(task.model_copy(update={"description": "", "result": None}), board_of(context))
    text = f"{old.id} is yours already.\n\n{more}"
    return ToolOutcome(text, writes=(put_task(context, task, revision),), data={"task_id": old.id})


def _with_files(task: Task, given: _Claim, context: ToolContext) -> Task:
    if not given.files:
        return task
    change = tasks.Change(files=(*task.files, *given.files))
    return tasks.update(task, change, {}, context.now, context.spec.name)


def _fail_task(given: _Fail, context: ToolContext) -> ToolOutcome:
    old, revision = find_task(context, given.task_id)
    task = tasks.fail(old, holder_of(context), context.now, given.reason)
    stuck = tasks.waiting_for(task, board_of(context))
    text = f"{task.id} is failed."
    if stuck:
        text += f" Still waiting for it: {', '.join(other.id for other in stuck)}."
    return taken_or_let_go(context, task, revision, text, blocked=[other.id for other in stuck])


def _release_task(given: _Release, context: ToolContext) -> ToolOutcome:
    old, revision = find_task(context, given.task_id)
    task = tasks.release(old, holder_of(context), context.now, given.note)
    return taken_or_let_go(context, task, revision, f"{task.id} is back on the board.")
