"""The receiving end of the bus: an agent's listener takes envelopes from its mailbox, in order, each exactly once.

Sending is a write (`core/bus/mail.py`) in the commit of whatever caused it; there is no other way to send.
"""

from __future__ import annotations

from callboard.core.names import mailbox
from callboard.engine.bus.admitting import refused, row_of, told
from callboard.engine.loop import Agent
from callboard.engine.memory import PAGE
from callboard.engine.supervision.leaving import request_withdrawn
from callboard.ports.store import Put, Record, Row, Write
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


def _held_still(row: Row | None) -> list[Write]:
    """The row by which a shutdown is heeded, written unchanged: an answer to it in between is heard first."""
    return [] if row is None or row.value is None else [Put(row.key, row.value, expected=row.revision)]


async def _receive(agent: Agent, envelope: Envelope) -> None:
    """Acknowledge one envelope. A new plan that is asked for makes the one void that still waits for its answer."""
    while True:
        gate, row = agent.state.gate, await row_of(agent, envelope)
        why = refused(agent, envelope, row)
        writes = told(agent, envelope, why) if why else list[Write]()
        if not why and envelope.type == "shutdown_request":
            writes = _held_still(row)
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
