"""How long what an agent has under way may take, before it counts as stalled. Pure.

    operation                          longest                                            source
    ---------------------------------  -------------------------------------------------  ------------------------
    model call, call of a summary      the total time-out of a call, from its sending on  `AgentSpec.total`
    tool with a time-out in its input  that time-out                                      `timeout_s` of the call
    any other tool                     what the tool declares                             `ToolSpec.seconds`
    hooks, wherever they are asked     the time-outs of the hooks of one moment           `HookRegistry.longest`
    count of tokens                    the total time-out of a call                       `AgentSpec.total`
    reminders, an answer taken up      `USUAL`                                            here
    background command                 none: it has a deadline of its own                 `BackgroundStarted`
    subagents (`task`)                 none: each of them is looked at by itself          `ToolSpec.seconds`
    skills that a person typed         none: each part is looked at by itself             `core/skills/commands.py`

To each comes `GRACE`: who enforces a time-out needs a moment to end what runs. Who is idle, waits for a person, for the
rate or for a schedule has nothing under way, and is never stalled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from callboard.core.hooks.moments import HOOKS, SKILLS
from callboard.core.state import AgentState, CallState
from callboard.words.values import Json

GRACE = 30.0
"""Seconds beyond its time-out. A process group that is ended has 2 s between TERM and KILL (ports/tool.py)."""
USUAL = 600.0
"""Seconds that an operation without a time-out of its own may take: as long as a command may (docs/tools.md)."""

Declared = Callable[[str], float | None]
"""Tool name -> the seconds that one call of it may take; None: however long."""


@dataclass(frozen=True, slots=True)
class Longest:
    """What the world's parts may take."""

    tools: Declared
    hooks: Callable[[], float]
    """Seconds of the hooks of one moment together."""


def limit(state: AgentState, operation: str, longest: Longest) -> float | None:
    """Seconds that an operation may take before it counts as stalled; None: however long."""
    kind, _, about = operation.partition(":")
    if kind in ("model", "summary", "count"):
        return state.me.total + GRACE
    if kind in ("judge", "settle") or kind in HOOKS:
        return longest.hooks() + GRACE
    if kind in ("bg", SKILLS):
        return None
    if kind != "tool":
        return USUAL + GRACE
    one = _call(state, about)
    seconds = None if one is None else asked(one.call.input) or longest.tools(one.call.name)
    return None if seconds is None else seconds + GRACE


def key(state: AgentState, operation: str) -> str:
    """What tells one operation of a name from the next: each is told of once."""
    if operation == "model" and state.call is not None:
        return f"model:{state.call.ordinal}.{state.call.attempt}"
    return f"summary:{state.summaries}" if operation == "summary" else operation


def words(state: AgentState, operation: str) -> str:
    """What an agent waits for, for people and for its lead."""
    kind, _, about = operation.partition(":")
    one = _call(state, about)
    name = one.call.name if one is not None else "a tool"
    match kind:
        case "model":
            return "the model's reply"
        case "summary":
            return "a summary of its conversation"
        case "tool":
            return name
        case "judge":
            return f"the hooks before {name}"
        case "settle":
            return f"the hooks after {name}"
        case _:
            return "hooks" if kind in HOOKS else kind


def told(name: str, kind: str, what: str, since: float, seconds: float) -> str:
    """What the lead is told of a stalled agent."""
    at = datetime.fromtimestamp(since, UTC).strftime("%H:%M:%S UTC")
    text = f"{name} is stalled: it waits for {what} since {at}, longer than the {seconds:.0f} s that this may take."
    if kind != "teammate":
        return text + " It may still go on by itself; a person can end it."
    return text + f" It may still go on by itself. request_shutdown of {name} ends it and frees its task."


def asked(given: Json) -> float | None:
    """The time-out that a call has in its input (seconds)."""
    value = given.get("timeout_s")
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None


def _call(state: AgentState, call_id: str) -> CallState | None:
    return next((one for one in state.calls if one.call.id == call_id), None)
