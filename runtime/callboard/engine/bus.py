"""The receiving end of the bus: an agent's listener takes envelopes from its mailbox, in order, each exactly once.

Sending is a write (`callboard.core.mail.sending`) in the commit of whatever caused it; there is no other way to send.
"""

from __future__ import annotations

from callboard.core.names import mailbox
from callboard.engine.loop import Agent
from callboard.words.errors import StoreDamaged
from callboard.words.events import EnvelopeReceived
from callboard.words.values import Envelope


async def listen(agent: Agent) -> None:
    """Record every envelope of the agent's mailbox, from the position that its journal has reached. Never returns."""
    stream = mailbox(agent.host.session, agent.name, agent.row.incarnation)
    async with agent.host.ports.store.follow(stream, agent.state.position) as records:
        async for record in records:
            try:
                envelope = Envelope.model_validate_json(record.data)
            except ValueError as wrong:
                raise StoreDamaged(f"envelope {record.seq} of {stream} cannot be read: {wrong}") from wrong
            received = envelope.model_copy(update={"seq": record.seq})
            await agent.record(
                EnvelopeReceived(at=agent.host.clock.now(), envelope=received),
                unless=lambda state, seq=record.seq: state.position >= seq,
            )
