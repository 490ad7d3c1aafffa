"""Backup of a workspace to one archive, restore from it, and copies between a database and a server.

An archive always contains a database file, whatever the store: a workspace on a server is written into one first.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TypeVar

import anyio
import anyio.to_thread

from callboard import __version__
from callboard.adapters.storage.sqlite.copy import copy_database, salvage
from callboard.adapters.storage.sqlite.place import open_lock, prepare, try_lock
from callboard.adapters.storage.threads import in_own_thread, run_soon, soon_here
from callboard.adapters.system.archive import make_private
from callboard.core.keys import DATABASE, count_words
from callboard.engine.commands import stored_sessions
from callboard.ports.store import Store
from callboard.sessions.places import Notice, WorkspacePaths, find_places
from callboard.sessions.stores import has_store, is_local, open_store, own_settings
from callboard.types.errors import UsageError, WorkspaceUnusable
from callboard.types.lazy_dataclass import dataclass
from callboard.types.settings import Settings

T = TypeVar("T")

MANIFEST = "callboard-backup.json"
ENDS_WITHIN = 1.0
"""Seconds that a cancelled copy waits for its thread."""
_STATE = "state"
_DATA = "data"


@dataclass(frozen=True, slots=True)
class BackupContent:
    """Content of a backup, or of a restore."""

    path: Path
    sessions: int
    bytes: int = 0
    notes: tuple[str, ...] = ()


async def back_up(workspace: Path, target: Path | None, notice: Notice) -> BackupContent:
    """Write a backup, even while processes use the workspace. Raises `UsageError` if the file exists."""
    places = find_places(workspace, writable=False)
    settings = own_settings()
    if not has_store(places, settings):
        raise UsageError(f"there is no session in {places.workspace} yet: there is nothing to back up")
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    file = target or Path(f"callboard-{places.workspace.name}-{stamp}.tar.gz")
    if file.exists():
        raise UsageError(f"{file} exists: choose another name")
    async with _scratch_folder(places) as scratch:
        store = await open_store(places, settings, notice)
        try:
            sessions = len((await stored_sessions(store)).rows)
            await scratch.run(partial(_write, places, store, file, sessions=sessions, local=is_local(settings)))
        finally:
            await store.aclose()
    return BackupContent(file, sessions, file.stat().st_size)


async def restore(workspace: Path, source: Path, notice: Notice, *, aside: bool) -> BackupContent:
    """Restore a backup, or the readable part of a damaged database. The previous content is moved aside.

    Raises `UsageError` for a file of another kind, if there are sessions that are not to be moved `aside`, and while a
    process uses the workspace. On a server nothing is replaced: it must not have sessions of the workspace.
    """
    places = find_places(workspace, writable=False)
    settings = own_settings()
    if not await anyio.Path(source).is_file():
        raise UsageError(f"{source}: there is no such file")
    sessions = await _sessions(places, settings, notice) if has_store(places, settings) else 0
    if sessions and not (aside and is_local(settings)):
        remedy = (
            "`--replace` moves them aside first"
            if is_local(settings)
            else "set store_workspace to another name on the server"
        )
        raise UsageError(f"{places.workspace} has {count_words(sessions, 'session')}: {remedy}")
    if is_local(settings):
        work = partial(_unpack, places, source) if tarfile.is_tarfile(source) else partial(_salvage, places, source)
        notes = await anyio.to_thread.run_sync(partial(_alone, places, source, work))
    else:
        notes = await _restore_to_server(places, settings, source, notice=notice)
    where = places.state / DATABASE if is_local(settings) else Path(settings.store)
    return BackupContent(where, await _sessions(places, settings, notice), notes=notes)


async def _restore_to_server(
    places: WorkspacePaths, settings: Settings, source: Path, *, notice: Notice
) -> tuple[str, ...]:
    def work(scratch: Path) -> tuple[str, ...]:
        unpacked = replace(places, state=scratch / "state")
        prepare(unpacked.state)
        notes = (_unpack if tarfile.is_tarfile(source) else _salvage)(unpacked, source)
        _to_server(store, unpacked.state, scratch)
        return notes

    async with _scratch_folder(places) as scratch:
        store = await open_store(places, settings, notice)
        try:
            return await scratch.run(work)
        finally:
            await store.aclose()


def _to_server(store: Store, state: Path, scratch: Path) -> Mapping[str, int]:
    from callboard.adapters.storage.postgres.store import PostgresStore
    from callboard.adapters.storage.postgres.transfer import import_workspace

    assert isinstance(store, PostgresStore), "the settings name a server"
    snapshot = scratch / "snapshot"
    snapshot.mkdir()
    return import_workspace(store, state, snapshot)


def _from_server(store: Store, scratch: Path) -> tuple[Path, Mapping[str, int]]:
    """Write the workspace's database and blobs into a new folder; return it, and the number of rows of each table."""
    from callboard.adapters.storage.postgres.store import PostgresStore
    from callboard.adapters.storage.postgres.transfer import export_workspace

    assert isinstance(store, PostgresStore), "the settings name a server"
    state = scratch / "state"
    prepare(state)
    return state, export_workspace(store, state)


