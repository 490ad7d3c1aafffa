"""`callboard serve`: fires the schedules of a workspace without a terminal.

    await serve(Serving(Path(".")), tell=print)

It hosts each session whose schedules fire and that no other process hosts (`serve_sessions.py`), and keeps a separate
session for schedule files. It ends only by being cancelled, or with `once`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from callboard import __version__
from callboard.adapters.processes.tool_ancestry import refuse_inside_tool
from callboard.adapters.storage.durable import DurableStore
from callboard.adapters.system.clock import SystemClock
from callboard.adapters.system.folder_watch import WatchFactory
from callboard.adapters.system.logs import logging_to
from callboard.adapters.system.release import OURS, InstalledRelease
from callboard.config.settings import LoadedSettings, load_settings
from callboard.config.trust import decide
from callboard.core.keys import host_lease
from callboard.core.scheduling import CronInvalid, next_wake
from callboard.engine.commands import SERVES, sessions_of, stored_sessions
from callboard.engine.rate_limits.limiter import KeyLimiters
from callboard.ports.store import LeaseHolder, Store
from callboard.sessions.compose import choose_model
from callboard.sessions.fleet import Fleet, own_labels
from callboard.sessions.inspect.schedule_files import files_now, keep_file_schedules, preview_files, sync_files
from callboard.sessions.inspect.serving import serving_processes
from callboard.sessions.lease import holder_died
from callboard.sessions.open import open_session
from callboard.sessions.options import (
    HostingOptions,
    IdentityOptions,
    ModelOptions,
    SessionOptions,
    SharedResources,
    WorkspaceOptions,
)
from callboard.sessions.places import Notice, WorkspacePaths, find_places
from callboard.sessions.retention import DAY, REMOVAL_MARK, remove_old_sessions
from callboard.sessions.serve_options import LogLine, Serving, Tell
from callboard.sessions.serve_sessions import LONGEST_RETRY, RETRY, Server, stops_all
from callboard.sessions.served_session import ServedSession
from callboard.sessions.stores import existing_store, keep_patience, open_store, own_settings, reachable, until_cut_off
from callboard.types.errors import (
    CredentialsMissing,
    Fenced,
    PersonCanAct,
    SettingsError,
    StoreBusy,
    StoreDamaged,
    StoreFull,
    heart_of,
)
from callboard.types.lazy_dataclass import dataclass
from callboard.types.personal_settings import RetentionSettings
from callboard.types.records import HostAbout
from callboard.types.schedules import Schedule
from callboard.types.settings import Settings

__all__ = ["DryRun", "HostCandidate", "LogLine", "Serving", "serve", "serve_session", "serving_pids", "would_host"]

FILES_LEASE = "schedule-files"
"""Lease of the one process that reads the schedule files of a workspace."""
MAKING_LEASE = "serve-session"
"""Lease of the process that creates the session for them."""
OPEN_AGAIN = 10.0
"""Seconds until the next attempt to open a store on a full disk."""
_REHEARSAL = "rehearsal:"
_CANNOT_KEEP = "the schedule files cannot be kept"


async def serve(serving: Serving, tell: Tell) -> int:
    """Serve until cancelled; with `once`, until the due work is done, and return its exit code.

    Raises `UsageError` inside a tool's process; `CredentialsMissing`, `UnknownModel` and `SettingsError` at once if no
    session could call its model; `WorkspaceUnusable`; and errors that nobody can act on.
    """
    refuse_inside_tool("Serving schedules", service=True)
    async with (
        _until_leaving(serving.leaving) as opening,
        _opened(serving, partial(_patient_store, tell=tell)) as (places, loaded, shared),
    ):
        fleet = Fleet(shared.store, _host_statement(serving, places))
        server = Server(serving, shared, tell, fleet)
        await server.read_rows()
        await _check_models(
            serving,
            places,
            loaded=loaded,
            sessions=[entry for entry in server.entries if entry.fires()],
            store=shared.store,
        )
        opening.cancel()
        with logging_to(places.state / "log" / "serve.jsonl"):
            return await _served(serving, places, shared, fleet=fleet, server=server, tell=tell)
    return 0  # told to leave before it hosted anything


@asynccontextmanager
async def _until_leaving(leaving: anyio.Event | None) -> AsyncGenerator[anyio.CancelScope]:
    """Cancel the block when `leaving` is set. Cancelling the yielded scope ends the watch, and not the block.

    The store may be waited for without end (test_a_command_names_the_stopped_process_it_waits_for_and_can_be_ended).
    """
    watching = anyio.CancelScope()

    async def watch(leaving: anyio.Event) -> None:
        with watching:
            await leaving.wait()
            group.cancel_scope.cancel()

    try:
        async with anyio.create_task_group() as group:
            if leaving is not None:
                group.start_soon(watch, leaving)
            yield watching
            watching.cancel()
    except BaseExceptionGroup as failed:
        raise heart_of(failed) from failed


async def _served(
    serving: Serving, places: WorkspacePaths, shared: SharedResources, *, fleet: Fleet, server: Server, tell: Tell
) -> int:
    async with _patience(shared.store, tell):
        if serving.once:
            failed = await _sync_once(serving, places, shared, server=server, tell=tell)
            return await server.once() or failed
        async with fleet.announce():
            tell(LogLine("serving", f"{places.workspace}, {_counted(server.entries)}"))
            await server.report_lost_schedules()
            await server.run(
                partial(_keep_files, serving, places, shared, tell), partial(_remove_daily, shared.store, places, tell)
            )
    return 0


def _host_statement(serving: Serving, places: WorkspacePaths) -> HostAbout:
    """Return the statement of this process for the other hosts of the store."""
    return HostAbout(
        version=__version__,
        serves=True,
        labels=own_labels(places.workspace, serving.labels),
        sessions=serving.sessions,
        since=SystemClock().now(),
    )


@asynccontextmanager
async def _patience(store: Store, tell: Tell) -> AsyncGenerator[None]:
    """Wait for a full disk or a stopped process during the block, and report it."""
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(keep_patience, store, _trouble_of(tell))
            yield
            group.cancel_scope.cancel()
    except BaseExceptionGroup as failed:
        raise heart_of(failed) from failed


def _trouble_of(tell: Tell) -> Notice:
    """Return the function that logs why the store is waiting."""
    return lambda message: tell(LogLine("trouble", message))


async def _patient_store(places: WorkspacePaths, settings: Settings, tell: Tell) -> Store:
    """Return the store, once there is room on its disk and no stopped process holds its lock."""
    while True:
        try:
            return await open_store(places, settings, _trouble_of(tell))
        except (StoreFull, StoreBusy) as error:
            tell(LogLine("trouble", f"{error}. Tried again in {OPEN_AGAIN:g} s"))
            await anyio.sleep(OPEN_AGAIN)


async def serving_pids(workspace: Path, notice: Notice) -> list[int]:
    """Return the processes of this machine that serve a workspace now."""
    async with existing_store(find_places(workspace, writable=False), notice) as store:
        return (
            []
            if store is None
            else sorted(holder.pid for holder in await serving_processes(store) if not holder.machine)
        )


@dataclass(frozen=True, slots=True)
class HostCandidate:
    """Session that a `callboard serve` would host. `host`: the process that hosts it now, None for none."""

    session: str
    """Empty for the session that would be created for schedule files."""
    host: int | None
    schedules: tuple[tuple[Schedule, float | None], ...]
    """Schedules that fire, with the next time (Unix seconds) of each."""


@dataclass(frozen=True, slots=True)
class DryRun:
    """Sessions that a `callboard serve` would host now, and the faults of schedule files."""

    sessions: tuple[HostCandidate, ...]
    faults: tuple[str, ...]
    """A line for each fault of a schedule file, and one for files that are not read."""


async def would_host(serving: Serving, notice: Notice) -> DryRun:
    """Return the sessions that a `callboard serve` would host now, and when each schedule is due next.

    The schedules are those after a sync with the schedule files. Changes nothing.
    """
    async with _opened(serving, partial(open_store, notice=notice)) as (places, _, shared):
        server = Server(serving, shared, lambda event: None, Fleet(shared.store, HostAbout()))
        await server.read_rows()
        firing = {entry.session: entry.firing_schedules() for entry in server.entries}
        files = await anyio.to_thread.run_sync(partial(files_now, places, flag=serving.trust))
        home = await _serve_session(shared.store) or ""
        filed, faults = await preview_files(shared.store, home, files, SystemClock().now())
        firing[home] = ServedSession(home, {schedule.id: schedule for schedule in filed}).firing_schedules()
        hosts = list[HostCandidate]()
        for session, schedules in firing.items():
            if schedules:
                holder = await shared.store.holder(host_lease(session)) if session else None
                times = sorted(((schedule, _wake(schedule)) for schedule in schedules), key=lambda pair: pair[1] or 0.0)
                hosts.append(HostCandidate(session, holder.pid if holder else None, tuple(times)))
        return DryRun(tuple(hosts), faults)


async def serve_session(options: SessionOptions, store: Store) -> str:
    """Return the session of the workspace's schedule files; it is created if there is none.

    Raises the errors of `open_session`.
    """
    while (session := await _serve_session(store)) is None:
        # Two processes that start together must not create two sessions for the same files.
        lease = await store.acquire(MAKING_LEASE)
        if isinstance(lease, LeaseHolder):
            await holder_died(store, MAKING_LEASE, lease)
            continue
        try:
            await _make_session(options, store)
        finally:
            with anyio.CancelScope(shield=True):
                await lease.release()
    return session


async def _make_session(options: SessionOptions, store: Store) -> None:
    # Another process may have created it before this one got the lease.
    if await _serve_session(store) is not None:
        return
    key_limiters = KeyLimiters(SystemClock(), load_settings(os.environ).settings.rate.calls_at_once)
    shared = options.hosting.shared or SharedResources(store, key_limiters)
    new = replace(
        options,
        identity=IdentityOptions(serves=True),
        permissions=replace(options.permissions, answerable=True),  # also if `cron add` creates it
        hosting=replace(options.hosting, shared=shared),
    )
    async with open_session(new):
        return  # it only has to exist: a `callboard serve` hosts it once it has schedules


async def _keep_files(serving: Serving, places: WorkspacePaths, shared: SharedResources, tell: Tell) -> None:
    """Keep the schedules of the schedule files, until cancelled.

    Only one of the processes that serve a workspace does this.
    """
    store = shared.store
    session = partial(serve_session, _options(serving, shared), shared.store)
    keeping = partial(
        keep_file_schedules,
        store,
        session,
        places,
        shared.watches,
        flag=serving.trust,
        tell=lambda line: tell(LogLine("files", line)),
    )
    wait = RETRY
    while True:
        began = anyio.current_time()
        try:
            await _while_leased(store, keeping)
        except (StoreBusy, Fenced):
            await reachable(store)  # others may keep the files now
        except (PersonCanAct, StoreDamaged) as error:
            # The sessions go on without the files (test_files_whose_session_cannot_be_created_do_not_end_it).
            if stops_all(error):
                raise
            wait = RETRY if anyio.current_time() - began > LONGEST_RETRY else wait
            tell(LogLine("trouble", f"{_CANNOT_KEEP}: {error}; tried again in {wait:g} s, or at SIGHUP"))
            await anyio.sleep(wait)
            wait = min(2 * wait, LONGEST_RETRY)


async def _remove_daily(store: Store, places: WorkspacePaths, tell: Tell) -> None:
    """Remove the sessions that the setting `retention` names, once a day, until cancelled."""
    retention = own_settings().retention
    if retention == RetentionSettings() or not isinstance(store, DurableStore):
        return
    done = anyio.Path(places.state / REMOVAL_MARK)
    while True:
        last = (await done.stat()).st_mtime if await done.exists() else 0.0
        await anyio.sleep(max(0.0, min(last + DAY - SystemClock().now(), DAY)))
        try:
            report = await remove_old_sessions(store, places, retention)
            await done.touch()
        except (StoreBusy, Fenced):
            await reachable(store)
            continue
        except (PersonCanAct, OSError) as error:
            tell(LogLine("trouble", f"old sessions were not removed: {error}"))
            await anyio.sleep(DAY)
            continue
        for removal in report.removed:
            text = f"removed this session, which ended long ago ({removal.bytes:,} bytes)"
            tell(LogLine("note", text, removal.session.id))


async def _while_leased(store: Store, keeping: Callable[[], Awaitable[None]]) -> None:
    """Keep the files under their lease, or wait for the end of the process that does."""
    lease = await store.acquire(FILES_LEASE)
    if isinstance(lease, LeaseHolder):
        await holder_died(store, FILES_LEASE, lease)
        return
    try:
        await until_cut_off(store, keeping)
    finally:
        with anyio.CancelScope(shield=True):
            await lease.release()


async def _sync_once(
    serving: Serving, places: WorkspacePaths, shared: SharedResources, *, server: Server, tell: Tell
) -> int:
    """Sync the schedules with the current files, unless another process keeps them.

    Return the exit code of an error, which is reported, and 0 without one.
    """
    lease = await shared.store.acquire(FILES_LEASE)
    if isinstance(lease, LeaseHolder):
        return 0
    try:
        files = await anyio.to_thread.run_sync(partial(files_now, places, flag=serving.trust))
        session = await _serve_session(shared.store)
        if session is None and files.schedules:
            session = await serve_session(_options(serving, shared), shared.store)
        if session is not None:
            synced = await sync_files(shared.store, session, files, SystemClock().now())
            for line in (*synced.lines(), *synced.faults):
                tell(LogLine("files", line))
            await server.read_rows()
    except (PersonCanAct, StoreDamaged) as error:  # the sessions run without the files
        if stops_all(error):
            raise
        tell(LogLine("trouble", f"{_CANNOT_KEEP}: {error}"))
        return error.exit_code
    finally:
        with anyio.CancelScope(shield=True):
            await lease.release()
    return 0


def _options(serving: Serving, shared: SharedResources) -> SessionOptions:
    """Return the options of the session for schedule files."""
    return SessionOptions(
        WorkspaceOptions(serving.workspace, trust=serving.trust),
        model=ModelOptions(serving.model),
        hosting=HostingOptions(shared=shared),
    )


async def _serve_session(store: Store) -> str | None:
    return next((row.id for row in reversed(await sessions_of(store)) if row.settings.get(SERVES)), None)


@asynccontextmanager
async def _opened(
    serving: Serving, opening: Callable[[WorkspacePaths, Settings], Awaitable[Store]]
) -> AsyncGenerator[tuple[WorkspacePaths, LoadedSettings, SharedResources]]:
    """Yield the workspace's store, with the resources that all of its sessions share in this process."""
    places = find_places(serving.workspace)
    trust = await decide(places.workspace, places.config, flag=serving.trust)
    loaded = load_settings(
        os.environ, workspace=places.workspace, trusted=trust.trusted, workspace_claims=trust.workspace_claims
    )
    store = await opening(places, loaded.settings)
    try:
        yield places, loaded, SharedResources(store, KeyLimiters(SystemClock(), loaded.settings.rate.calls_at_once))
    finally:
        with anyio.CancelScope(shield=True):
            await store.aclose()


