"""What the team's tools share: whom an agent can reach, and an envelope as a tool writes it."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from callboard.core.bus.authority import claim
from callboard.core.bus.mail import sending
from callboard.core.names import short_id
from callboard.ports.store import Write
from callboard.ports.tool import MailLoad, ToolContext
from callboard.words.errors import ToolRefused
from callboard.words.values import AgentRow, Cause, Envelope, EnvelopeType

GONE = frozenset({"stopping", "stopped"})
"""An agent in one of these reads no more mail."""
ENVELOPE_ID = re.compile(r"env_[a-z2-7]{12}")
"""What an agent may name as the message that it answers (`callboard.core.names.short_id`)."""


def team(context: ToolContext) -> list[AgentRow]:
    """The lead and its teammates, the lead first, then by age. Subagents take no mail: they are not listed."""
    members = [row for row in context.board.agents() if row.kind != "subagent"]
    return sorted(members, key=lambda row: (row.kind != "lead", row.created_at, row.name))


def member(context: ToolContext, name: str) -> AgentRow:
    """A living member of the team that is not the caller. Raises `ToolRefused` that lists the team."""
    if name == context.spec.name:
        raise ToolRefused(f"{name} is yourself; {_reachable(context)}")
    row = next((row for row in team(context) if row.name == name), None)
    if row is None:
        raise ToolRefused(f"no agent {name!r} in the team; {_reachable(context)}{_HINTS.get(name, '')}")
    if row.life in GONE:
        raise ToolRefused(f"{name} is {row.life} and reads no more messages; {_reachable(context)}")
    return row


def teammate(context: ToolContext, name: str) -> AgentRow:
    """The same, for what only makes sense towards a teammate."""
    row = member(context, name)
    if row.kind != "teammate":
        raise ToolRefused(f"{name} is the {row.kind}, not a teammate; {_reachable(context)}")
    return row


def envelope(
    context: ToolContext, to: AgentRow, kind: EnvelopeType, content: str, *, wake: bool = True, **fields: object
) -> Write:
    """The write that sends it. Its id follows from the call and the recipient, so it is sent once."""
    sent = Envelope.model_validate(
        {
            "id": short_id("env", context.call, to.name),
            "sender": context.spec.name,
            "recipient": to.name,
            "incarnation": to.incarnation,
            "type": kind,
            "mode": "wake" if wake else "queue",
            "content": content,
            "cause": cause(context),
            "caused_by": context.caused_by,
            "sender_incarnation": context.incarnation,
            "depth": context.depth + 1,
            "sent_at": context.now,
            **fields,
        }
    )
    return sending(context.session, sent)


def cause(context: ToolContext) -> Cause:
    """What it may claim: its own standing, and no more than its turn has."""
    return claim(context.spec.name, context.authority)


def full_words(to: AgentRow, load: MailLoad) -> str:
    """That a mailbox is full, how full, and since when nothing of it was read."""
    since = f", the oldest since {datetime.fromtimestamp(load.since, UTC):%Y-%m-%d %H:%M:%S} UTC" if load.since else ""
    return f"{to.name}'s mailbox is full: {load.waiting:,} messages wait there unread{since}."


_HINTS = {
    "all": ": to write to everyone use broadcast",
    "person": ": the person reads your replies; ask_person asks a question",
}


def _reachable(context: ToolContext) -> str:
    names = [row.name for row in team(context) if row.name != context.spec.name and row.life not in GONE]
    return "you can reach " + ", ".join(names) if names else "you can reach nobody"
