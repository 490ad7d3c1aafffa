"""What changes by the step is told in reminders, never in the system prompt: the day, the repository, the team. Pure.

A reminder of a kind is due at the beginning of a turn when it says something else than the newest one of its kind; the
day also after a long rest. A summary takes reminders away, so all are due behind one. Todos have a rhythm of their own
(`core.apply_tools`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from callboard.core.context.prompt import one_line
from callboard.words.context import Edit, Injection
from callboard.words.values import AgentRow

LONG_REST = 3_600.0
"""Seconds without a reply behind which the time of day is told again."""
MATES_SHOWN, GIT_SHOWN = 20, 2_000
"""Teammates, and characters of a repository's status, that a reminder holds at most."""
DATE, GIT, TEAM, SERVERS_NOW, TYPES = "date", "git", "team", "mcp", "types"
KINDS = frozenset({DATE, GIT, TEAM, SERVERS_NOW, TYPES})
_TAG = "system-reminder"


@dataclass(frozen=True, slots=True)
class Around:
    """What is true round an agent when its turn begins."""

    local: datetime
    """The time, in the zone of the person's machine."""
    git: str | None = None
    """The repository's status; None where there is none, or where it was not known in time."""
    team: Sequence[AgentRow] | None = None
    """The team's rows; None for an agent that leads none."""
    types: str = ""
    """The agent types that changed since its tools were listed; empty: none did."""


def reminders(told: Mapping[str, str], around: Around, rested: float) -> tuple[Injection, ...]:
    """Those that are due. `told`: kind -> the newest text of it; `rested`: seconds since the agent's newest reply."""
    day = f"{around.local:%A, %-d %B %Y}"
    texts: dict[str, str] = {}
    if day not in told.get(DATE, "") or rested > LONG_REST:
        zone = f"{around.local:%z}"
        texts[DATE] = f"It is {day}, {around.local:%H:%M} (UTC{zone[:3]}:{zone[3:5]})."
    if around.git is not None:
        texts[GIT] = _cut(around.git)
    if around.team is not None:
        team = _team(around.team)
        texts |= {TEAM: team or "Nobody is in your team now."} if team or TEAM in told else {}
    if around.types:
        texts[TYPES] = around.types
    return tuple(
        Injection(kind=_TAG, text=text, key=kind) for kind, text in texts.items() if told.get(kind, "") != text
    )


def told_with(told: Mapping[str, str], injection: Injection) -> Mapping[str, str]:
    """What is told once this waits to be said."""
    return {**told, injection.key: injection.text} if is_reminder(injection) else told


def told_after(told: Mapping[str, str], edits: Iterable[Edit]) -> Mapping[str, str]:
    """What is still told behind these edits: nothing, where messages were taken away."""
    return told if all(edit.block is not None for edit in edits) else {}


def is_reminder(injection: Injection) -> bool:
    """One of those here: by itself it asks for no reply."""
    return injection.kind == _TAG and injection.key in KINDS


def shown_name(name: str) -> str:
    """A file's name as a reminder shows it: what could pass for words of the runtime is quoted."""
    short = name if len(name) <= 120 else f"{name[:119]}…"
    return short if short.isprintable() and short == short.strip() else ascii(short)


def _cut(text: str) -> str:
    return text if len(text) <= GIT_SHOWN else f"{text[:GIT_SHOWN]}\n[Cut: `git status` tells the rest.]"


def _team(rows: Sequence[AgentRow]) -> str:
    """The living mates, in the order in which they joined; empty without any."""
    mates = [row for row in rows if row.kind == "teammate" and row.life != "stopped"]
    if not mates:
        return ""
    lines = [f"- {one_line(row.name)} ({one_line(row.role or row.agent_type)}): {_doing(row)}" for row in mates]
    more = [f"- and {len(mates) - MATES_SHOWN} more: `list_team` shows all"] if len(mates) > MATES_SHOWN else []
    return "\n".join(["Your team when this turn began:", *lines[:MATES_SHOWN], *more])


def _doing(row: AgentRow) -> str:
    if row.life == "waiting" and row.waiting_for:
        return f"waiting for {one_line(row.waiting_for)}"
    return "working" if row.life == "starting" else row.life
