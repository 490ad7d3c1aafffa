"""Undo of context edits by the user, in a host's loop and for a session without a host.

Each undo reads the whole journal once, and records one event: the restored messages, or the reason for a refusal. It
makes no model call and continues no turn.
"""

from __future__ import annotations

from collections.abc import Sequence

from callboard.core.agent.apply import fold
from callboard.core.agent.rules.compaction import protect_restored, room, undo_edits
from callboard.core.agent.state import AgentState, Facts
from callboard.core.context.stages.last_resort import most_images
from callboard.core.context.view.undo import take_back, undo_positions
from callboard.core.decoding import read_envelope, read_event
from callboard.core.frozen import replace
from callboard.core.keys import journal, mailbox
from callboard.core.recovery.retry_policy import model_in_use
from callboard.core.reports.context import UNDO
from callboard.engine.agent_runtime import AgentRuntime
from callboard.engine.operations.receive import admit
from callboard.engine.recall import numbered_events, recall, unedited_messages
from callboard.engine.transcripts import with_measurements
from callboard.ports.store import Append, Fence, Store, Write
from callboard.ports.store_reading import records_of
from callboard.types import steps as st
from callboard.types.events import AgentStopped, ContextEdited, EnvelopeReceived, Event
from callboard.types.records import AgentRow


async def undo(agent: AgentRuntime, step: st.Undo) -> None:
    """Undo edits, or record the reason for a refusal."""
    await agent.flush()
    event = await _answer(agent.runtime.services.store, agent.state, step.edits, agent.runtime.clock.now())
    await agent.record(event, unless=lambda state: step.edits not in state.compaction.undo)


async def undo_unhosted(store: Store, fence: Fence, session: str, row: AgentRow, *, now: float) -> None:
    """Receive an agent's mail and perform its undo commands. All other mail waits for the next host.

    The caller holds the session's lease. Raises `Conflict` if another process still writes the journal.
    """
    state = await recall(store, session, row.name, row.incarnation)
    state = await _receive(store, fence, row, state, now=now)
    while isinstance(step := undo_edits(_settled(state), Facts(now)), st.Undo):
        event = await _answer(store, _settled(state), step.edits, now)
        state = await _record(store, fence, state, [event])


async def _receive(store: Store, fence: Fence, row: AgentRow, state: AgentState, *, now: float) -> AgentState:
    """Return the state after all mail was received in order. Rejected mail does not enter it."""
    stream = mailbox(state.identity.session, row.name, state.identity.incarnation)
    events = list[Event]()
    writes = list[Write]()
    for record in await records_of(store, stream, state.inbox.position):
        envelope = read_envelope(record.data, stream, record.seq)
        admission = await admit(store, state.identity.session, row, envelope, now=now)
        events.append(EnvelopeReceived(at=now, envelope=envelope, refused=admission.refused))
        writes += admission.notices
    return await _record(store, fence, state, events, writes=writes)


async def _record(
    store: Store, fence: Fence, state: AgentState, events: Sequence[Event], *, writes: Sequence[Write] = ()
) -> AgentState:
    stream = journal(state.identity.session, state.me.name, state.identity.incarnation)
    appends = [Append(stream, event.encode(), expected=state.seq + n) for n, event in enumerate(events)]
    if appends:
        await store.commit(*appends, *writes, fence=fence)
    return fold(events, state)


def _settled(state: AgentState) -> AgentState:
    """Return the state without the model call of a dead process: an undo need not wait for that call."""
    return replace(state, model=replace(state.model, call=None), compaction=replace(state.compaction, summary=None))


async def _answer(store: Store, state: AgentState, positions: tuple[int, ...], now: float) -> ContextEdited:
    """Return the record of an undo: the restored messages, or the reason for a refusal."""
    conv = state.context.conversation
    events = await numbered_events(store, journal(state.identity.session, state.me.name, state.identity.incarnation))
    edits = [(seq, event) for seq, event in events if isinstance(event, ContextEdited)]
    images = most_images(state.me.limits_of(model_in_use(state.model.recovery, state.me)))
    restored = take_back(conv, unedited_messages(events), edits, positions=positions, budget=room(state), images=images)
    refused = isinstance(restored, str)
    stages = dict(edits)
    named = ", ".join(f"#{seq} ({stages[seq].stage})" for seq in positions if seq in stages)
    event = ContextEdited(
        at=now,
        stage=UNDO,
        trigger="manual",
        revision=conv.revision,
        edits=() if refused else (protect_restored(restored, edits, positions),),
        why=restored if refused else f"undone by a person: {named}",
        undoes=positions,
    )
    return with_measurements(state, event)


async def undo_answer(store: Store, row: AgentRow, session: str, *, after: int, envelope: str) -> int | None:
    """Return the journal position of the record that answers the undo of this envelope, once it exists.

    None: the agent has ended and will not answer. `after`: a position before the envelope was received.
    """
    asked_positions: tuple[int, ...] | None = None
    async with store.follow(journal(session, row.name, row.incarnation), after) as records:
        async for record in records:
            match read_event(record.data, journal(session, row.name, row.incarnation), record.seq):
                case EnvelopeReceived(envelope=received) if received.id == envelope:
                    asked_positions = undo_positions(received.content)
                case ContextEdited(undoes=undoes) if undoes and undoes == asked_positions:
                    return record.seq
                case AgentStopped():
                    return None
                case _:
                    pass
    return None
