"""Open requests of all sessions of a store, kept up to date without polling."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from callboard.core.decoding import read_value
from callboard.core.keys import host_lease, request_key, session_of
from callboard.engine.row_cache import RowCache
from callboard.ports.store import Row, Store
from callboard.ports.store_reading import rows_of
from callboard.types.errors import SessionUnreadable, ValueDamaged
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Request, SessionRow

_SESSIONS = "s/"
"""Prefix of the keys of all sessions."""


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """An open request, and its session. `earlier`: all requests of the session, for the differences of a plan."""

    session: SessionRow
    request: Request
    earlier: Sequence[Request] = ()
    hosted: bool = True
    """False if no process hosts the session, so that an answer takes effect later."""


class OpenRequests:
    """Requests of all sessions.

    A row that this version cannot read is left out: the list of sessions says what is wrong with its session.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rows: dict[str, RowCache] = {}
        self._sessions: dict[str, SessionRow] = {}

    async def follow(self, changed: Callable[[], None]) -> None:
        """Call `changed` after each change of a session or a request. Returns when the store is closed."""
        while True:
            try:
                return await self._watch(changed)
            except ValueDamaged:
                continue  # the store has set the value aside, so that the next watch gets farther

    async def _watch(self, changed: Callable[[], None]) -> None:
        async with self._store.watch(_SESSIONS) as rows:
            async for row in rows:
                news = [self._take(row), *map(self._take, rows.at_hand())]
                if any(news):
                    changed()

    async def read(self) -> None:
        """Read all rows once."""
        for row in await rows_of(self._store, _SESSIONS):
            self._take(row)

    async def earliest_first(self) -> list[OpenRequest]:
        """Return the open requests, the earliest deadline first; those without one are last, the oldest first."""
        waiting: list[OpenRequest] = []
        for name, session in self._sessions.items():
            rows = self._rows.get(name)
            pending = () if rows is None else rows.pending_requests()
            if rows is None or not pending:
                continue
            hosted = await self._store.holder(host_lease(name)) is not None
            requests = rows.requests()
            waiting += [OpenRequest(session, request, requests, hosted) for request in pending]
        return sorted(waiting, key=lambda row: (row.request.expires_at or float("inf"), row.request.created_at))

    def session(self, session: str) -> SessionRow | None:
        """Return the row of a session; None if it does not exist."""
        return self._sessions.get(session)

    def _take(self, row: Row) -> bool:
        """Apply a row; return False for one that is not about requests."""
        session = session_of(row.key)
        try:
            if row.key.count("/") == 1:
                if row.value is None:
                    self._sessions.pop(session, None)
                else:
                    self._sessions[session] = read_value(SessionRow, row.value, row.key)
                return True
            if row.key.startswith(request_key(session, "")):
                self._rows.setdefault(session, RowCache(session, lambda kind, name: None)).take(row)
                return True
        except SessionUnreadable:
            return False
        return False
