"""A person's schedules, of one session or of all sessions of a workspace, managed from any process.

The store's doorbell notifies the host of each change. Nothing is changed from inside a tool's process: an agent has its
own tools for that, with permissions. A person can name a schedule of the workspace without knowing its session.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread

from callboard.adapters.processes.tool_ancestry import refuse_inside_tool
from callboard.adapters.system.clock import SystemClock
from callboard.core.decoding import read_value
from callboard.core.keys import by_beginning, fires_prefix, rows_prefix, schedule_key, short_id
from callboard.core.reports.spending import CallTotals, ScheduleSpent
from callboard.core.scheduling import resume_schedule
from callboard.core.scheduling.fields import InvalidField, with_fields
from callboard.core.scheduling.history import FireStats, newest_first, refuse_never, stats_of
from callboard.engine.budgets.spending import session_spending
from callboard.engine.commands import SERVES, find_session, sessions_of
from callboard.engine.row_cache import RowCache
from callboard.ports.store import Store
from callboard.ports.store_reading import rows_of
from callboard.sessions.inspect.agents import type_names
from callboard.sessions.inspect.serving import firing_process
from callboard.sessions.person_actions import fire_as_person, write_schedule_as_person
from callboard.sessions.places import Notice, WorkspacePaths, find_places
from callboard.sessions.stores import has_store, open_store, own_settings
from callboard.types.choices import choose, unknown
from callboard.types.errors import Conflict, UsageError
from callboard.types.lazy_dataclass import dataclass
from callboard.types.schedules import Fire, Schedule

Fields = Mapping[str, object]
"""Fields of a schedule, in the format of `core.scheduling.fields`."""

LIVE = frozenset({"active", "paused"})
"""States of schedules that fire, or will when resumed; a name is unique only among them."""
_TRIES = 20
"""Number of attempts: a fire may change the row between the read and the write."""


class ScheduleInspector:
    """Schedules of one session, for a process that does not host it."""

    def __init__(self, store: Store, session: str, rows: RowCache) -> None:
        self.session = session
        self._store = store
        self._rows = rows
        self._clock = SystemClock()

    def all(self) -> Sequence[Schedule]:
        """Return the schedules, oldest first, including ended ones."""
        return self._rows.schedules()

    def draft(self, fields: Fields) -> Schedule:
        """Return the schedule that `add` would create from these fields, without writing it.

        Raises `InvalidField`, and `UsageError` for an existing name.
        """
        made = draft_schedule(self.session, len(self._rows.schedules()), fields, self._clock.now())
        self._free(made)
        return made

    async def add(self, drafted: Schedule) -> None:
        """Write the result of `draft`. Raises `UsageError` if another process just created the same one."""
        refuse_inside_tool("Adding a schedule")
        try:
            await write_schedule_as_person(self._store, self.session, drafted, expected=0)
        except Conflict as conflict:
            raise UsageError("another process added a schedule at the same moment: try again") from conflict

    def preview_edit(self, name: str, fields: Fields) -> Schedule:
        """Return the schedule as `edit` would change it, without writing it.

        Raises as `draft` does, and for a schedule from a file. New times apply from now on: missed ones are not made
        up. An ended schedule fires again from now on if its times, its end or its number of runs are changed.
        """
        schedule = self.schedule_named(name)
        now = self._clock.now()
        _not_from_file(schedule, "edit")
        if schedule.state == "cancelled":
            raise UsageError(f"{name} is cancelled, and never fires again: add a new one")
        changed = with_fields(schedule, fields, now)
        update: dict[str, object] = {}
        times = (changed.cron, changed.timezone) != (schedule.cron, schedule.timezone)
        fires_otherwise = _reopens(schedule, changed)
        reopened = fires_otherwise and schedule.state in ("fired", "ended")
        if times or reopened:
            update["last_slot"] = max(now, schedule.last_slot or 0.0)
        if reopened:
            update |= {"state": "active", "enabled": True}
        changed = changed.model_copy(update=update)
        if fires_otherwise:
            refuse_never(changed, now)
        self._free(changed)
        return changed

    async def edit(self, name: str, fields: Fields) -> Schedule:
        """Change the given fields. Raises as `preview_edit` does."""
        refuse_inside_tool("Editing a schedule")
        return await self._change(name, lambda _: self.preview_edit(name, fields))

    async def cancel(self, name: str) -> Schedule:
        """End a schedule; its row stays, for the history.

        Raises `UsageError` for an unknown schedule, or one from a file.
        """
        refuse_inside_tool("Removing a schedule")
        _not_from_file(self.schedule_named(name), "remove")
        return await self._change(
            name, lambda schedule: schedule.model_copy(update={"state": "cancelled", "enabled": False})
        )

    async def pause(self, name: str, reason: str = "") -> Schedule:
        """Pause a schedule until it is resumed. Raises `UsageError` for one that is unknown or not active."""
        refuse_inside_tool("Pausing a schedule")

        def pausing(schedule: Schedule) -> Schedule:
            if schedule.state != "active":
                raise UsageError(f"{name} is not active, it is {schedule.state}")
            return schedule.model_copy(update={"state": "paused", "paused_why": reason or "by a person"})

        return await self._change(name, pausing)

    async def resume(self, name: str, fields: Fields) -> Schedule:
        """Let a paused schedule fire again, with these fields (its budgets) changed.

        Raises `InvalidField`, and `UsageError` for one that is unknown or not paused.
        """
        refuse_inside_tool("Resuming a schedule")

        def resuming(schedule: Schedule) -> Schedule:
            if schedule.state != "paused":
                raise UsageError(f"{name} is not paused, it is {schedule.state}")
            now = self._clock.now()
            changed = with_fields(schedule, fields, now) if fields else schedule
            active = resume_schedule(changed, now, changed.budget, changed.fire_budget)
            return active.model_copy(update={"failures": 0})

        return await self._change(name, resuming)

    async def run(self, name: str) -> str:
        """Fire a schedule now, in addition to its times, also if it is paused or over.

        Returns the id of the fire. Raises `UsageError`, also for a schedule that was removed.
        """
        refuse_inside_tool("Running a schedule")
        schedule = self.schedule_named(name)
        if schedule.state == "cancelled":
            raise UsageError(f"{name} is cancelled, and never fires again: add a new one")
        return await fire_as_person(self._store, self.session, schedule, now=self._clock.now())

    async def fired_by(self) -> str:
        """Return the process that fires the schedules of the session; empty if none is running."""
        return await firing_process(self._store, self.session)

    async def history(self, name: str | None = None) -> list[Fire]:
        """Return the fires of one schedule, or of all, newest first. Raises `UsageError` for an unknown schedule."""
        prefix = fires_prefix(self.session, self.schedule_named(name).id if name else "")
        rows = await rows_of(self._store, prefix)
        return newest_first(read_value(Fire, row.value or b"", row.key) for row in rows)

    async def spent_on(self, name: str) -> ScheduleSpent:
        """Return the usage of the turns of a schedule's fires, from the journals.

        Raises `UsageError` for an unknown schedule.
        """
        schedule = self.schedule_named(name)
        self._rows.take(*await rows_of(self._store, rows_prefix(self.session)))
        spending = await session_spending(self._store, self.session, self._rows.agents())
        nothing = ScheduleSpent(schedule.id, 0, CallTotals())
        return next((spent for spent in spending.schedules if spent.id == schedule.id), nothing)

    async def stats(self, name: str | None = None) -> list[FireStats]:
        """Return the numbers of fires of each schedule, oldest schedule first, or of one. Raises as `history` does."""
        fires = await self.history(name)
        schedules = [self.schedule_named(name)] if name else self.all()
        return [stats_of(schedule, [fire for fire in fires if fire.schedule == schedule.id]) for schedule in schedules]

    def schedule_named(self, name: str) -> Schedule:
        """Return the schedule with that name or id, or the only one with that id prefix.

        Raises `UsageError` with the existing names. If several have the name, the live one is returned, otherwise the
        newest.
        """
        schedule = self.find(name)
        if schedule is None:
            raise UsageError(f"unknown schedule {name!r}: {choose(names_of(self.all()))}")
        return schedule

    def find(self, name: str) -> Schedule | None:
        """Return the schedule as `schedule_named` does; None for an unknown one.

        Raises `UsageError` for a prefix that matches several.
        """
        named = [schedule for schedule in self.all() if schedule.name and schedule.name == name]
        if named:
            return max(named, key=lambda match: (match.state in LIVE, match.created_at))
        by_id = {schedule.id: schedule for schedule in self.all()}
        fitting = by_beginning(by_id, name)
        if len(fitting) > 1:
            raise UsageError(f"{name} matches {len(fitting)} schedules: {', '.join(fitting[:8])}")
        return by_id[fitting[0]] if fitting else None

    def _free(self, schedule: Schedule) -> None:
        """Reject a name that another live schedule has. Raises `InvalidField`."""
        others = [other for other in self.all() if other.id != schedule.id and other.state in LIVE]
        namesake = next((other for other in others if schedule.name and other.name == schedule.name), None)
        if namesake is not None:
            raise InvalidField("name", f"{schedule.name} is already the name of {namesake.id}: choose another one")

    async def _change(self, name: str, act: Callable[[Schedule], Schedule]) -> Schedule:
        """Write the result of `act` for the current row; retry if the row was changed in the meantime."""
        key = schedule_key(self.session, self.schedule_named(name).id)
        for _ in range(_TRIES):
            row = await self._store.get(key)
            if row is None:
                break
            self._rows.take(row)
            changed = act(self.schedule_named(name))
            try:
                await write_schedule_as_person(self._store, self.session, changed, expected=row.revision)
            except Conflict:
                continue
            return changed
        raise UsageError(f"{name} could not be changed, because others keep changing it: try again")


def draft_schedule(session: str, number: int, fields: Fields, now: float) -> Schedule:
    """Return a new schedule with these fields.

    Its id, and therefore its jitter, is derived from them and the number of schedules (`number`), so that a dry run
    shows the real result. Raises `InvalidField`.
    """
    origin = sorted((name, str(value)) for name, value in fields.items())
    blank = Schedule(id=short_id("cron", session, origin, number), cron="", prompt="", created_at=now)
    made = with_fields(blank, fields, now)
    refuse_never(made, now)
    return made


def names_of(schedules: Sequence[Schedule]) -> list[str]:
    """Return the names and ids that a person may use."""
    live = [schedule for schedule in schedules if schedule.state in LIVE] or list(schedules)
    return [f"{schedule.name} ({schedule.id})" if schedule.name else schedule.id for schedule in live[:8]]


def _not_from_file(schedule: Schedule, action: str) -> None:
    """Raise `UsageError` for a schedule from a file: only the file can change it."""
    if schedule.source:
        done = "delete it" if action == "remove" else "change it there"
        raise UsageError(
            f"{schedule.name or schedule.id} comes from {schedule.source}, and the file decides: {done}; "
            "`cron pause` keeps it from firing"
        )


def _reopens(old: Schedule, new: Schedule) -> bool:
    times = (old.cron, old.timezone, old.recurring) != (new.cron, new.timezone, new.recurring)
    return times or (old.expires, old.max_runs) != (new.expires, new.max_runs)


@dataclass(frozen=True, slots=True)
class SessionSchedule:
    """A schedule and its session."""

    schedule: Schedule
    session: str


class NoSession(UsageError):
    """Raised if the workspace has no session that could own schedules."""


class AllSchedules:
    """Schedules of each session, newest session first; or of the named session."""

    def __init__(self, store: Store, places: WorkspacePaths, inspectors: Sequence[ScheduleInspector]) -> None:
        self.store = store
        self._places = places
        self.inspectors = inspectors

    @property
    def current(self) -> ScheduleInspector:
        """Return the inspector of the newest session, or of the named one."""
        return self.inspectors[0]

    def entries(self) -> list[SessionSchedule]:
        """Return all schedules, oldest first within each session."""
        return [
            SessionSchedule(schedule, inspector.session)
            for inspector in self.inspectors
            for schedule in inspector.all()
        ]

    def inspector_of(self, name: str) -> ScheduleInspector:
        """Return the inspector of the session with that schedule, by name or id.

        The current session comes first, and a live schedule before an ended one. Raises `UsageError` with the existing
        names.
        """
        matches = [
            (inspector, schedule) for inspector in self.inspectors if (schedule := inspector.find(name)) is not None
        ]
        if not matches:
            names = names_of([entry.schedule for entry in self.entries()])
            raise UsageError(f"unknown schedule {name!r}: {choose(names)}")
        return next((inspector for inspector, schedule in matches if schedule.state in LIVE), matches[0][0])

    async def fired_by(self) -> dict[str, str]:
        """Return session -> a description of the process that fires its schedules; empty if none is running."""
        return {inspector.session: await inspector.fired_by() for inspector in self.inspectors if inspector.all()}

    async def fires_here(self, inspector: ScheduleInspector) -> str:
        """Return the process that fires the schedules of a session, including one that just got its first schedule."""
        return await inspector.fired_by()

    async def check_type(self, schedule: Schedule, inspector: ScheduleInspector) -> None:
        """Reject an agent type that no file defines, so that the error appears now and not at the first fire.

        The plugins with which the inspector's session began count too. Raises `InvalidField`.
        """
        if schedule.target == "lead":
            return
        session = await find_session(self.store, inspector.session)
        plugins = tuple(map(Path, session.settings.get("plugins", ())))
        agent_types = await anyio.to_thread.run_sync(type_names, self._places, plugins)
        if schedule.target not in agent_types:
            raise InvalidField("agent_type", unknown("type", schedule.target, agent_types))


@asynccontextmanager
async def open_schedules(
    workspace: Path,
    session: str | None = None,
    make: Callable[[Store], Awaitable[str]] | None = None,
    *,
    notice: Notice,
) -> AsyncGenerator[AllSchedules]:
    """Open the schedules of all sessions of a workspace, or of the named one.

    `make` creates a session if there is none; without it, `NoSession` is raised then. Raises `UsageError` for an
    unknown session.
    """
    places = find_places(workspace, writable=False)
    settings = own_settings()
    if make is None and not has_store(places, settings):
        raise NoSession(_no_session(places.workspace))
    store = await open_store(places, settings, notice)
    try:
        every = await schedules_of(store, places, session)
        if not every.inspectors:
            if make is None:
                raise NoSession(_no_session(places.workspace))
            every = AllSchedules(store, places, [await _inspector(store, await make(store))])
        yield every
    finally:
        with anyio.CancelScope(shield=True):
            await store.aclose()


async def schedules_of(store: Store, places: WorkspacePaths, session: str | None = None) -> AllSchedules:
    """Return the schedules of all sessions of an open store, or of the named one; none without a session.

    Raises `UsageError` for an unknown session.
    """
    ids = await _sessions(store, session)
    return AllSchedules(store, places, [await _inspector(store, session_id) for session_id in ids])


def _no_session(workspace: Path) -> str:
    """Return advice for a workspace without a session that a schedule could belong to."""
    return (
        f"there is no session in {workspace} yet, so there are no schedules: add one with `callboard cron add`, or "
        "write .callboard/schedules/NAME.md and start `callboard serve`"
    )


async def _sessions(store: Store, session: str | None) -> list[str]:
    """Return the sessions, newest first, with the one that is kept for schedule files last."""
    if session is not None:
        return [(await find_session(store, session)).id]
    rows = await sessions_of(store)
    return [row.id for row in sorted(rows, key=lambda row: bool(row.settings.get(SERVES)))]


async def _inspector(store: Store, session: str) -> ScheduleInspector:
    rows = RowCache(session, lambda kind, name: None)
    rows.take(*await rows_of(store, f"{rows_prefix(session)}schedule/"))
    return ScheduleInspector(store, session, rows)