async def _check_models(
    serving: Serving, places: WorkspacePaths, *, loaded: LoadedSettings, sessions: Sequence[ServedSession], store: Store
) -> None:
    """Report missing models at the start instead of at each fire."""
    ids = {entry.session for entry in sessions}
    stored = await stored_sessions(store)
    ids -= stored.rebuilt  # the models in their rows may be wrong, and must not stop the others
    models = {str(row.settings.get("model", row.model)) for row in stored.rows if row.id in ids}
    models = models or {serving.model or loaded.settings.model}
    faults = [fault for model in sorted(models) if (fault := await _fault_of(model, loaded, places)) is not None]
    fatal = [fault for fault in faults if isinstance(fault, CredentialsMissing)]
    if fatal or len(faults) == len(models):
        raise (fatal or faults)[0]


async def _fault_of(model: str, loaded: LoadedSettings, places: WorkspacePaths) -> PersonCanAct | None:
    """Return why a model cannot be called from here; None if no reason is known. Calls no service."""
    try:
        if not model.startswith(_REHEARSAL) or model == _REHEARSAL:
            async with choose_model(model, loaded, places, "serve"):
                return None
        file = model.removeprefix(_REHEARSAL)
        missing = SettingsError("there is no such scenario file", file)
        return None if await anyio.Path(file).is_file() else missing
    except PersonCanAct as fault:
        return fault


def _wake(schedule: Schedule) -> float | None:
    try:
        return next_wake(schedule)
    except CronInvalid:
        return None


def _counted(entries: Sequence[ServedSession]) -> str:
    sessions = sum(1 for entry in entries if entry.fires())
    return (
        f"{sessions} session{'s' if sessions != 1 else ''} with schedules that fire" if sessions else "no schedules yet"
    )


UPGRADED = 75
"""Exit code if the files of this process were replaced. A supervisor starts the new version."""
SETTLED = 2.0
"""Seconds for an installer to write the rest of the package."""
LOOK_AGAIN = 60.0
"""Seconds between checks if the kernel does not report changes."""


async def until_replaced(release: InstalledRelease = OURS) -> str:
    """Return a message once another version is installed. Uses no CPU until the package's folder changes."""
    try:
        watch = WatchFactory().watch([Path(release.file).parent])
    except OSError:
        watch = None  # the system reports no changes, or its limit is reached
    try:
        while True:
            if release.replaced_by():
                await anyio.sleep(SETTLED)
            if (message := release.replaced_by()) and release.is_installed():
                return message
            await (anyio.sleep(LOOK_AGAIN) if watch is None else watch.wait_changed())
    finally:
        if watch is not None:
            watch.close()
