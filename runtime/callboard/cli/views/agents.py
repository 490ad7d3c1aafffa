"""Agents at work as a list, one line each, and an ended agent as one line. Pure.

A line has the agent's name, its activity, the time since its turn began, and the tokens of that turn. The list has at
most `MOST` agents and a count of the others. It never exceeds the screen's width.
"""

from __future__ import annotations

from collections.abc import Sequence

from callboard.cli.terminal.terminal import Line, Style, columns, plain
from callboard.cli.views.events import first_line, shorten
from callboard.cli.views.team import activity_words, short_number
from callboard.core.reports.activity import MODEL, SUMMARY, activity_of
from callboard.core.team.lifecycle import SUBAGENTS
from callboard.sessions.base import OpenSession
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import AgentRow, Usage

MOST = 8
"""Limit of the agents in the list."""
_NAME = 24
_ROLE = 24
_TIME = 8
_TOKENS = 5
_LEAST = 16
"""Columns: limits of a name and of an agent's role; least widths of the time, the tokens, and the activity."""
_BUSY = frozenset({"starting", "working", "waiting", "stopping"})
_FOR_PERSON = frozenset({"plan", "permission", "question"})
"""First words of `AgentRow.waiting_for` while an agent waits for an answer of a person."""
_SPOKEN = {MODEL: "thinks", SUMMARY: "summarises"}

_ORDINARY = frozenset({"done", "stopped", "reported done"})
"""Outcomes that need no attention."""


@dataclass(frozen=True, slots=True)
class WorkingAgent:
    """An agent at work.

    `began`: start of its turn (Unix seconds); `tokens`: those of the turn, cached ones included; `asks`: True if it
    waits for the person.
    """

    name: str
    activity: str
    began: float
    tokens: int = 0
    asks: bool = False


def is_at_work(row: AgentRow) -> bool:
    """Return True if an agent has a turn or is about to start one. A lead without a prompt has none."""
    no_prompt_yet = row.kind == "lead" and row.life == "starting" and not row.waiting_for
    return row.life in _BUSY and not no_prompt_yet


def working_agents(session: OpenSession, most: int) -> tuple[list[WorkingAgent], int]:
    """Return the agents at work, oldest first and at most `most`, and the number of the others."""
    rows = [row for row in session.living_agents() if is_at_work(row)]
    requests = {request.id: request for request in session.requests()}
    agents: list[WorkingAgent] = []
    for row in rows[:most]:
        state = session.state(row.name, row.incarnation)
        began, usage = session.turn_of(row.name) or (row.since, Usage())
        activity = row.life
        if state is not None:
            does = activity_of(row, state, row.since, requests=requests, longest=lambda tool: None)
            activity = _SPOKEN.get(does.what) or activity_words(row, does, str(session.workspace))
        kind, _, request_id = row.waiting_for.partition(" ")
        asks = kind in _FOR_PERSON and request_id in requests and "person" in requests[request_id].may_answer
        if asks:
            activity = f"waits for you: {first_line(requests[request_id].subject)}"
        elif kind == SUBAGENTS:
            activity = f"waits for {activity}"
        if row.kind != "lead" and row.role:
            activity = f"{shorten(first_line(row.role), _ROLE)}: {activity}"
        agents.append(WorkingAgent(session.label(row.name), activity, began, tokens_of(usage), asks))
    return agents, len(rows) - len(agents)


def agent_lines(agents: Sequence[WorkingAgent], others: int, width: int, now: float) -> list[Line]:
    """Return the list, at most `width` columns wide. `others`: number of agents at work that are not in it."""
    if not agents:
        return []
    names = [shorten(plain(agent.name), _NAME) for agent in agents]
    times = [duration_words(now - agent.began) for agent in agents]
    tokens = [short_number(agent.tokens) for agent in agents]
    widths = [max(map(columns, names)), max(_TIME, *map(len, times)), max(_TOKENS, *map(len, tokens))]
    unit = " tokens"
    # The activity is last and not padded. A padded line would break in two when the screen becomes narrower, and then
    # the rows of the list could no longer be erased.
    if width - sum(widths) - len(unit) - 6 < _LEAST:
        unit = ""
    lines: list[Line] = []
    for agent, name, seconds, used in zip(agents, names, times, tokens, strict=True):
        cells = f" {seconds:>{widths[1]}}  {used:>{widths[2]}}{unit}  {first_line(agent.activity)}"
        style: Style = "warn" if agent.asks else "dim"
        lines.append(Line(shorten(cells, width - widths[0] - 1), style, _padded(name, widths[0])))
    if others:
        lines.append(Line(shorten(f"and {others} more at work (Ctrl-T: the team)", width), "dim"))
    return lines


@dataclass(frozen=True, slots=True)
class AgentEnd:
    """The end of an agent, or its report. `seconds`: 0 if unknown; `text`: its result, or why it ended."""

    outcome: str
    name: str = ""
    seconds: float = 0.0
    tokens: int = 0
    role: str = ""
    text: str = ""


def ended_line(end: AgentEnd, width: int) -> Line:
    """Return the line of an agent that has ended, or has reported, at most `width` columns wide."""
    role = f"({shorten(first_line(end.role), _ROLE)}) " if end.role else ""
    spent = [f"in {duration_words(end.seconds)}"] if end.seconds > 0 else []
    spent += [f"{short_number(end.tokens)} tokens"] if end.tokens else []
    result = first_line(end.text)
    text = f"{role}{end.outcome} {', '.join(spent)}".rstrip() + (f": {result}" if result else "")
    style: Style = "dim" if end.outcome in _ORDINARY else "warn"
    return Line(shorten(text, width - columns(end.name) - 1), style, end.name)


def tokens_of(usage: Usage) -> int:
    """Return the number of all tokens, including cached input."""
    return usage.prompt_tokens + usage.output_tokens


def duration_words(seconds: float) -> str:
    """Return `42 s`, `1 m 05 s` or `1 h 02 m`."""
    whole = max(int(seconds), 0)
    if whole < 60:
        return f"{whole} s"
    minutes, left = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} m {left:02} s"
    return f"{minutes // 60} h {minutes % 60:02} m"


def _padded(text: str, width: int) -> str:
    return text + " " * (width - columns(text))
