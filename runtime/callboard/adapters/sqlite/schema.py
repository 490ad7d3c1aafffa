"""The tables, how a file comes to be, and which files and which SQLite we refuse.

A record's place is its stream's number in the upper bits and its seq in the lower 40: records of one stream lie
together, one B-tree holds them all, and the last number of a stream is one look-up. A deleted key stays as a row
without a value: watchers hear of it, and the largest revision, which numbers the commits, never falls.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import apsw

from callboard.adapters.sqlite.place import DATABASE, sync_folder
from callboard.adapters.sqlite.sql import pragma, run
from callboard.words.errors import WorkspaceUnusable

APPLICATION = 0x43424431  # "CBD1", in the file's header: tells our files from others'
VERSION = 1
SEQ_BITS = 40

TABLES = (
    "CREATE TABLE stream (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT",
    "CREATE TABLE record (place INTEGER PRIMARY KEY, id TEXT, crc INTEGER NOT NULL, data BLOB) STRICT",
    "CREATE UNIQUE INDEX record_id ON record (place >> 40, id) WHERE id IS NOT NULL",
    "CREATE TABLE row (key TEXT NOT NULL UNIQUE, revision INTEGER NOT NULL, crc INTEGER NOT NULL, value BLOB) STRICT",
    "CREATE INDEX row_revision ON row (revision)",
    "CREATE TABLE lease (name TEXT PRIMARY KEY, number INTEGER NOT NULL) STRICT, WITHOUT ROWID",
    "CREATE TABLE damaged (number INTEGER PRIMARY KEY, place TEXT, what TEXT, found TEXT, data BLOB) STRICT",
)
"""Version 1, as SQLite keeps it word for word."""

Upgrade = Callable[[apsw.Connection], None]
UPGRADES: Mapping[int, Upgrade] = MappingProxyType({})
"""From each older version to the next one. Run in one transaction, by a process that is alone on the store."""


def record_crc(stream: str, seq: int, record_id: str | None, data: bytes) -> int:
    """The checksum of a record, over its data, its id, and where it stands: a misplaced one is found too."""
    return zlib.crc32(data, zlib.crc32(repr((seq, record_id, stream)).encode()))


def row_crc(key: str, revision: int, value: bytes) -> int:
    """The checksum of a key's value, over its key and revision."""
    return zlib.crc32(value, zlib.crc32(repr((revision, key)).encode()))


def refuse_old_sqlite(version: str) -> None:
    """Raise `WorkspaceUnusable` for versions whose log reset can corrupt a file that two connections write."""
    numbers = tuple(int(part) for part in version.split("."))
    if numbers < (3, 51, 3) and numbers != (3, 50, 7):
        raise WorkspaceUnusable(
            f"SQLite {version} can corrupt a file that two processes write: install the apsw wheel "
            "(pip install --upgrade --force-reinstall --only-binary apsw apsw), which brings a mended one"
        )


def connect(folder: Path, *, durable: bool, reading: bool = False) -> apsw.Connection:
    """A connection to the folder's database. Raises `apsw.Error`.

    It never checkpoints by itself: the writer does, while it holds the lock that keeps other processes' writes out.
    """
    connection = apsw.Connection(str(folder / DATABASE), flags=apsw.SQLITE_OPEN_READWRITE)
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.set_busy_timeout(10_000)
    run(connection, "PRAGMA wal_autocheckpoint = 0")
    run(connection, f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
    run(connection, "PRAGMA cell_size_check = ON")
    run(connection, "PRAGMA trusted_schema = OFF")
    if reading:
        run(connection, "PRAGMA query_only = ON")
    return connection


def table_texts(connection: apsw.Connection) -> tuple[str, ...]:
    """The tables and indexes that the file holds, in the order in which they were made."""
    found = run(connection, "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid")
    return tuple(str(row[0]) for row in found)


def create(folder: Path) -> None:
    """Make an empty database, whole or not at all. Raises `apsw.Error`, `OSError`.

    It gets its name when it is finished. So a file of that name without tables in it is always damage, and never a
    store that was about to be made.
    """
    draft = folder / f"{DATABASE}.new"
    for leftover in folder.glob(f"{DATABASE}.new*"):
        leftover.unlink()
    os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    connection = apsw.Connection(str(draft))
    try:
        run(connection, f"PRAGMA application_id = {APPLICATION}")
        run(connection, "PRAGMA journal_mode = WAL")
        run(connection, "BEGIN")  # no `with connection`: on a full disk it hides that behind a failed rollback
        for statement in TABLES:
            run(connection, statement)
        run(connection, f"PRAGMA user_version = {VERSION}")
        run(connection, "COMMIT")
    finally:
        connection.close()
    draft.rename(folder / DATABASE)
    sync_folder(folder)


def bring_up_to_date(connection: apsw.Connection, folder: Path, *, alone: bool) -> None:
    """See that the file is ours and of a version that we know; upgrade an older one. Raises `WorkspaceUnusable`."""
    application, version = pragma(connection, "application_id"), pragma(connection, "user_version")
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
