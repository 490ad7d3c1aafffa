"""Rows of a session that people and programs list: the columns, the JSON form and the texts of each, declared once.

A command (`callboard tasks`), a slash command (`/tasks`) and a tool of `callboard mcp serve` show the same rows. Each
takes the cells or the JSON from here and only lays them out. This module knows no screen. Pure.

A row contains everything that its texts need. If that is more than the stored record, such as the board around a task
or the time, the row is one of the classes here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel

from callboard.core.approvals.session_rules import end_state
from callboard.core.reports.receipts import Receipt
from callboard.core.reports.spending import usage_words
from callboard.core.scheduling.cron import CronInvalid
from callboard.core.scheduling.history import next_fires
from callboard.core.scheduling.trigger import when_of
from callboard.core.tasks.board import Tasks, blockers, is_ready
from callboard.sessions.inspect.health import ListedSession
from callboard.sessions.inspect.hosts import ListedHost, WaitingSession
from callboard.sessions.inspect.memory import NoteLine
from callboard.sessions.inspect.team import AgentOverview
from callboard.sessions.result import AgentSummary
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json, Request, SessionRow, SessionRule, Task
from callboard.types.schedules import Schedule

Row = TypeVar("Row")

_DAY = 86_400.0
_NEXT_TIMES = 3
"""Number of next times in the JSON form of a schedule."""


def plain_row(row: object) -> Any:
    """Return a row as JSON types."""
    if isinstance(row, BaseModel):
        return row.model_dump(mode="json")
    if is_dataclass(row) and not isinstance(row, type):
        return {name: plain_row(value) for name, value in asdict(row).items()}
    return row


def when(at: float | None) -> str:
    """Return a time in this machine's time zone; empty for none."""
    return "" if at is None else f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M:%S}"


def moment(at: float, now: float) -> str:
    """Return a time of the day; a date if it is more than a day away. Empty for none."""
    if not at:
        return ""
    local = datetime.fromtimestamp(at).astimezone()
    return f"{local:%H:%M:%S}" if abs(now - at) < _DAY else f"{local:%m-%d %Hh}"


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """One column of a listing."""

    head: str
    text: Callable[[Row], str]
    shown: Literal["always", "filled", "varied"] = "always"
    """`filled`: only if it has a text in some row; `varied`: only if the texts of the rows differ."""

    def is_shown(self, rows: Sequence[Row]) -> bool:
        """Return True if a listing of these rows has the column."""
        match self.shown:
            case "always":
                return True
            case "filled":
                return any(self.text(row) for row in rows)
            case "varied":
                return len({self.text(row) for row in rows}) > 1


@dataclass(frozen=True, slots=True)
class Resource(Generic[Row]):
    """One kind of rows."""

    columns: Sequence[Column[Row]]
    nothing: str
    """Text of a listing without rows."""
    record: Callable[[Row], Any] = plain_row
    """Function that returns the JSON form of a row: all its fields."""
    summary: Mapping[str, Callable[[Row], object]] | None = None
    """Fields of the short JSON form, for a client that a model reads; None: there is none."""

    def cells(self, rows: Sequence[Row], only: Collection[str] = ()) -> tuple[list[str], list[list[str]]]:
        """Return the heads of a listing of these rows, and the cells of each row.

        `only`: the columns to list; all, if empty.
        """
        columns = [column for column in self.columns if (not only or column.head in only) and column.is_shown(rows)]
        return [column.head for column in columns], [[column.text(row) for column in columns] for row in rows]

    def records(self, rows: Sequence[Row]) -> list[Any]:
        """Return the JSON form of each row."""
        return [self.record(row) for row in rows]

    def summarize(self, row: Row) -> Json:
        """Return the short JSON form of a row."""
        return {name: value(row) for name, value in (self.summary or {}).items()}


# Sessions


def _session_state(row: SessionRow) -> str:
    if isinstance(row, ListedSession) and row.state:
        return row.state
    if row.ended_at is None:
        return "open"
    return "done" if not row.exit_code else f"ended with {row.exit_code}"


SESSIONS: Resource[SessionRow] = Resource(
    (
        Column("SESSION", lambda row: row.id),
        Column("BEGAN", lambda row: when(row.created_at)),
        Column("STATE", _session_state),
        Column("MODEL", lambda row: row.model),
        Column("PROMPT", lambda row: row.prompt),
    ),
    'no session yet: callboard run "what to do"',
    summary={
        "session": lambda row: row.id,
        "began": lambda row: row.created_at,
        "state": lambda row: "open" if row.ended_at is None else "failed" if row.exit_code else "done",
        "prompt": lambda row: row.prompt,
        "model": lambda row: row.model,
    },
)


# Hosts


def _labels(labels: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(labels.items()))


