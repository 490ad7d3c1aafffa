"""The session's rows as this process knows them: tasks, requests, agents, schedules, each with its revision.

A mirror of the store: filled by following it, and at once by this process's own commits. An older revision never
replaces a newer one, so the two ways in may race. It only reads; whoever changes a row commits with its revision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from callboard.core.names import rows_prefix
from callboard.core.schedule.spending import unreadable
from callboard.ports.store import Row
from callboard.words.schedules import Schedule
from callboard.words.values import AgentRow, Request, SessionRule, Task, Value

_KINDS: dict[str, type[Value]] = {
    "agent": AgentRow,
    "task": Task,
    "request": Request,
    "schedule": Schedule,
    "rule": SessionRule,
}
_V = TypeVar("_V", bound=Value)


def _value(kind: str, name: str, value: bytes) -> Value:
    """A row's value. A schedule that cannot be read stands there as one that is paused, with the reason: it takes
    nothing else down. Raises `ValueError` for a row of any other kind."""
    try:
        return _KINDS[kind].model_validate_json(value)
    except ValueError as wrong:
        if kind != "schedule":
            raise
        return unreadable(name, " ".join(str(wrong).split())[:200])


class SessionBoard:
    """Implements the port `Board`. `changed(kind, id)` is called after each change, in the caller's thread."""

    def __init__(self, session: str, changed: Callable[[str, str], None]) -> None:
        self._prefix = rows_prefix(session)
        self._changed = changed
        self._rows: dict[str, dict[str, tuple[Value, int]]] = {kind: {} for kind in _KINDS}
        self._revisions: dict[str, int] = {}

    def take(self, *rows: Row) -> None:
        """Heed rows of the store, those that are news: first all, then `changed` for each, so that nobody who looks
        sees half a commit."""
        for kind, name in [news for row in rows if (news := self._kept(row))]:
            self._changed(kind, name)

    def _kept(self, row: Row) -> tuple[str, str] | None:
        """The kind and the id of a row that is news."""
        kind, _, name = row.key.removeprefix(self._prefix).partition("/")
        if kind not in _KINDS or row.revision <= self._revisions.get(row.key, 0):
            return None
        self._revisions[row.key] = row.revision
        if row.value is None:
            self._rows[kind].pop(name, None)
        else:
            self._rows[kind][name] = (_value(kind, name, row.value), row.revision)
        return kind, name

    def agent(self, name: str) -> tuple[AgentRow, int] | None:
        return self._one("agent", name, AgentRow)

    def agents(self) -> Sequence[AgentRow]:
        """In the order in which they were made."""
        return sorted(self._all("agent", AgentRow), key=lambda one: (one.created_at, one.name))

    def task(self, task_id: str) -> tuple[Task, int] | None:
        return self._one("task", task_id, Task)

    def tasks(self) -> Sequence[Task]:
        """Oldest first."""
        return sorted(self._all("task", Task), key=lambda one: (one.created_at, one.id))

    def request(self, request_id: str) -> tuple[Request, int] | None:
        return self._one("request", request_id, Request)

    def requests(self) -> Sequence[Request]:
        """Oldest first."""
        return sorted(self._all("request", Request), key=lambda one: (one.created_at, one.id))

    def rule(self, rule_id: str) -> tuple[SessionRule, int] | None:
        return self._one("rule", rule_id, SessionRule)

    def rules(self) -> Sequence[SessionRule]:
        """Oldest first."""
        return sorted(self._all("rule", SessionRule), key=lambda one: (one.created_at, one.id))

    def schedule(self, schedule_id: str) -> tuple[Schedule, int] | None:
        return self._one("schedule", schedule_id, Schedule)

    def schedule_row(self, schedule_id: str) -> Schedule | None:
        """The row without its revision, for who only reads it."""
        found = self.schedule(schedule_id)
        return found[0] if found else None

    def schedules(self) -> Sequence[Schedule]:
        """Oldest first."""
        return sorted(self._all("schedule", Schedule), key=lambda one: (one.created_at, one.id))

    def _one(self, kind: str, name: str, of: type[_V]) -> tuple[_V, int] | None:
        found = self._rows[kind].get(name)
        if found is None or not isinstance(found[0], of):
            return None
        return found[0], found[1]

    def _all(self, kind: str, of: type[_V]) -> list[_V]:
        return [value for value, _ in self._rows[kind].values() if isinstance(value, of)]
