"""Changes that rules of several themes make to a state: a word to the model, a text that waits, a bill. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from callboard.core.context.guidance import instructed_with, noted_with
from callboard.core.context.reminders import told_with
from callboard.core.context.view.conversation import add_user
from callboard.core.frozen import replace
from callboard.core.state import AgentState, CallState, Gate
from callboard.words.context import Injection, Placed
from callboard.words.values import Usage

Rule = Callable[[AgentState, Any], AgentState]
"""What one type of event changes."""


def queue(state: AgentState, injection: Injection) -> AgentState:
    """A newer one of a kind and key replaces an unsent one."""
    kept = tuple(one for one in state.injections if (one.kind, one.key) != (injection.kind, injection.key))
    return replace(
        state,
        injections=(*kept, injection),
        told=told_with(state.told, injection),
        instructed=instructed_with(state.instructed, injection),
        noted=noted_with(state.noted, injection),
    )


def said_to(state: AgentState, blocks: tuple[Placed, ...], at: float) -> AgentState:
    """Blocks for the model: they join the open user message, or open one."""
    turn = state.turn.id if state.turn else ""
    conversation = add_user(state.conversation, state.seq + 1, blocks, at, turn)
    return replace(state, conversation=conversation, wants_reply=True)


def billed(state: AgentState, usage: Usage) -> AgentState:
    turn = replace(state.turn, usage=state.turn.usage.plus(usage)) if state.turn else None
    return replace(state, usage=state.usage.plus(usage), turn=turn)


def gate_moved(state: AgentState, gate: Gate) -> AgentState:
    """The gate as it is now. Where it has closed, calls that were allowed and have not begun are judged again."""
    if gate.gate == "open":
        return replace(state, gate=gate)
    return replace(state, gate=gate, calls=tuple(_again(one) for one in state.calls))


def _again(one: CallState) -> CallState:
    return replace(one, stage="proposed") if one.stage == "allowed" else one