def _load(row: ListedHost) -> str:
    return f"{len(row.sessions)} of {row.limit}" if row.limit else str(len(row.sessions))


HOSTS: Resource[ListedHost] = Resource(
    (
        Column("HOST", lambda row: row.name),
        Column("STATE", lambda row: f"silent for {row.silent:g} s" if row.state == "silent" else row.state),
        Column("SESSIONS", _load),
        Column("SINCE", lambda row: when(row.since or None)),
        Column("VERSION", lambda row: row.version),
        Column("LABELS", lambda row: _labels(row.labels), "filled"),
        Column("HOSTS", lambda row: " ".join(row.sessions), "filled"),
    ),
    "no process hosts a session of this store: start one with `callboard serve`, or `callboard run`",
)

WAITING_SESSIONS: Resource[WaitingSession] = Resource(
    (
        Column("SESSION", lambda row: row.session),
        Column("SINCE", lambda row: when(row.since)),
        Column("WANTS", lambda row: _labels(row.placement), "filled"),
        Column("WHY", lambda row: row.why or "a host is about to take it"),
    ),
    "no session waits for a host",
)


# Tasks


@dataclass(frozen=True, slots=True)
class BoardTask:
    """Task and the board around it, which determines whether it is ready and its open dependencies."""

    task: Task
    board: Tasks


TASKS: Resource[BoardTask] = Resource(
    (
        Column("TASK", lambda row: row.task.id),
        Column("STATUS", lambda row: "ready" if is_ready(row.task, row.board) else row.task.status),
        Column(
            "OWNER", lambda row: row.task.owner or (f"for {row.task.reserved_for}" if row.task.reserved_for else "")
        ),
        Column(
            "WAITS FOR",
            lambda row: " ".join(blockers(row.task, row.board)) if row.task.status in ("pending", "failed") else "",
        ),
        Column("FILES", lambda row: " ".join(row.task.files)),
        Column("SUBJECT", lambda row: row.task.subject),
    ),
    "the board is empty",
    record=lambda row: plain_row(row.task),
)


# Requests


def _request_subject(row: Request) -> str:
    """Return the subject, and who answers if a person cannot."""
    if row.status != "pending" or "person" in row.may_answer:
        return row.subject
    return f"(waits for {' or '.join(row.may_answer)}) {row.subject}"


REQUESTS: Resource[Request] = Resource(
    (
        Column("REQUEST", lambda row: row.id),
        Column("KIND", lambda row: row.kind),
        Column("FROM", lambda row: row.asked_by),
        Column("REV", lambda row: str(row.revision) if row.kind == "plan" else ""),
        Column("SINCE", lambda row: when(row.created_at)),
        Column("UNTIL", lambda row: when(row.expires_at) if row.status == "pending" else row.status),
        Column("ABOUT", _request_subject),
    ),
    "nothing waits for an answer",
    summary={
        "id": lambda row: row.id,
        "kind": lambda row: row.kind,
        "from": lambda row: row.asked_by,
        "about": lambda row: row.subject,
        "status": lambda row: row.status,
        "digest": lambda row: row.digest,
        "until": lambda row: row.expires_at,
    },
)


# Schedules


@dataclass(frozen=True, slots=True)
class ScheduleStatus:
    """A schedule at a given moment (`now`, Unix seconds)."""

    schedule: Schedule
    session: str
    now: float
    fired_by: str = ""
    """Process that would fire it; empty for none."""


def schedule_state(row: Schedule) -> str:
    """Return a schedule's state, why it was paused, and the fires that a hook skipped."""
    if row.state == "paused" and row.paused_why:
        return f"{row.state}: {row.paused_why}"
    if row.state == "active" and not row.enabled:
        return "switched off"
    return f"{row.state}, {row.skips} skipped ({row.skipped_why})" if row.skips else row.state


def next_times(schedule: Schedule, now: float, count: int) -> list[str]:
    """Return the next times in ISO 8601 with the offset of the schedule's zone; none for an unreadable schedule."""
    try:
        zone = when_of(schedule).zone
        times = next_fires(schedule, now, count)
    except CronInvalid:
        return []
    return [datetime.fromtimestamp(at, zone).isoformat(timespec="seconds") for at in times]


def last_fired(schedule: Schedule) -> float | None:
    """Return the nominal time of the newest slot (Unix seconds); None if the schedule has never fired.

    An edit, a resume, or a correction of the clock moves `last_slot` without a fire.
    """
    return schedule.last_slot if schedule.fires else None


def _next(row: ScheduleStatus) -> str:
    try:
        times = next_fires(row.schedule, row.now, 1)
    except CronInvalid:
        return "cannot fire"
    fires = row.schedule.enabled and row.schedule.state == "active"
    return when(times[0]) if times else "never" if fires else ""


