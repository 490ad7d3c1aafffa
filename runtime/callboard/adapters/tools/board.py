"""Tools of the task board: create, look, claim, complete, change.

`core/tasks/board.py` has the rules; this module turns them into writes. Every change is one compare-and-swap on the row
that was read, so that of two simultaneous claims one runs again and is refused. The plan gate, not the board, decides
if a plan must be approved first.

`complete_task` completes a task. If the task has a check, the check must pass first. The check is a shell command that
another agent or the user set. It was decided like a call of `bash` before this tool runs
(`engine/operations/permission_check.py`), it runs where the agent's other commands run, and only that command runs: the
runtime sets `check` in the input and ignores a value from the model.

After a crash it is unknown whether the check ran. Its remaining processes are ended, the task is not completed, and the
model must call again. So no task is completed without its check, and no check runs twice by itself: within one process,
a check that passed is remembered while its call loses races for the row.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from callboard.adapters.processes.launcher import find_process
from callboard.adapters.tools.base import ToolInput, TypedTool, failed_outcome, look_tool, store_tool
from callboard.adapters.tools.task_rows import board_of, claim_outcome, find_task, holder_of, put_task
from callboard.adapters.tools.team import envelope, team
from callboard.core.keys import short_id
from callboard.core.messaging import authority
from callboard.core.tasks import board as task_rules
from callboard.core.tasks.format import board_lines, owner_words, reassigned_text, task_line, task_words
from callboard.ports.store import Write
from callboard.ports.tool import CallContext, Finished, Tool, ToolOutcome
from callboard.types.choices import choose
from callboard.types.errors import CommandNotRun, ToolRefused
from callboard.types.records import Json, Task, TaskStatus

NOBODY = "nobody"
"""As a new owner: any agent may claim the task again."""

_CREATE = """\
Put a task on the board that the whole team sees. Any idle teammate may claim it by itself once everything in \
blocked_by is completed. Write the description so that someone without your context can do it: the goal, the files, \
how to tell that it is done. In files name the paths and globs that its owner will change, so that others see them; \
make tasks that do not touch the same files, so that they can be done at once. With check, a shell command, it can \
only be completed when that command passes."""
_UPDATE = """\
Change a task that has not ended: its subject, its description, what it waits for, its files (both lists replace the \
whole list), its check. owner gives it to one agent, also when another has it in progress: that one gets a \
message and can no longer end it; owner 'nobody' puts it back for anybody. status 'cancelled' takes a task off the \
board that nobody needs any more; status 'pending' opens a failed task for another try. To take or finish a task \
yourself use claim_task, complete_task, fail_task, release_task."""
_LIST = "List the tasks of the board: status, owner, files, what each waits for. Filter by status if you like."
_GET = "Show one task whole: description, owner, what it waits for, result and evidence."
_CLAIM = """\
Take a ready task as yours before you work on it. You can have one in progress at a time. In files name what you are \
going to change, as far as the task does not: the answer says who else works there. Someone else may be faster: then \
it lists the tasks that are still ready."""
_FAIL = """\
Your task cannot be done as it stands: say why, and what would have to change. What waits for it stays blocked until \
it is opened again or they stop waiting for it."""
_RELEASE = (
    "Give your task back to the board unfinished; say in note how far you came, so that the next one goes on there."
)


class _Create(ToolInput):
    subject: str = Field(description="One line, as an order: 'Write the parser for cron fields'")
    description: str = Field(default="", description="Everything its owner needs to know")
    blocked_by: tuple[str, ...] = Field(default=(), description="Ids of tasks that have to be completed first")
    files: tuple[str, ...] = Field(default=(), description="What its owner changes: 'src/parser.py', 'docs/*.md'")
    check: str = Field(default="", description="A shell command that must end with exit code 0: 'make test'")


class _Update(ToolInput):
    task_id: str
    subject: str = Field(default="", description="The new subject; left out: as it is")
    description: str = Field(default="", description="The new description; left out: as it is")
    blocked_by: tuple[str, ...] | None = Field(default=None, description="The new whole list; left out: as it is")
    status: Literal["", "pending", "cancelled"] = Field(default="", description="Left out: as it is")
    owner: str = Field(default="", description="The agent to give it to, or 'nobody'; left out: as it is")
    files: tuple[str, ...] | None = Field(default=None, description="The new whole list; left out: as it is")
    check: str | None = Field(default=None, description="The new command, '' for none; left out: as it is")


class _List(ToolInput):
    status: Literal["", "ready", "pending", "in_progress", "completed", "failed", "cancelled"] = ""


class _One(ToolInput):
    task_id: str


class _Claim(ToolInput):
    task_id: str
    files: tuple[str, ...] = Field(default=(), description="What you are going to change, beside what it names")


class _Fail(ToolInput):
    task_id: str
    reason: str = Field(min_length=1, description="Why, and what would have to change")


class _Release(ToolInput):
    task_id: str
    note: str = Field(default="", description="How far you came")


def board_tools() -> tuple[Tool, ...]:
    """Return the eight tools of the task board."""
    return (
        store_tool("create_task", _CREATE, _Create, _create_task),
        store_tool("update_task", _UPDATE, _Update, _update_task),
        look_tool("list_tasks", _LIST, _List, _list_tasks),
        look_tool("get_task", _GET, _One, _get_task),
        store_tool("claim_task", _CLAIM, _Claim, _claim_task, concurrency="exclusive"),
        CompleteTask(),
        store_tool("fail_task", _FAIL, _Fail, _fail_task, concurrency="exclusive"),
        store_tool("release_task", _RELEASE, _Release, _release_task, concurrency="exclusive"),
    )


def _create_task(arguments: _Create, context: CallContext) -> ToolOutcome:
    board = board_of(context)
    task = task_rules.create(
        Task(
            id=short_id("task", context.call),
            subject=arguments.subject,
            description=arguments.description,
            blocked_by=arguments.blocked_by,
            files=arguments.files,
            check=arguments.check,
            cause=authority.claimed_authority(context.spec.name, context.authority),
            created_by=context.spec.name,
            created_at=context.now,
            updated_at=context.now,
        ),
        board,
    )
    text = f"Created {task_line(task, {**board, task.id: task})}"
    return ToolOutcome(text, writes=(put_task(context, task, 0),), data={"task_id": task.id})


def _update_task(arguments: _Update, context: CallContext) -> ToolOutcome:
    old, revision = find_task(context, arguments.task_id)
    board = board_of(context)
    me = context.spec.name
    now = context.now
    task = old
    if arguments.owner:
        task = task_rules.assign(task, _new_owner(arguments.owner, context), me, now)
    if arguments.status == "cancelled":
        task = task_rules.cancel(task, me, now)
    elif arguments.status == "pending":
        task = task_rules.reopen(task, me, now)
    change = _change(arguments, context)
    if change is not None:
        task = task_rules.update(task, change, board, now=now, by=me)
    if task == old:
        raise ToolRefused("nothing to change: give subject, description, blocked_by, files, check, owner or status")
    writes = _notice(context, old, task)
    if added := set(task.blocked_by) - set(old.blocked_by):
        writes += _held_still(context, added, board)
    text = f"Updated {task_line(task, {**board, task.id: task})}"
    return ToolOutcome(text, writes=(put_task(context, task, revision), *writes), data={"task_id": task.id})


def _change(arguments: _Update, context: CallContext) -> task_rules.TaskChange | None:
    """Return the fields that the update changes; None if there are none."""
    changes = (
        arguments.subject or None,
        arguments.description or None,
        arguments.blocked_by,
        arguments.files,
        arguments.check,
    )
    if changes == (None,) * len(changes):
        return None
    return task_rules.TaskChange(*changes, cause=authority.claimed_authority(context.spec.name, context.authority))


def _new_owner(name: str, context: CallContext) -> str:
    """Return the agent that a task is reserved for; empty for `nobody`.

    Raises `ToolRefused` for an agent that takes no tasks, or no longer does.
    """
    if name == NOBODY:
        return ""
    entry = context.board.agent(name)
    if entry is None or not task_rules.takes_tasks(entry[0]):
        names = [row.name for row in team(context) if task_rules.takes_tasks(row)]
        raise ToolRefused(f"owner: {name!r} takes no task: {choose([*names, repr(NOBODY)])}")
    return name


def _notice(context: CallContext, old: Task, task: Task) -> tuple[Write, ...]:
    """Notify the agent that had the task that it lost the task. The new owner claims it when it is idle."""
    writes: list[Write] = []
    if old.status == "in_progress" and task.status != "in_progress" and old.owner != context.spec.name:
        loser = context.board.agent(old.owner or "")
        if loser is not None and loser[0].incarnation == old.owner_incarnation:
            text = reassigned_text(task, context.spec.name, task.reserved_for)
            writes.append(envelope(context, loser[0], "message", text, wake=False))
    return tuple(writes)


def _held_still(context: CallContext, added: set[str], board: task_rules.Tasks) -> tuple[Write, ...]:
    """Return unchanged writes of the rows behind new dependencies, so that no simultaneous change can close a cycle."""
    rows = [find_task(context, task_id) for task_id in task_rules.behind(added, board)]
    return tuple(put_task(context, task, revision) for task, revision in rows)


def _list_tasks(arguments: _List, context: CallContext) -> ToolOutcome:
    board = board_of(context)
    matches = [task for task in board.values() if _is_wanted(task, arguments.status, board)]
    matches.sort(key=lambda task: (task.created_at, task.id))
    visible = task_rules.without_old(matches)
    text = board_lines(visible, board)
    if not text:
        text = f"No task is {arguments.status}." if arguments.status else "The board is empty."
    if older := len(matches) - len(visible):
        text += f"\nOlder tasks that have ended and are left out: {older:,}. get_task shows one by its id."
    return ToolOutcome(text, data={"tasks": [task.model_dump(mode="json") for task in visible]})


def _is_wanted(task: Task, status: TaskStatus | Literal["", "ready"], board: task_rules.Tasks) -> bool:
    return task_rules.is_ready(task, board) if status == "ready" else status in {"", task.status}


def _get_task(arguments: _One, context: CallContext) -> ToolOutcome:
    task, _ = find_task(context, arguments.task_id)
    return ToolOutcome(task_words(task, board_of(context)), data={"task": task.model_dump(mode="json")})


def _claim_task(arguments: _Claim, context: CallContext) -> ToolOutcome:
    old, revision = find_task(context, arguments.task_id)
    board = board_of(context)
    me = holder_of(context)
    if me.holds(old):
        return _more_files(arguments, context, old, revision)
    task = task_rules.claim(old, me, board, context.now, one_at_a_time=context.spec.kind != "lead")
    task = _with_files(task, arguments, context)
    details = owner_words(task, {**board, task.id: task})
    text = f"{task.id} is yours: {task.subject}" + (f"\n\n{details}" if details else "")
    return claim_outcome(context, task, revision, text, held=True)


def _more_files(arguments: _Claim, context: CallContext, old: Task, revision: int) -> ToolOutcome:
    """Add files to the agent's own task, as requested by a second claim of it."""
    task = _with_files(old, arguments, context)
    if task == old:
        return ToolOutcome(f"{old.id} is yours already: go on with it.", data={"task_id": old.id})
    details = owner_words(task.model_copy(update={"description": "", "result": None}), board_of(context))
    text = f"{old.id} is yours already.\n\n{details}"
    return ToolOutcome(text, writes=(put_task(context, task, revision),), data={"task_id": old.id})


