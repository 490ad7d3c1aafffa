"""When an envelope will never be read: whom to tell, and in which words. Pure.

A dead letter goes to the agent that sent the envelope, in the life that sent it. Nobody is told of a dead letter that
is dead itself, so that none causes another.
"""

from __future__ import annotations

from datetime import UTC, datetime

from callboard.core.names import short_id
from callboard.words.values import AgentRow, Envelope

MOOT = frozenset({"command", "shutdown_request", "dead_letter"})
"""Types whose sender is not told: what the first two asked for has happened, and a dead letter is news of no use to
one who has ended."""
AWAITED = frozenset({"message", "plan_request", "plan_approval_request"})
"""Types whose sender may be waiting for a word, and is woken if the envelope would have woken its recipient."""
_SHOWN = 200
"""Characters of an envelope's first line, to know it again by; its sender has the whole."""


def over(life: int, row: AgentRow) -> bool:
    """Whether this life of a name is over. A crashed agent's is not: a person may resume it, and it then reads on."""
    return row.incarnation > life or row.life == "stopped"


def teller(dead: Envelope, sender: AgentRow | None) -> int | None:
    """The life of the sender that is to be told; None when nobody is.

    The person, the schedules and the runtime have no row: for them it stands in the log and on the screen. A lead's
    next life speaks for the one before; a teammate's new life knows nothing of what the old one wrote.
    """
    if sender is None or sender.kind == "subagent" or dead.type in MOOT:
        return None
    if sender.kind == "lead":  # between two lives, too: what comes to the one that is over moves on to the next
        return sender.incarnation
    life = dead.sender_incarnation or sender.incarnation
    return None if over(life, sender) else life


def dead_letter(dead: Envelope, life: int, now: float) -> Envelope:
    """What its sender is told. Its id follows from the envelope's: however often it is sent, it arrives once."""
    wakes = dead.mode == "wake" and dead.type in AWAITED
    return Envelope(
        id=short_id("env", dead.id, "dead_letter"),
        sender="runtime",
        recipient=dead.sender,
        incarnation=life,
        type="dead_letter",
        mode="wake" if wakes else "queue",
        content=_words(dead),
        request_id=dead.request_id,
        reply_to=dead.id,
        cause=dead.cause,
        caused_by=dead.id,
        depth=dead.depth,
        metadata={"recipient": dead.recipient, "life": dead.incarnation, "type": dead.type},
        sent_at=now,
    )


def _words(dead: Envelope) -> str:
    kind = dead.type.replace("_", " ")
    sent = f"{datetime.fromtimestamp(dead.sent_at, UTC):%Y-%m-%d %H:%M:%S} UTC"
    line = dead.content.strip().partition("\n")[0]
    begins = line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."
    text = f"{dead.recipient} has ended and never read your {kind} of {sent}: nobody will read it."
    return f"{text}\nIt began: {begins}" if begins else text
