"""The store of a workspace: choosing and opening it, waiting for it, and reporting its damage.

Adapters are imported when they are chosen, so that a command that needs none of them starts fast.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import anyio.to_thread

from callboard.adapters.storage.durable import DurableStore
from callboard.adapters.storage.threads import run_soon, soon_here
from callboard.adapters.system.archive import ThreadRunner
from callboard.config.settings import load_settings
from callboard.core.checkpoints.address import parse_remote, workspace_name
from callboard.core.keys import DATABASE, session_of
from callboard.ports.store import Fence, Store
from callboard.sessions.places import Notice, WorkspacePaths
from callboard.types.errors import Fenced, SettingsError, heart_of
from callboard.types.settings import LOCAL_STORE, Settings


def log_notice(message: str) -> None:
    """Log the reason for a wait, for a program without its own output.

    The standard library's logging writes a warning to stderr unless the program has configured it.
    """
    logging.getLogger("callboard.store").warning("%s", message)


async def open_store(places: WorkspacePaths, settings: Settings, notice: Notice) -> Store:
    """Open the workspace's store: a database in its state folder, or the server that the settings name.

    `notice` is called from another thread with the reason for a wait; it has no default, so that no caller waits
    silently. Raises `WorkspaceUnusable`, `StoreDamaged`, `StoreFull`, `StoreBusy`, `SettingsError`.
    """
    if is_local(settings):
        from callboard.adapters.storage.sqlite.store import open_store as open_sqlite

        return await open_sqlite(places.state, durability=settings.durability, notice=notice)
    try:
        from callboard.adapters.storage.postgres.address import parse_address
        from callboard.adapters.storage.postgres.store import open_store as open_postgres
    except ImportError as missing:
        raise SettingsError(
            f"store: a store on a server needs psycopg ({missing}): pip install 'callboard[postgres]'"
        ) from missing
    address = parse_address(settings.store, settings.store_direct)
    space = settings.store_workspace or remote_name(settings) or str(places.workspace)
    return await open_postgres(address, space, durability=settings.durability, notice=notice)


def remote_name(settings: Settings) -> str:
    """Return the name of the workspace in the store by its remote and base; empty without a remote."""
    if not settings.workspace_remote:
        return ""
    return workspace_name(parse_remote(settings.workspace_remote), settings.workspace_base)


def is_local(settings: Settings) -> bool:
    """Return True if the store is a database on this machine."""
    return settings.store == LOCAL_STORE


def has_store(places: WorkspacePaths, settings: Settings) -> bool:
    """Return False if the workspace certainly has no session yet: its database does not exist."""
    return not is_local(settings) or (places.state / DATABASE).exists()


def own_settings() -> Settings:
    """Return the settings without those of a workspace, which cannot choose the store. Raises `SettingsError`."""
    return load_settings(os.environ).settings


@asynccontextmanager
async def existing_store(places: WorkspacePaths, notice: Notice) -> AsyncGenerator[Store | None]:
    """Open the workspace's store during the block; None if the workspace has no session yet. Raises as `open_store`."""
    settings = own_settings()
    if not has_store(places, settings):
        yield None
        return
    store = await open_store(places, settings, notice)
    try:
        yield store
    finally:
        await store.aclose()


def damage_lines(store: Store) -> tuple[str, ...]:
    """Return a line for each kind of data that a store set aside as damaged, with the remedy.

    A line has the count if there are several.
    """
    reports = store.damage if isinstance(store, DurableStore) else ()
    kinds: dict[str, list[str]] = {}
    texts: dict[str, str] = {}
    for report in reports:
        kind = _kind_of_damage(report.what)
        kinds.setdefault(kind, []).append(report.set_aside)
        texts[kind] = str(report)
    return tuple(_damage_line(kind, places, texts[kind]) for kind, places in kinds.items())


def _kind_of_damage(part: str) -> str:
    if part == "the whole database":
        return "database"
    return "value" if part.startswith(("record ", "key ")) else "file"


def _damage_line(kind: str, places: Sequence[str], report: str) -> str:
    """Return the line for one kind: the data, its location and the remedy.

    `report`: the store's text, used for a single item.
    """
    folder = Path(places[-1]).parent
    several = len(places) > 1
    match kind:
        case "database":
            head = f"{len(places):,} damaged databases are set aside in {folder}, the newest is {Path(places[-1]).name}"
            advice = (
                f"`callboard restore {places[-1]}` restores its readable data, `callboard restore BACKUP` a "
                "backup. Move the damaged file away when it is no longer needed"
            )
            advice = advice.replace("file away when it is", "files away when they are") if several else advice
        case "value":
            database = places[-1].partition(", table")[0]
            head = f"{len(places):,} damaged values are set aside in {database}, table damaged"
            its = "their sessions" if several else "its session"
            advice = f"`callboard sessions` says whether {its} can continue, and how"
        case _:
            head = f"{len(places):,} damaged files are set aside in {folder}"
            it_is = "them away when they are" if several else "it away when it is"
            advice = f"The rest is used as it is. Move {it_is} no longer needed"
    return f"{head if several else report}. {advice}"


@contextmanager
def waiting_without_limit(store: Store, tell: Callable[[str], None]) -> Generator[None]:
    """Let writes wait for a full disk or a stopped process until the block ends.

    `tell` is called in this event loop with the obstacle.
    """
    if not isinstance(store, DurableStore):
        yield
        return
    soon = soon_here()
    with store.patience.waiting_without_limit(lambda message: run_soon(soon, tell, message)):
        yield


def patient_run(store: Store) -> ThreadRunner:
    """Return the function that runs work in a thread, and again while the disk is full and a session is hosted here."""
    return store.patiently if isinstance(store, DurableStore) else anyio.to_thread.run_sync


async def watch_cut_off(store: Store, fence: Fence | None = None) -> None:
    """Watch whether this process can rely on its leases, or on that of `fence`. Raises `Fenced` when it cannot."""
    if isinstance(store, DurableStore):
        raise Fenced(await store.cut_off(fence))


async def until_cut_off(store: Store, work: Callable[[], Awaitable[None]]) -> None:
    """Run `work` while this process can rely on its leases. Raises `Fenced` when it cannot."""
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(watch_cut_off, store)
            await work()
            group.cancel_scope.cancel()
    except BaseExceptionGroup as failed:
        raise heart_of(failed) from failed


async def reachable(store: Store) -> None:
    """Return when the store can be reached, after it could not be."""
    if isinstance(store, DurableStore):
        await store.reachable()


async def keep_patience(store: Store, tell: Callable[[str], None]) -> None:
    """Let writes wait, like `waiting_without_limit`, until cancelled.

    Then waiting writes end at once, so that their agents can leave.
    """
    with waiting_without_limit(store, tell):
        await anyio.sleep_forever()


def damaged_sessions(store: Store) -> frozenset[str]:
    """Return the sessions with records that were set aside."""
    reports = store.damage if isinstance(store, DurableStore) else ()
    names = (report.what.rpartition(" stream ")[2].removeprefix("key ") for report in reports)
    return frozenset(session_of(name) for name in names) - {""}


def damaged_rows(store: Store, session: str = "") -> tuple[str, ...]:
    """Return the keys of a session's rows that were set aside; without a session, of all rows."""
    reports = store.damage if isinstance(store, DurableStore) else ()
    keys = (report.what.removeprefix("key ") for report in reports if report.what.startswith("key "))
    return tuple(key for key in keys if not session or session_of(key) == session)
