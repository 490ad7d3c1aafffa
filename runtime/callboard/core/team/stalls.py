"""Limits on how long an agent's operation under way may take before the operation counts as stalled. Pure.

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
    skills that a person typed         none: each part is looked at by itself             `core/skills/substitution.py`

To each comes `GRACE`: who enforces a time-out needs a moment to end what runs. Who is idle, waits for a person, for the
rate or for a schedule has nothing under way, and is never stalled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from callboard.core.agent.rules.hooks import HOOKS, SKILLS
from callboard.core.agent.state import AgentState, CallState
from callboard.types.records import Json

GRACE = 30.0
"""Additional seconds beyond the timeout. A process group that is ended has 2 s between TERM and KILL
(ports/tool.py)."""
USUAL = 600.0
"""Most seconds of an operation without its own timeout: as long as a command may take (docs/tools.md)."""

Declared = Callable[[str], float | None]
"""Function from the name of a tool to the most seconds of one call; None: no limit."""


@dataclass(frozen=True, slots=True)
class Longest:
    """Time limits of the parts outside the core."""

    tools: Declared
    hooks: Callable[[], float]
    """Function that returns the most seconds for all hooks of one event."""


def limit(state: AgentState, operation: str, longest: Longest) -> float | None:
    """Return the seconds after which an operation counts as stalled; None: no limit."""
    kind, _, about = operation.partition(":")
    if kind in ("model", "summary", "count"):
        return state.me.total + GRACE
    if kind in ("judge", "settle") or kind in HOOKS:
        return longest.hooks() + GRACE
    if kind in ("bg", SKILLS):
        return None
    if kind != "tool":
        return USUAL + GRACE
    call = _call(state, about)
    seconds = None if call is None else stated_timeout(call.call.input) or longest.tools(call.call.name)
    return None if seconds is None else seconds + GRACE


def key(state: AgentState, operation: str) -> str:
    """Return the key that distinguishes an operation from the next of the same name: each is reported once."""
    if operation == "model" and state.call is not None:
        return f"model:{state.call.ordinal}.{state.call.attempt}"
    return f"summary:{state.summaries}" if operation == "summary" else operation


def operation_text(state: AgentState, operation: str) -> str:
    """Return a description of what an agent waits for, for users and its lead."""
    kind, _, about = operation.partition(":")
    call = _call(state, about)
    name = call.call.name if call is not None else "a tool"
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


def stall_text(name: str, kind: str, awaited: str, *, since: float, seconds: float) -> str:
    """Return the text that the lead gets about a stalled agent."""
    at = datetime.fromtimestamp(since, UTC).strftime("%H:%M:%S UTC")
    text = f"{name} is stalled: it waits for {awaited} since {at}, longer than the {seconds:.0f} s that this may take."
    if kind != "teammate":
        return text + " It may still go on by itself; a person can end it."
    text += " It may still go on by itself."
    return f"{text} request_shutdown ends {name} after 120 s, whatever it does, and frees its task."


def stated_timeout(tool_input: Json) -> float | None:
    """Return the timeout in a call's input, in seconds."""
    value = tool_input.get("timeout_s")
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None


def _call(state: AgentState, call_id: str) -> CallState | None:
    return next((call for call in state.calls if call.call.id == call_id), None)
