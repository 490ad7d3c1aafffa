"""Sessions that a `callboard serve` hosts: those whose schedules fire, and those that need a host to finish their work.

Any number of such processes may share a store: the lease of each session decides which one hosts it. The others wait
until it is free (`lease.until_free`), when that process dies or leaves, and until it is their turn (`fleet`). The
store's doorbell reports new sessions and new schedules. Requests to a person are not answered here.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial

import anyio
import structlog
from anyio.abc import TaskGroup, TaskStatus

from callboard.adapters.storage.patience import PROCESS_ENDS
from callboard.adapters.system.clock import LOOK_AGAIN, SystemClock
from callboard.adapters.system.open_files import sessions_that_fit, too_many
from callboard.core.approvals.requests import answerers
from callboard.core.decoding import in_words, read_value
from callboard.core.keys import fires_prefix, host_key, host_lease, queue_key, session_key, session_of
from callboard.core.scheduling.due import CLOCK_SKEW, is_correction
from callboard.engine.commands import PLACEMENT, queue_write, read_session
from callboard.ports.store import Delete, Row
from callboard.ports.store_reading import row_of, rows_of
from callboard.sessions.fleet import Fleet
from callboard.sessions.hosted import HostedSession
from callboard.sessions.lease import process_at, take_lease, until_free
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
from callboard.sessions.serve_options import (
    UNFINISHED,
    LogLine,
    Serving,
    Tell,
    ended_line,
    fire_line,
    waiting_line,
)
from callboard.sessions.served_session import ServedSession
from callboard.sessions.stores import damaged_rows, reachable
from callboard.types.errors import (
    CallboardError,
    Conflict,
    Fenced,
    PersonCanAct,
    SessionHosted,
    SessionTakenOver,
    SessionUnreadable,
    StoreBusy,
    StoreDamaged,
    ValueDamaged,
    heart_of,
)
from callboard.types.records import HostRow, Json, QueuedSession, Request
from callboard.types.schedules import Fire, Schedule

_FOLLOWED = ("s/", fires_prefix(), queue_key(), host_key(""))
"""Prefixes of the rows that say which sessions need a host."""
DRAIN_TIMEOUT = 5.0
"""Seconds to tell the other hosts that this one leaves. A store that takes longer is taken as unreachable."""
REMOVAL_TIMEOUT = 2.0
"""Seconds that a host which leaves has to remove its row. Then it counts as dead."""
RETRY = 60.0
LONGEST_RETRY = 3_600.0
"""Longest time in seconds until a session that could not be opened is retried. The wait starts at `RETRY` and
doubles."""
OPENED_AFTER = 60.0
"""Seconds after which a process that holds a session's lease must have opened the session."""


log = structlog.get_logger("callboard.serve")