def _with_files(task: Task, arguments: _Claim, context: CallContext) -> Task:
    if not arguments.files:
        return task
    change = task_rules.TaskChange(files=(*task.files, *arguments.files))
    return task_rules.update(task, change, {}, now=context.now, by=context.spec.name)


def _fail_task(arguments: _Fail, context: CallContext) -> ToolOutcome:
    old, revision = find_task(context, arguments.task_id)
    task = task_rules.fail(old, holder_of(context), context.now, arguments.reason)
    stuck = task_rules.waiting_for(task, board_of(context))
    text = f"{task.id} is failed."
    if stuck:
        text += f" Still waiting for it: {', '.join(other.id for other in stuck)}."
    return claim_outcome(context, task, revision, text, blocked=[other.id for other in stuck])


def _release_task(arguments: _Release, context: CallContext) -> ToolOutcome:
    old, revision = find_task(context, arguments.task_id)
    task = task_rules.release(old, holder_of(context), context.now, arguments.note)
    return claim_outcome(context, task, revision, f"{task.id} is back on the board.")


CHECK_SECONDS = 600.0
"""Most seconds that a check may run: the same as the longest call of `bash`."""
_SHOWN = 4_000
"""Most characters of a check's output that are shown, from its end."""
_KEPT = 2_000
"""Most characters of a check's output that are stored in the task as evidence."""

