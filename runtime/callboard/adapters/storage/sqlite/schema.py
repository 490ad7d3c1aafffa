"""Tables of the database, creation of its file, and the refused files and versions of SQLite.

A record's key has its stream's number in the upper bits and its seq in the lower 40. So records of one stream are
adjacent, one B-tree contains all of them, and the last number of a stream is one look-up. A deleted key remains as a
row without a value, so that watchers are notified of it, and neither its revision nor the largest number in `changed`,
which numbers the commits, ever decreases.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import apsw

from callboard.adapters.storage.sqlite.place import DATABASE, sync_folder
from callboard.adapters.storage.sqlite.sql import pragma, run
from callboard.types.errors import WorkspaceUnusable

APPLICATION = 0x43424431  # "CBD1", in the file's header: identifies Callboard's files
VERSION = 3
SEQ_BITS = 40
BUSY_MS = 10_000
"""Milliseconds that SQLite waits for another program that holds its locks."""

TABLES = (
    "CREATE TABLE stream (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT",
    "CREATE TABLE record (place INTEGER PRIMARY KEY, id TEXT, crc INTEGER NOT NULL, data BLOB) STRICT",
    "CREATE UNIQUE INDEX record_id ON record (place >> 40, id) WHERE id IS NOT NULL",
    "CREATE TABLE row (key TEXT NOT NULL UNIQUE, revision INTEGER NOT NULL, crc INTEGER NOT NULL, value BLOB, "
    "changed INTEGER NOT NULL DEFAULT 0) STRICT",
    "CREATE INDEX row_changed ON row (changed)",
    "CREATE TABLE lease (name TEXT PRIMARY KEY, number INTEGER NOT NULL) STRICT, WITHOUT ROWID",
    "CREATE TABLE damaged (number INTEGER PRIMARY KEY, place TEXT, what TEXT, found TEXT, data BLOB) STRICT",
)
"""Tables of this version, with exactly the text that SQLite stores."""

Upgrade = Callable[[apsw.Connection], None]


def _allow_packed(_connection: apsw.Connection) -> None:
    """Change no table: version 2 only tells older versions that they cannot read all values (`packing`)."""


def _number_changes(connection: apsw.Connection) -> None:
    """Separate the number of the commit that changed a row (`changed`) from the row's own revision.

    Both were one number before version 3. Revisions stay as they are, because callers may hold them.
    """
    run(connection, "ALTER TABLE row ADD COLUMN changed INTEGER NOT NULL DEFAULT 0")
    run(connection, "UPDATE row SET changed = revision")
    run(connection, "DROP INDEX row_revision")
    run(connection, "CREATE INDEX row_changed ON row (changed)")


UPGRADES: Mapping[int, Upgrade] = MappingProxyType({1: _allow_packed, 2: _number_changes})
"""Upgrade from each older version to the next one. Run in one transaction, by a process that is alone on the store."""
PAGE_BYTES = 1_024
"""Size of a page of a new database. A commit writes each page that it touches as a whole to the log: a small page
halves that (docs/decisions/0042-small-writes.md). Older databases keep the size of their pages."""


def refuse_old_sqlite(version: str) -> None:
    """Raise `WorkspaceUnusable` for versions of SQLite that can corrupt the database.

    In them, a reset of the log can corrupt a file that two connections write.
    """
    numbers = tuple(int(part) for part in version.split("."))
    if numbers < (3, 51, 3) and numbers != (3, 50, 7):
        raise WorkspaceUnusable(
            f"SQLite {version} can corrupt a file that two processes write: install the apsw wheel "
            "(pip install --upgrade --force-reinstall --only-binary apsw apsw), which brings a fixed one"
        )


def connect(folder: Path, *, durable: bool, reading: bool = False) -> apsw.Connection:
    """Return a connection to the folder's database. Raises `apsw.Error`.

    It never checkpoints by itself: the writer does, while it holds the lock that excludes other processes' writes.
    """
    connection = apsw.Connection(str(folder / DATABASE), flags=apsw.SQLITE_OPEN_READWRITE)
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.set_busy_timeout(BUSY_MS)
    run(connection, "PRAGMA wal_autocheckpoint = 0")
    run(connection, f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
    run(connection, "PRAGMA cell_size_check = ON")
    run(connection, "PRAGMA trusted_schema = OFF")
    if reading:
        run(connection, "PRAGMA query_only = ON")
    return connection


def table_texts(connection: apsw.Connection) -> frozenset[str]:
    """Return the tables and indexes in the file. VACUUM changes their order, and ANALYZE adds tables."""
    rows = run(connection, "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL")
    return frozenset(str(row[0]) for row in rows)


def use_log(connection: apsw.Connection) -> None:
    """Switch the file to a write-ahead log, which a copy by VACUUM INTO does not use. Raises `apsw.Error`."""
    run(connection, "PRAGMA journal_mode = WAL")


def empty_log(connection: apsw.Connection) -> None:
    """Copy the log into the database and empty it, unless a reader blocks that. Never waits. Raises `apsw.Error`.

    The reader may be a program of the user that runs for hours (test_a_program_that_reads_delays_no_start_and_no_end).
    The log contains all commits, so another process can empty it later.
    """
    connection.set_busy_timeout(0)
    try:
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    except apsw.BusyError:
        return
    finally:
        connection.set_busy_timeout(BUSY_MS)


def create(folder: Path) -> None:
    """Create an empty database atomically. Raises `apsw.Error`, `OSError`.

    The file gets its name only when it is finished. So a file of that name without tables is always damaged, and never
    a store that was being created.
    """
    draft = folder / f"{DATABASE}.new"
    for leftover in folder.glob(f"{DATABASE}.new*"):
        leftover.unlink()
    # SQLite would create the file with the mode that the umask allows, and gives the log the mode of the database
    # (test_everything_in_the_folder_is_private).
    os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    connection = apsw.Connection(str(draft))
    try:
        run(connection, f"PRAGMA page_size = {PAGE_BYTES}")
        run(connection, f"PRAGMA application_id = {APPLICATION}")
        run(connection, "PRAGMA journal_mode = WAL")
        run(connection, "BEGIN")  # no `with connection`: on a full disk its failed rollback would hide the cause
        for statement in TABLES:
            run(connection, statement)
        run(connection, f"PRAGMA user_version = {VERSION}")
        run(connection, "COMMIT")
    finally:
        connection.close()
    draft.rename(folder / DATABASE)
    sync_folder(folder)


def bring_up_to_date(connection: apsw.Connection, folder: Path, *, alone: bool) -> None:
    """Check that the file is a store of a known version; upgrade an older one. Raises `WorkspaceUnusable`."""
    application = pragma(connection, "application_id")
    version = pragma(connection, "user_version")
    file = folder / DATABASE
    if application != APPLICATION:
        raise WorkspaceUnusable(f"{file} is a database of another program: move it away, or choose another folder")
    if version > VERSION:
        raise WorkspaceUnusable(
            f"{file} was written by a newer Callboard (schema {version}; this one knows up to {VERSION}): "
            "upgrade Callboard. The file was not touched"
        )
    if version < VERSION and not alone:
        raise WorkspaceUnusable(
            f"{file} has an older form (schema {version}) and another process uses it: end that process first"
        )
    while version < VERSION:
        with connection:
            UPGRADES[version](connection)
            version += 1
            run(connection, f"PRAGMA user_version = {version}")
