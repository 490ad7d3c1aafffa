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
from typing import assert_never

from callboard.core.agent.state import AgentState, CallState
from callboard.types.operations import Operation
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


def limit(state: AgentState, operation: Operation, longest: Longest) -> float | None:
    """Return the seconds after which an operation counts as stalled; None: no limit."""
    match operation.kind:
        case "model" | "summary" | "count":
            return state.me.total + GRACE
        case "judge" | "settle" | "start-hooks" | "prompt-hooks" | "batch-hooks" | "stop-hooks" | "compact-hooks":
            return longest.hooks() + GRACE
        case "bg" | "skills":
            return None
        case "tool":
            call = _call(state, operation.subject)
            seconds = None if call is None else stated_timeout(call.call.input) or longest.tools(call.call.name)
            return None if seconds is None else seconds + GRACE
        case "prompt" | "reminders" | "move" | "answer" | "end":
            return USUAL + GRACE
        case _:
            assert_never(operation.kind)


def key(state: AgentState, operation: Operation) -> str:
    """Return the key that distinguishes an operation from the next of the same kind: each is reported once."""
    if operation.kind == "model" and state.model.call is not None:
        return f"model:{state.model.call.ordinal}.{state.model.call.attempt}"
    return f"summary:{state.compaction.summaries}" if operation.kind == "summary" else operation.key


def operation_text(state: AgentState, operation: Operation) -> str:
    """Return a description of what an agent waits for, for users and its lead."""
    call = _call(state, operation.subject)
    name = call.call.name if call is not None else "a tool"
    match operation.kind:
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
        case "start-hooks" | "prompt-hooks" | "batch-hooks" | "stop-hooks" | "compact-hooks":
            return "hooks"
        case "count" | "prompt" | "reminders" | "skills" | "move" | "answer" | "bg" | "end":
            return operation.kind
        case _:
            assert_never(operation.kind)


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