_COMPLETE = """\
Your task is done: say what came out of it in result, and in evidence what shows that (the tests you ran and how they \
ended, the files you changed). Complete it only after you checked it. If the task has a check, that command is run \
now, and the task is completed only when it passes; else you see how its output ends; fix that and call this again. \
The answer tells which tasks it made ready."""


class Complete(ToolInput):
    """Input of `complete_task`. The permission check fills in the command of the task's check."""

    task_id: str
    result: str = Field(default="", description="What came out of it")
    evidence: str = Field(default="", description="What shows that it is done")
    check: str = Field(default="", description="Leave it out: the runtime fills in the task's check")


class CompleteTask(TypedTool[Complete]):
    """Tool that completes a task. Its effect class is `attach`: after a crash, a call finds its own check again."""

    def __init__(self) -> None:
        super().__init__("complete_task", _COMPLETE, Complete, effect="attach")
        self._passed: dict[str, tuple[str, str, str]] = {}
        """Agent -> its newest call whose check passed, that check, and the check's output."""

    async def prepare(self, tool_input: Json, context: CallContext) -> Json:
        """Refuse, before anything runs, a call that the rules refuse whatever the check's result is."""
        arguments = self.read(tool_input)
        task, _ = find_task(context, arguments.task_id)
        task_rules.may_complete(task, holder_of(context))
        if task.check and not context.folders.root.is_dir():
            raise ToolRefused(f"complete_task: your folder {context.folders.root} no longer exists")
        return {"check": task.check} if task.check else {}

    async def act(self, arguments: Complete, context: CallContext) -> ToolOutcome:
        task, _ = find_task(context, arguments.task_id)
        task_rules.may_complete(task, holder_of(context))  # checked again, because this may be a repeated run
        if not task.check:
            return _completed(arguments, context, None)
        if task.check != arguments.check:
            raise ToolRefused(f"{task.id} is not completed: its check was changed just now. Call complete_task again")
        call, check, check_output = self._passed.get(context.spec.name, ("", "", ""))
        if (call, check) != (context.call, task.check):
            folder = context.folders.root
            output = _output(context)
            try:
                finished = await context.launcher.run(
                    task.check, folder, timeout=CHECK_SECONDS, keep=output, grants=context.grants
                )
            except CommandNotRun as error:
                raise ToolRefused(
                    f"{task.id} is not completed, its check has neither passed nor failed. {error}"
                ) from error
            if finished.timed_out or finished.exit_code != 0:
                return _refused(task, finished)
            check_output = finished.output
            self._passed[context.spec.name] = (context.call, task.check, check_output)
        return _completed(arguments, context, check_output)

    async def repair(self, tool_input: Json, marks: Json, context: CallContext) -> ToolOutcome | None:
        """Run the call again if the task has no check; else report that the check must run again."""
        if not marks.get("check"):
            return None
        arguments = self.read(tool_input)
        writing = find_process(_output(context))
        alive = writing is not None and await context.launcher.end(*writing)
        note = " It was still running and has been ended." if alive else ""
        return failed_outcome(
            f"The runtime stopped while the check of {arguments.task_id} was in progress, so its result is unknown, "
            f"and the task is not completed.{note} Look at what the check changes, then call complete_task again."
        )


