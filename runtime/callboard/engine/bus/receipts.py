"""Reading mailboxes and journals back as receipts, from any process, also while another one hosts the session."""

from __future__ import annotations

from collections.abc import Sequence

from callboard.core.bus.dead_letters import over
from callboard.core.bus.receipts import Receipt, newest, receipts
from callboard.core.names import journal, mailbox
from callboard.engine.memory import PAGE
from callboard.ports.store import Record, Store
from callboard.words.errors import StoreDamaged
from callboard.words.events import Event, decode_event
from callboard.words.values import AgentRow, Envelope

_TELLING = tuple(
    f'"t":"{kind}"'.encode()
    for kind in (
        "envelope_received",
        "envelopes_delivered",
        "envelopes_dropped",
        "turn_began",
        "turn_ended",
        "agent_stopped",
    )
)
"""How the records look that say something of mail: of a long journal only these are read as events."""


async def mail_of(store: Store, session: str, rows: Sequence[AgentRow]) -> list[Receipt]:
    """A receipt for every envelope that these agents were ever sent, in all their lives, in the order of sending.

    Raises `StoreDamaged` for a record that cannot be read.
    """
    lives = [await mail_of_life(store, session, row, life) for row in rows for life in range(1, row.incarnation + 1)]
    return newest(lives)


async def mail_of_life(store: Store, session: str, row: AgentRow, life: int) -> list[Receipt]:
    """The same for one life, in the order of its mailbox. The journal is not folded, so that one which makes its agent
    crash can be read too; and it is read first: what it has received then stands in the mailbox."""
    events = await _told(store, journal(session, row.name, life))
    mail = [_envelope(record, row.name) for record in await _records(store, mailbox(session, row.name, life))]
    return receipts(mail, events, over=row.since if over(life, row) else None)


async def _told(store: Store, stream: str) -> list[Event]:
    found: list[Event] = []
    for record in await _records(store, stream):
        if any(mark in record.data for mark in _TELLING):
            try:
                found.append(decode_event(record.data))
            except ValueError as wrong:
                raise StoreDamaged(f"record {record.seq} of {stream} is no event: {wrong}") from wrong
    return found


def _envelope(record: Record, name: str) -> Envelope:
    try:
        return Envelope.model_validate_json(record.data).model_copy(update={"seq": record.seq})
    except ValueError as wrong:
        raise StoreDamaged(f"envelope {record.seq} to {name} cannot be read: {wrong}") from wrong


async def _records(store: Store, stream: str) -> list[Record]:
    found: list[Record] = []
    while records := await store.read(stream, found[-1].seq if found else 0, PAGE):
        found += records
    return found
