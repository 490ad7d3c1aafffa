"""What an agent does or waits for at this moment, since when, and when that runs out: for people who watch. Pure.

It is told by its row and its journal alone, so that any process can tell it. A model call stands in the journal only
when it is over, unless a budget holds (`engine/model/thinking.py`): an agent that wants a reply and has nothing else
under way is making one, since its newest event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from callboard.core.recovery.turns import model_in_use
from callboard.core.state import AgentState
from callboard.core.team.lives import RESTART, SUBAGENTS
from callboard.core.team.stalls import Declared, asked
from callboard.words.values import AgentRow, Request, ToolCall

MODEL, SUMMARY = "model call", "summary"


@dataclass(frozen=True, slots=True)
class Doing:
    """`what` in a word or two; `call`: the tool call that it is; `subject`: what the request is about that it waits
    for. Times are Unix seconds."""

    what: str = ""
    since: float = 0.0
    until: float | None = None
    """The next moment at which time ends it: a time-out, a deadline, the end of a wait."""
    call: ToolCall | None = None
    others: int = 0
    """Calls of the same reply that are under way beside it."""
    subject: str = ""


def doing(row: AgentRow, state: AgentState, at: float, requests: Mapping[str, Request], longest: Declared) -> Doing:
    """What it does. `at`: of its newest event; `longest`: tool -> the seconds that a call of it has by default."""
    found = _waits(row, state, requests) if row.life in ("waiting", "starting") else None
    if found is None and row.life not in ("stopped", "crashed", "idle"):
        found = _works(state, at, longest)
    if found is None:
        return Doing(since=row.since)
    ends = [one for one in (found.until, _end_of_turn(state)) if one is not None]
    return Doing(found.what, found.since, min(ends, default=None), found.call, found.others, found.subject)


def _waits(row: AgentRow, state: AgentState, requests: Mapping[str, Request]) -> Doing | None:
    """What everything of it waits for, by its row."""
    kind, _, about = row.waiting_for.partition(" ")
    if not kind:
        return None
    request = requests.get(about)
    if request is not None:
        return Doing(kind, request.created_at, request.expires_at, subject=request.subject)
    if kind == SUBAGENTS:
        begun = [one.started_at for one in state.calls if one.stage == "started"]
        return Doing(f"{len(begun)} subagent{'' if len(begun) == 1 else 's'}", min(begun, default=row.since))
    if kind == "rate":
        until = state.recovery.waiting_until or None
        return Doing("the service's rate", row.since, until)
    words = {"budget": "money that other calls hold back", RESTART: "its restart after a crash"}
    return Doing(words.get(kind, row.waiting_for), row.since)


def _works(state: AgentState, at: float, longest: Declared) -> Doing | None:
    """What of it is under way, by its journal."""
    if state.spec is None or state.ended is not None:
        return None
    if state.call is not None:
        return Doing(MODEL, state.call.at, state.call.at + state.me.total)
    if state.summary is not None:
        return Doing(SUMMARY, at)
    under_way = [one for one in state.calls if one.open]
    if under_way:
        first = next((one for one in under_way if one.stage == "started"), under_way[0])
        since = first.started_at or at
        seconds = asked(first.call.input) or longest(first.call.name)
        return Doing(
            "tool", since, since + seconds if seconds and first.started_at else None, first.call, len(under_way) - 1
        )
    if state.recovery.waiting_until > at:
        return Doing(f"another try of {model_in_use(state.recovery, state.me)}", at, state.recovery.waiting_until)
    if state.turn is not None and state.wants_reply:
        return Doing(MODEL, at, at + state.me.total)
    return Doing("its turn", at) if state.turn is not None else None


def _end_of_turn(state: AgentState) -> float | None:
    if state.spec is None or state.turn is None or state.me.limits.seconds is None:
        return None
    return state.turn.began_at + state.me.limits.seconds
