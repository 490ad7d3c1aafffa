"""Cache of the session's rows in this process: tasks, requests, agents, schedules, each with its revision.

It follows the store and also takes this process's own commits at once. An older revision never replaces a newer one, so
both ways may race. It is read-only: writers commit with the revision of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from callboard.core.decoding import read_value
from callboard.core.keys import rows_prefix
from callboard.core.scheduling.budget import unreadable
from callboard.core.tasks.board import ENDED
from callboard.ports.store import Row
from callboard.types.errors import SessionUnreadable
from callboard.types.records import AgentRow, Request, SessionRule, Task, Value
from callboard.types.schedules import Schedule

_KINDS: dict[str, type[Value]] = {
    "agent": AgentRow,
    "task": Task,
    "request": Request,
    "schedule": Schedule,
    "rule": SessionRule,
}
_BUSY = frozenset({"starting", "working"})
_V = TypeVar("_V", bound=Value)


def _value(kind: str, name: str, row: Row) -> Value:
    """Return a row's value. A schedule that cannot be read becomes a paused one with the reason, so that it affects
    nothing else. Raises `SessionUnreadable` for a row of any other kind."""
    try:
        return read_value(_KINDS[kind], row.value or b"", row.key)
    except SessionUnreadable as wrong:
        if kind != "schedule":
            raise
        return unreadable(name, "a newer Callboard wrote it" if wrong.newer else str(wrong))


class SessionBoard:
    """Cache of rows. Implements the port `Board`. `changed(kind, id)` is called after each change, in the caller's
    thread."""

    def __init__(self, session: str, changed: Callable[[str, str], None]) -> None:
        self._prefix = rows_prefix(session)
        self._changed = changed
        self._rows: dict[str, dict[str, tuple[Value, int]]] = {kind: {} for kind in _KINDS}
        self._revisions: dict[str, int] = {}
        self._open_tasks: dict[str, Task] = {}
        """Tasks that may still change. A board with thousands of finished tasks does not slow down a step."""

    def take(self, *rows: Row) -> None:
        """Apply new rows of the store: first all of them, then call `changed` for each, so that no reader sees half a
        commit."""
        for kind, name in [news for row in rows if (news := self._changed_row(row))]:
            self._changed(kind, name)

    def _changed_row(self, row: Row) -> tuple[str, str] | None:
        """Return the kind and the id of a row that is new."""
        kind, _, name = row.key.removeprefix(self._prefix).partition("/")
        # A commit of this process is applied at once, and the watch delivers it again, perhaps after a newer one.
        if kind not in _KINDS or row.revision <= self._revisions.get(row.key, 0):
            return None
        self._revisions[row.key] = row.revision
        value = None if row.value is None else _value(kind, name, row)
        if value is None:
            self._rows[kind].pop(name, None)
        else:
            self._rows[kind][name] = (value, row.revision)
        # Each step of each agent looks at these, and a board can have thousands of ended tasks
        # (test_an_agents_step_looks_at_no_task_that_has_ended).
        if isinstance(value, Task) and value.status not in ENDED:
            self._open_tasks[name] = value
        elif kind == "task":
            self._open_tasks.pop(name, None)
        return kind, name

    def agent(self, name: str) -> tuple[AgentRow, int] | None:
        return self._typed("agent", name, AgentRow)

    def agents(self) -> Sequence[AgentRow]:
        """Return the agents in order of creation."""
        return sorted(self._all("agent", AgentRow), key=lambda agent: (agent.created_at, agent.name))

    def mates_at_work(self, name: str) -> bool:
        """Return True if another agent of the team has a turn in progress."""
        rows = (value for value, _ in self._rows["agent"].values() if isinstance(value, AgentRow))
        return any(row.life in _BUSY and row.kind != "subagent" and row.name != name for row in rows)

    def task(self, task_id: str) -> tuple[Task, int] | None:
        return self._typed("task", task_id, Task)

    def tasks(self) -> Sequence[Task]:
        """Return all tasks, oldest first."""
        return sorted(self._all("task", Task), key=lambda task: (task.created_at, task.id))

    def open_tasks(self) -> Sequence[Task]:
        """Return the tasks that have not ended (pending, in progress, failed), oldest first."""
        return sorted(self._open_tasks.values(), key=lambda task: (task.created_at, task.id))

    def at_stake(self) -> dict[str, Task]:
        """Return the open tasks and their dependencies, by id: everything that decides which tasks may be claimed."""
        tasks = {task.id: task for task in self.open_tasks()}
        for task in tuple(tasks.values()):
            for other in task.blocked_by:
                row = None if other in tasks else self.task(other)
                if row is not None:
                    tasks[other] = row[0]
        return tasks

    def request(self, request_id: str) -> tuple[Request, int] | None:
        return self._typed("request", request_id, Request)

    def requests(self) -> Sequence[Request]:
        """Return all requests, oldest first."""
        return sorted(self._all("request", Request), key=lambda request: (request.created_at, request.id))

    def rule(self, rule_id: str) -> tuple[SessionRule, int] | None:
        return self._typed("rule", rule_id, SessionRule)

    def rules(self) -> Sequence[SessionRule]:
        """Return all session rules, oldest first."""
        return sorted(self._all("rule", SessionRule), key=lambda rule: (rule.created_at, rule.id))

    def schedule(self, schedule_id: str) -> tuple[Schedule, int] | None:
        return self._typed("schedule", schedule_id, Schedule)

    def schedule_row(self, schedule_id: str) -> Schedule | None:
        """Return the row without its revision, for readers."""
        match = self.schedule(schedule_id)
        return match[0] if match else None

    def schedules(self) -> Sequence[Schedule]:
        """Return all schedules, oldest first."""
        return sorted(self._all("schedule", Schedule), key=lambda schedule: (schedule.created_at, schedule.id))

    def _typed(self, kind: str, name: str, of: type[_V]) -> tuple[_V, int] | None:
        entry = self._rows[kind].get(name)
        if entry is None or not isinstance(entry[0], of):
            return None
        return entry[0], entry[1]

    def _all(self, kind: str, of: type[_V]) -> list[_V]:
        return [value for value, _ in self._rows[kind].values() if isinstance(value, of)]