class Server:
    """One `callboard serve`. `tell` receives its log lines."""

    def __init__(self, serving: Serving, shared: SharedResources, tell: Tell, fleet: Fleet) -> None:
        self._serving = serving
        self._fleet = fleet
        self._shared = shared
        self._tell = tell
        self._store = shared.store
        self._entries: dict[str, ServedSession] = {}
        self._revisions: dict[str, int] = {}
        """Key -> revision of each row that was read at the start, until the watch has returned it."""
        self._began = SystemClock().now()
        self._hosted = 0
        """Number of sessions that are hosted here or being opened."""

    @property
    def entries(self) -> Sequence[ServedSession]:
        """Sessions that have or had schedules, or that need a host."""
        return list(self._entries.values())

    async def read_rows(self) -> None:
        """Read the schedules and unfinished fires of all sessions, their hosts, and the queue of those without one."""
        for prefix in _FOLLOWED:
            for row in await rows_of(self._store, prefix):
                self._apply_row(row)
                self._revisions[row.key] = row.revision

    async def report_lost_schedules(self) -> None:
        """Report the damaged rows of schedules of sessions that are not hosted."""
        for key in damaged_rows(self._store):
            parts = key.split("/")
            if len(parts) != 4 or parts[2] != "schedule" or await row_of(self._store, key) is not None:
                continue
            entry = self._entries.get(parts[1])
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
            group.start_soon(self._fleet.run)
            group.start_soon(self._follow_clock)
            group.start_soon(self._serve_all, group)
            await self._until_handed_over()
            group.cancel_scope.cancel()

    async def _follow_clock(self) -> None:
        """Look at all sessions again when a clock is put back that may have ended their schedules, until cancelled."""
        clock = SystemClock()
        ahead = clock.now() - clock.steady()
        while True:  # a changed clock causes no event
            await anyio.sleep(LOOK_AGAIN)
            before = ahead
            ahead = clock.now() - clock.steady()
            if ahead < before - CLOCK_SKEW:
                for entry in self.entries:
                    entry.changed.notify()

    async def _until_handed_over(self) -> None:
        """Return when this host is to leave and hosts nothing any more."""
        if self._serving.leaving is None:
            await anyio.sleep_forever()
        else:
            await self._serving.leaving.wait()
        try:
            with anyio.fail_after(DRAIN_TIMEOUT):
                await self._fleet.drain()
        except (StoreBusy, TimeoutError):
            # Without the store no session comes to the end of its step, and none can be handed over.
            self._tell(LogLine("trouble", "the store cannot be reached: leaves at once, and hands nothing over"))
            PROCESS_ENDS.set()
            return
        with anyio.move_on_after(self._serving.handing_over + DRAIN_TIMEOUT) as late:
            await self._fleet.changed.until(lambda: not self._hosted)
        if late.cancelled_caught:
            # The last commits of a session wait for room on a full disk without end
            # (test_sigterm_ends_a_serve_whose_disk_is_full).
            self._tell(
                LogLine("trouble", "its sessions cannot be left in order, for example on a full disk: leaves now")
            )
            PROCESS_ENDS.set()

    async def _serve_all(self, group: TaskGroup) -> None:
        """Follow all changes, then host the sessions that still need a host."""
        entries = self.entries
        for prefix in _FOLLOWED:
            await group.start(self._follow, prefix, group)
        for entry in entries:
            group.start_soon(self._serve, entry)

    async def _follow(
        self, prefix: str, group: TaskGroup | None, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Process changes until cancelled. It has started when it knows everything that is stored now.

        `group`: runs new sessions; None: they are not kept.
        """
        following = False
        async with self._store.watch(prefix) as rows:
            while True:
                try:
                    changes = (await anext(rows), *rows.at_hand()) if following else await rows.existing()
                except StopAsyncIteration:
                    return
                except ValueDamaged as damage:
                    self._tell(LogLine("trouble", str(damage), session_of(damage.where)))
                    continue  # the value was set aside; all other rows follow
                except StoreBusy:
                    await reachable(self._store)
                    continue
                self._apply_rows(changes, group)
                if not following:
                    # No watch names the rows that were deleted since `read_rows` read them
                    # (test_a_session_that_ends_while_a_host_starts_is_not_hosted).
                    gone = [Row(key, None, read + 1) for key, read in self._revisions.items() if key.startswith(prefix)]
                    self._apply_rows(gone, group)
                    following = True
                    task_status.started()

    def _apply_rows(self, rows: Sequence[Row], group: TaskGroup | None) -> None:
        # A watch begins with all existing rows, which `read_rows` has read already.
        changed = [row for row in rows if row.revision > self._revisions.pop(row.key, 0)]
        new = [entry for row in changed if (entry := self._apply_row(row)) is not None]
        if group is not None:
            for entry in new:
                group.start_soon(self._serve, entry)

    async def once(self) -> int:
        """Fire due schedules, with all sessions in parallel.

        Return the exit code of the first whose turn did not end well.
        """
        codes: list[int] = []
        async with anyio.create_task_group() as following:
            for prefix in _FOLLOWED:
                await following.start(self._follow, prefix, None)
            async with anyio.create_task_group() as group:
                for entry in [entry for entry in self.entries if entry.queued or self._due(entry)]:
                    group.start_soon(self._host_once, entry, codes)
            following.cancel_scope.cancel()
        return next((code for code in codes if code), 0)

    def _due(self, entry: ServedSession) -> bool:
        """Return True if `once` has something to do for the session. Only what was due when it began counts."""
        return entry.is_due(self._began, SystemClock().now())

    async def _host_once(self, entry: ServedSession, codes: list[int]) -> None:
        try:
            await self._fleet.until_room(entry.session)
            await self._host(entry, codes)
        except SessionHosted as hosted:
            self._say(entry, "left", f"{process_at(hosted.pid, hosted.machine)} hosts it, and fires its schedules")
        except SessionTakenOver as takeover:
            self._say(entry, "left", f"{process_at(takeover.pid, takeover.machine)} takes it over")
        except Exception as error:  # a fault of one session must not stop the others
            if stops_all(error):
                raise
            self._say(entry, "trouble", self._trouble(entry, error))
            codes.append(error.exit_code if isinstance(error, CallboardError) else BUG)
        finally:
            self._fleet.release(entry.session)

    def _apply_row(self, row: Row) -> ServedSession | None:
        """Process a changed row; return its session, if it was not known to need a host."""
        parts = row.key.split("/")
        if parts[0] == "s" and (len(parts) != 4 or parts[2] != "schedule"):
            self._apply_request(row)
            return None
        if parts[1] not in self._entries and parts[0] == "host" and row.value is None:
            return None
        new = parts[1] not in self._entries
        entry = self._entries.setdefault(parts[1], ServedSession(parts[1]))
        if parts[0] == "fires":
            self._apply_fire(entry, row)
        elif parts[0] in ("host", "queue"):
            self._apply_host_or_queue(entry, row)
        elif row.value is None:
            entry.set_schedule(parts[3], None)
        else:
            try:
                schedule = read_value(Schedule, row.value, row.key)
            except SessionUnreadable as wrong:  # its host pauses it; the session's other schedules continue
                self._tell(LogLine("trouble", str(wrong), wrong.session, parts[3]))
                entry.set_schedule(parts[3], None)
                entry.changed.notify()
                return entry if new else None
            self._report_change(entry, schedule)
            entry.set_schedule(parts[3], schedule)
        entry.changed.notify()
        return entry if new else None

    def _apply_request(self, row: Row) -> None:
        """Report a changed request of a session that is hosted here. Ignore other rows."""
        parts = row.key.split("/")
        entry = self._entries.get(parts[1])
        if len(parts) != 4 or parts[2] != "request" or row.value is None or entry is None or not entry.hosted_here:
            return
        with suppress(SessionUnreadable):  # its host reports it
            self._report_request(entry, read_value(Request, row.value, row.key))

    def _apply_host_or_queue(self, entry: ServedSession, row: Row) -> None:
        """Process the row of a session's host, or its row among the sessions that need one."""
        try:
            if row.key.startswith(queue_key()):
                entry.set_queued(None if row.value is None else read_value(QueuedSession, row.value, row.key))
                return
            host = None if row.value is None else read_value(HostRow, row.value, row.key)
        except SessionUnreadable as wrong:
            self._tell(LogLine("trouble", str(wrong), wrong.session))
            return
        entry.set_host(None if host is None or self._fleet.is_own(host) else host)

    def _apply_fire(self, entry: ServedSession, row: Row) -> None:
        before = entry.unfinished_fires.pop(row.key, None)
        if row.value is None:
            return
        try:
            fire = read_value(Fire, row.value, row.key)
        except SessionUnreadable as wrong:
            self._tell(LogLine("trouble", str(wrong), wrong.session))
            return
        if fire.outcome in UNFINISHED:
            entry.unfinished_fires[row.key] = fire
        newly_ended = fire.ended_at is not None and (before is None or before.ended_at != fire.ended_at)
        if entry.hosted_here and (before is None or newly_ended or fire.outcome not in UNFINISHED):
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

    async def _serve(self, entry: ServedSession) -> None:
        """Host a session whenever it needs a host and this process is to be that, until cancelled."""
        pause = 0.0
        wait = RETRY
        while True:
            if not entry.needs_host() and not entry.schedules:
                self._entries.pop(entry.session, None)  # a later row makes it known again
                return
            await entry.changed.until(entry.needs_host)
            # The lease of the session decides between the processes that serve a workspace
            # (test_four_processes_killed_at_random_fire_each_slot_exactly_once).
            try:
                await self._until_worth_trying(entry, pause)
                pause = 0.0
                await self._run_while(entry.needs_host, entry, partial(self._until_its_turn, entry))
                if not entry.needs_host():
                    continue
                await self._host(entry, [])
            except SessionHosted:
                continue  # another process was faster
            except StoreBusy as away:
                self._say(entry, "left", f"{away}. This host stays, and continues when the store can be reached")
                await reachable(self._store)
            except SessionTakenOver as takeover:
                self._say(
                    entry,
                    "left",
                    f"{process_at(takeover.pid, takeover.machine)} takes it over; it returns here when that one leaves",
                )
            except Fenced as fenced:
                self._say(entry, "left", str(fenced))
                await reachable(self._store)
            except Exception as error:  # a fault of one session must not stop the others
                if stops_all(error):
                    raise
                self._say(entry, "trouble", f"{self._trouble(entry, error)}; tried again in {wait:g} s, or at SIGHUP")
                pause, wait = wait, min(2 * wait, LONGEST_RETRY)
                continue
            finally:
                self._fleet.release(entry.session)
            wait = RETRY

    async def _until_worth_trying(self, entry: ServedSession, pause: float) -> None:
        """Return after the pause, or when opening a session that could not be opened may succeed; at once without one.

        The attempt itself has changed the row of the session's host. That must not end the pause
        (test_a_session_that_cannot_be_opened_is_tried_again_only_after_a_change_that_matters).
        """
        before = entry.useful_changes
        with anyio.move_on_after(pause):
            await self._run_while(
                lambda: entry.useful_changes == before, entry, partial(self._until_hosted_elsewhere, entry)
            )

    async def _until_hosted_elsewhere(self, entry: ServedSession) -> None:
        """Return when another process has held the session's lease for so long that it must have opened the session."""
        while True:
            host = entry.host
            with anyio.move_on_after(None if host is None else OPENED_AFTER) as long_enough:
                await entry.changed.until(lambda host=host: entry.host != host)
            if long_enough.cancelled_caught and await self._store.holder(host_lease(entry.session)) is not None:
                return

    async def _until_its_turn(self, entry: ServedSession) -> None:
        """Return when no process hosts the session and this one is to."""
        while True:
            await until_free(self._store, entry.session, self._fleet.wait_died)
            await self._until_host_row_removed(entry)
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:
                    group.start_soon(self._cancel_once_hosted, entry, scope)
                    await self._fleet.until_chosen(entry.session, await self._placement(entry))
                    group.cancel_scope.cancel()
            if not scope.cancel_called and await self._store.holder(host_lease(entry.session)) is None:
                return
            self._fleet.release(entry.session)

    async def _until_host_row_removed(self, entry: ServedSession) -> None:
        """Give a host that leaves in order the time to remove its row, which comes after the end of its lease."""
        host = entry.host
        if entry.queued is None and not entry.fires():
            with anyio.move_on_after(REMOVAL_TIMEOUT):
                await entry.changed.until(lambda: entry.host != host)

    async def _cancel_once_hosted(self, entry: ServedSession, scope: anyio.CancelScope) -> None:
        """Cancel the scope when another process hosts the session."""
        before = entry.host
        await entry.changed.until(lambda: entry.host is not None and entry.host != before)
        scope.cancel()

    async def _placement(self, entry: ServedSession) -> Mapping[str, str]:
        if entry.queued is not None:
            return entry.queued.placement
        row = await row_of(self._store, session_key(entry.session))
        return {} if row is None else read_session(row).settings.get(PLACEMENT) or {}

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

    async def _run_while(
        self, condition: Callable[[], bool], entry: ServedSession, work: Callable[[], Awaitable[None]]
    ) -> None:
        """Run `work`; cancel it as soon as the condition is false, which is checked after each change of the entry."""

        async def cancel_when_false() -> None:
            await entry.changed.until(lambda: not condition())
            group.cancel_scope.cancel()

        try:
            async with anyio.create_task_group() as group:
                group.start_soon(cancel_when_false)
                await work()
                group.cancel_scope.cancel()
        except BaseExceptionGroup as failed:
            raise heart_of(failed) from failed

    async def _host(self, entry: ServedSession, codes: list[int]) -> None:
        """Host a session until it needs no host any more, or until this host hands it over."""
        if self._hosted >= sessions_that_fit():
            raise PersonCanAct(too_many())  # the hosted sessions need the remaining open files
        self._hosted += 1
        try:
            await self._queue_orphan(entry)
            await self._open_and_host(entry, codes)
        finally:
            self._hosted -= 1
            self._fleet.changed.notify()

    async def _queue_orphan(self, entry: ServedSession) -> None:
        """Queue a session whose host died: should it not be opened, or be handed over, the next host finds it.

        The row of the dead host is the only other sign that it needs a host, and opening replaces that row. So this
        comes first, and under the lease, because a person may take the session up at the same time
        (test_a_session_of_a_dead_host_that_cannot_be_opened_still_needs_a_host).
        """
        if entry.host is None or entry.queued is not None or entry.fires():
            return
        lease = await take_lease(self._store, entry.session)
        try:
            row = await row_of(self._store, host_key(entry.session))
            dead = None if row is None or row.value is None else read_value(HostRow, row.value, row.key)
            if dead is not None and dead.unattended and await row_of(self._store, queue_key(entry.session)) is None:
                stored = await row_of(self._store, session_key(entry.session))
                settings = read_session(stored).settings if stored is not None else {}
                queued = queue_write(entry.session, settings, SystemClock().now())
                await self._store.commit(queued, fence=lease.fence)
            row = await row_of(self._store, queue_key(entry.session))
        finally:
            with anyio.CancelScope(shield=True):
                await lease.release()
        if row is not None:
            self._apply_row(row)

    async def _open_and_host(self, entry: ServedSession, codes: list[int]) -> None:
        serving = self._serving
        options = SessionOptions(
            # One with a remote is prepared when it is opened, under its lease (`workspaces.py`).
            WorkspaceOptions(serving.workspace, trust=serving.trust),
            identity=IdentityOptions(session=entry.session, resume=True),
            permissions=PermissionOptions(answerable=True),
            hosting=HostingOptions(shared=self._shared, commands_at_rest="end"),
        )
        async with open_session(options) as session:
            entry.hosted_here = True
            try:
                self._report_hosting(entry, session)
                text = await self._until_left_here(entry, session, codes)
            finally:
                entry.hosted_here = False
        self._say(entry, "left", text or "handed over: another host continues it")

    async def _until_left_here(self, entry: ServedSession, session: HostedSession, codes: list[int]) -> str:
        """Return when the session needs no host any more, with the reason; empty if this host is to hand it over."""
        text = ""
        async with anyio.create_task_group() as group:
            group.start_soon(self._hand_over, entry, session, group.cancel_scope)
            text = await self._until_done(entry, session, codes)
            group.cancel_scope.cancel()
        for command in session.stopped_commands():
            self._say(entry, "note", command.line())
        return text

    def _report_hosting(self, entry: ServedSession, session: HostedSession) -> None:
        entry.host = None
        self._say(entry, "hosting", entry.why_hosted())
        for note in session.notes:
            self._say(entry, "note", note)
        entry.reported_requests.clear()
        for request in session.requests():
            self._report_request(entry, request)

    async def _until_done(self, entry: ServedSession, session: HostedSession, codes: list[int]) -> str:
        """Return when the session needs no host any more, with the reason."""
        has_work = partial(self._due, entry) if self._serving.once else entry.fires
        while True:
            while has_work():
                await entry.changed.until(lambda: not has_work())
                await session.wait_finished()
            queued = entry.queued
            row = await row_of(self._store, queue_key(entry.session))
            if row is None and entry.queued is queued:
                entry.queued = None  # no newer row has come since: what the watch said before is out of date
            end = (await session.wait_finished()).of_run()
            if has_work():
                continue
            if row is None:
                codes.append(session.end().exit_code)
                return "what was due is done" if self._serving.once else "none of its schedules fires again"
            try:
                await session.mark_ended(end.exit_code)
                # A prompt that was sent meanwhile has changed the row.
                await session.commit(Delete(row.key, expected=row.revision))
            except Conflict:
                continue
            codes.append(end.exit_code)
            return end.served_report(entry.session)

    async def _hand_over(self, entry: ServedSession, session: HostedSession, scope: anyio.CancelScope) -> None:
        """When this host drains, end the hosting of a session at the end of its current step."""
        await self._fleet.changed.until(lambda: self._fleet.draining)
        with anyio.move_on_after(self._serving.handing_over) as late:
            await session.pause()
        if late.cancelled_caught:
            self._say(entry, "note", f"a step takes longer than {self._serving.handing_over:g} s: it is cut off")
        await session.end_commands()  # the next host may be another machine, which cannot see them
        scope.cancel()

    def _report_fire(self, entry: ServedSession, fire: Fire) -> None:
        line = fire_line(fire, entry.session)
        if line is not None:
            self._tell(line)

    def _report_request(self, entry: ServedSession, request: Request) -> None:
        """Report that a request begins to wait for a person, and how a reported one ended."""
        reported = request.id in entry.reported_requests
        waits = request.expires_at is None or request.expires_at > request.created_at
        if request.status == "pending" and waits and "person" in answerers(request):
            entry.reported_requests.add(request.id)
            if not reported:
                self._tell(waiting_line(request, entry.session))
        elif request.status != "pending" and reported:
            entry.reported_requests.discard(request.id)
            self._tell(ended_line(request, entry.session))

    def _say(
        self, entry: ServedSession, kind: str, text: str, *, schedule: str = "", details: Json | None = None
    ) -> None:
        self._tell(LogLine(kind, text, entry.session, schedule, details or {}))


def stops_all(error: Exception) -> bool:
    """Return True if no session of the store can continue: the database as a whole cannot be used."""
    return isinstance(error, StoreDamaged) and not isinstance(error, SessionUnreadable | ValueDamaged)
