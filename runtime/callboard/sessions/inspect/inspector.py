"""Sessions of a workspace, opened without hosting them: for commands that read a session or act on it once."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from callboard.core.keys import request_key, rows_prefix
from callboard.engine.commands import find_session, naming_version, sessions_of
from callboard.engine.row_cache import RowCache
from callboard.ports.store import Store
from callboard.ports.store_reading import rows_of
from callboard.sessions.handle import SessionHandle
from callboard.sessions.inspect.health import ListedSession, listed_sessions
from callboard.sessions.places import Notice, WorkspacePaths, find_places
from callboard.sessions.stores import existing_store
from callboard.types.errors import UsageError
from callboard.types.records import SessionRow


@asynccontextmanager
async def open_handle(
    workspace: Path, session: str | None = None, *, request: str = "", notice: Notice
) -> AsyncGenerator[SessionHandle]:
    """Open the newest session of a workspace, or the named one, without hosting it.

    `request`: an id of a request, or a prefix; without `session`, the session that has it is opened. Raises
    `UsageError` if there is none.
    """
    places = find_places(workspace, writable=False)
    async with _open(places, notice) as store:
        yield await handle_of(store, session or await _session_with(store, request))


async def _session_with(store: Store, request: str) -> str | None:
    """Return the only session that has the request; None if none or several have it."""
    if not request:
        return None
    rows = await sessions_of(store)
    having = [row.id for row in rows if await rows_of(store, request_key(row.id, request))]
    return having[0] if len(having) == 1 else None


async def handle_of(store: Store, session: str | None) -> SessionHandle:
    """Return the handle of the newest session of an open store, or of the named one. Raises as `find_session` does."""
    row = await find_session(store, session, files=True)
    with naming_version(row):
        rows = RowCache(row.id, lambda kind, name: None)
        rows.take(*await rows_of(store, rows_prefix(row.id)))
        return SessionHandle(row, store, rows)


async def list_sessions(workspace: Path, notice: Notice) -> list[ListedSession]:
    """Return all sessions of a workspace, newest first, including unreadable ones."""
    async with existing_store(find_places(workspace, writable=False), notice) as store:
        return [] if store is None else await listed_sessions(store)


async def waiting_elsewhere(workspace: Path, session: str, notice: Notice) -> list[tuple[SessionRow, int]]:
    """Return the other sessions of a workspace with requests for the person, newest first, and the number of these.

    `session` is the id of the session to leave out.
    """
    waiting: list[tuple[SessionRow, int]] = []
    async with _open(find_places(workspace, writable=False), notice) as store:
        for row in await sessions_of(store):
            if row.id != session:
                rows = RowCache(row.id, lambda kind, name: None)
                rows.take(*await rows_of(store, request_key(row.id, "")))
                waiting.append((row, sum("person" in request.may_answer for request in rows.pending_requests())))
    return [(row, count) for row, count in waiting if count]


@asynccontextmanager
async def _open(places: WorkspacePaths, notice: Notice) -> AsyncGenerator[Store]:
    async with existing_store(places, notice) as store:
        if store is None:
            raise UsageError(f"there is no session in {places.workspace} yet: start one with `callboard run`")
        yield store
