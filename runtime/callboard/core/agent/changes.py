"""State changes used by rules of several themes: a message to the model, an injection, a cost. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from callboard.core.agent.state import AgentState, CallState
from callboard.core.approvals.plan_gate import PlanGate
from callboard.core.context.project_instructions import instructed_with, noted_with
from callboard.core.context.reminders import told_with
from callboard.core.context.view.conversation import add_user
from callboard.core.frozen import replace
from callboard.core.recovery.retry_policy import RecoveryState
from callboard.types.agent_spec import AgentSpec
from callboard.types.messages import Injection, Placed
from callboard.types.records import Usage

Rule = Callable[[AgentState, Any], AgentState]
"""Change that one type of event makes to the state."""


def queue(state: AgentState, injection: Injection) -> AgentState:
    """Queue an injection. It replaces an unsent one of the same kind and key."""
    others = tuple(
        other for other in state.context.injections if (other.kind, other.key) != (injection.kind, injection.key)
    )
    return replace(
        state,
        context=replace(
            state.context,
            injections=(*others, injection),
            reminders=told_with(state.context.reminders, injection),
            instructions=instructed_with(state.context.instructions, injection),
            notes=noted_with(state.context.notes, injection),
        ),
    )


def said_to(state: AgentState, blocks: tuple[Placed, ...], at: float) -> AgentState:
    """Add blocks for the model to the open user message, or open one."""
    turn = state.turn.id if state.turn else ""
    conversation = add_user(state.context.conversation, state.seq + 1, blocks, at=at, turn=turn)
    return replace(state, context=replace(state.context, conversation=conversation, wants_reply=True))


def with_spec(state: AgentState, spec: AgentSpec) -> AgentState:
    """Return the state with another spec."""
    return replace(state, identity=replace(state.identity, spec=spec))


def with_recovery(state: AgentState, recovery: RecoveryState) -> AgentState:
    """Return the state with another recovery from failed model calls."""
    return replace(state, model=replace(state.model, recovery=recovery))


def billed(state: AgentState, usage: Usage) -> AgentState:
    turn = replace(state.turn, usage=state.turn.usage.plus(usage)) if state.turn else None
    return replace(state, budget=replace(state.budget, usage=state.budget.usage.plus(usage)), turn=turn)


def gate_moved(state: AgentState, gate: PlanGate) -> AgentState:
    """Set the plan gate. If it has closed, allowed calls that have not started are checked again."""
    if gate.gate == "open":
        return replace(state, work=replace(state.work, gate=gate))
    return replace(
        state, work=replace(state.work, gate=gate), calls=tuple(_back_to_proposed(item) for item in state.calls)
    )


def _back_to_proposed(item: CallState) -> CallState:
    return replace(item, stage="proposed") if item.stage == "allowed" else item
