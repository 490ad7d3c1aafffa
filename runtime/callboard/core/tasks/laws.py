"""The task board's laws: who may claim, complete, fail, release and change a task, and what that frees. Pure.

1. A task in progress has one owner, a life of a name; only that life completes, fails or releases it. The lead and the
   person may take it away and give it to another.
2. A teammate has one task in progress at a time.
3. Only a completed task lifts what it blocks; a completed or cancelled one never changes again.
4. `blocked_by` names tasks that there are, and never comes round to the task itself.
5. A task with a check is completed only by whoever says that this very command has passed; the owner that is to pass it
   never changes it, and nobody changes one that was set by a higher one (person, lead, creator).
6. A task that is kept for an agent is claimed by nobody else.

Each change returns the new task, to be written with the revision it was read at: of two claims one loses the
compare-and-swap. What breaks a law is refused with a `ToolRefused` that says what to do instead.

    pending -> in_progress (claim) -> completed | failed | pending (release, assign, its owner is gone)
    pending -> cancelled        failed -> pending (reopen) | cancelled
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from callboard.core.bus.authority import weaker
from callboard.core.tasks.file_claims import normal_paths
from callboard.words.errors import ToolRefused
from callboard.words.values import Cause, Task

Tasks = Mapping[str, Task]
"""The board: every task of the session by its id."""
MOST_ATTEMPTS = 3
"""Claims of one task until an owner that could not go on leaves it failed: the lead or a person looks at it then."""
PERSON, LEAD = "person", "lead"
_LONGEST_CHECK = 4_000
"""Characters of a check: one command line, no script."""


@dataclass(frozen=True, slots=True)
class Holder:
    """One life of a name: a new `alice` does not hold what the old one held."""

    name: str
    incarnation: int = 1
    lease: str = ""
    """The lease of the process that it lives in, and its number; empty in a world without leases."""
    lease_number: int = 0
    shell: bool = True
    """It may run commands: without that it takes no task with a check."""
    picks: bool = True
    """It takes open tasks by itself when it is idle, not only those that are kept for it."""

    def holds(self, task: Task) -> bool:
        """Whether `task` is in progress in the hands of this life."""
        return task.status == "in_progress" and (task.owner, task.owner_incarnation) == (self.name, self.incarnation)


@dataclass(frozen=True, slots=True)
class Change:
    """What `update` is asked to change; None leaves a field as it is."""

    subject: str | None = None
    description: str | None = None
    blocked_by: tuple[str, ...] | None = None
    """The whole new list."""
    files: tuple[str, ...] | None = None
    """The whole new list."""
    check: str | None = None
    """The new command; empty: none any more."""
    cause: Cause = "person"
    """The authority of who changes it: a task never claims more than anybody who said what it is."""


def by_id(tasks: Iterable[Task]) -> dict[str, Task]:
    """The board of some tasks."""
    return {task.id: task for task in tasks}


def blockers(task: Task, board: Tasks) -> tuple[str, ...]:
    """What `task` still waits for: those of its `blocked_by` that are not completed."""
    return tuple(other for other in task.blocked_by if other not in board or board[other].status != "completed")


def is_ready(task: Task, board: Tasks) -> bool:
    """Whether anybody may claim it now."""
    return task.status == "pending" and not blockers(task, board)


def ready(board: Tasks) -> list[Task]:
    """The tasks that may be claimed, oldest first."""
    found = (task for task in board.values() if is_ready(task, board))
    return sorted(found, key=lambda task: (task.created_at, task.id))


def fits(task: Task, holder: Holder) -> bool:
    """Whether this agent may be the one: it is kept for nobody else, and its check can be run by it."""
    return task.reserved_for in {"", holder.name} and (holder.shell or not task.check)


def held_by(board: Tasks, holder: Holder) -> list[Task]:
    """The tasks that this life has in progress, oldest first."""
    found = (task for task in board.values() if holder.holds(task))
    return sorted(found, key=lambda task: (task.created_at, task.id))


def unblocked_by(done: Task, board: Tasks) -> list[Task]:
    """The tasks that the completion of `done` makes ready. `board` may still hold `done` as it was."""
    after = {**board, done.id: done}
    return [task for task in ready(after) if done.id in task.blocked_by]


def waiting_for(task: Task, board: Tasks) -> list[Task]:
    """The tasks that name `task` in their `blocked_by` and have not ended."""
    return [other for other in board.values() if task.id in other.blocked_by and other.status in {"pending", "failed"}]


def behind(blocked_by: Iterable[str], board: Tasks) -> tuple[str, ...]:
    """Everything that these wait for, themselves included, in a fixed order.

    Whoever adds a dependency writes these rows too, unchanged: then two changes that together would close a circle
    meet in a row, and one of them loses.
    """
    seen: dict[str, None] = {}
    left = list(blocked_by)
    while left:
        task_id = left.pop()
        if task_id not in seen and task_id in board:
            seen[task_id] = None
            left.extend(board[task_id].blocked_by)
    return tuple(sorted(seen))


def create(task: Task, board: Tasks) -> Task:
    """A new pending task. Refused: no subject, an unknown id in `blocked_by`, an id that there is already, files that
    are no paths of the workspace, a check that is no command line."""
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


def update(task: Task, change: Change, board: Tasks, now: float, by: str = LEAD) -> Task:
    """Change what a task says, waits for, touches or must pass, while it has not ended. `by`: who changes it."""
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
    """Keep a task for one agent (`to` empty: for anybody again), and take it from whoever has it in progress.

    What is in progress is taken by the lead or the person alone; a pending one is also its creator's to give.
    """
    _refuse_ended(task)
    if task.status == "failed":
        raise ToolRefused(f"{task.id} has failed: open it for another try (status 'pending') to give it to somebody")
    if task.status == "in_progress":
        if by not in _ABOVE:
            raise ToolRefused(f"{task.id} is in the hands of {task.owner}: only the lead or the person takes it away")
        if to == task.owner:
            raise ToolRefused(f"{task.id} is in the hands of {to} already")
        task = free(task, now, f"{by} took it from {task.owner} before it was done.")
    else:
        _refuse_stranger(task, by, "give away")
    return task.model_copy(update={"reserved_for": to, "updated_at": now})


def cancel(task: Task, by: str, now: float) -> Task:
    """Nobody needs it any more: for the lead or who created it, while nobody works on it."""
    _refuse_ended(task)
    _refuse_stranger(task, by, "cancel")
    if task.status == "in_progress":
        raise ToolRefused(f"{task.id} is in progress: {task.owner} must release it first, or it is taken from it")
    return task.model_copy(update={"status": "cancelled", "updated_at": now, "reserved_for": "", **_NOBODY})


def reopen(task: Task, by: str, now: float) -> Task:
    """Another try at a failed task, by the lead or who created it; what the last try said stays in `result`."""
    if task.status != "failed":
        raise ToolRefused(f"{task.id} is {task.status}: only a failed task is reopened")
    _refuse_stranger(task, by, "reopen")
    return task.model_copy(update={"status": "pending", "updated_at": now, **_NOBODY})


def claim(task: Task, holder: Holder, board: Tasks, now: float, *, one_at_a_time: bool = True) -> Task:
    """Take a ready task. `one_at_a_time`: refused while the claimer has another one in progress (teammates)."""
    if task.status == "in_progress":
        whose = "yours already" if holder.holds(task) else f"held by {task.owner}"
        raise ToolRefused(f"{task.id} is {whose}{_others(board)}")
    if task.status != "pending":
        raise ToolRefused(f"{task.id} is {task.status}{_others(board)}")
    if waits := blockers(task, board):
        raise ToolRefused(f"{task.id} waits for {', '.join(waits)}{_others(board)}")
    if task.reserved_for not in {"", holder.name}:
        raise ToolRefused(f"{task.id} is kept for {task.reserved_for}{_others(board)}")
    if not fits(task, holder):
        raise ToolRefused(f"{task.id} has a check, which is a command, and you may run none{_others(board)}")
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
    """Raise `ToolRefused` when this life may not complete it, whatever a check says."""
    _refuse_foreign(task, holder, "complete")


def complete(
    task: Task, holder: Holder, now: float, result: str = "", evidence: str = "", passed: str | None = None
) -> Task:
    """It is done. `evidence`: what shows that (a test run, a file). `passed`: the check that was run, and passed."""
    may_complete(task, holder)
    if task.check and task.check != passed:
        changed = passed is not None
        why = "its check was changed while you ran the old one" if changed else "its check has not passed"
        raise ToolRefused(f"{task.id} is not completed: {why}. Call complete_task again, which runs it")
    updates = {"status": "completed", "result": result or None, "evidence": evidence or None, "updated_at": now}
    return task.model_copy(update={**updates, **_NO_LEASE})


def fail(task: Task, holder: Holder, now: float, why: str) -> Task:
    """It cannot be done as it stands; what it blocks stays blocked."""
    _refuse_foreign(task, holder, "fail")
    return task.model_copy(update={"status": "failed", "result": why, "updated_at": now, **_NO_LEASE})


def release(task: Task, holder: Holder, now: float, note: str = "") -> Task:
    """Give it back to the board; `note` tells the next one how far it came."""
    _refuse_foreign(task, holder, "release")
    return free(task, now, note)


def free(task: Task, now: float, note: str = "") -> Task:
    """Take a task in progress from an owner that is gone: the runtime's own act, never a tool's."""
    if task.status != "in_progress":
        raise ToolRefused(f"{task.id} is {task.status}: nobody holds it")
    updates: dict[str, object] = {"status": "pending", "updated_at": now, **_NOBODY}
    if note:
        updates["result"] = note
    return task.model_copy(update=updates)


def give_back(task: Task, now: float, note: str) -> Task:
    """Take it from an owner that could not go on: back to the board, or failed when too many have tried it. One that is
    opened again has as many tries as at first."""
    if task.attempts % MOST_ATTEMPTS:
        return free(task, now, note)
    return task.model_copy(update={"status": "failed", "result": note, "updated_at": now, **_NO_LEASE})


def take_up(task: Task, holder: Holder) -> Task:
    """The same life goes on in another process: the claim is under that one's lease from now on."""
    return task.model_copy(update={"lease": holder.lease, "lease_number": holder.lease_number})


