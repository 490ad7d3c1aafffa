"""Sessions that a `callboard serve` hosts: each session whose schedules fire, for as long as they do.

Any number of such processes may share a workspace: the lease of each session decides which one hosts it. The others
wait until it is free (`lease.until_free`), when that process dies or leaves. The store's doorbell reports new sessions
and new schedules. Requests to a person are not answered here.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path

import anyio
import structlog
from anyio.abc import TaskGroup

from callboard.adapters.system.clock import SystemClock
from callboard.adapters.system.open_files import sessions_that_fit, too_many
from callboard.core.decoding import in_words, read_value
from callboard.core.keys import fires_prefix, session_of
from callboard.core.scheduling import CronInvalid, next_wake
from callboard.core.scheduling.due import is_correction
from callboard.ports.notifier import Notifier
from callboard.ports.store import Row
from callboard.ports.store_reading import row_of, rows_of
from callboard.sessions.inspect.serving import fires_again
from callboard.sessions.lease import until_free
from callboard.sessions.open import open_session
from callboard.sessions.options import (
    HostingOptions,
    IdentityOptions,
    PermissionOptions,
    SessionOptions,
    SharedResources,
    WorkspaceOptions,
)
from callboard.sessions.result import BUG
from callboard.sessions.stores import damaged_rows
from callboard.types.errors import (
    CallboardError,
    Fenced,
    PersonCanAct,
    SessionHosted,
    SessionTakenOver,
    SessionUnreadable,
    StoreDamaged,
    ValueDamaged,
)
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json
from callboard.types.schedules import Fire, Schedule

RETRY = 60.0
LONGEST_RETRY = 3_600.0
"""Longest time in seconds until a session that could not be opened is retried. The wait starts at `RETRY` and
doubles."""
_OPEN = frozenset({"waiting", "running"})


@dataclass(frozen=True, slots=True)
class Serving:
    """Options of a person for `callboard serve`."""

    workspace: Path
    trust: bool = False
    """True to use the workspace's content for this run."""
    model: str | None = None
    """Model of the session that is kept for schedule files; None for that of the settings."""
    once: bool = False
    """True to fire due schedules now, wait for their end, and return."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    """Labels of this host, which a session may ask for."""
    sessions: int = 0
    """Most sessions to host at once; 0: as many as there are open files for."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of the log.

    `kind`: serving, hosting, left, fire, retry, end, missed, paused, note, trouble, files.
    """

    kind: str
    text: str
    session: str = ""
    schedule: str = ""
    details: Json = field(default_factory=dict[str, object])
    """Details of a fire: its `id`, `nominal`, `outcome`, `cost_usd` and seconds."""
    at: float = field(default_factory=time.time)


log = structlog.get_logger("callboard.serve")

Tell = Callable[[LogLine], None]


@dataclass(slots=True)
class ServedSession:
    """Session that has, or had, schedules, as this process sees it."""

    session: str
    schedules: dict[str, Schedule] = field(default_factory=dict[str, Schedule])
    open: dict[str, Fire] = field(default_factory=dict[str, Fire])
    """Unfinished fires, by their keys, including those of a schedule that no longer fires."""
    changed: Notifier = field(default_factory=Notifier)
    """Notifier of changes of the schedules."""
    hosted_here: bool = False
    """True if this process hosts it."""

    def fires(self) -> bool:
        """Return True if a process has to host the session.

        A schedule that existed only for an earlier process does not count.
        """
        return bool(self.open) or any(
            schedule.durable and fires_again(schedule) for schedule in self.schedules.values()
        )

    def due(self, now: float) -> bool:
        """Return True if a fire is due by this time, or in progress."""
        return bool(self.open) or any(
            schedule.durable and _is_due(schedule, now) for schedule in self.schedules.values()
        )


def _is_due(schedule: Schedule, now: float) -> bool:
    try:
        wake = next_wake(schedule) if schedule.enabled and schedule.state == "active" else None
    except CronInvalid:
        return True
    return wake is not None and wake <= now


class Server:
    """One `callboard serve`. `tell` receives its log lines."""

    def __init__(self, serving: Serving, shared: SharedResources, tell: Tell) -> None:
        self._what = serving
        self._shared = shared
        self._tell = tell
        self._store = shared.store
        self._kept: dict[str, ServedSession] = {}
        self._read: dict[str, int] = {}
        """Key -> revision of each row that was read at the start, until the watch has returned it."""
        self._began = SystemClock().now()
        self._hosted = 0
        """Number of sessions that are hosted here or being opened."""

    @property
    def entries(self) -> Sequence[ServedSession]:
        """Return every session that has or had schedules."""
        return list(self._kept.values())

    async def look(self) -> None:
        """Read the current schedules of all sessions, and their unfinished fires."""
        for row in (*await rows_of(self._store, "s/"), *await rows_of(self._store, fires_prefix())):
            self._take(row)
            self._read[row.key] = row.revision

    async def tell_lost(self) -> None:
        """Report the damaged rows of schedules of sessions that are not hosted."""
        for key in damaged_rows(self._store):
            parts = key.split("/")
            if len(parts) != 4 or parts[2] != "schedule" or await row_of(self._store, key) is not None:
                continue
            entry = self._kept.get(parts[1])
            if entry is None or not entry.fires():  # a hosted session reports its own
                text = f"{in_words(key)} was damaged and is lost: add it again if it is needed"
                self._tell(LogLine("trouble", text, parts[1], parts[3]))

    async def run(self, *others: Callable[[], Coroutine[object, object, None]]) -> None:
        """Serve until cancelled, and run `others` in parallel.

        Errors of one session are reported, and it is retried. Raises errors that affect all of them: a database that
        cannot be used.
        """
        async with anyio.create_task_group() as group:
            for work in others:
                group.start_soon(work)
            for entry in self.entries:
                group.start_soon(self._keep, entry)
            group.start_soon(self._follow, fires_prefix(), group)
            await self._follow("s/", group)

    async def _follow(self, prefix: str, group: TaskGroup | None) -> None:
        """Process changes until cancelled. `group`: runs new sessions; None: they are not kept."""
        async with self._store.watch(prefix) as rows:
            while True:
                try:
                    row = await anext(rows, None)
                except ValueDamaged as damage:
                    self._tell(LogLine("trouble", str(damage), session_of(damage.where)))
                    continue  # the value was set aside; all other rows follow
                if row is None:
                    return
                self._apply_rows((row, *rows.at_hand()), group)

    def _apply_rows(self, rows: Sequence[Row], group: TaskGroup | None) -> None:
        # A watch begins with all existing rows, which `look` has read already.
        changed = [row for row in rows if row.revision > self._read.pop(row.key, 0)]
        new = [entry for row in changed if (entry := self._take(row)) is not None]
        if group is not None:
            for entry in new:
                group.start_soon(self._keep, entry)

    async def once(self) -> int:
        """Fire due schedules, with all sessions in parallel.

        Return the exit code of the first whose turn did not end well.
        """
        codes: list[int] = []
        async with anyio.create_task_group() as following:
            for prefix in ("s/", fires_prefix()):
                following.start_soon(self._follow, prefix, None)
            async with anyio.create_task_group() as group:
                for entry in [entry for entry in self.entries if entry.due(self._began)]:
                    group.start_soon(self._host_once, entry, codes)
            following.cancel_scope.cancel()
        return next((code for code in codes if code), 0)

    async def _host_once(self, entry: ServedSession, codes: list[int]) -> None:
        try:
            await self._host(entry, codes)
        except SessionHosted as hosted:
            self._say(entry, "left", f"process {hosted.pid} hosts it, and fires its schedules")
        except SessionTakenOver as takeover:
            self._say(entry, "left", f"process {takeover.pid} takes it over")
        except Exception as error:  # a fault of one session must not stop the others
            if _stops_all(error):
                raise
            self._say(entry, "trouble", self._trouble(entry, error))
            codes.append(error.exit_code if isinstance(error, CallboardError) else BUG)

    def _take(self, row: Row) -> ServedSession | None:
        """Process a changed row; return its session, if it was not known to have schedules."""
        parts = row.key.split("/")
        if parts[0] != "fires" and (len(parts) != 4 or parts[2] != "schedule"):
            return None
        new = parts[1] not in self._kept
        entry = self._kept.setdefault(parts[1], ServedSession(parts[1]))
        if parts[0] == "fires":
            self._take_fire(entry, row)
        elif row.value is None:
            entry.schedules.pop(parts[3], None)
        else:
            try:
                schedule = read_value(Schedule, row.value, row.key)
            except SessionUnreadable as wrong:  # its host pauses it; the session's other schedules continue
                self._tell(LogLine("trouble", str(wrong), wrong.session, parts[3]))
                entry.schedules.pop(parts[3], None)
                entry.changed.notify()
                return entry if new else None
            self._report_change(entry, schedule)
            entry.schedules[schedule.id] = schedule
        entry.changed.notify()
        return entry if new else None

    def _take_fire(self, entry: ServedSession, row: Row) -> None:
        before = entry.open.pop(row.key, None)
        if row.value is None:
            return
        try:
            fire = read_value(Fire, row.value, row.key)
        except SessionUnreadable as wrong:
            self._tell(LogLine("trouble", str(wrong), wrong.session))
            return
        if fire.outcome in _OPEN:
            entry.open[row.key] = fire
        newly_ended = fire.ended_at is not None and (before is None or before.ended_at != fire.ended_at)
        if entry.hosted_here and (before is None or newly_ended or fire.outcome not in _OPEN):
            self._report_fire(entry, fire)

    def _report_change(self, entry: ServedSession, now: Schedule) -> None:
        """Report a pause, and the correction of a time that a fast clock had set."""
        before = entry.schedules.get(now.id)
        if entry.hosted_here and now.state == "paused" and (before is None or before.state != "paused"):
            self._say(entry, "paused", now.paused_why or "by a person", schedule=now.id)
        # Also before `hosted_here`: a host corrects its schedules as soon as it starts
        # (test_serve_reports_a_schedule_that_a_fast_clock_had_put_off).
        if before is not None and is_correction(before, now):
            text = "corrected: the clock of this machine was ahead of time and was put back; it fires again"
            self._say(entry, "note", text, schedule=now.id)

    # One session

    async def _keep(self, entry: ServedSession) -> None:
        """Host a session whenever it has schedules that fire and no other process hosts it, until cancelled."""
        wait = RETRY
        while True:
            await entry.changed.until(entry.fires)
            # The lease of the session decides between the processes that serve a workspace
            # (test_four_processes_killed_at_random_fire_each_slot_exactly_once).
            await self._first(entry, partial(until_free, self._store, entry.session), entry.fires)
            if not entry.fires():
                continue
            try:
                await self._host(entry, [])
            except SessionHosted:
                continue  # another process was faster
            except SessionTakenOver as takeover:
                self._say(
                    entry,
                    "left",
                    f"process {takeover.pid} takes it over; it returns here when that one leaves",
                )
            except Fenced:
                self._say(entry, "left", "another process hosts it: this one was presumed dead")
            except Exception as error:  # a fault of one session must not stop the others
                if _stops_all(error):
                    raise
                self._say(entry, "trouble", f"{self._trouble(entry, error)}; tried again in {wait:g} s, or at SIGHUP")
                with anyio.move_on_after(wait):
                    await entry.changed.changed(entry.changed.changes)
                wait = min(2 * wait, LONGEST_RETRY)
                continue
            wait = RETRY

    def _trouble(self, entry: ServedSession, error: Exception) -> str:
        """Return why a session cannot be hosted, as text."""
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            return f"cannot be hosted: {too_many()}"
        if isinstance(error, CallboardError):
            return f"cannot be hosted: {error}"
        log.error("a session could not be hosted", session=entry.session, exc_info=error)
        # A checkout that is updated under this process keeps its version, which `until_replaced` watches.
        if isinstance(error, ImportError) and (error.name or "").startswith("callboard"):
            return f"cannot be hosted: {error}. Restart this process: Callboard's files were changed while it runs"
        return f"cannot be hosted because of a bug in Callboard: {type(error).__name__}: {error} (see the log)"

    async def _first(self, entry: ServedSession, work: Callable[[], Awaitable[None]], so: Callable[[], bool]) -> None:
        """Run `work`; cancel it as soon as `so` becomes false."""

        async def follow() -> None:
            await entry.changed.until(lambda: not so())
            group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(follow)
            await work()
            group.cancel_scope.cancel()

    async def _host(self, entry: ServedSession, codes: list[int]) -> None:
        """Host a session until its schedules have fired for the last time and the work that they started is done."""
        if self._hosted >= sessions_that_fit():
            raise PersonCanAct(too_many())  # the hosted sessions need the remaining open files
        self._hosted += 1
        try:
            await self._host_now(entry, codes)
        finally:
            self._hosted -= 1

    async def _host_now(self, entry: ServedSession, codes: list[int]) -> None:
        serving = self._what
        options = SessionOptions(
            WorkspaceOptions(serving.workspace, trust=serving.trust),
            identity=IdentityOptions(session=entry.session, resume=True),
            permissions=PermissionOptions(answerable=True),
            hosting=HostingOptions(shared=self._shared, commands_at_rest="end"),
        )
        has_work = partial(entry.due, self._began) if serving.once else entry.fires
        async with open_session(options) as session:
            entry.hosted_here = True
            try:
                self._say(entry, "hosting", _count(entry))
                for note in session.notes:
                    self._say(entry, "note", note)
                while has_work():
                    await entry.changed.until(lambda: not has_work())
                    await session.finished()
                for command in session.stopped():
                    self._say(entry, "note", command.line())
                codes.append(session.end().exit_code)
            finally:
                entry.hosted_here = False
        self._say(entry, "left", "what was due is done" if serving.once else "none of its schedules fires again")

    def _report_fire(self, entry: ServedSession, fire: Fire) -> None:
        details: Json = {"id": fire.id, "nominal": fire.nominal, "outcome": fire.outcome, "agent": fire.agent}
        suffix = f": {' '.join(fire.why.split())[:200]}" if fire.why else ""
        if fire.outcome in _OPEN and fire.ended_at is not None:
            self._say(
                entry,
                "retry",
                f"try {fire.attempt} failed, due {_moment(fire.nominal)}{suffix}",
                schedule=fire.schedule,
                details=details,
            )
            return
        if fire.outcome in _OPEN:
            self._say(entry, "fire", f"due {_moment(fire.nominal)}", schedule=fire.schedule, details=details)
            return
        if fire.outcome in ("missed", "skipped", "refused", "replaced"):
            self._say(
                entry,
                "missed",
                f"{fire.outcome}, due {_moment(fire.nominal)}{suffix}",
                schedule=fire.schedule,
                details=details,
            )
            return
        seconds = (fire.ended_at or fire.at) - (fire.began_at or fire.at)
        details |= {"seconds": round(seconds, 3), "cost_usd": fire.cost_usd, "attempt": fire.attempt}
        text = f"{fire.outcome} after {seconds:.1f} s, ${fire.cost_usd:.4f}{suffix}"
        self._say(entry, "end", text, schedule=fire.schedule, details=details)

    def _say(
        self, entry: ServedSession, kind: str, text: str, *, schedule: str = "", details: Json | None = None
    ) -> None:
        self._tell(LogLine(kind, text, entry.session, schedule, details or {}))


def _stops_all(error: Exception) -> bool:
    """Return True if no session of the store can continue: the database as a whole cannot be used."""
    return isinstance(error, StoreDamaged) and not isinstance(error, SessionUnreadable | ValueDamaged)


def _count(entry: ServedSession) -> str:
    firing = [schedule for schedule in entry.schedules.values() if fires_again(schedule)]
    wakes = [wake for schedule in firing if (wake := _wake(schedule)) is not None]
    first = f", next {_moment(min(wakes))}" if wakes else ""
    return f"{len(firing)} schedule{'s' if len(firing) != 1 else ''}{first}"


def _wake(schedule: Schedule) -> float | None:
    try:
        return next_wake(schedule)
    except CronInvalid:
        return None


def _moment(at: float) -> str:
    """Return a time for a person, in this machine's time zone."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
