"""Copies between a workspace on a server and a database file, in both directions, byte for byte.

Values are stored in the same form by both (`storage.packing`), so their bytes and checksums are copied as they are,
also those of deleted keys and of values that were set aside. A copy is a snapshot: sessions may run meanwhile.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, LiteralString

import psycopg

from callboard.adapters.storage.postgres.address import Connection
from callboard.adapters.storage.postgres.faults import translate_error
from callboard.adapters.storage.postgres.schema import blob_parts
from callboard.adapters.storage.postgres.store import PostgresStore
from callboard.adapters.storage.sqlite.copy import RawDatabase, database_snapshot, new_database
from callboard.adapters.storage.sqlite.schema import SEQ_BITS
from callboard.types.errors import StoreDamaged, UsageError

PAGE = 2_000
"""Rows that are held in memory at once."""
_SEQ = (1 << SEQ_BITS) - 1

Tables = dict[str, int]
"""Name of a table -> number of its rows that were copied."""


def export_workspace(store: PostgresStore, folder: Path) -> Tables:
    """Write the workspace into a new database and its blobs in `folder`, which exists and is empty. Blocks.

    Raises `StoreBusy`, `StoreDamaged`, `OSError`, `apsw.Error`.
    """
    copied: Tables = {}
    try:
        with store.connection() as source:
            source.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ  # one snapshot for all queries
            with source.transaction(), new_database(folder) as target:
                copied = _export_tables(source, target, store.space)
                copied["blob"] = _export_blobs(source, folder / "blobs", store.space)
    except psycopg.Error as error:
        raise translate_error(error, store.address) from error
    return copied


def _export_tables(source: Connection, target: RawDatabase, space: int) -> Tables:
    numbers = dict[int, int]()
    for number, name in _pages(source, "SELECT number, name FROM callboard.stream WHERE space = %s", space):
        numbers[number] = len(numbers) + 1
        target.add("INSERT INTO stream (number, name) VALUES (?, ?)", (numbers[number], name))
    records = 0
    for stream, seq, record_id, crc, data in _pages(
        source,
        "SELECT r.stream, r.seq, r.id, r.crc, r.data FROM callboard.record r "
        "JOIN callboard.stream s ON s.number = r.stream WHERE s.space = %s ORDER BY r.stream, r.seq",
        space,
    ):
        values = (numbers[stream] << SEQ_BITS | seq, record_id, crc, data)
        target.add("INSERT INTO record (place, id, crc, data) VALUES (?, ?, ?, ?)", values)
        records += 1
    return {"stream": len(numbers), "record": records, **_export_rows(source, target, space)}


def _export_rows(source: Connection, target: RawDatabase, space: int) -> Tables:
    def copy(sql: LiteralString, insert: str) -> int:
        count = 0
        for row in _pages(source, sql, space):
            target.add(insert, row)
            count += 1
        return count

    return {
        "row": copy(
            "SELECT key, revision, crc, value FROM callboard.row WHERE space = %s ORDER BY key",
            "INSERT INTO row (key, revision, crc, value, changed) VALUES (?, ?, ?, ?, 1)",
        ),
        "lease": copy(
            "SELECT name, number FROM callboard.lease WHERE space = %s",
            "INSERT INTO lease (name, number) VALUES (?, ?)",
        ),
        "damaged": copy(
            "SELECT place, what, found::text, data FROM callboard.damaged WHERE space = %s ORDER BY number",
            "INSERT INTO damaged (place, what, found, data) VALUES (?, ?, ?, ?)",
        ),
    }


def _pages(source: Connection, sql: LiteralString, space: int) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a query, without holding all of them in memory."""
    with source.cursor("callboard_copy", binary=True) as cursor:
        cursor.itersize = PAGE
        cursor.execute(sql, (space,), binary=True)
        yield from cursor


def _export_blobs(source: Connection, folder: Path, space: int) -> int:
    digests = source.execute(
        "SELECT DISTINCT digest FROM callboard.blob WHERE space = %s AND part = 0 ORDER BY digest", (space,)
    ).fetchall()
    for (digest,) in digests:
        parts = source.execute(
            "SELECT data FROM callboard.blob WHERE space = %s AND digest = %s ORDER BY part",
            (space, digest),
            binary=True,
        ).fetchall()
        path = folder / str(digest)[:2] / str(digest)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_bytes(b"".join(part for (part,) in parts))
    return len(digests)


