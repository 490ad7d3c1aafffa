"""Synchronization of a session's schedules with the schedule files, at the start and whenever a file changes.

An invalid file changes nothing: the previous schedules stay. All changes and faults are reported to the caller.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import field, replace

import anyio.to_thread

from callboard.adapters.extensions.schedules import (
    ScheduleFiles,
    by_file,
    file_id,
    folders_of,
    read_schedule_files,
    schedule_places,
    withheld_line,
    without_file,
)
from callboard.adapters.storage.memory import MemoryStore
from callboard.adapters.system.clock import SystemClock
from callboard.adapters.system.folder_watch import WatchFactory
from callboard.config.trust import stored_trust
from callboard.core.decoding import read_value
from callboard.core.keys import rows_prefix, schedule_key
from callboard.core.trust.claims import WorkspaceClaims
from callboard.engine.commands import SERVES, sessions_of
from callboard.ports.store import Put, Row, Store
from callboard.ports.store_reading import rows_of
from callboard.sessions.inspect.agents import type_names
from callboard.sessions.places import WorkspacePaths
from callboard.types.choices import unknown
from callboard.types.errors import Conflict, SessionUnreadable
from callboard.types.lazy_dataclass import dataclass
from callboard.types.schedules import Schedule

LIVE = frozenset({"active", "paused"})
_TRIES = 20


@dataclass(frozen=True, slots=True)
class SyncResult:
    """Changes that one sync made, by source, and the faults."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    cancelled: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return a line for each change."""
        added = [f"{source}: its schedule is added" for source in self.added]
        changed = [f"{source}: its schedule is changed" for source in self.changed]
        return [*added, *changed, *(f"{source} is gone: its schedule is cancelled" for source in self.cancelled)]


@dataclass(slots=True)
class _Doing:
    """One sync in progress."""

    store: Store
    session: str
    now: float
    added: list[str] = field(default_factory=list[str])
    changed: list[str] = field(default_factory=list[str])
    cancelled: list[str] = field(default_factory=list[str])
    faults: list[str] = field(default_factory=list[str])

    def read(self, row: Row) -> Schedule | None:
        """Return a row's schedule; None for one that this version cannot read, which becomes a fault and stays."""
        try:
            return read_value(Schedule, row.value or b"", row.key)
        except SessionUnreadable as wrong:
            if str(wrong) not in self.faults:
                self.faults.append(str(wrong))
            return None


def faults_of(files: ScheduleFiles, rows: Sequence[Schedule]) -> tuple[str, ...]:
    """Return the faults of the files, and a line if new content is withheld. `rows`: the existing schedules."""
    stand = {(row.source, row.digest) for row in rows}
    news = {source: digest for source, digest in files.withheld.items() if (source, digest) not in stand}
    return (*files.faults, *([withheld_line(news)] if news else []))


async def file_faults(places: WorkspacePaths, rows: Iterable[Schedule]) -> tuple[str, ...]:
    """Read the schedule files, and return a line for each fault. `rows`: the existing schedules."""
    files = await anyio.to_thread.run_sync(files_now, places)
    return faults_of(files, list(rows))


def files_now(places: WorkspacePaths, *, flag: bool = False) -> ScheduleFiles:
    """Read the schedule files of a workspace and of the person.

    `flag`: the workspace is trusted for this run. Invalid content raises nothing.
    """
    trust = stored_trust(places.workspace, places.config)
    files = read_schedule_files(
        schedule_places(places.workspace, places.config, trust.workspace_claims, trusted=flag or trust.trusted)
    )
    return replace(files, faults=(*files.faults, *_unknown_types(files, places)))


def _unknown_types(files: ScheduleFiles, places: WorkspacePaths) -> list[str]:
    """Return a line for each schedule whose agent type no file defines. It stays: the type may be added later."""
    defined = type_names(places) if files.types else []
    return [
        f"{files.types[schedule.source]}: {unknown('type', schedule.target, defined)}. Its fires are refused until "
        "a file defines it"
        for schedule in files.schedules
        if schedule.source in files.types and schedule.target not in defined
    ]