def _completed(arguments: Complete, context: CallContext, output: str | None) -> ToolOutcome:
    """Return the task's final row, based on the current board: the task may have been taken away while the check ran.

    `output`: the output of a passed check; None: there was no check.
    """
    old, revision = find_task(context, arguments.task_id)
    evidence = arguments.evidence
    check = None
    if output is not None:
        excerpt = output.strip()[-_KEPT:]
        evidence = "\n".join(part for part in (evidence, f"[check passed] {arguments.check}", excerpt) if part)
        check = {"exit_code": 0, "output": excerpt}
    passed = None if output is None else arguments.check
    task = task_rules.complete(
        old, holder_of(context), context.now, result=arguments.result, evidence=evidence, passed=passed
    )
    freed = task_rules.unblocked_by(task, board_of(context))
    text = f"Completed {task.id}." + (" Its check passed." if passed else "")
    if freed:
        text += " Ready now: " + "; ".join(f"{other.id} {other.subject}" for other in freed)
    return claim_outcome(context, task, revision, text, unblocked=[other.id for other in freed], check=check)


def _refused(task: Task, finished: Finished) -> ToolOutcome:
    """Return the result of a failed check for the model. The agent keeps the task."""
    how = f"ended with exit code {finished.exit_code}"
    if finished.timed_out:
        how = f"did not end within {CHECK_SECONDS:g} s and was ended"
    elif finished.exit_code is None:
        how = "was ended from outside"
    output = finished.output.strip()
    end = f"[...]\n{output[-_SHOWN:]}" if len(output) > _SHOWN else output or "(no output)"
    whole = f"\nThe whole output is in {finished.whole}." if finished.whole else ""
    text = (
        f"{task.id} is not completed: its check {how}.\n$ {task.check}\n{end}{whole}\n"
        "Fix it and call complete_task again. If you cannot, call fail_task or release_task and say why."
    )
    return failed_outcome(text, task_id=task.id, check={"exit_code": finished.exit_code, "output": output[-_SHOWN:]})


def _output(context: CallContext) -> Path:
    """Return the file for the check's output, named after the call, so that it can be found after a crash."""
    return context.folders.tool_results / f"{context.call}.out"