def import_workspace(store: PostgresStore, folder: Path, scratch: Path) -> Tables:
    """Copy the database and the blobs of `folder` to the server, all or nothing. Blocks.

    `scratch`: an empty folder for the snapshot. Raises `UsageError` if the workspace has anything on the server,
    `StoreBusy`, `StoreFull`, `StoreDamaged`, `apsw.Error`.
    """
    copied: Tables = {}
    try:
        with (
            database_snapshot(folder, scratch) as source,
            store.connection() as target,
            target.transaction(),
        ):
            _refuse_contents(target, store)
            copied = _import_streams(source, target, store.space)
            copied |= _import_rows(source, target, store.space)
            copied["blob"] = _import_blobs(folder / "blobs", target, store.space)
    except psycopg.Error as error:
        raise translate_error(error, store.address) from error
    return copied


def _refuse_contents(target: Connection, store: PostgresStore) -> None:
    known = target.execute(
        "SELECT 1 FROM callboard.stream WHERE space = %(space)s UNION ALL "
        "SELECT 1 FROM callboard.row WHERE space = %(space)s LIMIT 1",
        {"space": store.space},
    ).fetchall()
    if known:
        raise UsageError(
            f"the workspace has sessions on {store.address} already: nothing was copied. Give the copy another name "
            "(setting store_workspace)"
        )


def _import_streams(source: RawDatabase, target: Connection, space: int) -> Tables:
    """Copy the streams, which get new numbers, and their records."""
    lasts: dict[int, int] = {}
    for number, place in source.rows("SELECT place >> 40, max(place) FROM record GROUP BY 1"):
        lasts[number] = place & _SEQ
    numbers: dict[int, int] = {}
    for number, name in source.rows("SELECT number, name FROM stream ORDER BY number"):
        numbers[number] = target.execute(
            "INSERT INTO callboard.stream (space, name, last) VALUES (%s, %s, %s) RETURNING number",
            (space, name, lasts.get(number, 0)),
        ).fetchall()[0][0]
    count = 0
    with (
        target.cursor() as cursor,
        cursor.copy("COPY callboard.record (stream, seq, id, crc, data) FROM STDIN (FORMAT BINARY)") as writing,
    ):
        writing.set_types(["int8", "int8", "text", "int8", "bytea"])
        for place, record_id, crc, data in source.rows("SELECT place, id, crc, data FROM record ORDER BY place"):
            writing.write_row((numbers[place >> SEQ_BITS], place & _SEQ, record_id, crc, data))
            count += 1
    return {"stream": len(numbers), "record": count}


def _import_rows(source: RawDatabase, target: Connection, space: int) -> Tables:
    def copy(select: str, into: LiteralString, types: list[str]) -> int:
        count = 0
        with target.cursor() as cursor, cursor.copy(into) as writing:
            writing.set_types(["int4", *types])
            for row in source.rows(select):
                writing.write_row((space, *row))
                count += 1
        return count

    return {
        "row": copy(
            "SELECT key, revision, crc, value FROM row",
            "COPY callboard.row (space, key, revision, crc, value) FROM STDIN (FORMAT BINARY)",
            ["text", "int8", "int8", "bytea"],
        ),
        "lease": copy(
            "SELECT name, number FROM lease",
            "COPY callboard.lease (space, name, number) FROM STDIN (FORMAT BINARY)",
            ["text", "int8"],
        ),
        "damaged": copy(
            "SELECT coalesce(place, ''), coalesce(what, ''), data FROM damaged ORDER BY number",
            "COPY callboard.damaged (space, place, what, data) FROM STDIN (FORMAT BINARY)",
            ["text", "text", "bytea"],
        ),
    }


def _import_blobs(folder: Path, target: Connection, space: int) -> int:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.endswith(".new")]
    for path in files:
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != path.name:
            raise StoreDamaged(f"blob {path} no longer matches its digest: move it away, or restore it from a backup")
        parts = blob_parts(data)
        for number, part in enumerate(parts):
            target.execute(
                "INSERT INTO callboard.blob (space, digest, part, parts, data) VALUES (%s, %s, %s, %s, %b) "
                "ON CONFLICT DO NOTHING",
                (space, path.name, number, len(parts), part),
            )
    return len(files)