_NO_LEASE: Mapping[str, object] = MappingProxyType({"lease": "", "lease_number": 0})
_NOBODY: Mapping[str, object] = MappingProxyType({"owner": None, "owner_incarnation": 0, **_NO_LEASE})
_ABOVE = frozenset({PERSON, LEAD})


def _subject(text: str) -> str:
    subject = " ".join(text.split())
    if not subject:
        raise ToolRefused("subject: a task needs one line that says what is to be done")
    return subject


def _blocked_by(task_id: str, wanted: Sequence[str], board: Tasks) -> tuple[str, ...]:
    """The ids, each once, in the order given. Refused: the task itself, and ids that are not on the board."""
    ids = tuple(dict.fromkeys(wanted))
    if task_id in ids:
        raise ToolRefused(f"blocked_by: {task_id} cannot wait for itself")
    unknown = [other for other in ids if other not in board]
    if unknown:
        known = ", ".join(board) or "none yet: create those it waits for first"
        raise ToolRefused(f"blocked_by: no task {', '.join(unknown)}; on the board: {known}")
    return ids


def _new_blockers(task: Task, wanted: Sequence[str], board: Tasks) -> tuple[str, ...]:
    ids = _blocked_by(task.id, wanted, board)
    for other in ids:
        if task.id in behind([other], board):
            raise ToolRefused(f"blocked_by: {other} waits for {task.id} already, so neither could ever be claimed")
    if task.status == "in_progress" and set(ids) - set(task.blocked_by):
        raise ToolRefused(f"{task.id} is in progress: release it before it waits for another task")
    return ids


def _refuse_ended(task: Task) -> None:
    if task.status in {"completed", "cancelled"}:
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
        raise ToolRefused(f"{task.id} is in your hands: who is to pass a check does not change it")
    _refuse_stranger(task, by, "change the check of")
    if task.check and _rank(task.check_by) > _rank(by):
        raise ToolRefused(f"cannot change the check of {task.id}: {task.check_by} has set it")


def _rank(name: str) -> int:
    """Who may overrule whom: the person, then the lead, then everybody else."""
    return {PERSON: 2, LEAD: 1}.get(name, 0)


def _refuse_stranger(task: Task, by: str, act: str) -> None:
    if by not in {*_ABOVE, task.created_by}:
        raise ToolRefused(f"cannot {act} {task.id}: only the lead or {task.created_by}, who created it, may")


def _others(board: Tasks) -> str:
    """A hint for who came too late."""
    found = ready(board)[:5]
    return "; ready now: " + ", ".join(task.id for task in found) if found else "; no task is ready now"
