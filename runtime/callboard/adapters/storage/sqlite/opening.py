"""Opening and closing of a store's folder. The order of the steps matters.

A process that opens a folder that no other process has open is alone with it, and holds a lock that makes others wait:
only then may it check the files, rename a damaged one, create a new one or upgrade an old one.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import apsw

from callboard.adapters.storage.sqlite import health, place, schema
from callboard.adapters.storage.sqlite.faults import is_cut_short, translated
from callboard.adapters.storage.sqlite.health import DamageReport
from callboard.adapters.storage.sqlite.patience import LEAVING, LOCK_WAIT, TELL_AFTER, ObstacleWait, Patience
from callboard.adapters.storage.sqlite.place import DATABASE
from callboard.adapters.storage.sqlite.statements import Transaction
from callboard.adapters.storage.sqlite.write_lock import holder_of, in_the_way
from callboard.types.errors import StoreBusy, StoreDamaged


@dataclass
class OpenFolder:
    """An open folder: the writing connection, the lock for writes, and the lock that marks this process as present."""

    folder: Path
    durable: bool
    connection: apsw.Connection
    write_lock: int
    presence: int
    damage: tuple[DamageReport, ...]

    def abandon(self) -> None:
        """Close only the lock files, as a forked child must. The parent keeps the locks."""
        for descriptor in (self.write_lock, self.presence):
            with suppress(OSError):  # closed before the fork
                os.close(descriptor)
        self.write_lock = self.presence = -1


def open_folder(folder: Path, *, durable: bool, patience: Patience) -> OpenFolder:
    """Prepare, check and open the folder. Blocks; does not wait for locks once `patience` is closed.

    Raises `WorkspaceUnusable`, `StoreFull`, `StoreDamaged`, `StoreBusy`.
    """
    schema.refuse_old_sqlite(apsw.sqlite_lib_version())
    presence = -1
    try:
        place.prepare(folder)
        presence = place.open_lock(folder / "open.lock")
        alone = place.try_lock(presence, fcntl.LOCK_EX)
        if not alone:
            _wait_for_files(folder, presence, patience)
        opened = _open_files(folder, durable, presence, patience if alone else None)
        fcntl.flock(presence, fcntl.LOCK_SH)
        return opened
    except BaseException as error:
        if presence >= 0:
            os.close(presence)
        if isinstance(error, apsw.Error | OSError):
            raise translated(error, folder, opening=True) from error
        raise


def _wait_for_files(folder: Path, presence: int, patience: Patience) -> None:
    """Wait while another process checks or creates the files. Raises `StoreBusy` if that process is stopped."""
    wait = ObstacleWait(patience, alone=LOCK_WAIT, tell_after=TELL_AFTER)
    while not place.try_lock(presence, fcntl.LOCK_SH):
        if wait.goes_on(lambda: f"{in_the_way(presence, folder)}. Waiting for that", pause=0.02):
            continue
        holder = holder_of(presence)
        if patience.closing or (holder is not None and holder.stopped):
            raise StoreBusy(in_the_way(presence, folder))
        patience.pause(0.02)


@contextmanager
def _locked(write_lock: int, folder: Path, seconds: float, patience: Patience) -> Generator[None]:
    """Hold the lock for writes. Raises `StoreBusy`, also if an unrelated program holds it."""
    wait = ObstacleWait(patience, alone=seconds, tell_after=TELL_AFTER)
    while not place.try_lock(write_lock, fcntl.LOCK_EX):
        if not wait.goes_on(lambda: f"{in_the_way(write_lock, folder)}. Waiting for that", pause=0.02):
            raise StoreBusy(in_the_way(write_lock, folder))
    try:
        yield
    finally:
        fcntl.flock(write_lock, fcntl.LOCK_UN)


def close_folder(opened: OpenFolder) -> None:
    """Close the files; the last process copies the log into the database first. Blocks; never fails."""
    # Granted to the last process only. If refused, the shared lock is lost too (man 2 flock), which is right here.
    if place.try_lock(opened.presence, fcntl.LOCK_EX):
        with suppress(apsw.Error, StoreBusy), _locked(opened.write_lock, opened.folder, LEAVING, Patience()):
            opened.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)  # else the log keeps it all
    opened.connection.close()
    opened.abandon()


def _open_files(folder: Path, durable: bool, presence: int, patience: Patience | None) -> OpenFolder:
    """Open the files. `patience`: given if this process is alone with them and checks them; None: it is not."""
    alone = patience is not None
    if alone:
        _make_or_check(folder)
    elif not (folder / DATABASE).exists():
        raise StoreDamaged(f"{folder / DATABASE} is gone, while another process has it open: end that process first")
    write_lock = place.open_lock(folder / "write.lock")
    connection: apsw.Connection | None = None
    try:
        full = alone and health.needs_full_check(folder)
        connection = schema.connect(folder, durable=durable)
        if patience is not None:
            health.check_structure(connection, folder, full=full)
            with _locked(write_lock, folder, LOCK_WAIT, patience):
                health.check_log(connection, folder, health.aside_of_log(folder))
            schema.use_log(connection)
        schema.bring_up_to_date(connection, folder, alone=alone)
        if full and patience is not None:
            _set_damage_aside(connection, write_lock, folder, patience)
        return OpenFolder(folder, durable, connection, write_lock, presence, health.reports(connection, folder))
    except BaseException as error:
        if connection is not None:
            connection.close()
        os.close(write_lock)
        if alone and (isinstance(error, health.Unsound | apsw.CorruptError | apsw.NotADBError) or is_cut_short(error)):
            raise health.set_file_aside(folder, str(error)) from error
        raise


def _make_or_check(folder: Path) -> None:
    """Create a new database, or check the headers of an existing one. Only for a process that is alone. Raises
    `StoreDamaged`."""
    if (folder / DATABASE).exists():
        health.check_headers(folder)
    elif health.size(health.log_file(folder)):
        raise health.set_file_aside(folder, "it is gone, and only its log is there")
    else:
        schema.create(folder)


def _set_damage_aside(connection: apsw.Connection, write_lock: int, folder: Path, patience: Patience) -> None:
    damages = list(health.scan(connection))
    if not damages:
        return
    with _locked(write_lock, folder, LOCK_WAIT, patience), connection:
        for damage in damages:
            health.set_aside(damage)(Transaction(connection))
