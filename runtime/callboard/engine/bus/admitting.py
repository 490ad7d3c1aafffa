"""Whether an envelope counts, looked at once, at its receipt: by its sender, its cause and the request's row.

What does not count is acknowledged and kept out, with the reason in the journal, and its sender and the lead are told.
The rules are `core.authority.refusal`; here stands only where they look. A row is read from the store and not from this
process's mirror of it, which may be behind the mailbox.
"""

from __future__ import annotations

from callboard.core.bus.authority import ANSWERS, ASKS, cause_of, refusal
from callboard.core.bus.mail import sending
from callboard.core.names import request_key, short_id
from callboard.engine.loop import Agent
from callboard.ports.store import Row, Write
from callboard.words.values import AgentRow, Envelope, Request


async def row_of(agent: Agent, envelope: Envelope) -> Row | None:
    """The row of the request that it asks with or answers; None when it is about none, or there is none."""
    if envelope.request_id is None or (envelope.type not in ASKS and envelope.type not in ANSWERS):
        return None
    return await agent.host.ports.store.get(request_key(agent.host.session, envelope.request_id))


def refused(agent: Agent, envelope: Envelope, row: Row | None) -> str:
    """Why it does not count, by that row; empty when it does."""
    request = Request.model_validate_json(row.value) if row is not None and row.value is not None else None
    return refusal(envelope, agent.row, request)


def told(agent: Agent, envelope: Envelope, why: str) -> list[Write]:
    """Word to the lead and to the agent that sent it, for the commit that keeps the envelope out."""
    board = agent.host.board
    found = [board.agent(name) for name in dict.fromkeys(("lead", envelope.sender))]
    living = [row[0] for row in found if row is not None and row[0].life not in ("stopped", "crashed")]
    text = f"A {envelope.type} of {envelope.sender} to {agent.name} ({envelope.id}) does not count: {why}."
    return [sending(agent.host.session, _word(envelope, to, text, agent.host.clock.now())) for to in living]


def _word(about: Envelope, to: AgentRow, text: str, now: float) -> Envelope:
    return Envelope(
        id=short_id("env", about.id, "refused", to.name),
        sender="runtime",
        recipient=to.name,
        incarnation=to.incarnation,
        type="error",
        mode="queue",
        content=text,
        reply_to=about.id,
        cause=cause_of(about),
        sent_at=now,
    )
