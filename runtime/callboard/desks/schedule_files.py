"""Keeps the schedules of a session as the schedule files say, at once and whenever one of them changes.

A file that cannot be understood changes nothing: what stood before stands. Everything is told to whoever asked for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import anyio.to_thread

from callboard.adapters.clock import SystemClock
from callboard.adapters.folder_watch import FolderWatch
from callboard.adapters.schedule_files import (
    ScheduleFiles,
    folders_of,
    read_schedule_files,
    schedule_places,
    withheld_line,
)
from callboard.assembly import Places
from callboard.core.names import rows_prefix, schedule_key
from callboard.core.schedule.from_files import by_file, file_id, without_file
from callboard.core.trust.claims import Brought
from callboard.engine.sessions import SERVES, sessions_of
from callboard.ports.store import Put, Store
from callboard.trusting import standing
from callboard.words.errors import Conflict
from callboard.words.schedules import Schedule

LIVE = frozenset({"active", "paused"})
_TRIES = 20


@dataclass(frozen=True, slots=True)
class Synced:
    """What a look at the files changed, by the sources, and what was wrong."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    cancelled: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """A line for each change."""
        added = [f"{source}: its schedule is added" for source in self.added]
        changed = [f"{source}: its schedule is changed" for source in self.changed]
        return [*added, *changed, *(f"{source} is gone: its schedule is cancelled" for source in self.cancelled)]


@dataclass(slots=True)
class _Doing:
    """One sync under way."""

    store: Store
    session: str
    now: float
    added: list[str] = field(default_factory=list[str])
    changed: list[str] = field(default_factory=list[str])
    cancelled: list[str] = field(default_factory=list[str])
    faults: list[str] = field(default_factory=list[str])


def faults_of(found: ScheduleFiles, rows: Sequence[Schedule]) -> tuple[str, ...]:
    """What is to be told of the files: what is wrong, and that they are not read where they say something new. `rows`:
    the schedules that stand."""
    stand = {(one.source, one.digest) for one in rows}
    news = {source: digest for source, digest in found.withheld.items() if (source, digest) not in stand}
    return (*found.faults, *([withheld_line(news)] if news else []))


def files_now(places: Places, *, flag: bool = False) -> ScheduleFiles:
    """What the schedule files of a workspace and of the person say now. `flag`: the workspace is trusted for this run.
    Raises nothing for what is in them."""
    trust = standing(places.workspace, places.config)
    return read_schedule_files(
        schedule_places(places.workspace, places.config, trust.brought, trusted=flag or trust.trusted)
    )


async def sync_files(store: Store, session: str, found: ScheduleFiles, now: float) -> Synced:
    """Add, change (by the digest of its file) and cancel the session's schedules, each in a commit of its own."""
    doing = _Doing(store, session, now)
    rows = {one.id: one for one in await _rows(store, session)}
    doing.faults += faults_of(found, list(rows.values()))
    names = {one.name: one for one in rows.values() if one.name and one.state in LIVE and not _is_over(one, found)}
    for wanted in found.wanted:
        filed = wanted.model_copy(update={"id": file_id(session, wanted.source)})
        taken = names.get(filed.name)
        if taken is not None and taken.id != filed.id:
            by = taken.source or taken.id
            doing.faults.append(
                f"{filed.source}: name: {filed.name} is the name of {by} already: give one another name"
            )
            continue
        await _put(doing, filed)
    for row in rows.values():
        if _is_over(row, found):
            await _end(doing, row)
    return Synced(tuple(doing.added), tuple(doing.changed), tuple(doing.cancelled), tuple(doing.faults))


async def keep_file_schedules(
    store: Store,
    session: Callable[[], Awaitable[str]],
    places: Places,
    *,
    flag: bool = False,
    tell: Callable[[str], None],
) -> None:
    """Sync, then again whenever a file changes or trust is decided anew, until cancelled.

    `session` finds or makes the session that they belong to; it is called once there is a file, or a schedule of one.
    `tell` gets a line for each change, and for each fault once, as long as it is the same.
    """

    async def once(told: set[str]) -> set[str]:
        found = await anyio.to_thread.run_sync(lambda: files_now(places, flag=flag))
        home = await session() if found.wanted else await _kept_session(store)
        synced = Synced(faults=faults_of(found, ()))
        if home:
            synced = await sync_files(store, home, found, SystemClock().now())
        for line in (*synced.lines(), *(one for one in synced.faults if one not in told)):
            tell(line)
        return set(synced.faults)

    folders = folders_of(
        schedule_places(places.workspace, places.config, Brought(str(places.workspace)), trusted=False)
    )
    try:
        watch = await anyio.to_thread.run_sync(FolderWatch, tuple(folders))
    except OSError as none:
        tell(f"changes of schedule files are not noticed ({none.strerror}): begin anew after each")
        await once(set())
        await anyio.sleep_forever()
        return
    told: set[str] = set()
    try:
        while True:
            told = await once(told)
            await watch.changed()
    finally:
        watch.close()


async def _kept_session(store: Store) -> str:
    """The session that is kept for schedule files, empty where there is none."""
    return next((row.id for row in await sessions_of(store) if row.settings.get(SERVES)), "")


async def _rows(store: Store, session: str) -> list[Schedule]:
    rows = await store.keys(rows_prefix(session) + "schedule/")
    return [Schedule.model_validate_json(row.value or b"") for row in rows]


def _is_over(row: Schedule, found: ScheduleFiles) -> bool:
    """Its file is gone, and not only out of sight."""
    if not row.source or row.source in found.there:
        return False
    return not row.source.startswith(found.unseen)


async def _put(doing: _Doing, wanted: Schedule) -> None:
    changed = await _change(doing, wanted.id, lambda row: by_file(row, wanted, doing.now))
    if changed is not None:
        (doing.changed if changed else doing.added).append(wanted.source)


async def _end(doing: _Doing, row: Schedule) -> None:
    if await _change(doing, row.id, lambda one: without_file(one) if one else None):
        doing.cancelled.append(row.source)


async def _change(doing: _Doing, schedule: str, act: Callable[[Schedule | None], Schedule | None]) -> bool | None:
    """Write what `act` makes of the row as it stands now. True: there was one before; None: nothing was to be done."""
    key = schedule_key(doing.session, schedule)
    for _ in range(_TRIES):
        row = await doing.store.get(key)
        before = None if row is None else Schedule.model_validate_json(row.value or b"")
        after = act(before)
        if after is None:
            return None
        try:
            await doing.store.commit(Put(key, after.encode(), expected=row.revision if row else 0))
        except Conflict:  # a fire changed the row meanwhile
            continue
        return before is not None
    return None
