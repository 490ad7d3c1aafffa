"""Reminders of facts that change from step to step: the day, the repository, the team. Pure.

Such facts are never in the system prompt. A reminder is due at the beginning of a turn if its text differs from the
newest one of its kind; the day is also due after a long rest. A summary removes reminders, so all are due after one.
Todos follow other rules (`core.agent.apply_tools`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from callboard.core.context.system_prompt import one_line
from callboard.types.lazy_dataclass import dataclass
from callboard.types.messages import Edit, Injection
from callboard.types.records import AgentRow

LONG_REST = 3_600.0
"""Seconds without a reply after which the time of day is injected again."""
MATES_SHOWN = 20
GIT_SHOWN = 2_000
"""Maximum number of teammates, and of characters of a repository's status, in a reminder."""
DATE = "date"
GIT = "git"
TEAM = "team"
SERVERS_NOW = "mcp"
TYPES = "types"
MODE = "mode"
KINDS = frozenset({DATE, GIT, TEAM, SERVERS_NOW, TYPES, MODE})
_TAG = "system-reminder"


@dataclass(frozen=True, slots=True)
class ReminderFacts:
    """External facts about an agent when its turn begins."""

    local: datetime
    """The time, in the zone of the person's machine."""
    git: str | None = None
    """Status of the repository; None without a repository, or if the status was not available in time."""
    team: Sequence[AgentRow] | None = None
    """Rows of the team; None for an agent that leads no team."""
    types: str = ""
    """Agent types that changed since the agent's tools were listed; empty if none did."""


def reminders(latest: Mapping[str, str], around: ReminderFacts, rested: float) -> tuple[Injection, ...]:
    """Return the reminders that are due.

    `latest`: kind -> its newest text. `rested`: seconds since the agent's newest reply.
    """
    day = f"{around.local:%A, %-d %B %Y}"
    texts: dict[str, str] = {}
    if day not in latest.get(DATE, "") or rested > LONG_REST:
        zone = f"{around.local:%z}"
        texts[DATE] = f"It is {day}, {around.local:%H:%M} (UTC{zone[:3]}:{zone[3:5]})."
    if around.git is not None:
        texts[GIT] = _cut(around.git)
    if around.team is not None:
        team = _team(around.team)
        texts |= {TEAM: team or "Nobody is in your team now."} if team or TEAM in latest else {}
    if around.types:
        texts[TYPES] = around.types
    return tuple(
        Injection(kind=_TAG, text=text, key=kind) for kind, text in texts.items() if latest.get(kind, "") != text
    )


def with_reminder(latest: Mapping[str, str], injection: Injection) -> Mapping[str, str]:
    """Return the newest reminders, including this injection if it is a reminder."""
    return {**latest, injection.key: injection.text} if is_reminder(injection) else latest


def reminders_after_edits(latest: Mapping[str, str], edits: Iterable[Edit]) -> Mapping[str, str]:
    """Return the reminders that remain after these edits; none if the edits removed messages."""
    return latest if all(edit.block is not None for edit in edits) else {}


def is_reminder(injection: Injection) -> bool:
    """Return True for an injection of this module: by itself it requires no reply."""
    return injection.kind == _TAG and injection.key in KINDS


def displayed_name(name: str) -> str:
    """Return a file name as a reminder shows it. A name that could be mistaken for text of the runtime is quoted."""
    short = name if len(name) <= 120 else f"{name[:119]}…"
    return short if short.isprintable() and short == short.strip() else ascii(short)


def _cut(text: str) -> str:
    return text if len(text) <= GIT_SHOWN else f"{text[:GIT_SHOWN]}\n[Cut: `git status` tells the rest.]"


def _team(rows: Sequence[AgentRow]) -> str:
    """Return the active teammates, in the order in which they joined; empty if there are none."""
    mates = [row for row in rows if row.kind == "teammate" and row.life != "stopped"]
    if not mates:
        return ""
    lines = [f"- {one_line(row.name)} ({one_line(row.role or row.agent_type)}): {_activity_text(row)}" for row in mates]
    overflow = [f"- and {len(mates) - MATES_SHOWN} more: `list_team` shows all"] if len(mates) > MATES_SHOWN else []
    return "\n".join(["Your team when this turn began:", *lines[:MATES_SHOWN], *overflow])


def _activity_text(row: AgentRow) -> str:
    if row.life == "waiting" and row.waiting_for:
        return f"waiting for {one_line(row.waiting_for)}"
    return "working" if row.life == "starting" else row.life
