"""Guard of the answers, session rules and messages of a person, while agents' commands can write to the database.

A change that neither this process nor an announced process of a person made does not reach the row cache: the guard
writes the row again as the cache has it, and reports the attempt. Rows and mail from before the guard began count:
nothing shows who wrote them. Only a session at sandbox level 0 with a store on this machine has a guard
(docs/decisions/0059-answers-at-level-0.md).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from callboard.core.approvals.vouching import guarded_prefixes, vouched_digests, write_digest
from callboard.core.keys import mailbox
from callboard.engine.row_cache import RowCache
from callboard.ports.store import Delete, Put, Row, Store, Write
from callboard.ports.store_reading import row_of, rows_of
from callboard.types.errors import Conflict, SessionUnreadable
from callboard.types.records import Envelope

FORGED_MAIL = "no process of the person sent it"
"""Reason why a message in the person's name is rejected."""


class ForgeryReport(Protocol):
    """Report of a forged write. `shown`: the screen shows it already."""

    async def __call__(self, forged: str, *, shown: bool = False) -> None: ...


class AnswerGuard:
    """Guard of one session. `commit`: that of the host, which applies its rows to the cache."""

    def __init__(
        self,
        session: str,
        store: Store,
        rows: RowCache,
        *,
        commit: Callable[[Write], Awaitable[object]],
        report: ForgeryReport,
    ) -> None:
        self._session = session
        self._store = store
        self._rows = rows
        self._commit = commit
        self.report = report
        self._prefixes = guarded_prefixes(session)
        self._accepted_digests = set[str]()
        """Digests of announced writes, and of those of this process, that have not arrived yet. Those of mail stay,
        because a mailbox can be read twice."""
        self._trusted: dict[str, int] = {}
        """Mailbox -> last number of the mail from before the guard began."""

    async def begin(self) -> None:
        """Trust the rows and the mail that exist now."""
        for agent in self._rows.living_agents():
            stream = mailbox(self._session, agent.name, agent.incarnation)
            self._trusted[stream] = await self._store.last(stream)
        for prefix in self._prefixes:
            self._rows.take(*await rows_of(self._store, prefix))

    def accept_digests(self, digests: Sequence[str]) -> None:
        """Accept the writes with these digests when they arrive."""
        self._accepted_digests.update(digests)

    def expect(self, writes: Sequence[Write]) -> None:
        """Accept these writes, which this process is about to make."""
        self.accept_digests(vouched_digests(self._session, writes))

    def admits(self, stream: str, seq: int, data: bytes, envelope: Envelope) -> bool:
        """Return False if a record of a mailbox is guarded, and nobody vouched for it."""
        if envelope.sender != "person" and envelope.type != "command":
            return True
        return seq <= self._trusted.get(stream, 0) or write_digest(stream, data) in self._accepted_digests

    async def take(self, *rows: Row) -> None:
        """Apply rows of the store to the cache, and write those again that were forged."""
        forged = [row for row in rows if not self._is_sound(row)]
        self._rows.take(*(row for row in rows if row not in forged))
        for row in forged:
            await self._restore(row)

    async def check(self) -> None:
        """Compare the session rules and the pending requests with the cache.

        A forger can change a row without a new revision. What was decided is not compared, so that the cost does not
        grow with the session: its answer is in the journal of the agent that asked.
        """
        requests, rules = self._prefixes
        rows = {row.key: row for row in await rows_of(self._store, rules)}
        pending = {f"{requests}{request.id}" for request in self._rows.pending_requests()}
        rows |= {key: row for key in sorted(pending) if (row := await row_of(self._store, key)) is not None}
        await self.take(*rows.values())
        for row in rows.values():
            if row.revision == self._rows.revision(row.key) and not self._is_cached(row):
                await self._restore(row)
        for key in (*pending, *(f"{rules}{rule.id}" for rule in self._rows.rules())):
            if key not in rows:
                await self.take(await row_of(self._store, key) or Row(key, None, self._rows.revision(key) + 1))

    def _is_sound(self, row: Row) -> bool:
        """Return True for a row that the cache has already, or that this process or an announced one wrote."""
        if not row.key.startswith(self._prefixes) or row.revision <= self._rows.revision(row.key):
            return True
        digest = write_digest(row.key, row.value)
        if digest not in self._accepted_digests:
            return False
        # Used once: a later forger could write the same value again, such as a rule from before it was revoked.
        self._accepted_digests.remove(digest)
        return True

    def _is_cached(self, row: Row) -> bool:
        try:
            return self._rows.has(row)
        except SessionUnreadable:
            return False

    async def _restore(self, row: Row) -> None:
        """Write a row again as the cache has it."""
        value = self._rows.value(row.key)
        expected = row.revision if row.value is not None else None
        write = Delete(row.key, expected) if value is None else Put(row.key, value.encode(), expected)
        try:
            await self._commit(write)
        except Conflict:
            return  # it has changed again: the watch brings the newer row
        kind = "request" if row.key.startswith(self._prefixes[0]) else "session rule"
        await self.report(f"{kind} {row.key.rsplit('/', 1)[1]}")
