"""Rules of the task board: changes and their effects, the ready task for an agent, and the agents to wake. Pure.

The rules name the agents that may claim, complete, fail, release and change a task.

1. A task in progress has one owner, a life of a name. Only that life completes, fails or releases it. The lead and the
   user may take it away and give it to another agent.
2. A teammate has one task in progress at a time.
3. Only a completed task unblocks others. A completed or cancelled task never changes again.
4. `blocked_by` names existing tasks and never forms a cycle.
5. A task with a check is completed only by a caller that states that this very command passed. The owner that has to
   pass it never changes it, and no one changes a check that a higher rank set (user, lead, creator).
6. A task that is reserved for one agent cannot be claimed by another.

Each change returns the new task, to be written with the revision that was read: of two claims one loses the
compare-and-swap. A violation raises `ToolRefused` with advice on the next step.

    pending -> in_progress (claim) -> completed | failed | pending (release, assign, its owner is gone)
    pending -> cancelled        failed -> pending (reopen) | cancelled
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from callboard.core.messaging.authority import weaker
from callboard.core.tasks.file_claims import normal_paths
from callboard.types.errors import ToolRefused
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import AgentRow, Cause, Task

Tasks = Mapping[str, Task]
"""Board: every task of the session by id."""
MOST_ATTEMPTS = 3
"""Claims of one task before an owner that could not continue leaves it failed, so that the lead or the user looks at
it."""
ENDED = frozenset({"completed", "cancelled"})
"""Final states of a task."""
MOST_ENDED = 50
"""Ended tasks in a list for a model: the newest. A long session has thousands, which would hide the open ones."""
PERSON = "person"
LEAD = "lead"
_LONGEST_CHECK = 4_000
"""Most characters of a check: one command line, not a script."""


@dataclass(frozen=True, slots=True)
class Holder:
    """One life of a name. A new `alice` does not hold the tasks of the old one."""

    name: str
    incarnation: int = 1
    lease: str = ""
    """Lease of its process, with its number; empty without leases."""
    lease_number: int = 0
    shell: bool = True
    """True if it may run commands. Otherwise it takes no task with a check."""
    picks: bool = True
    """True if it claims any open task when it is idle, not only those reserved for it."""

    def holds(self, task: Task) -> bool:
        """Return True if `task` is in progress and held by this life."""
        return task.status == "in_progress" and (task.owner, task.owner_incarnation) == (self.name, self.incarnation)


@dataclass(frozen=True, slots=True)
class TaskChange:
    """Fields to change by `update`; None leaves a field unchanged."""

    subject: str | None = None
    description: str | None = None
    blocked_by: tuple[str, ...] | None = None
    """Complete new list."""
    files: tuple[str, ...] | None = None
    """Complete new list."""
    check: str | None = None
    """New command; empty: no check."""
    cause: Cause = "person"
    """Authority of the change. A task never claims more than the weakest of those that defined it."""


def by_id(tasks: Iterable[Task]) -> dict[str, Task]:
    """Return the tasks as a board."""
    return {task.id: task for task in tasks}


def without_old(tasks: Iterable[Task], most: int = MOST_ENDED) -> list[Task]:
    """Return these tasks in their order, without all but the `most` newest of those that have ended."""
    tasks = list(tasks)
    ended = sorted((task for task in tasks if task.status in ENDED), key=lambda task: (task.updated_at, task.id))
    old = {task.id for task in ended[: max(0, len(ended) - most)]}
    return [task for task in tasks if task.id not in old]


def some_ids(tasks: Iterable[Task], most: int = 20) -> str:
    """Return the ids of these tasks for an error message, open ones first, and the number of the others."""
    tasks = sorted(tasks, key=lambda task: task.status in ENDED)
    ids = ", ".join(task.id for task in tasks[:most])
    return f"{ids} and {len(tasks) - most:,} more" if len(tasks) > most else ids


def blockers(task: Task, board: Tasks) -> tuple[str, ...]:
    """Return the tasks that `task` still waits for: those in its `blocked_by` that are not completed."""
    return tuple(other for other in task.blocked_by if other not in board or board[other].status != "completed")


def is_ready(task: Task, board: Tasks) -> bool:
    """Return True if the task may be claimed now."""
    return task.status == "pending" and not blockers(task, board)


def ready(board: Tasks) -> list[Task]:
    """Return the tasks that may be claimed, oldest first."""
    tasks = (task for task in board.values() if is_ready(task, board))
    return sorted(tasks, key=lambda task: (task.created_at, task.id))


def fits(task: Task, holder: Holder) -> bool:
    """Return True if this agent may take the task.

    The task is not reserved for another agent, and this agent can run its check.
    """
    return task.reserved_for in {"", holder.name} and (holder.shell or not task.check)


def takes_tasks(row: AgentRow) -> bool:
    """Return True if a task may be reserved for the agent: no subagent, and none that ends, has ended, or is parked."""
    return row.kind != "subagent" and row.life not in ("stopping", "stopped", "crashed")


def held_by(board: Tasks, holder: Holder) -> list[Task]:
    """Return the tasks that this life has in progress, oldest first."""
    tasks = (task for task in board.values() if holder.holds(task))
    return sorted(tasks, key=lambda task: (task.created_at, task.id))


def unblocked_by(done: Task, board: Tasks) -> list[Task]:
    """Return the tasks that become ready when `done` is completed. `board` may still have the old state of `done`."""
    after = {**board, done.id: done}
    return [task for task in ready(after) if done.id in task.blocked_by]


def waiting_for(task: Task, board: Tasks) -> list[Task]:
    """Return the tasks that name `task` in `blocked_by` and have not ended."""
    return [other for other in board.values() if task.id in other.blocked_by and other.status in {"pending", "failed"}]


def behind(blocked_by: Iterable[str], board: Tasks) -> tuple[str, ...]:
    """Return all tasks that these wait for, directly or not, and these tasks themselves, in a fixed order.

    A writer of a dependency also writes these rows, unchanged: two changes that together would close a cycle then
    conflict in a row, and one of them loses.
    """
    seen: dict[str, None] = {}
    pending = list(blocked_by)
    while pending:
        task_id = pending.pop()
        if task_id not in seen and task_id in board:
            seen[task_id] = None
            pending.extend(board[task_id].blocked_by)
    return tuple(sorted(seen))


def create(task: Task, board: Tasks) -> Task:
    """Return a new pending task.

    Refused: no subject, an unknown id in `blocked_by`, an existing id, files that are not paths of the workspace, a
    check that is not a command line.
    """
    if task.id in board:
        raise ToolRefused(f"{task.id} is on the board already")
    updates = {
        "subject": _subject(task.subject),
        "blocked_by": _blocked_by(task.id, task.blocked_by, board),
        "files": normal_paths(task.files),
        "check": _check(task.check),
        "check_by": task.created_by if task.check.strip() else "",
        "status": "pending",
        **_NOBODY,
    }
    return task.model_copy(update=updates)


def update(task: Task, change: TaskChange, board: Tasks, *, now: float, by: str = LEAD) -> Task:
    """Change the content, dependencies, files or check of a task that has not ended. `by`: author of the change."""
    _refuse_ended(task)
    updates: dict[str, object] = {"updated_at": now}
    if change.subject is not None:
        updates["subject"] = _subject(change.subject)
    if change.description is not None:
        updates["description"] = change.description
    if change.blocked_by is not None:
        updates["blocked_by"] = _new_blockers(task, change.blocked_by, board)
    if change.files is not None:
        if by != task.owner:
            _refuse_stranger(task, by, "change the files of")
        updates["files"] = normal_paths(change.files)
    if change.check is not None:
        _refuse_check(task, by)
        check = _check(change.check)
        updates |= {"check": check, "check_by": by if check else ""}
    if (change.subject, change.description, change.check) != (None, None, None):
        updates["cause"] = weaker(task.cause, change.cause)
    return task.model_copy(update=updates)


def assign(task: Task, to: str, by: str, now: float) -> Task:
    """Reserve a task for one agent (`to` empty: for any agent), and take it from the agent that has it in progress.

    Only the lead or the user takes a task in progress; the creator may also assign a pending one.
    """
    _refuse_ended(task)
    if task.status == "failed":
        raise ToolRefused(f"{task.id} has failed: open it for another try (status 'pending') to give it to somebody")
    if task.status == "in_progress":
        if by not in _ABOVE:
            raise ToolRefused(f"{task.id} is held by {task.owner}: only the lead or the person may take it away")
        if to == task.owner:
            raise ToolRefused(f"{task.id} is held by {to} already")
        task = free(task, now, f"{by} took it from {task.owner} before it was done.")
    else:
        _refuse_stranger(task, by, "give away")
    return task.model_copy(update={"reserved_for": to, "updated_at": now})


def cancel(task: Task, by: str, now: float) -> Task:
    """Cancel a task that is no longer needed and not in progress: by the lead or its creator."""
    _refuse_ended(task)
    _refuse_stranger(task, by, "cancel")
    if task.status == "in_progress":
        raise ToolRefused(f"{task.id} is in progress: {task.owner} must release it first, or it is taken from it")
    return task.model_copy(update={"status": "cancelled", "updated_at": now, "reserved_for": "", **_NOBODY})


def reopen(task: Task, by: str, now: float) -> Task:
    """Allow another attempt at a failed task: by the lead or its creator.

    `result` keeps the text of the last attempt.
    """
    if task.status != "failed":
        raise ToolRefused(f"{task.id} is {task.status}: only a failed task is reopened")
    _refuse_stranger(task, by, "reopen")
    return task.model_copy(update={"status": "pending", "updated_at": now, **_NOBODY})


def claim(task: Task, holder: Holder, board: Tasks, now: float, *, one_at_a_time: bool = True) -> Task:
    """Claim a ready task. `one_at_a_time`: refused while the claimer has another task in progress (teammates)."""
    if task.status == "in_progress":
        whose = "yours already" if holder.holds(task) else f"held by {task.owner}"
        raise ToolRefused(f"{task.id} is {whose}{_task_hint(board)}")
    if task.status != "pending":
        raise ToolRefused(f"{task.id} is {task.status}{_task_hint(board)}")
    if waits := blockers(task, board):
        raise ToolRefused(f"{task.id} waits for {', '.join(waits)}{_task_hint(board)}")
    if task.reserved_for not in {"", holder.name}:
        raise ToolRefused(f"{task.id} is reserved for {task.reserved_for}{_task_hint(board)}")
    if not fits(task, holder):
        raise ToolRefused(f"{task.id} has a check, which is a command, and you may not run commands{_task_hint(board)}")
    held = held_by(board, holder)
    if one_at_a_time and held:
        raise ToolRefused(f"you have {held[0].id} in progress: complete, fail or release it before you claim another")
    updates = {
        "status": "in_progress",
        "owner": holder.name,
        "owner_incarnation": holder.incarnation,
        "lease": holder.lease,
        "lease_number": holder.lease_number,
        "reserved_for": "",
        "attempts": task.attempts + 1,
        "updated_at": now,
    }
    return task.model_copy(update=updates)


def may_complete(task: Task, holder: Holder) -> None:
    """Raise `ToolRefused` if this life may not complete the task, apart from its check."""
    _refuse_foreign(task, holder, "complete")


def complete(
    task: Task, holder: Holder, now: float, *, result: str = "", evidence: str = "", passed: str | None = None
) -> Task:
    """Complete a task. `evidence`: proof, such as a test run or a file. `passed`: the check that ran and passed."""
    may_complete(task, holder)
    if task.check and task.check != passed:
        changed = passed is not None
        reason = "its check was changed while you ran the old one" if changed else "its check has not passed"
        raise ToolRefused(f"{task.id} is not completed: {reason}. Call complete_task again, which runs it")
    updates = {"status": "completed", "result": result or None, "evidence": evidence or None, "updated_at": now}
    return task.model_copy(update={**updates, **_NO_LEASE})


def fail(task: Task, holder: Holder, now: float, reason: str) -> Task:
    """Fail a task that cannot be done. Tasks that it blocks stay blocked."""
    _refuse_foreign(task, holder, "fail")
    return task.model_copy(update={"status": "failed", "result": reason, "updated_at": now, **_NO_LEASE})


def release(task: Task, holder: Holder, now: float, note: str = "") -> Task:
    """Return a task to the board. `note` describes the progress for the next owner."""
    _refuse_foreign(task, holder, "release")
    return free(task, now, note)


def free(task: Task, now: float, note: str = "") -> Task:
    """Free a task whose owner is gone. Only the runtime calls this function, no tool does."""
    if task.status != "in_progress":
        raise ToolRefused(f"{task.id} is {task.status}: nobody holds it")
    updates: dict[str, object] = {"status": "pending", "updated_at": now, **_NOBODY}
    if note:
        updates["result"] = note
    return task.model_copy(update=updates)


def give_back(task: Task, now: float, note: str) -> Task:
    """Take a task from an owner that could not continue: back to the board, or failed after too many attempts.

    A reopened task has the initial number of attempts again.
    """
    if task.attempts % MOST_ATTEMPTS:
        return free(task, now, note)
    return task.model_copy(update={"status": "failed", "result": note, "updated_at": now, **_NO_LEASE})


def take_up(task: Task, holder: Holder) -> Task:
    """Move the claim of the same life to the lease of its new process."""
    return task.model_copy(update={"lease": holder.lease, "lease_number": holder.lease_number})


_NO_LEASE: Mapping[str, object] = MappingProxyType({"lease": "", "lease_number": 0})
_NOBODY: Mapping[str, object] = MappingProxyType({"owner": None, "owner_incarnation": 0, **_NO_LEASE})
_ABOVE = frozenset({PERSON, LEAD})


def _subject(text: str) -> str:
    subject = " ".join(text.split())
    if not subject:
        raise ToolRefused("subject: a task needs one line that says what is to be done")
    return subject


def _blocked_by(task_id: str, requested: Sequence[str], board: Tasks) -> tuple[str, ...]:
    """Return the ids without duplicates, in the given order.

    Refused: the task itself, and ids that are not on the board.
    """
    ids = tuple(dict.fromkeys(requested))
    if task_id in ids:
        raise ToolRefused(f"blocked_by: {task_id} cannot wait for itself")
    unknown = [other for other in ids if other not in board]
    if unknown:
        existing = some_ids(board.values()) or "none yet: create those it waits for first"
        raise ToolRefused(f"blocked_by: no task {', '.join(unknown)}; on the board: {existing}")
    return ids


def _new_blockers(task: Task, requested: Sequence[str], board: Tasks) -> tuple[str, ...]:
    ids = _blocked_by(task.id, requested, board)
    for other in ids:
        if task.id in behind([other], board):
            raise ToolRefused(f"blocked_by: {other} waits for {task.id} already, so neither could ever be claimed")
    if task.status == "in_progress" and set(ids) - set(task.blocked_by):
        raise ToolRefused(f"{task.id} is in progress: release it before it waits for another task")
    return ids


def _refuse_ended(task: Task) -> None:
    if task.status in ENDED:
        raise ToolRefused(f"{task.id} is {task.status} and does not change again: create a new task")


def _refuse_foreign(task: Task, holder: Holder, act: str) -> None:
    if task.status != "in_progress":
        hint = ": claim it first" if task.status == "pending" else ""
        raise ToolRefused(f"cannot {act} {task.id}: it is {task.status}{hint}")
    if not holder.holds(task):
        whose = f"an earlier {task.owner}" if task.owner == holder.name else task.owner
        raise ToolRefused(f"cannot {act} {task.id}: it is held by {whose}, and only its owner may")


def _check(text: str) -> str:
    check = text.strip()
    if "\0" in check or len(check) > _LONGEST_CHECK:
        raise ToolRefused(f"check: write one command line of at most {_LONGEST_CHECK} characters; a script is a file")
    return check


def _refuse_check(task: Task, by: str) -> None:
    if task.status == "in_progress" and by == task.owner and by != PERSON:
        raise ToolRefused(f"{task.id} is held by you: an owner may not change the check that it has to pass")
    _refuse_stranger(task, by, "change the check of")
    if task.check and _rank(task.check_by) > _rank(by):
        raise ToolRefused(f"cannot change the check of {task.id}: {task.check_by} has set it")


def _rank(name: str) -> int:
    """Return the rank for overruling others: the user, then the lead, then all others."""
    return {PERSON: 2, LEAD: 1}.get(name, 0)


def _refuse_stranger(task: Task, by: str, act: str) -> None:
    if by not in {*_ABOVE, task.created_by}:
        raise ToolRefused(f"cannot {act} {task.id}: only the lead or {task.created_by}, who created it, may")


def _task_hint(board: Tasks) -> str:
    """Return a hint for an agent whose claim came too late."""
    tasks = ready(board)[:5]
    return "; ready now: " + ", ".join(task.id for task in tasks) if tasks else "; no task is ready now"


def ready_for(board: Tasks, holder: Holder) -> list[Task]:
    """Return the ready tasks that this agent claims by itself: those reserved for it first, then the oldest."""
    tasks = (task for task in ready(board) if _takes(holder, task))
    return sorted(tasks, key=lambda task: not task.reserved_for)


def offers(board: Tasks, waiting: Iterable[Holder], offered: Collection[str] = ()) -> dict[str, str]:
    """Choose the agents to wake for ready tasks: one waiting agent for each task that an agent claims by itself.

    `offered`: tasks for which an agent was already woken. `waiting` is iterated only as far as needed.
    """
    coming = iter(waiting)
    passed = list[Holder]()
    chosen = dict[str, str]()
    for task in (candidate for candidate in ready(board) if candidate.id not in offered):
        taker = next((holder for holder in passed if _takes(holder, task)), None)
        if taker is not None:
            passed.remove(taker)
        else:
            taker = _next_taker(coming, passed, task)
        if taker is not None:
            chosen[taker.name] = task.id
    return chosen


def _takes(holder: Holder, task: Task) -> bool:
    return fits(task, holder) and (holder.picks or bool(task.reserved_for))


def _next_taker(coming: Iterator[Holder], passed: list[Holder], task: Task) -> Holder | None:
    """Return the next agent that takes the task; those before it are added to `passed`."""
    for holder in coming:
        if _takes(holder, task):
            return holder
        passed.append(holder)
    return None
