"""Receipts of all envelopes, folded from a mailbox and its recipient's journal. Pure.

Receipts are derived and never written: the mailbox contains the sent envelopes, and the journal their handling by the
recipient. So a receipt cannot be forged, lost or late, and it can be read while another process hosts the session.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from callboard.core.agent.apply import is_for_runtime
from callboard.types import events as ev
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Envelope

ReceiptState = Literal["sent", "received", "delivered", "handled", "dropped", "dead"]
"""`sent`: in the mailbox. `received`: in the recipient's journal. `delivered`: in the conversation. `handled`: the turn
that took it has ended, or the runtime has processed it. `dropped`: removed unread, for a reason. `dead`: its
recipient's life ended before it was read. The last three are final."""

WAITING: frozenset[ReceiptState] = frozenset({"sent", "received"})
"""States of an envelope that was not read yet, and may still be."""
_OVER = "the life of its recipient was over"


@dataclass(frozen=True, slots=True)
class Receipt:
    """One envelope and its state. Times are Unix seconds, None for events that have not happened."""

    envelope: Envelope
    state: ReceiptState = "sent"
    received_at: float | None = None
    delivered_at: float | None = None
    ended_at: float | None = None
    """Time at which the envelope was handled, dropped, or declared dead."""
    began: str = ""
    """Envelope that began the turn that took this one: itself, or an earlier one."""
    why: str = ""
    """Reason why the envelope was dropped or is dead."""


@dataclass(frozen=True, slots=True)
class EnvelopeTrace:
    """Origin of an envelope, and the envelopes that it caused."""

    path: tuple[Receipt, ...]
    """Receipts from the root to the envelope itself, which is the last."""
    caused: tuple[tuple[int, Receipt], ...]
    """Envelopes that it caused, each with its depth below it (from 1), in tree order: by time, each followed by its
    own."""


def receipts(mailbox: Sequence[Envelope], journal: Iterable[ev.Event], over: float | None = None) -> list[Receipt]:
    """Return a receipt for each envelope of one life's mailbox, in order.

    `mailbox`: with their `seq`. `journal`: of the same life, from its beginning, read before or after the mailbox.
    `over`: end of the life (Unix seconds), if its journal does not contain it.
    """
    by_id = {envelope.id: Receipt(envelope) for envelope in mailbox}
    began = ""
    for event in journal:
        began = event.cause if isinstance(event, ev.TurnBegan) else began
        over = event.at if isinstance(event, ev.AgentStopped) else over
        _update(by_id, event, began)
    if over is not None:
        for receipt in [receipt for receipt in by_id.values() if receipt.state in WAITING]:
            died = max(over, receipt.envelope.sent_at)
            by_id[receipt.envelope.id] = replace(receipt, state="dead", ended_at=died, why=_OVER)
    return sorted(by_id.values(), key=lambda receipt: receipt.envelope.seq)


def _update(by_id: dict[str, Receipt], event: ev.Event, began: str) -> None:
    """Update the receipts from one record of the journal; most records change nothing."""
    match event:
        case ev.EnvelopeReceived():
            by_id[event.envelope.id] = _received(event)
        case ev.EnvelopesDelivered():
            for receipt in _receipts_with(by_id, event.ids):
                by_id[receipt.envelope.id] = replace(receipt, state="delivered", delivered_at=event.at, began=began)
        case ev.EnvelopesDropped():
            for receipt in _receipts_with(by_id, event.ids):
                by_id[receipt.envelope.id] = replace(receipt, state="dropped", ended_at=event.at, why=event.why)
        case ev.TurnEnded() | ev.AgentStopped():
            for receipt in [receipt for receipt in by_id.values() if receipt.state == "delivered"]:
                by_id[receipt.envelope.id] = replace(receipt, state="handled", ended_at=event.at)
        case _:
            pass


def _received(event: ev.EnvelopeReceived) -> Receipt:
    """Return the receipt of a received envelope.

    A forged, stale or foreign envelope is dropped, one for the runtime is handled.
    """
    got = Receipt(event.envelope, "received", event.at)
    if event.refused:
        return replace(got, state="dropped", ended_at=event.at, why=event.refused)
    return replace(got, state="handled", ended_at=event.at) if is_for_runtime(event.envelope) else got


def _receipts_with(by_id: Mapping[str, Receipt], ids: Sequence[str]) -> list[Receipt]:
    """Return the receipts with these ids that were received. A damaged mailbox or journal may lack some."""
    return [by_id[envelope_id] for envelope_id in ids if envelope_id in by_id]


def newest(lives: Iterable[Sequence[Receipt]]) -> list[Receipt]:
    """Return the receipts of several mailboxes together, in the order of sending.

    `/new` moves unread mail to the next life of the lead's name: for such an envelope the newest life's receipt counts.
    """
    newest_receipts: dict[str, Receipt] = {}
    for life in lives:
        for receipt in life:
            previous = newest_receipts.get(receipt.envelope.id)
            if previous is None or previous.envelope.incarnation < receipt.envelope.incarnation:
                newest_receipts[receipt.envelope.id] = receipt
    return sorted(newest_receipts.values(), key=_age)


def trace(all_receipts: Iterable[Receipt], envelope_id: str) -> EnvelopeTrace:
    """Return the origin of the envelope with this id, and the envelopes that it caused.

    Raises `KeyError` for an unknown id.

    The origin of an envelope is the envelope that it answers, otherwise the envelope that began the turn in which it
    was sent.
    """
    by_id = {receipt.envelope.id: receipt for receipt in all_receipts}
    children: defaultdict[str, list[Receipt]] = defaultdict(list)
    for receipt in sorted(by_id.values(), key=_age, reverse=True):
        children[_parent(receipt.envelope, by_id)].append(receipt)
    path = [by_id[envelope_id]]
    met = {envelope_id}
    while (parent := _parent(path[-1].envelope, by_id)) and parent not in met:
        path.append(by_id[parent])
        met.add(parent)
    caused: list[tuple[int, Receipt]] = []
    pending = [(1, child) for child in children[envelope_id]]
    while pending:
        depth, receipt = pending.pop()
        if receipt.envelope.id not in met:
            met.add(receipt.envelope.id)
            caused.append((depth, receipt))
            pending += [(depth + 1, child) for child in children[receipt.envelope.id]]
    return EnvelopeTrace(tuple(reversed(path)), tuple(caused))


def _parent(envelope: Envelope, by_id: Mapping[str, Receipt]) -> str:
    """Return the envelope that caused this one; empty for a root."""
    causes = (envelope.reply_to or "", envelope.caused_by)
    return next((cause for cause in causes if cause in by_id and cause != envelope.id), "")


def _age(receipt: Receipt) -> tuple[float, str, int]:
    return receipt.envelope.sent_at, receipt.envelope.recipient, receipt.envelope.seq