async def sync_files(store: Store, session: str, files: ScheduleFiles, now: float) -> SyncResult:
    """Add, change (by the digest of its file) and cancel the session's schedules, each in a separate commit."""
    doing = _Doing(store, session, now)
    stored = await rows_of(store, rows_prefix(session) + "schedule/")
    rows = {schedule.id: schedule for row in stored if (schedule := doing.read(row)) is not None}
    doing.faults += faults_of(files, list(rows.values()))
    names = {row.name: row for row in rows.values() if row.name and row.state in LIVE and not _is_over(row, files)}
    for draft in files.schedules:
        filed = draft.model_copy(update={"id": file_id(session, draft.source)})
        namesake = names.get(filed.name)
        if namesake is not None and namesake.id != filed.id:
            by = namesake.source or namesake.id
            doing.faults.append(f"{filed.source}: name: {filed.name} is already the name of {by}: rename one")
            continue
        await _put(doing, filed)
    for row in rows.values():
        if _is_over(row, files):
            await _end(doing, row)
    return SyncResult(tuple(doing.added), tuple(doing.changed), tuple(doing.cancelled), tuple(doing.faults))


async def preview_files(
    store: Store, session: str, files: ScheduleFiles, now: float
) -> tuple[list[Schedule], tuple[str, ...]]:
    """Return the schedules that the session would have after `sync_files`, and the faults. Changes nothing."""
    copy = MemoryStore()
    prefix = rows_prefix(session) + "schedule/"
    await copy.commit(*(Put(row.key, row.value) for row in await rows_of(store, prefix) if row.value is not None))
    synced = await sync_files(copy, session, files, now)
    doing = _Doing(copy, session, now)
    stored = await rows_of(copy, prefix)
    return [schedule for row in stored if (schedule := doing.read(row)) is not None], synced.faults


async def keep_file_schedules(
    store: Store,
    session: Callable[[], Awaitable[str]],
    places: WorkspacePaths,
    watches: WatchFactory,
    *,
    flag: bool = False,
    tell: Callable[[str], None],
) -> None:
    """Sync now, and again whenever a file or the trust decision changes, until cancelled.

    `session` finds or creates the session that owns them; it is called once there is a file, or a schedule from one.
    `tell` receives a line for each change, and for each fault once while it stays the same.
    """

    async def once(reported: set[str]) -> set[str]:
        files = await anyio.to_thread.run_sync(lambda: files_now(places, flag=flag))
        home = await session() if files.schedules else await _schedule_session(store)
        synced = SyncResult(faults=faults_of(files, ()))
        if home:
            synced = await sync_files(store, home, files, SystemClock().now())
        for line in (*synced.lines(), *(fault for fault in synced.faults if fault not in reported)):
            tell(line)
        return set(synced.faults)

    folders = folders_of(
        schedule_places(places.workspace, places.config, WorkspaceClaims(str(places.workspace)), trusted=False)
    )
    try:
        watch = await anyio.to_thread.run_sync(watches.watch, tuple(folders))
    except OSError as none:
        tell(f"changes to schedule files are not detected ({none.strerror}): restart after each")
        await once(set())
        await anyio.sleep_forever()
        return
    reported: set[str] = set()
    try:
        while True:
            reported = await once(reported)
            await watch.wait_changed()
    finally:
        watch.close()


async def _schedule_session(store: Store) -> str:
    """Return the session that is kept for schedule files; empty if there is none."""
    return next((row.id for row in await sessions_of(store) if row.settings.get(SERVES)), "")


def _is_over(row: Schedule, files: ScheduleFiles) -> bool:
    """Return True if its file was deleted, and is not just unreadable at the moment."""
    if not row.source or row.source in files.sources:
        return False
    return not row.source.startswith(files.unseen)


async def _put(doing: _Doing, filed: Schedule) -> None:
    changed = await _change(doing, filed.id, lambda row: by_file(row, filed, doing.now))
    if changed is not None:
        (doing.changed if changed else doing.added).append(filed.source)


async def _end(doing: _Doing, row: Schedule) -> None:
    if await _change(doing, row.id, lambda stored: without_file(stored) if stored else None):
        doing.cancelled.append(row.source)


async def _change(doing: _Doing, schedule: str, act: Callable[[Schedule | None], Schedule | None]) -> bool | None:
    """Write the result of `act` for the current row.

    Returns True if there was a row before, None if nothing was written.
    """
    key = schedule_key(doing.session, schedule)
    for _ in range(_TRIES):
        row = await doing.store.get(key)
        before = None if row is None else doing.read(row)
        if row is not None and before is None:
            return None
        after = act(before)
        if after is None:
            return None
        try:
            await doing.store.commit(Put(key, after.encode(), expected=row.revision if row else 0))
        except Conflict:  # a fire has changed the row
            continue
        return before is not None
    return None
