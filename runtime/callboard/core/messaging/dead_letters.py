"""Dead letters for envelopes that will never be read: conditions, recipient, and text. Pure.

A dead letter goes to the agent that sent the envelope, in the life that sent it. No dead letter is sent for an unread
dead letter.
"""

from __future__ import annotations

from datetime import UTC, datetime

from callboard.core.keys import short_id
from callboard.types.records import AgentRow, Envelope

MOOT = frozenset({"command", "shutdown_request", "dead_letter"})
"""Types whose sender is not notified: the effect of the first two has happened, and a dead letter is of no use to an
ended agent."""
AWAITED = frozenset({"message", "plan_request", "plan_approval_request"})
"""Types whose sender may wait for a reply and is woken if the envelope would have woken its recipient."""
_SHOWN = 200
"""Characters of an envelope's first line to identify it; its sender has the full text."""


def over(life: int, row: AgentRow) -> bool:
    """Return True if this life of a name is over. A crashed agent's life is not: the user may resume it."""
    return row.incarnation > life or row.life == "stopped"


def life_to_notify(dead: Envelope, sender: AgentRow | None) -> int | None:
    """Return the life of the sender to notify; None if nobody is notified.

    The user, schedules and the runtime have no row: the log and the screen inform the user. A lead's next life takes
    over from the previous one; a teammate's next life does not know the messages of the previous one.
    """
    if sender is None or sender.kind == "subagent" or dead.type in MOOT:
        return None
    if sender.kind == "lead":  # also between two lives: the next one takes over the mail
        return sender.incarnation
    life = dead.sender_incarnation or sender.incarnation
    return None if over(life, sender) else life


def dead_letter(dead: Envelope, life: int, now: float) -> Envelope:
    """Return the dead letter for the envelope's sender.

    Its id is derived from the envelope's: it arrives once, however often it is sent.
    """
    wakes = dead.mode == "wake" and dead.type in AWAITED
    return Envelope(
        id=short_id("env", dead.id, "dead_letter"),
        sender="runtime",
        recipient=dead.sender,
        incarnation=life,
        type="dead_letter",
        mode="wake" if wakes else "queue",
        content=_notice_text(dead),
        request_id=dead.request_id,
        reply_to=dead.id,
        cause=dead.cause,
        caused_by=dead.id,
        depth=dead.depth,
        metadata={"recipient": dead.recipient, "life": dead.incarnation, "type": dead.type},
        sent_at=now,
    )


def _notice_text(dead: Envelope) -> str:
    kind = dead.type.replace("_", " ")
    sent = f"{datetime.fromtimestamp(dead.sent_at, UTC):%Y-%m-%d %H:%M:%S} UTC"
    line = dead.content.strip().partition("\n")[0]
    begins = line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."
    text = f"{dead.recipient} has ended and never read your {kind} of {sent}: nobody will read it."
    return f"{text}\nIt began: {begins}" if begins else text
