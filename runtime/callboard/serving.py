"""`callboard serve`: fires the schedules of a workspace without a terminal.

    await serve(Serving(Path(".")), tell=print)

It hosts each session whose schedules fire and that nobody else hosts (`hosting_many.py`), and keeps one session of its
own for schedule files. It ends only by being cancelled, or with `once`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from callboard.adapters.clock import SystemClock
from callboard.adapters.logs import logging_to
from callboard.app import Options, open_session
from callboard.assembly import Places, choose_model, find_places, open_store
from callboard.core.names import DATABASE, host_lease
from callboard.core.schedule import CronInvalid, next_wake
from callboard.desks.persons import refuse_inside_tool
from callboard.desks.schedule_files import files_now, keep_file_schedules, sync_files
from callboard.desks.serving import announced_serving, fires_again, serving
from callboard.engine.governor import Governors
from callboard.engine.sessions import SERVES, sessions_of
from callboard.hosting_many import Kept, Server, Serving, Tell, Told
from callboard.opening import Shared
from callboard.ports.store import LeaseHolder, Store
from callboard.settings import Loaded, load_settings
from callboard.taking_over import holder_died
from callboard.trusting import decide
from callboard.words.errors import CredentialsMissing, PersonCanAct, SettingsError
from callboard.words.schedules import Schedule

__all__ = ["Serving", "Told", "WouldHost", "serve", "serve_session", "serving_pids", "would_host"]

FILES_LEASE = "schedule-files"
"""Of the one process that reads the schedule files of a workspace."""
MAKING_LEASE = "serve-session"
"""Of the one that makes the session for them."""
_REHEARSAL = "rehearsal:"


async def serve(what: Serving, tell: Tell) -> int:
    """Serve until cancelled; with `once`, until what was due is done: its exit code.

    Raises `UsageError` inside a tool's process, `CredentialsMissing`, `UnknownModel` and `SettingsError` at once where
    no session could call its model, `WorkspaceUnusable`, and what nobody can act on.
    """
    refuse_inside_tool("serve schedules")
    async with _opened(what) as (places, loaded, shared):
        server = Server(what, shared, tell)
        await server.look()
        await _check_models(what, places, loaded, [one for one in server.kept if one.fires()], shared.store)
        with logging_to(places.state / "log" / "serve.jsonl"):
            if what.once:
                await _sync_once(what, places, shared, server, tell)
                return await server.once()
            async with announced_serving(shared.store, SystemClock().now()):
                tell(Told("serving", f"{places.workspace}, {_counted(server.kept)}"))
                await server.run(partial(_keep_files, what, places, shared, tell))
    return 0


async def serving_pids(workspace: Path) -> list[int]:
    """The processes that serve a workspace now."""
    places = find_places(workspace, writable=False)
    if not (places.state / DATABASE).exists():
        return []
    store = await open_store(places, load_settings(os.environ).settings.durability)
    try:
        return sorted(await serving(store))
    finally:
        await store.aclose()


@dataclass(frozen=True, slots=True)
class WouldHost:
    """A session that a `callboard serve` would host. `host`: the process that hosts it now, None for none."""

    session: str
    host: int | None
    schedules: tuple[tuple[Schedule, float | None], ...]
    """Those that fire, with the next moment (Unix seconds) at which one does."""


async def would_host(what: Serving) -> list[WouldHost]:
    """What a `callboard serve` would host now, and when each schedule is due next. It changes nothing."""
    async with _opened(what) as (_, _, shared):
        server = Server(what, shared, lambda told: None)
        await server.look()
        found = list[WouldHost]()
        for kept in server.kept:
            firing = [(one, _wake(one)) for one in kept.schedules.values() if one.durable and fires_again(one)]
            if firing:
                holder = await shared.store.holder(host_lease(kept.session))
                firing.sort(key=lambda one: one[1] or 0.0)
                found.append(WouldHost(kept.session, holder.pid if holder else None, tuple(firing)))
        return found


async def serve_session(options: Options, store: Store) -> str:
    """The session of the workspace's schedule files; it is made if there is none. Raises what `open_session` raises."""
    while (found := await _serve_session(store)) is None:
        lease = await store.acquire(MAKING_LEASE)
        if isinstance(lease, LeaseHolder):
            await holder_died(store, MAKING_LEASE, lease)
            continue
        try:
            await _make_session(options, store)
        finally:
            with anyio.CancelScope(shield=True):
                await lease.release()
    return found


