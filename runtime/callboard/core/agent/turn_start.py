"""The record that begins a turn, and the records that begin the life of a subagent with its assignment. Pure."""

from __future__ import annotations

from collections.abc import Callable

from callboard.core.agent.apply import apply
from callboard.core.agent.authority import authority_of
from callboard.core.agent.state import AgentState
from callboard.core.keys import short_id
from callboard.core.messaging.authority import new_turn_authority, rejection_reason
from callboard.types.events import AgentStarted, EnvelopeReceived, Event, PromptSet, TurnBegan
from callboard.types.records import AgentRow, Envelope
from callboard.types.steps import BeginTurn, Step


def turn_began(state: AgentState, cause: str, now: float) -> TurnBegan:
    """Return the record that begins the next turn, for a cause: the id of an envelope, or a kind of injection."""
    waking = next((envelope for envelope in state.inbox.mail if envelope.id == cause), None)
    turn = short_id("turn", state.identity.session, state.me.name, state.identity.incarnation, state.turns.count)
    authority = new_turn_authority(waking, authority_of(state), state.me.kind)
    return TurnBegan(at=now, turn=turn, cause=cause, depth=waking.depth if waking else 0, authority=authority)


def first_records(
    row: AgentRow,
    started: AgentStarted,
    prompt: PromptSet,
    assignment: Envelope,
    *,
    next_step: Callable[[AgentState], Step],
) -> tuple[tuple[Event, ...], AgentState]:
    """Return the first records of a life and the state after them: start, prompt, receipt of the assignment, turn.

    `assignment`: as it is in the mailbox, with its number. `next_step`: function that decides. A refused assignment is
    left in the mailbox, and the turn begins only if it is the next step: the agent does the rest itself.
    """
    events: list[Event] = [started, prompt]
    state = apply(apply(AgentState(), started), prompt)
    if rejection_reason(assignment, row, None):
        return tuple(events), state
    received = EnvelopeReceived(at=started.at, envelope=assignment)
    events.append(received)
    state = apply(state, received)
    step = next_step(state)
    if isinstance(step, BeginTurn):
        began = turn_began(state, step.cause, started.at)
        events.append(began)
        state = apply(state, began)
    return tuple(events), state
