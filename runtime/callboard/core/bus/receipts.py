"""What became of each envelope: receipts, folded from a mailbox and its recipient's journal. Pure.

Receipts are derived and never written: the mailbox says what was sent, the journal says what its owner made of it. So
a receipt cannot be forged, lost or late, and it can be read while another process hosts the session.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from callboard.core.apply import RUNTIME_MAIL
from callboard.words import events as ev
from callboard.words.values import Envelope

ReceiptState = Literal["sent", "received", "delivered", "handled", "dropped", "dead"]
"""`sent`: it stands in the mailbox. `received`: its recipient's journal has it. `delivered`: it is in the conversation.
`handled`: the turn that took it has ended, or the runtime has heeded it. `dropped`: taken out unread, for a reason.
`dead`: its recipient's life was over before it was read. The last three are final."""

WAITING: frozenset[ReceiptState] = frozenset({"sent", "received"})
"""Not read yet, and it may still be."""
_OVER = "the life of its recipient was over"


@dataclass(frozen=True, slots=True)
class Receipt:
    """One envelope and what became of it. Times are Unix seconds, None for what has not happened."""

    envelope: Envelope
    state: ReceiptState = "sent"
    received_at: float | None = None
    delivered_at: float | None = None
    ended_at: float | None = None
    """When it was handled, dropped, or found to be dead."""
    began: str = ""
    """The envelope that began the turn which took it: itself, or one before it."""
    why: str = ""
    """Why it was dropped or is dead."""


@dataclass(frozen=True, slots=True)
class Traced:
    """Where an envelope came from, and what it caused."""

    path: tuple[Receipt, ...]
    """From the root to the envelope itself, which is the last."""
    caused: tuple[tuple[int, Receipt], ...]
    """What it caused, each with its depth below it (from 1), in the order of a tree: first by time, then its own."""


def receipts(mailbox: Sequence[Envelope], journal: Iterable[ev.Event], over: float | None = None) -> list[Receipt]:
    """A receipt for each envelope of one life's mailbox, in its order.

    `mailbox`: with their `seq`. `journal`: of the same life, from its beginning, read before or after the mailbox.
    `over`: since when the life is over (Unix seconds), where its journal does not say so.
    """
    found = {one.id: Receipt(one) for one in mailbox}
    began = ""
    for event in journal:
        began = event.cause if isinstance(event, ev.TurnBegan) else began
        over = event.at if isinstance(event, ev.AgentStopped) else over
        _heed(found, event, began)
    if over is not None:
        for one in [one for one in found.values() if one.state in WAITING]:
            died = max(over, one.envelope.sent_at)
            found[one.envelope.id] = replace(one, state="dead", ended_at=died, why=_OVER)
    return sorted(found.values(), key=lambda one: one.envelope.seq)


def _heed(found: dict[str, Receipt], event: ev.Event, began: str) -> None:
    """What one record of the journal says of the mail; most say nothing."""
    match event:
        case ev.EnvelopeReceived():
            found[event.envelope.id] = _received(event)
        case ev.EnvelopesDelivered():
            for one in _of(found, event.ids):
                found[one.envelope.id] = replace(one, state="delivered", delivered_at=event.at, began=began)
        case ev.EnvelopesDropped():
            for one in _of(found, event.ids):
                found[one.envelope.id] = replace(one, state="dropped", ended_at=event.at, why=event.why)
        case ev.TurnEnded() | ev.AgentStopped():
            for one in [one for one in found.values() if one.state == "delivered"]:
                found[one.envelope.id] = replace(one, state="handled", ended_at=event.at)
        case _:
            pass


def _received(event: ev.EnvelopeReceived) -> Receipt:
    """What is forged, stale or foreign is dropped with its receipt; what is for the runtime is heeded with it."""
    got = Receipt(event.envelope, "received", event.at)
    if event.refused:
        return replace(got, state="dropped", ended_at=event.at, why=event.refused)
    return replace(got, state="handled", ended_at=event.at) if event.envelope.type in RUNTIME_MAIL else got


def _of(found: Mapping[str, Receipt], ids: Sequence[str]) -> list[Receipt]:
    """Those of them that were received. A damaged mailbox or journal may lack some."""
    return [found[one] for one in ids if one in found]


def newest(lives: Iterable[Sequence[Receipt]]) -> list[Receipt]:
    """The receipts of several mailboxes together, in the order of sending.

    `/new` moves unread mail to the next life of the lead's name: of such an envelope the newest life's receipt counts.
    """
    found: dict[str, Receipt] = {}
    for life in lives:
        for one in life:
            there = found.get(one.envelope.id)
            if there is None or there.envelope.incarnation < one.envelope.incarnation:
                found[one.envelope.id] = one
    return sorted(found.values(), key=_age)


def trace(known: Iterable[Receipt], wanted: str) -> Traced:
    """Where the envelope of this id came from, and what it caused. Raises `KeyError` for one that is not known.

    An envelope comes from what it answers, else from the envelope that began the turn in which it was sent.
    """
    found = {one.envelope.id: one for one in known}
    children: defaultdict[str, list[Receipt]] = defaultdict(list)
    for one in sorted(found.values(), key=_age, reverse=True):
        children[_parent(one.envelope, found)].append(one)
    path, met = [found[wanted]], {wanted}
    while (parent := _parent(path[-1].envelope, found)) and parent not in met:
        path.append(found[parent])
        met.add(parent)
    caused: list[tuple[int, Receipt]] = []
    left = [(1, one) for one in children[wanted]]
    while left:
        depth, one = left.pop()
        if one.envelope.id not in met:
            met.add(one.envelope.id)
            caused.append((depth, one))
            left += [(depth + 1, child) for child in children[one.envelope.id]]
    return Traced(tuple(reversed(path)), tuple(caused))


def _parent(envelope: Envelope, known: Mapping[str, Receipt]) -> str:
    """The envelope that it came from; empty for a root."""
    causes = (envelope.reply_to or "", envelope.caused_by)
    return next((one for one in causes if one in known and one != envelope.id), "")


def _age(one: Receipt) -> tuple[float, str, int]:
    return one.envelope.sent_at, one.envelope.recipient, one.envelope.seq
