"""Edits that a person takes back: the answer to an undo, in a host's loop and beside a session that nobody hosts.

It reads the journal whole, once for each undo, and records one event: the restored messages, or the reason why not.
It makes no model call, and lets no turn go on.
"""

from __future__ import annotations

from collections.abc import Sequence

from callboard.core.apply import fold
from callboard.core.context.counting import room
from callboard.core.context.told.explain import UNDO
from callboard.core.context.undoing import asked_for, spared, undoing
from callboard.core.context.view.undo import take_back
from callboard.core.frozen import replace
from callboard.core.names import journal, mailbox
from callboard.core.state import AgentState, Facts
from callboard.engine.explaining import numbered
from callboard.engine.loop import Agent
from callboard.engine.memory import events_of, recall, unedited
from callboard.engine.model.transcripts import measured
from callboard.ports.store import Append, Fence, Store
from callboard.words import steps as st
from callboard.words.events import AgentStopped, ContextEdited, EnvelopeReceived, Event, decode_event
from callboard.words.values import AgentRow, Envelope


async def undo(agent: Agent, step: st.Undo) -> None:
    """Take edits back, or record why not."""
    await agent.flush()
    event = await _answer(agent.host.ports.store, agent.state, step.edits, agent.host.clock.now())
    await agent.record(event, unless=lambda state: step.edits not in state.undo)


async def undo_unhosted(store: Store, fence: Fence, session: str, row: AgentRow, now: float) -> None:
    """Receive an agent's mail and do what it asks to take back; all else waits for the next host.

    For who holds the session's lease. Raises `Conflict` when somebody writes the journal all the same.
    """
    state = await recall(store, session, row.name, row.incarnation)
    state = await _receive(store, fence, session, state, now)
    while isinstance(step := undoing(_settled(state), Facts(now)), st.Undo):
        event = await _answer(store, _settled(state), step.edits, now)
        state = await _record(store, fence, state, [event])


async def _receive(store: Store, fence: Fence, session: str, state: AgentState, now: float) -> AgentState:
    """The state with all mail received, in its order: none is passed over."""
    stream = mailbox(session, state.me.name, state.incarnation)
    events: list[Event] = []
    for record in await store.read(stream, state.position):
        envelope = Envelope.model_validate_json(record.data).model_copy(update={"seq": record.seq})
        events.append(EnvelopeReceived(at=now, envelope=envelope))
    return await _record(store, fence, state, events)


async def _record(store: Store, fence: Fence, state: AgentState, events: Sequence[Event]) -> AgentState:
    stream = journal(state.session, state.me.name, state.incarnation)
    appends = [Append(stream, event.encode(), expected=state.seq + n) for n, event in enumerate(events)]
    if appends:
        await store.commit(*appends, fence=fence)
    return fold(events, state)


def _settled(state: AgentState) -> AgentState:
    """A call that a dead process made comes back to nobody: an undo need not wait for it."""
    return replace(state, call=None, summary=None)


async def _answer(store: Store, state: AgentState, wanted: tuple[int, ...], now: float) -> ContextEdited:
    """The record of an undo: the restored messages, or the reason why not."""
    conv = state.conversation
    events = await events_of(store, journal(state.session, state.me.name, state.incarnation))
    edits = [(seq, event) for seq, event in numbered(events) if isinstance(event, ContextEdited)]
    found = take_back(conv, unedited(events), edits, wanted, room(state))
    refused = isinstance(found, str)
    event = ContextEdited(
        at=now,
        stage=UNDO,
        trigger="manual",
        revision=conv.revision,
        edits=() if refused else (spared(found, edits, wanted),),
        why=found if refused else _why(wanted, edits),
        undoes=wanted,
    )
    return measured(state, event)


async def undo_answer(store: Store, row: AgentRow, session: str, after: int, envelope: str) -> int | None:
    """The journal position of the record that answers the undo of that envelope, once there is one.

    None: the agent has ended, and will not answer. `after`: a position from before the envelope was received.
    """
    heard: tuple[int, ...] | None = None
    async with store.follow(journal(session, row.name, row.incarnation), after) as records:
        async for record in records:
            match decode_event(record.data):
                case EnvelopeReceived(envelope=received) if received.id == envelope:
                    heard = asked_for(received.content)
                case ContextEdited(undoes=undoes) if undoes and undoes == heard:
                    return record.seq
                case AgentStopped():
                    return None
                case _:
                    pass
    return None


def _why(wanted: tuple[int, ...], edits: Sequence[tuple[int, ContextEdited]]) -> str:
    stages = dict(edits)
    named = ", ".join(f"#{seq} ({stages[seq].stage})" for seq in wanted if seq in stages)
    return f"taken back by a person: {named}"
