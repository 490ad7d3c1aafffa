"""Receipts of mail, and dead letters: mail left in the mailbox of an ended life, or sent there later.

Receipts are read from mailboxes and journals, in any process, also while another process hosts the session.

A key for each ended life stores the position up to which its mailbox was processed. It is written in one commit with
the dead letters, so that processing continues there after a crash. The ids of the letters prevent duplicates. If a lead
began again (`/new`), its next life gets the mail. A crashed teammate that is parked keeps its mail and reads it when
the user resumes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog
from pydantic import BaseModel, ConfigDict

from callboard.core.decoding import read_envelope, read_event
from callboard.core.keys import dead_key, journal, mailbox
from callboard.core.messaging.dead_letters import dead_letter, life_to_notify, over
from callboard.core.messaging.envelopes import envelope_write
from callboard.core.reports.receipts import Receipt, newest, receipts
from callboard.engine.recall import PAGE, recall
from callboard.engine.runtime import SessionRuntime
from callboard.engine.team.renew import moved_mail
from callboard.ports.store import Put, Record, Store, Write
from callboard.ports.store_reading import records_of
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import AgentRow, Envelope

log = structlog.get_logger("callboard.mail")


class DeadLetterPosition(BaseModel):
    """Value of the key of an ended incarnation."""

    model_config = ConfigDict(defer_build=True, frozen=True)

    position: int
    """Number of the newest envelope that was processed."""
    moves: bool = False
    """True if the mail goes to the next life of the name."""


@dataclass(slots=True)
class EndedLife:
    """Ended life in this process."""

    name: str
    life: int
    seen: DeadLetterPosition | None = None
    """None until the remaining mail has been processed."""


class DeadLetters:
    """Processor of the mailboxes of all ended lives of a session."""

    def __init__(
        self, runtime: SessionRuntime, notify_changed: Callable[[], None], start_task: Callable[..., bool]
    ) -> None:
        """`notify_changed` is called after each change. `start_task` runs a function beside the team."""
        self._runtime = runtime
        self._notify_changed = notify_changed
        self._start_task = start_task
        self._lives: dict[tuple[str, int], EndedLife] = {}
        self._recalled = False

    async def recall(self) -> None:
        """Process all lives that ended before this process started."""
        for row in self._runtime.rows.agents():
            for life in range(1, row.incarnation + 1):
                if over(life, row):
                    await self.take(row, life)
        self._recalled = True
        self._notify_changed()

    async def take(self, row: AgentRow, life: int) -> None:
        """Process the remaining mail of an ended life now, and later mail as it arrives.

        Idempotent. Subagents receive no mail. Raises the exceptions of `Store.commit`.
        """
        if row.kind == "subagent" or (row.name, life) in self._lives:
            return
        ended = self._lives[row.name, life] = EndedLife(row.name, life)
        stored = await self._runtime.services.store.get(dead_key(self._runtime.session, row.name, life))
        if stored is not None and stored.value is not None:
            ended.seen = DeadLetterPosition.model_validate_json(stored.value)
        else:
            mail = await mail_of_life(self._runtime.services.store, self._runtime.session, row, life)
            unread = [entry.envelope for entry in mail if entry.state == "dead"]
            position = mail[-1].envelope.seq if mail else 0
            # A sender may know only the old life of the lead
            # (test_late_mail_to_the_leads_old_life_goes_to_its_new_one).
            has_next = row.kind == "lead" and (
                row.incarnation > life
                or bool(
                    (await recall(self._runtime.services.store, self._runtime.session, row.name, life)).lifecycle.renew
                )
            )
            await self._process_unread(ended, unread, DeadLetterPosition(position=position, moves=has_next))
        self._start_task(self._follow, ended)

    async def empty(self) -> bool:
        """Return True if no unread mail waits to be reported."""
        store = self._runtime.services.store
        for ended in list(self._lives.values()):
            if ended.seen is None or await store.last(self._stream(ended)) > ended.seen.position:
                return False
        return self._recalled

    async def _follow(self, ended: EndedLife) -> None:
        assert ended.seen is not None, "what was left comes first"
        async with self._runtime.services.store.follow(self._stream(ended), ended.seen.position) as records:
            async for record in records:
                together = (record, *records.at_hand())
                unread = [read_envelope(each.data, self._stream(ended), each.seq) for each in together]
                await self._process_unread(ended, unread, ended.seen.model_copy(update={"position": together[-1].seq}))

    async def _process_unread(self, ended: EndedLife, unread: Sequence[Envelope], seen: DeadLetterPosition) -> None:
        """Notify the senders or move the mail, and store the new position, in one commit."""
        runtime = self._runtime
        writes, for_person = (
            (moved_mail(runtime.session, ended.life, unread), []) if seen.moves else self._letters(unread)
        )
        key = dead_key(runtime.session, ended.name, ended.life)
        # The position and the letters are one commit, so that a crash neither loses nor repeats a letter
        # (test_a_crash_round_the_telling_tells_once).
        await runtime.commit(Put(key, seen.model_dump_json().encode()), *writes)
        for letter in for_person:
            runtime.report_mail(letter)  # on the screen, because a person has no mailbox
        ended.seen = seen
        self._notify_changed()

    def _letters(self, unread: Sequence[Envelope]) -> tuple[list[Write], list[Envelope]]:
        """Return the letters to agents as writes, and the letters to the user."""
        runtime = self._runtime
        now = self._runtime.clock.now()
        letters = list[Write]()
        for_person = list[Envelope]()
        for dead in unread:
            log.warning("dead letter", envelope=dead.id, type=dead.type, sender=dead.sender, recipient=dead.recipient)
            match = runtime.rows.agent(dead.sender)
            life = life_to_notify(dead, match[0] if match else None)
            if life is not None:
                letters.append(envelope_write(runtime.session, dead_letter(dead, life, now)))
            elif dead.sender == "person" and dead.type == "prompt":
                for_person.append(dead_letter(dead, 0, now))
        return letters, for_person

    def _stream(self, ended: EndedLife) -> str:
        return mailbox(self._runtime.session, ended.name, ended.life)


_MAIL_RECORDS = tuple(
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
    """Return a receipt for every envelope ever sent to these agents, in all their lives, in sending order.

    Damaged records are left out. Raises `SessionUnreadable` for a record of a newer version.
    """
    lives = [await mail_of_life(store, session, row, life) for row in rows for life in range(1, row.incarnation + 1)]
    return newest(lives)


async def mail_of_life(store: Store, session: str, row: AgentRow, life: int) -> list[Receipt]:
    """Return the receipts of one life, in the order of its mailbox.

    The journal is not folded, so that the journal of a crashing agent can be read too. It is read first, so that every
    received envelope is in the mailbox.
    """
    stream = journal(session, row.name, life)
    events = [
        read_event(record.data, stream, record.seq)
        for record in await _records(store, stream)
        if any(mark in record.data for mark in _MAIL_RECORDS)
    ]
    stream = mailbox(session, row.name, life)
    mail = [read_envelope(record.data, stream, record.seq) for record in await _records(store, stream)]
    return receipts(mail, events, over=row.since if over(life, row) else None)


async def _records(store: Store, stream: str) -> list[Record]:
    records_read: list[Record] = []
    while records := await records_of(store, stream, records_read[-1].seq if records_read else 0, PAGE):
        records_read += records
    return records_read
