"""Sessions that cannot continue because they are damaged or written by a newer Callboard. For lists and `doctor`."""

from __future__ import annotations

import math
from collections.abc import Mapping

from callboard import __version__
from callboard.core.decoding import read_event, read_value, with_version
from callboard.core.keys import agent_key, journal
from callboard.core.team.lifecycle import AT_WORK
from callboard.engine.commands import StoredSessions, stored_sessions
from callboard.engine.recall import recall
from callboard.ports.store import Store
from callboard.ports.store_reading import records_of, row_of, rows_of
from callboard.sessions.stores import damaged_sessions
from callboard.types.errors import SessionUnreadable, ValueDamaged
from callboard.types.records import AgentRow, SessionRow


class ListedSession(SessionRow):
    """A session in a list."""

    trouble: str = ""
    """Reason why the session cannot continue, with the lost data and the command that continues it; empty if there is
    none."""
    state: str = ""
    """`damaged` or `newer` if `trouble` is set, otherwise empty."""


async def listed_sessions(store: Store) -> list[ListedSession]:
    """Return all sessions, newest first, including unreadable ones."""
    stored = await stored_sessions(store)
    wrong = await troubles(store, stored, deep=damaged_sessions(store))
    began = {session: 0.0 if math.isinf(at) else at for session, at in stored.began.items()}
    lost = [SessionRow(id=session, workspace="", created_at=at) for session, at in began.items()]
    rows = [_listed(row, wrong.get(row.id)) for row in (*stored.rows, *lost)]
    current = [row if row.trouble or row.ended_at is None else await _continued(store, row) for row in rows]
    return sorted(current, key=lambda row: -row.created_at)


async def _continued(store: Store, row: ListedSession) -> ListedSession:
    """Return a session that has ended once as open again if its lead has begun work since and has not finished it.

    The row keeps the end of the earlier run.
    """
    lead = await row_of(store, agent_key(row.id, "lead"))
    if lead is None or row.ended_at is None:
        return row
    agent = read_value(AgentRow, lead.value or b"", lead.key)
    if agent.life not in AT_WORK or agent.since <= row.ended_at:
        return row
    return row.model_copy(update={"ended_at": None, "exit_code": None})


def _listed(row: SessionRow, wrong: SessionUnreadable | None) -> ListedSession:
    listed = ListedSession.model_validate(row.model_dump())
    if wrong is None:
        return listed
    return listed.model_copy(update={"trouble": str(wrong), "state": "newer" if wrong.newer else "damaged"})


async def troubles(
    store: Store, stored: StoredSessions, *, deep: frozenset[str] | None
) -> Mapping[str, SessionUnreadable]:
    """Return the faults of sessions, by id. `deep`: sessions whose agents are read in full; None for all."""
    faults = dict(stored.unreadable)
    for row in stored.rows:
        whole = deep is None or row.id in deep
        wrong = await _trouble(store, row.id, whole=whole)
        if wrong is None and row.id in stored.rebuilt:
            message = f"session {row.id} is damaged: its row is lost, with its choice of model and its flags"
            wrong = SessionUnreadable(f"{message}. `callboard resume {row.id}` continues without them", row.id)
        if wrong is not None:
            faults[row.id] = with_version(wrong, row.encode(), __version__)
    return faults


async def _trouble(store: Store, session: str, *, whole: bool) -> SessionUnreadable | None:
    try:
        lead = await row_of(store, agent_key(session, "lead"))
        if lead is None:
            message = f"session {session} is damaged: the row of its lead is lost"
            return SessionUnreadable(
                f"{message}. `callboard resume {session}` makes it again from its journal", session
            )
        agents = await rows_of(store, agent_key(session, "")) if whole else [lead]
        for row in agents:
            agent = read_value(AgentRow, row.value or b"", row.key)
            if whole and agent.life != "stopped":
                await recall(store, session, agent.name, agent.incarnation)
            elif not whole:
                await _read_newest_record(store, journal(session, agent.name, agent.incarnation))
    except SessionUnreadable as wrong:
        return wrong
    except ValueDamaged as damage:
        message = f"session {session} is damaged: {damage}. `callboard resume {session}` continues without it"
        return SessionUnreadable(message, session)
    return None


async def _read_newest_record(store: Store, stream: str) -> None:
    """Read the newest record of a journal. Raises `SessionUnreadable` if a newer version wrote it."""
    last = await store.last(stream)
    for record in await records_of(store, stream, max(0, last - 1)):
        read_event(record.data, stream, record.seq)
