"""Removal of old sessions: which ones may go, and everything that only they name.

A session goes in steps, so that a process that is killed at any moment leaves a store that can be read, and the next
removal completes the work:

1. One commit, under the lease of the session's host, deletes all its keys and writes a `RemovedSession`. From then on
   the session does not exist for anybody, and its watchers are woken.
2. Its streams are deleted in small transactions, and its files on this machine.
3. Blobs that nothing names any more go, if nobody has put them for a day: a process may be about to name one.
4. After a week its keys and the `RemovedSession` are deleted for good. Until then each machine deletes its own files.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from callboard.adapters.storage.durable import DurableStore
from callboard.adapters.system.clock import SystemClock
from callboard.core.decoding import read_value
from callboard.core.keys import (
    agent_key,
    host_lease,
    mailbox,
    names_of,
    queue_key,
    removed_key,
    request_key,
    schedule_key,
    screen_leases,
)
from callboard.core.retention import SessionAge, expired_sessions
from callboard.engine.commands import stored_sessions
from callboard.engine.recall import recall
from callboard.ports.store import Delete, Expect, LeaseHolder, Put, Row, Store
from callboard.ports.store_reading import rows_of
from callboard.sessions.places import WorkspacePaths
from callboard.types.errors import Conflict, SessionUnreadable
from callboard.types.lazy_dataclass import dataclass
from callboard.types.personal_settings import RetentionSettings
from callboard.types.records import AgentRow, RemovedSession, Request, SessionRow
from callboard.types.schedules import Schedule

DAY = 86_400.0
BLOB_UNUSED = DAY
"""Seconds after its last put for which a blob stays, whatever names it."""
REMEMBERED = 7 * DAY
"""Seconds for which a removed session's row stays."""
REMOVAL_MARK = "removed-old"
"""File in the state folder whose time is that of the last removal by `callboard serve` on this machine."""
LEASE = "store-gc"
"""Lease of the one process that removes sessions of a workspace."""
_OVER = frozenset({"fired", "cancelled", "ended"})
"""States of schedules that never fire again."""


@dataclass(frozen=True, slots=True)
class Removal:
    """One session that was removed, or would be."""

    session: SessionRow
    bytes: int
    """Size of its values in the store and of its files on this machine."""


@dataclass(frozen=True, slots=True)
class Kept:
    """One session that the settings would remove, and the reason why it stays."""

    session: SessionRow
    reason: str


@dataclass(frozen=True, slots=True)
class RemovalReport:
    """Result of one run."""

    removed: tuple[Removal, ...] = ()
    staying: tuple[Kept, ...] = ()
    blobs: int = 0
    blob_bytes: int = 0
    busy: bool = False
    """True if another process was removing sessions: nothing was done here."""


async def remove_old_sessions(
    store: DurableStore, places: WorkspacePaths, retention: RetentionSettings, *, dry_run: bool = False
) -> RemovalReport:
    """Remove the sessions that the settings name, and complete earlier removals.

    `dry_run`: change nothing, and return what would go, without the blobs. Raises errors of the store.
    """
    if dry_run:
        due, staying = await _due(store, retention)
        return RemovalReport(tuple([await _measured(store, places, row) for row in due]), tuple(staying))
    lease = await store.acquire(LEASE)
    if isinstance(lease, LeaseHolder):
        return RemovalReport(busy=True)
    try:
        due, staying = await _due(store, retention)
        removed: list[Removal] = []
        for row in due:
            removal = await _measured(store, places, row)
            reason = await _remove(store, row.id)
            if reason:
                staying.append(Kept(row, reason))
            else:
                removed.append(removal)
        blobs = await _complete(store, places)
        return RemovalReport(tuple(removed), tuple(staying), *blobs)
    finally:
        with anyio.CancelScope(shield=True):
            await lease.release()


async def _due(store: Store, retention: RetentionSettings) -> tuple[list[SessionRow], list[Kept]]:
    """Return the sessions to remove, and those that would be, but are in use."""
    due: list[SessionRow] = []
    staying: list[Kept] = []
    rows = {row.id: row for row in (await stored_sessions(store)).rows}
    ages = [SessionAge(row.id, row.created_at, row.ended_at) for row in rows.values()]
    for session in expired_sessions(ages, retention, SystemClock().now()):
        reason = await _use(store, rows[session])
        if reason:
            staying.append(Kept(rows[session], reason))
        else:
            due.append(rows[session])
    return due, staying


async def _use(store: Store, row: SessionRow) -> str:
    """Return who or what still needs a session; empty if nothing does."""
    if row.ended_at is None:
        return "it has not ended"
    for lease in (host_lease(row.id), *screen_leases(row.id)):
        if await store.holder(lease) is not None:
            return "a process has it open"
    if await store.get(queue_key(row.id)) is not None:
        return "it waits for a host"
    return await _waiting(store, row.id)