class _Scratch:
    """Temporary folder, and the blocking work that uses it, in a thread of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ended = anyio.Event()
        self._ended.set()

    async def run(self, work: Callable[[Path], T]) -> T:
        """Return the result of `work`, called with the folder. A cancelled caller does not wait for it."""
        self._ended = ended = anyio.Event()
        soon = soon_here()

        def tracked() -> T:
            try:
                return work(self._folder)
            finally:
                run_soon(soon, ended.set)

        return await in_own_thread(tracked)

    async def remove(self) -> None:
        """Remove the folder, once the work has ended or has had some time to end."""
        with anyio.move_on_after(ENDS_WITHIN, shield=True):
            await self._ended.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


@asynccontextmanager
async def _scratch_folder(places: WorkspacePaths) -> AsyncGenerator[_Scratch]:
    """Yield a temporary folder on the disk of the state folder, and remove it at the end.

    Close the stores that the work uses before the end of the block: that ends a cancelled work, which may wait for a
    server (test_a_copy_ends_soon_after_sigterm).
    """
    prepare(places.state)
    scratch = _Scratch(Path(tempfile.mkdtemp(dir=places.state)))
    try:
        yield scratch
    finally:
        await scratch.remove()


async def copy_workspace(workspace: Path, target: str, notice: Notice) -> Mapping[str, int]:
    """Copy the workspace's sessions from the store in force to another one: `sqlite`, or the address of a server.

    Sessions may run meanwhile; what they do after the start of the copy is not in it. Return the
    number of rows of each table. Raises `UsageError` if the
    target has sessions of the workspace, `SettingsError`, `StoreBusy`, `StoreFull`, `StoreDamaged`.
    """
    places = find_places(workspace, writable=False)
    settings = own_settings()
    other = settings.model_copy(update={"store": target, "store_direct": ""})
    if other.store == settings.store:
        raise UsageError(f"{target} is the store in force: name another one")
    if not has_store(places, settings):
        raise UsageError(f"there is no session in {places.workspace} yet: there is nothing to copy")
    if has_store(places, other) and (count := await _sessions(places, other, notice)):
        raise UsageError(f"{target} has {count_words(count, 'session')} of {places.workspace}: nothing was copied")
    async with _scratch_folder(places) as scratch, AsyncExitStack() as stack:
        stores: list[Store | None] = []
        for wanted in (settings, other):
            if is_local(wanted):
                stores.append(None)
                continue
            store = await open_store(places, wanted, notice)
            stack.push_async_callback(store.aclose)
            stores.append(store)
        return await scratch.run(partial(_copy, places, *stores))


def _copy(places: WorkspacePaths, source: Store | None, target: Store | None, scratch: Path) -> Mapping[str, int]:
    """Copy between stores; None is the database of this machine. Return the number of rows of each table."""
    state = places.state
    copied: Mapping[str, int] = {}
    if source is not None:
        state, copied = _from_server(source, scratch)
    if target is not None:
        return _to_server(target, state, scratch)
    _alone(places, state / DATABASE, partial(_move_in, places, state))
    return copied


def _move_in(places: WorkspacePaths, state: Path) -> tuple[str, ...]:
    for path in sorted((state / "blobs").rglob("*")):
        if path.is_file():
            blob = places.state / path.relative_to(state)
            make_private(blob.parent)
            path.rename(blob)
    (state / DATABASE).rename(places.state / DATABASE)
    return ()


async def _sessions(places: WorkspacePaths, settings: Settings, notice: Notice) -> int:
    store = await open_store(places, settings, notice)
    try:
        return len((await stored_sessions(store)).rows)
    finally:
        await store.aclose()


def _write(places: WorkspacePaths, store: Store, file: Path, scratch: Path, *, sessions: int, local: bool) -> None:
    """Write the archive completely or not at all.

    The database is copied first, so that all files that it names exist when they are copied.
    """
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    manifest = {"callboard": __version__, "workspace": str(places.workspace), "sessions": sessions}
    try:
        if local:
            state = places.state
            copy = scratch / DATABASE
            copy_database(state, copy)
        else:
            state, _ = _from_server(store, scratch)
            copy = state / DATABASE
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as archive:
            text = json.dumps(manifest, indent=2).encode()
            about = tarfile.TarInfo(MANIFEST)
            about.size = len(text)
            archive.addfile(about, io.BytesIO(text))
            archive.add(copy, f"{_STATE}/{DATABASE}")
            _add(archive, state / "blobs", f"{_STATE}/blobs")
            _add(archive, places.data, _DATA)
        draft.rename(file)
    except OSError as failed:
        draft.unlink(missing_ok=True)
        raise WorkspaceUnusable(f"{file}: cannot be written: {failed.strerror or failed}") from failed
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _add(archive: tarfile.TarFile, folder: Path, name: str) -> None:
    """Add all files below a folder.

    A file that an agent changes at the same time is copied in its current state, or not at all.
    """
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        try:
            data = path.read_bytes()
        except OSError:
            continue
        entry = tarfile.TarInfo(f"{name}/{path.relative_to(folder).as_posix()}")
        entry.size = len(data)
        entry.mode = 0o600
        archive.addfile(entry, io.BytesIO(data))


def _alone(places: WorkspacePaths, source: Path, work: Callable[[], tuple[str, ...]]) -> tuple[str, ...]:
    prepare(places.state)
    with _lock(places):
        aside = places.state / f"replaced-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
        for name in (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm"):
            path = places.state / name
            if path.exists() and path.resolve() != source.resolve():
                aside.mkdir(mode=0o700, exist_ok=True)
                path.rename(aside / name)
        notes = work()
    moved = (f"what was there before is kept in {aside}",) if aside.exists() else ()
    return (*notes, *moved)


@contextmanager
def _lock(places: WorkspacePaths) -> Generator[None]:
    """Hold the store exclusively. Raises `UsageError`."""
    descriptor = open_lock(places.state / "open.lock")
    try:
        if not try_lock(descriptor, fcntl.LOCK_EX):
            raise UsageError(f"a process uses {places.workspace}: end it first (`callboard serve`, a prompt line)")
        yield
    finally:
        os.close(descriptor)


def _unpack(places: WorkspacePaths, source: Path) -> tuple[str, ...]:
    with tarfile.open(source) as archive:
        names = archive.getnames()
        if MANIFEST not in names or f"{_STATE}/{DATABASE}" not in names:
            raise UsageError(f"{source} is not a backup: `callboard backup` writes them")
        manifest = json.loads(_read(archive, archive.getmember(MANIFEST)))
        for member in archive:
            target = _target(places, PurePosixPath(member.name)) if member.isfile() else None
            if target is not None:
                make_private(target.parent)
                _write_private(target, _read(archive, member))
    before = str(manifest.get("workspace", ""))
    if before and before != str(places.workspace):
        return (f"it was made in {before}: paths in its sessions still name that folder",)
    return ()


def _read(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    content = archive.extractfile(member)
    assert content is not None, "a file has content"
    with content:
        return content.read()


def _target(places: WorkspacePaths, name: PurePosixPath) -> Path | None:
    """Return the path to which an entry is restored; None for an entry that does not belong to a Callboard backup."""
    if name.is_absolute() or ".." in name.parts or len(name.parts) < 2:
        return None
    relative = Path(*name.parts[1:])
    if name.parts[0] == _DATA:
        return places.data / relative
    ours_in_state = name.parts[0] == _STATE and (relative.parts[0] == "blobs" or relative == Path(DATABASE))
    return places.state / relative if ours_in_state else None


def _write_private(target: Path, data: bytes) -> None:
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(target)


def _salvage(places: WorkspacePaths, source: Path) -> tuple[str, ...]:
    salvaged = salvage(source, places.state)
    summary = f"read {count_words(salvaged.records, 'record')} and {count_words(salvaged.rows, 'row')} of {source}"
    missing = (
        f"; lost {count_words(len(salvaged.missing), 'record')}: `callboard sessions` names the sessions that need them"
    )
    return (summary + (missing if salvaged.missing else ""),)
