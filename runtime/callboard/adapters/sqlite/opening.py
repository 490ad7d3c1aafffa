"""Opening a store's folder and closing it again: the order of the steps is what this file is about.

Who opens a folder that nobody else has open is alone with it, and holds a lock that makes others wait: it alone may
check the files, rename a damaged one, make a new one or upgrade an old one.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import apsw

from callboard.adapters.sqlite import health, log, place, schema
from callboard.adapters.sqlite.faults import translated
from callboard.adapters.sqlite.health import DamageReport
from callboard.adapters.sqlite.place import DATABASE
from callboard.adapters.sqlite.statements import Transaction
from callboard.words.errors import StoreDamaged


@dataclass
class Opened:
    """An open folder: the writing connection, the lock round writes, and the lock that says that we are here."""

    folder: Path
    durable: bool
    connection: apsw.Connection
    write_lock: int
    presence: int
    damage: tuple[DamageReport, ...]

    def abandon(self) -> None:
        """Close the lock files only, as a forked child must. Their parent keeps the locks."""
        for descriptor in (self.write_lock, self.presence):
            with suppress(OSError):  # closed before the fork
                os.close(descriptor)
        self.write_lock = self.presence = -1


def open_folder(folder: Path, *, durable: bool) -> Opened:
    """Prepare, check and open. Blocks. Raises `WorkspaceUnusable`, `StoreFull`, `StoreDamaged`."""
    schema.refuse_old_sqlite(apsw.sqlite_lib_version())
    presence = -1
    try:
        place.prepare(folder)
        presence = place.open_lock(folder / "open.lock")
        alone = place.try_lock(presence, fcntl.LOCK_EX)
        if not alone:
            fcntl.flock(presence, fcntl.LOCK_SH)  # waits while another process checks or makes the files
        opened = _open_files(folder, durable, presence, alone)
        fcntl.flock(presence, fcntl.LOCK_SH)
        return opened
    except BaseException as error:
        if presence >= 0:
            os.close(presence)
        if isinstance(error, apsw.Error | OSError):
            raise translated(error, folder, opening=True) from error
        raise


def close_folder(opened: Opened) -> None:
    """Close the files; the last process to leave copies the log into the database first. Blocks; never fails."""
    if place.try_lock(opened.presence, fcntl.LOCK_EX):
        with suppress(apsw.Error), place.locked(opened.write_lock):  # a full disk: the log keeps it all
            opened.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    opened.connection.close()
    opened.abandon()


def _open_files(folder: Path, durable: bool, presence: int, alone: bool) -> Opened:
    if alone:
        _make_or_check(folder)
    elif not (folder / DATABASE).exists():
        raise StoreDamaged(f"{folder / DATABASE} is gone, while another process has it open: end that process first")
    write_lock = place.open_lock(folder / "write.lock")
    connection: apsw.Connection | None = None
    try:
        full = alone and health.needs_full_check(folder)
        connection = schema.connect(folder, durable=durable)
        if alone:
            health.check_structure(connection, folder, full=full)
            with place.locked(write_lock):
                log.check_log(connection, folder, health.aside_of_log(folder))
        schema.bring_up_to_date(connection, folder, alone=alone)
        if full:
            _set_damage_aside(connection, write_lock)
        return Opened(folder, durable, connection, write_lock, presence, health.reports(connection, folder))
    except BaseException as error:
        if connection is not None:
            connection.close()
        os.close(write_lock)
        if alone and isinstance(error, health.Unsound | apsw.CorruptError | apsw.NotADBError):
            raise health.set_file_aside(folder, str(error)) from error
        raise


def _make_or_check(folder: Path) -> None:
    """Alone: a new database, or one whose files begin as they should. Raises `StoreDamaged`."""
    if (folder / DATABASE).exists():
        health.check_headers(folder)
    elif log.size(log.log_file(folder)):
        raise health.set_file_aside(folder, "it is gone, and only its log is there")
    else:
        schema.create(folder)


def _set_damage_aside(connection: apsw.Connection, write_lock: int) -> None:
    found = list(health.scan(connection))
    if not found:
        return
    with place.locked(write_lock), connection:
        for damage in found:
            health.set_aside(damage)(Transaction(connection))