async def _waiting(store: Store, session: str) -> str:
    """Return what of a session still waits; empty if nothing does, or a reason why that is unknown."""
    try:
        for row in await rows_of(store, request_key(session, "")):
            if read_value(Request, row.value or b"", row.key).status == "pending":
                return "a request waits for an answer"
        for row in await rows_of(store, schedule_key(session, "")):
            if read_value(Schedule, row.value or b"", row.key).state not in _OVER:
                return "it has a schedule"
        for row in await rows_of(store, agent_key(session, "")):
            agent = read_value(AgentRow, row.value or b"", row.key)
            if agent.worktree and await anyio.Path(agent.worktree).exists():
                return f"{agent.name} has a worktree left"
            if not agent.outcome and await _has_mail(store, session, agent):
                return f"{agent.name} has unread mail"
    except SessionUnreadable:
        return "it cannot be read"
    return ""


async def _has_mail(store: Store, session: str, agent: AgentRow) -> bool:
    last = await store.last(mailbox(session, agent.name, agent.incarnation))
    if not last:
        return False
    state = await recall(store, session, agent.name, agent.incarnation)
    return bool(state.inbox.mail) or state.inbox.position < last


async def _remove(store: Store, session: str) -> str:
    """Delete the keys of a session in one commit; return the reason if it is in use again."""
    lease = await store.acquire(host_lease(session))
    if isinstance(lease, LeaseHolder):
        return "a process has it open"
    try:
        rows = [row for name in names_of(session) for row in await _rows_named(store, name)]
        agents = [row for row in rows if row.key.startswith(agent_key(session, ""))]
        boxes = [mailbox(session, row.key.rpartition("/")[2], _life(row)) for row in agents]
        ends = [Expect(box, await store.last(box)) for box in boxes]
        if reason := await _waiting(store, session):
            return reason
        removed = RemovedSession(at=SystemClock().now())
        deletions = [Delete(row.key, expected=row.revision) for row in rows]
        await store.commit(*ends, *deletions, Put(removed_key(session), removed.encode()), fence=lease.fence)
    except Conflict:
        return "it has just been changed"
    finally:
        with anyio.CancelScope(shield=True):
            await lease.release()
    return ""


def _life(row: Row) -> int:
    return read_value(AgentRow, row.value or b"", row.key).incarnation


async def _rows_named(store: Store, name: str) -> Sequence[Row]:
    if name.endswith("/"):
        return await rows_of(store, name)
    row = await store.get(name)
    return [] if row is None else [row]


async def _complete(store: DurableStore, places: WorkspacePaths) -> tuple[int, int]:
    """Delete what is left of removed sessions; return number and bytes of the blobs that went."""
    rows = await rows_of(store, removed_key())
    if not rows:
        return 0, 0
    now = SystemClock().now()
    for row in rows:
        session = session_named(row.key)
        late = [each for name in names_of(session) for each in await _rows_named(store, name)]
        if late:  # written by a process that had read the session before
            await store.commit(*(Delete(each.key) for each in late))
        await store.erase_streams(names_of(session))
        await anyio.to_thread.run_sync(partial(_remove_files, places, session))
    blobs = await store.erase_blobs(BLOB_UNUSED)
    for row in rows:
        if now - read_value(RemovedSession, row.value or b"", row.key).at > REMEMBERED:
            await store.erase_keys((*names_of(session_named(row.key)), row.key))
    return blobs


def session_named(key: str) -> str:
    """Return the session of a `RemovedSession`'s key."""
    return key.removeprefix(removed_key())


async def _measured(store: DurableStore, places: WorkspacePaths, row: SessionRow) -> Removal:
    stored = await store.stored_bytes(names_of(row.id))
    return Removal(row, stored + await anyio.to_thread.run_sync(partial(_file_bytes, places, row.id)))


def _files(places: WorkspacePaths, session: str) -> list[Path]:
    """Return the folder and the log of a session; nothing for a name that is not one of a folder."""
    if not session or Path(session).name != session:
        return []
    return [places.session_data(session), places.state / "log" / f"{session}.jsonl"]


def _file_bytes(places: WorkspacePaths, session: str) -> int:
    sizes: list[int] = []
    for place in _files(places, session):
        if place.is_file():
            sizes.append(place.lstat().st_size)
        for folder, _, names in os.walk(place):
            sizes += [os.lstat(os.path.join(folder, name)).st_size for name in names]  # noqa: PTH118 - thousands of them
    return sum(sizes)


def _remove_files(places: WorkspacePaths, session: str) -> None:
    for place in _files(places, session):
        if place.is_dir() and not place.is_symlink():
            shutil.rmtree(place, ignore_errors=True)
        else:
            place.unlink(missing_ok=True)
