"""Receipts, read from mailboxes and journals, in any process, also while another process hosts the session."""

from __future__ import annotations

from collections.abc import Sequence

from callboard.core.decoding import read_envelope, read_event
from callboard.core.keys import journal, mailbox
from callboard.core.messaging.dead_letters import over
from callboard.core.reports.receipts import Receipt, newest, receipts
from callboard.engine.recall import PAGE
from callboard.ports.store import Record, Store
from callboard.ports.store_reading import records_of
from callboard.types.events import Event
from callboard.types.records import AgentRow

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
"""Byte patterns of records about mail. In a long journal only records that contain one are parsed."""


async def mail_of(store: Store, session: str, rows: Sequence[AgentRow]) -> list[Receipt]:
    """Return a receipt for every envelope ever sent to these agents, in all their lives, in sending order. Damaged
    records are left out. Raises `SessionUnreadable` for a record of a newer version."""
    lives = [await mail_of_life(store, session, row, life) for row in rows for life in range(1, row.incarnation + 1)]
    return newest(lives)


async def mail_of_life(store: Store, session: str, row: AgentRow, life: int) -> list[Receipt]:
    """Return the receipts of one life, in the order of its mailbox.

    The journal is not folded, so that the journal of a crashing agent can be read too. It is read first, so that every
    received envelope is in the mailbox.
    """
    events = await _report_events(store, journal(session, row.name, life))
    stream = mailbox(session, row.name, life)
    mail = [read_envelope(record.data, stream, record.seq) for record in await _records(store, stream)]
    return receipts(mail, events, over=row.since if over(life, row) else None)


async def _report_events(store: Store, stream: str) -> list[Event]:
    events: list[Event] = []
    for record in await _records(store, stream):
        if any(mark in record.data for mark in _TELLING):
            events.append(read_event(record.data, stream, record.seq))
    return events


async def _records(store: Store, stream: str) -> list[Record]:
    records_read: list[Record] = []
    while records := await records_of(store, stream, records_read[-1].seq if records_read else 0, PAGE):
        records_read += records
    return records_read