async def _make_session(options: Options, store: Store) -> None:
    if await _serve_session(store) is not None:
        return
    governors = Governors(SystemClock(), load_settings(os.environ).settings.rate.calls_at_once)
    shared = options.shared or Shared(store, governors)
    new = replace(options, session=None, resume=False, prompt=None, serves=True, shared=shared)
    async with open_session(new):
        return  # to be there is all: whoever serves hosts it when it has schedules


async def _keep_files(what: Serving, places: Places, shared: Shared, tell: Tell) -> None:
    """Keep the schedules of the schedule files, until cancelled: one process of all those that serve a workspace."""
    store, session = shared.store, partial(serve_session, _options(what, shared), shared.store)
    while True:
        lease = await store.acquire(FILES_LEASE)
        if isinstance(lease, LeaseHolder):
            await holder_died(store, FILES_LEASE, lease)
            continue
        try:
            await keep_file_schedules(
                store, session, places, flag=what.trust, tell=lambda line: tell(Told("files", line))
            )
        finally:
            with anyio.CancelScope(shield=True):
                await lease.release()


async def _sync_once(what: Serving, places: Places, shared: Shared, server: Server, tell: Tell) -> None:
    """The schedules of files, as they stand now; where another process keeps them, it does."""
    lease = await shared.store.acquire(FILES_LEASE)
    if isinstance(lease, LeaseHolder):
        return
    try:
        found = await anyio.to_thread.run_sync(partial(files_now, places, flag=what.trust))
        session = await _serve_session(shared.store)
        if session is None and found.wanted:
            session = await serve_session(_options(what, shared), shared.store)
        if session is not None:
            synced = await sync_files(shared.store, session, found, SystemClock().now())
            for line in (*synced.lines(), *synced.faults):
                tell(Told("files", line))
            await server.look()
    finally:
        with anyio.CancelScope(shield=True):
            await lease.release()


def _options(what: Serving, shared: Shared) -> Options:
    """Of the session for schedule files."""
    return Options(what.workspace, model=what.model, trust=what.trust, answerable=True, shared=shared)


async def _serve_session(store: Store) -> str | None:
    return next((one.id for one in reversed(await sessions_of(store)) if one.settings.get(SERVES)), None)


@asynccontextmanager
async def _opened(what: Serving) -> AsyncGenerator[tuple[Places, Loaded, Shared]]:
    """The workspace's store, with what all of its sessions share in this process."""
    places = find_places(what.workspace)
    trust = await decide(places.workspace, places.config, flag=what.trust)
    loaded = load_settings(os.environ, workspace=places.workspace, trusted=trust.trusted, brought=trust.brought)
    store = await open_store(places, loaded.settings.durability)
    try:
        yield places, loaded, Shared(store, Governors(SystemClock(), loaded.settings.rate.calls_at_once))
    finally:
        with anyio.CancelScope(shield=True):
            await store.aclose()


async def _check_models(what: Serving, places: Places, loaded: Loaded, kept: Sequence[Kept], store: Store) -> None:
    """Say at the start, and not at each fire, that no model can be called."""
    ids = {one.session for one in kept}
    wanted = {str(one.settings.get("model", one.model)) for one in await sessions_of(store) if one.id in ids}
    wanted = wanted or {what.model or loaded.settings.model}
    faults = [fault for one in sorted(wanted) if (fault := await _fault_of(one, loaded, places)) is not None]
    fatal = [one for one in faults if isinstance(one, CredentialsMissing)]
    if fatal or len(faults) == len(wanted):
        raise (fatal or faults)[0]


async def _fault_of(model: str, loaded: Loaded, places: Places) -> PersonCanAct | None:
    """Why a model cannot be called from here; None: nothing is known against it. It calls nobody."""
    try:
        if not model.startswith(_REHEARSAL):
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


def _counted(kept: Sequence[Kept]) -> str:
    sessions = sum(1 for one in kept if one.fires())
    return (
        f"{sessions} session{'s' if sessions != 1 else ''} with schedules that fire" if sessions else "no schedules yet"
    )
