"""Cache of the session's rows in this process: tasks, requests, agents and schedules, each with its revision.

The cache follows the store and also applies this process's own commits at once. An older revision never replaces a
newer one, so the order in which the two arrive does not matter. The cache is read-only: writers commit with the
revision of a row.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

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
_Sum = TypeVar("_Sum")


def _value(kind: str, name: str, row: Row) -> Value:
    """Return a row's value.

    A schedule that cannot be read becomes a paused one with the reason, so that it affects nothing else. Raises
    `SessionUnreadable` for a row of any other kind.
    """
    try:
        return read_value(_KINDS[kind], row.value or b"", row.key)
    except SessionUnreadable as wrong:
        if kind != "schedule":
            raise
        return unreadable(name, "a newer Callboard wrote it" if wrong.newer else str(wrong))


class RowCache:
    """Cache of rows.

    Implements the port `Board`. `changed(kind, id)` is called after each change, in the caller's thread.
    """

    def __init__(self, session: str, changed: Callable[[str, str], None]) -> None:
        self._prefix = rows_prefix(session)
        self._changed = changed
        self._rows: dict[str, dict[str, tuple[Any, int]]] = {kind: {} for kind in _KINDS}
        """Value and revision of each row, by kind and name. All values of a kind have its class in `_KINDS`."""
        self._revisions: dict[str, int] = {}
        self._open_tasks: dict[str, Task] = {}
        """Tasks that may still change. A board with thousands of finished tasks does not slow down a step."""
        self._pending: dict[str, Request] = {}
        """Requests that wait for an answer."""
        self._living: dict[str, AgentRow] = {}
        """Agents that have not ended. A team with thousands of ended agents does not slow down a screen."""
        self._mates: dict[str, AgentRow] = {}
        """Those of them that are no subagents."""
        self._ended: list[tuple[float, str]] = []
        """End and name of each ended agent, in this order."""
        self._ends: list[str] = []
        """Names of agents in the order in which this cache learned their ends."""
        self.restarts = 0
        """Number of rows of ended agents that changed later: a new life of the name began."""
        self._subagents: dict[str, list[tuple[float, str]]] = {}
        """Start and name of each subagent, in this order, by agent type."""
        self._children: dict[str, set[str]] = {}
        """Names of the agents that each agent started."""

    def take(self, *rows: Row, agent: AgentRow | None = None) -> None:
        """Apply new rows of the store: first all of them, then call `changed` for each.

        In this order no reader sees half of a commit. `agent`: the value of the agent's row among them, which is then
        not decoded.
        """
        for kind, name in [news for row in rows if (news := self._changed_row(row, agent))]:
            self._changed(kind, name)

    def _changed_row(self, row: Row, agent: AgentRow | None) -> tuple[str, str] | None:
        """Return the kind and the id of a row that is new."""
        kind, _, name = row.key.removeprefix(self._prefix).partition("/")
        # A commit of this process is applied at once, and the watch delivers it again, perhaps after a newer one.
        if kind not in _KINDS or row.revision <= self._revisions.get(row.key, 0):
            return None
        self._revisions[row.key] = row.revision
        if kind == "agent" and agent is not None and agent.name == name:
            value = agent
        else:
            value = None if row.value is None else _value(kind, name, row)
        if kind == "agent":
            before = self._rows[kind].get(name)
            self._index_agent(name, before[0] if before else None, value)
        elif kind == "request":
            self._index_request(name, value)
        if value is None:
            self._rows[kind].pop(name, None)
        else:
            self._rows[kind][name] = (value, row.revision)
        # Each step of each agent reads these, and a board can have thousands of finished tasks
        # (test_an_agents_step_looks_at_no_task_that_has_ended).
        if isinstance(value, Task) and value.status not in ENDED:
            self._open_tasks[name] = value
        elif kind == "task":
            self._open_tasks.pop(name, None)
        return kind, name

    def revision(self, key: str) -> int:
        """Return the revision of a row of this cache; 0 for one that it never had."""
        return self._revisions.get(key, 0)

    def value(self, key: str) -> Value | None:
        """Return the value of a row of this cache, by its key in the store."""
        kind, _, name = key.removeprefix(self._prefix).partition("/")
        return self._rows[kind].get(name, (None, 0))[0]

    def has(self, row: Row) -> bool:
        """Return True if this cache has the value of a row. Raises `SessionUnreadable`."""
        kind, _, name = row.key.removeprefix(self._prefix).partition("/")
        return self.value(row.key) == (None if row.value is None else _value(kind, name, row))

    def _index_agent(self, name: str, before: Value | None, now: Value | None) -> None:
        """Update the lists of agents, and number a new subagent."""
        if isinstance(before, AgentRow):
            self._remove_agent(name, before)
        if isinstance(now, AgentRow):
            self._add_agent(name, now)
        began = (before.agent_type, before.created_at) if isinstance(before, AgentRow) else None
        begins = (now.agent_type, now.created_at) if isinstance(now, AgentRow) else None
        if began == begins:
            return
        if began is not None and (began[1], name) in (numbered := self._subagents.get(began[0], [])):
            numbered.remove((began[1], name))
        if isinstance(now, AgentRow) and now.kind == "subagent":
            insort(self._subagents.setdefault(now.agent_type, []), (now.created_at, name))

    def _remove_agent(self, name: str, row: AgentRow) -> None:
        self._living.pop(name, None)
        self._mates.pop(name, None)
        if row.life == "stopped":
            del self._ended[bisect_left(self._ended, (row.since, name))]
            self._ends.remove(name)
            self.restarts += 1
        if row.parent:
            self._children[row.parent].discard(name)

    def _add_agent(self, name: str, row: AgentRow) -> None:
        if row.life == "stopped":
            insort(self._ended, (row.since, name))
            self._ends.append(name)
        else:
            self._living[name] = row
            if row.kind != "subagent":
                self._mates[name] = row
        if row.parent:
            self._children.setdefault(row.parent, set()).add(name)

    def _index_request(self, name: str, now: Value | None) -> None:
        if isinstance(now, Request) and now.status == "pending":
            self._pending[name] = now
        else:
            self._pending.pop(name, None)

    def agent(self, name: str) -> tuple[AgentRow, int] | None:
        return self._rows["agent"].get(name)

    def agents(self) -> Sequence[AgentRow]:
        """Return the agents in order of creation."""
        return sorted(self._all("agent"), key=lambda agent: (agent.created_at, agent.name))

    def living_agents(self) -> Sequence[AgentRow]:
        """Return the agents that have not ended, in order of creation."""
        return sorted(self._living.values(), key=lambda agent: (agent.created_at, agent.name))

    @property
    def ended_count(self) -> int:
        """Return the number of ended agents."""
        return len(self._ended)

    def newest_ended(self, count: int) -> Sequence[AgentRow]:
        """Return the ended agents that ended last, newest first."""
        return self._agents_named(name for _, name in self._ended[-count:][::-1])

    def ends_after(self, count: int) -> Sequence[AgentRow]:
        """Return the ended agents in the order in which their ends became known, without the first `count` ends."""
        return self._agents_named(self._ends[count:])

    def _agents_named(self, names: Iterable[str]) -> list[AgentRow]:
        return [row[0] for name in names if (row := self.agent(name)) is not None]

    def children(self, parent: str) -> Sequence[AgentRow]:
        """Return the agents that an agent started, in order of creation."""
        rows = self._agents_named(self._children.get(parent, ()))
        return sorted(rows, key=lambda agent: (agent.created_at, agent.name))

    def label(self, name: str) -> str:
        """Return the name of an agent for people: `explore 2` for the second subagent of its type by age."""
        row = self.agent(name)
        if row is None or row[0].kind != "subagent" or not row[0].agent_type:
            return name
        numbered = self._subagents[row[0].agent_type]
        return f"{row[0].agent_type} {bisect_left(numbered, (row[0].created_at, name)) + 1}"

    def name_of_label(self, label: str) -> str:
        """Return the name of the agent with this label; the text itself if there is none."""
        agent_type, _, number = label.rpartition(" ")
        numbered = self._subagents.get(agent_type, [])
        place = int(number) if number.isdecimal() and number.isascii() else 0
        return numbered[place - 1][1] if 0 < place <= len(numbered) else label

    def mates_at_work(self, name: str) -> bool:
        """Return True if another agent of the team has a turn in progress."""
        return any(row.life in _BUSY and row.name != name for row in self._mates.values())

    def task(self, task_id: str) -> tuple[Task, int] | None:
        return self._rows["task"].get(task_id)

    def tasks(self) -> Sequence[Task]:
        """Return all tasks, oldest first."""
        return sorted(self._all("task"), key=lambda task: (task.created_at, task.id))

    def open_tasks(self) -> Sequence[Task]:
        """Return the tasks that have not ended (pending, in progress, failed), oldest first."""
        return sorted(self._open_tasks.values(), key=lambda task: (task.created_at, task.id))

    def at_stake(self) -> dict[str, Task]:
        """Return the open tasks and their dependencies, by id. They decide which tasks may be claimed."""
        tasks = {task.id: task for task in self.open_tasks()}
        for task in tuple(tasks.values()):
            for other in task.blocked_by:
                row = None if other in tasks else self.task(other)
                if row is not None:
                    tasks[other] = row[0]
        return tasks

    def request(self, request_id: str) -> tuple[Request, int] | None:
        return self._rows["request"].get(request_id)

    def requests(self) -> Sequence[Request]:
        """Return all requests, oldest first."""
        return sorted(self._all("request"), key=lambda request: (request.created_at, request.id))

    def pending_requests(self) -> Sequence[Request]:
        """Return the requests that wait for an answer, oldest first."""
        return sorted(self._pending.values(), key=lambda request: (request.created_at, request.id))

    def rule(self, rule_id: str) -> tuple[SessionRule, int] | None:
        return self._rows["rule"].get(rule_id)

    def rules(self) -> Sequence[SessionRule]:
        """Return all session rules, oldest first."""
        return sorted(self._all("rule"), key=lambda rule: (rule.created_at, rule.id))

    def schedule(self, schedule_id: str) -> tuple[Schedule, int] | None:
        return self._rows["schedule"].get(schedule_id)

    def schedule_row(self, schedule_id: str) -> Schedule | None:
        """Return the row without its revision, for readers."""
        match = self.schedule(schedule_id)
        return match[0] if match else None

    def schedules(self) -> Sequence[Schedule]:
        """Return all schedules, oldest first."""
        return sorted(self._all("schedule"), key=lambda schedule: (schedule.created_at, schedule.id))

    def _all(self, kind: str) -> list[Any]:
        return [value for value, _ in self._rows[kind].values()]


class EndedAgentsSum(Generic[_Sum]):
    """Sum over the ended agents. Each of them is added once, so that a screen may read the sum often."""

    def __init__(self, rows: RowCache, nothing: _Sum, add: Callable[[_Sum, AgentRow], _Sum]) -> None:
        self._rows = rows
        self._nothing = nothing
        self._add = add
        self._sum = nothing
        self._counted = 0
        """Number of ends that are in the sum."""
        self._restarts = 0

    def now(self) -> _Sum:
        """Return the sum over the agents that have ended so far."""
        if self._restarts != self._rows.restarts:
            self._restarts = self._rows.restarts
            self._sum = self._nothing
            self._counted = 0
        for row in self._rows.ends_after(self._counted):
            self._sum = self._add(self._sum, row)
            self._counted += 1
        return self._sum
