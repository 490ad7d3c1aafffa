"""The receiving end of the bus: an agent's listener takes envelopes from its mailbox, in order, each exactly once.

Sending is a write (`core/bus/mail.py`) in the commit of whatever caused it; there is no other way to send.
"""

from __future__ import annotations

from callboard.core.names import mailbox, request_key
from callboard.engine.bus.admitting import refused, told
from callboard.engine.loop import Agent
from callboard.engine.memory import PAGE
from callboard.engine.supervision.leaving import request_withdrawn
from callboard.ports.store import Put, Record, Write
from callboard.words.errors import Conflict, StoreDamaged
from callboard.words.events import EnvelopeReceived
from callboard.words.values import Envelope


async def listen(agent: Agent) -> None:
    """Record every envelope of the agent's mailbox, from the position that its journal has reached. Never returns."""
    stream = mailbox(agent.host.session, agent.name, agent.row.incarnation)
    agent.host.mailboxes.join(stream, lambda: agent.state)
    async with agent.host.ports.store.follow(stream, agent.state.position) as records:
        async for record in records:
            await _receive(agent, _envelope(stream, record))


async def hear_out(agent: Agent) -> None:
    """Record what its mailbox holds by now, and return: for a life that is about to be settled and hears no more."""
    stream = mailbox(agent.host.session, agent.name, agent.row.incarnation)
    while records := await agent.host.ports.store.read(stream, agent.state.position, PAGE):
        for record in records:
            await _receive(agent, _envelope(stream, record))


def _envelope(stream: str, record: Record) -> Envelope:
    try:
        return Envelope.model_validate_json(record.data).model_copy(update={"seq": record.seq})
    except ValueError as wrong:
        raise StoreDamaged(f"envelope {record.seq} of {stream} cannot be read: {wrong}") from wrong


def _held_still(agent: Agent, envelope: Envelope) -> list[Write]:
    """The row of a shutdown that is heeded, written unchanged: an answer to it in between is heard first."""
    found = agent.host.board.request(envelope.request_id) if envelope.request_id else None
    if found is None:
        return []
    return [Put(request_key(agent.host.session, found[0].id), found[0].encode(), expected=found[1])]


async def _receive(agent: Agent, envelope: Envelope) -> None:
    """Acknowledge one envelope. A new plan that is asked for makes the one void that still waits for its answer."""
    while True:
        gate, why = agent.state.gate, await refused(agent, envelope)
        writes = told(agent, envelope, why) if why else list[Write]()
        if not why and envelope.type == "shutdown_request":
            writes = _held_still(agent, envelope)
        if not why and envelope.type == "plan_request" and gate.gate == "pending" and gate.request_id:
            writes = request_withdrawn(agent.host, gate.request_id, "another plan was asked for")
        try:
            await agent.record(
                EnvelopeReceived(at=agent.host.clock.now(), envelope=envelope, refused=why),
                writes=writes,
                unless=lambda state, seen=gate: state.position >= envelope.seq or state.gate != seen,
            )
        except Conflict as lost:
            await agent.host.refresh(lost.what)  # it was answered at the same moment
        if agent.state.position >= envelope.seq:
            return  # else the gate moved while this waited for its turn to be recorded: look again