SCHEDULES: Resource[ScheduleStatus] = Resource(
    (
        Column("SCHEDULE", lambda row: row.schedule.id),
        Column("NAME", lambda row: row.schedule.name, "filled"),
        Column("STATE", lambda row: schedule_state(row.schedule)),
        Column("CRON", lambda row: row.schedule.cron),
        Column("ZONE", lambda row: row.schedule.timezone),
        Column("NEXT", _next),
        Column("LAST", lambda row: when(last_fired(row.schedule))),
        Column("PROMPT", lambda row: row.schedule.prompt),
        Column("FILE", lambda row: row.schedule.source, "filled"),
        Column("SESSION", lambda row: row.session, "varied"),
    ),
    'no schedules: callboard cron add "0 9 * * 1-5" "what to do"',
    record=lambda row: {
        **plain_row(row.schedule),
        "session": row.session,
        "next": next_times(row.schedule, row.now, _NEXT_TIMES),
        "fired_by": row.fired_by,
    },
)


# Agents

AGENTS: Resource[AgentSummary] = Resource(
    (
        Column("AGENT", lambda row: row.name),
        Column("KIND", lambda row: row.kind),
        Column("STATE", lambda row: row.outcome or row.life),
        Column("STEPS", lambda row: str(row.steps)),
        Column("USED", lambda row: usage_words(row.usage)),
        Column("WHAT", lambda row: row.what),
    ),
    "no agents",
)


def agent_record(agent: AgentOverview) -> Json:
    """Return one agent: its known data, and its current activity."""
    row = agent.row
    does = agent.doing
    call = {"id": does.call.id, "tool": does.call.name, "input": does.call.input} if does.call else None
    summary = {**asdict(agent.summary), "usage": agent.summary.usage.model_dump(mode="json")}
    return {
        **summary,
        "incarnation": row.incarnation,
        "agent_type": row.agent_type,
        "role": row.role,
        "parent": row.parent,
        "depth": row.depth,
        "worktree": row.worktree,
        "waiting_for": row.waiting_for,
        "since": row.since,
        "doing": does.what,
        "doing_since": does.since,
        "until": does.until,
        "call": call,
        "beside": does.others,
        "about": does.subject,
        "tasks": list(agent.tasks),
    }


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """An agent as seen at a given moment (`now`, Unix seconds)."""

    agent: AgentOverview
    now: float = 0.0


ENDED_AGENTS: Resource[AgentStatus] = Resource(
    (
        Column("AGENT", lambda row: row.agent.row.name),
        Column("STATE", lambda row: row.agent.row.outcome or "stopped"),
        Column("ENDED", lambda row: moment(row.agent.row.since, row.now)),
        Column("STEPS", lambda row: "" if row.agent.row.totals is None else str(row.agent.summary.steps)),
        Column("USED", lambda row: "" if row.agent.row.totals is None else usage_words(row.agent.summary.usage)),
        Column("WHAT", lambda row: row.agent.summary.what),
    ),
    "",
    record=lambda row: agent_record(row.agent),
)


# Messages


MESSAGES: Resource[Receipt] = Resource(
    (
        Column("ENVELOPE", lambda row: row.envelope.id),
        Column("FROM", lambda row: row.envelope.sender),
        Column("TO", lambda row: row.envelope.recipient),
        Column("TYPE", lambda row: row.envelope.type),
        Column("STATE", lambda row: row.state),
        Column(
            "SINCE",
            lambda row: when(row.ended_at or row.delivered_at or row.received_at or row.envelope.sent_at),
        ),
        Column("SAYS", lambda row: row.why or row.envelope.content),
    ),
    "no mail waits",
)


# Rules and notes


@dataclass(frozen=True, slots=True)
class RuleStatus:
    """A rule of a session at a given moment (`now`, Unix seconds)."""

    rule: SessionRule
    now: float


RULES: Resource[RuleStatus] = Resource(
    (
        Column("ID", lambda row: row.rule.id),
        Column(
            "RULE", lambda row: row.rule.rule if row.rule.effect == "allow" else f"{row.rule.effect} {row.rule.rule}"
        ),
        Column("FOR", lambda row: row.rule.agent or "every agent"),
        Column("SINCE", lambda row: when(row.rule.created_at)),
        Column("UNTIL", lambda row: end_state(row.rule, row.now) or when(row.rule.expires_at) or "the session's end"),
        Column("MADE WITH", lambda row: row.rule.request_id),
    ),
    "no session rules: answer a question with `a` to make one",
    record=lambda row: plain_row(row.rule),
)

NOTES: Resource[NoteLine] = Resource(
    (
        Column("PLACE", lambda row: row.place),
        Column("NAME", lambda row: row.name),
        Column("TYPE", lambda row: row.type),
        Column("ABOUT", lambda row: row.description),
    ),
    "no notes yet: an agent makes one with `remember`, you with `callboard memory edit NAME`",
)
