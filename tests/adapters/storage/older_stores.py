"""Databases with the tables of earlier versions, as those versions made them."""

from __future__ import annotations

from pathlib import Path

import apsw

from callboard.adapters.storage.sqlite.schema import APPLICATION

BEFORE_VERSION_3 = (
    "CREATE TABLE stream (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT",
    "CREATE TABLE record (place INTEGER PRIMARY KEY, id TEXT, crc INTEGER NOT NULL, data BLOB) STRICT",
    "CREATE UNIQUE INDEX record_id ON record (place >> 40, id) WHERE id IS NOT NULL",
    "CREATE TABLE row (key TEXT NOT NULL UNIQUE, revision INTEGER NOT NULL, crc INTEGER NOT NULL, value BLOB) STRICT",
    "CREATE INDEX row_revision ON row (revision)",
    "CREATE TABLE lease (name TEXT PRIMARY KEY, number INTEGER NOT NULL) STRICT, WITHOUT ROWID",
    "CREATE TABLE damaged (number INTEGER PRIMARY KEY, place TEXT, what TEXT, found TEXT, data BLOB) STRICT",
)


def older_database(folder: Path, version: int) -> apsw.Connection:
    """Create an empty database of version 1 or 2 in a store's folder, and return an open connection to it."""
    folder.mkdir(mode=0o700)
    database = apsw.Connection(str(folder / "callboard.db"))
    database.execute(f"PRAGMA application_id = {APPLICATION}")
    database.execute("PRAGMA journal_mode = WAL")
    for statement in BEFORE_VERSION_3:
        database.execute(statement)
    database.execute(f"PRAGMA user_version = {version}")
    return database
