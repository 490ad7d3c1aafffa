"""Copies of a database: a consistent copy of a store in use, and the readable part of a damaged one."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw

from callboard.adapters.storage.packing import record_crc, row_crc, unpack
from callboard.adapters.storage.sqlite import schema
from callboard.adapters.storage.sqlite.place import DATABASE
from callboard.adapters.storage.sqlite.schema import SEQ_BITS
from callboard.adapters.storage.sqlite.sql import each, pragma, run
from callboard.adapters.storage.sqlite.statements import end_of
from callboard.core.agent.snapshot import positions
from callboard.types.errors import StoreDamaged, WorkspaceUnusable
from callboard.types.lazy_dataclass import dataclass

_SEQ = (1 << SEQ_BITS) - 1
_LAST = 1 << 62
"""Number above every key of a table."""


@dataclass(frozen=True, slots=True)
class SalvageResult:
    """Result of reading a damaged database."""

    records: int
    rows: int
    missing: tuple[str, ...]
    """`STREAM#SEQ` of records that are known to be lost, because later records of their stream exist."""


def copy_database(folder: Path, target: Path) -> None:
    """Copy a snapshot of a folder's database into one file. Other processes may write at the same time.

    Raises `apsw.Error`. Blocks.
    """
    connect = schema.connect
    with closing(connect(folder, durable=False, reading=True)) as source, closing(apsw.Connection(str(target))) as copy:
        with copy.backup("main", source, "main") as backup:
            backup.step()
        run(copy, "PRAGMA journal_mode = DELETE")  # one file, without a separate log


class RawDatabase:
    """Tables of a database file, row by row, for copies to and from another engine."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def rows(self, statement: str) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query one by one. Raises `apsw.Error`."""
        return each(self._connection, statement)

    def add(self, statement: str, values: tuple[Any, ...]) -> None:
        """Insert one row. Raises `apsw.Error`."""
        run(self._connection, statement, values)


@contextmanager
def new_database(folder: Path) -> Generator[RawDatabase]:
    """Create a database in `folder`, to be filled during the block. After it, the file alone is complete.

    Raises `apsw.Error`, `OSError`. Blocks.
    """
    schema.create(folder)
    with closing(schema.connect(folder, durable=True)) as connection:
        with connection:
            yield RawDatabase(connection)
        schema.empty_log(connection)


@contextmanager
def database_snapshot(folder: Path, scratch: Path) -> Generator[RawDatabase]:
    """Yield a snapshot of the folder's database, taken into the empty folder `scratch`. Raises `apsw.Error`. Blocks."""
    file = scratch / DATABASE
    copy_database(folder, file)
    with closing(apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
        yield RawDatabase(connection)


def salvage(damaged: Path, folder: Path) -> SalvageResult:
    """Create a database in `folder` from the readable part of a damaged one. The damaged files are not changed.

    Raises `StoreDamaged` if nothing can be read, `WorkspaceUnusable` for one of another version, `apsw.Error`. Blocks.
    """
    with tempfile.TemporaryDirectory(dir=folder) as scratch:  # opening a database may change its files
        copy = Path(scratch) / DATABASE
        for suffix in ("", "-wal"):
            part = damaged.with_name(damaged.name + suffix)
            if part.exists():
                shutil.copyfile(part, copy.with_name(copy.name + suffix))
        try:
            return _salvaged(copy, damaged, folder)
        except (apsw.NotADBError, apsw.CorruptError, apsw.SQLError) as error:
            (folder / DATABASE).unlink(missing_ok=True)
            raise StoreDamaged(f"nothing can be read of {damaged} ({error}): put a backup in its place") from error


def _salvaged(copy: Path, damaged: Path, folder: Path) -> SalvageResult:
    with closing(apsw.Connection(str(copy))) as source:
        _refuse_other_versions(source, damaged)
        schema.create(folder)
        with closing(schema.connect(folder, durable=True)) as target:
            return _copied(source, target)


def _refuse_other_versions(source: apsw.Connection, damaged: Path) -> None:
    version = pragma(source, "user_version")
    if version > schema.VERSION:
        raise WorkspaceUnusable(f"{damaged} was written by a newer Callboard (schema {version}): upgrade Callboard")


def _copied(source: apsw.Connection, target: apsw.Connection) -> SalvageResult:
    names = {int(number): str(name) for number, name in _rows(source, "stream", "number", "name")}
    numbers: dict[int, list[int]] = {}
    counts = Counter[str]()
    with target:
        for number, name in names.items():
            run(target, "INSERT OR IGNORE INTO stream (number, name) VALUES (?, ?)", (number, name))
        for place, record_id, crc, data in _rows(source, "record", "place", "id, crc, data"):
            stream = names.get(place >> SEQ_BITS)
            seq = place & _SEQ
            if stream is None or data is None:
                continue
            original, checksum = unpack(data, crc)
            if record_crc(stream, seq, record_id, original) != checksum:
                continue
            values = (place, record_id, crc, data)
            run(target, "INSERT OR IGNORE INTO record (place, id, crc, data) VALUES (?, ?, ?, ?)", values)
            numbers.setdefault(place >> SEQ_BITS, []).append(seq)
            counts["records"] += 1
        for _, key, revision, crc, value in _rows(source, "row", "rowid", "key, revision, crc, value"):
            original, checksum = (None, crc) if value is None else unpack(value, crc)
            if original is not None and row_crc(key, revision, original) != checksum:
                continue
            values = (key, revision, crc, value)
            run(target, "INSERT OR IGNORE INTO row (key, revision, crc, value, changed) VALUES (?, ?, ?, ?, 1)", values)
            counts["rows"] += original is not None
            if original is not None and key.startswith("snap/"):
                _number_on(target, key.removeprefix("snap/"), original)
        try:
            leases = run(source, "SELECT name, number FROM lease")
        except apsw.Error:
            leases = []  # holders are numbered from the beginning, because no process has the store open
        for name, number in leases:
            run(target, "INSERT OR IGNORE INTO lease (name, number) VALUES (?, ?)", (name, number))
    missing = [f"{names[number]}#{seq}" for number, seqs in numbers.items() for seq in _gaps(seqs)]
    return SalvageResult(counts["records"], counts["rows"], tuple(missing))


def _number_on(target: apsw.Connection, life: str, snapshot: bytes) -> None:
    """Continue the numbers of a life's journal and mailbox after those that its snapshot has seen.

    Otherwise, if their last records are lost, new records would be taken for old ones.
    """
    seen = positions(snapshot)
    if seen is None:
        return  # a snapshot of another version is skipped
    ends = {f"j/{life}": seen[0], f"m/{life}": seen[1]}
    for stream, seq in ends.items():
        run(target, "INSERT OR IGNORE INTO stream (name) VALUES (?)", (stream,))
        end = end_of(target, stream)
        if end is not None and 0 < seq > end.last:
            place = (end.number << SEQ_BITS) | seq
            run(target, "INSERT INTO record (place, id, crc, data) VALUES (?, NULL, 0, NULL)", (place,))


def _gaps(seqs: list[int]) -> Iterator[int]:
    present = set(seqs)
    return (seq for seq in range(1, max(seqs)) if seq not in present)


def _rows(source: apsw.Connection, table: str, key: str, columns: str) -> Iterator[tuple[Any, ...]]:
    """Yield the readable rows of a table in the order of its integer key. Rows on damaged pages are skipped."""
    start = 0
    while start <= _LAST:
        try:
            # Inclusive, as `_readable_from` needs: for `> KEY` SQLite may seek KEY itself, on the damaged page before
            # it.
            query = f"SELECT {key}, {columns} FROM {table} WHERE {key} >= {start} ORDER BY {key}"  # noqa: S608 - names of this module
            for row in each(source, query):
                # Set before the row is yielded: after an error the search continues after the last readable row
                # (test_what_is_readable_beside_any_destroyed_page_is_salvaged).
                start = int(row[0]) + 1
                yield row
            return
        except (apsw.CorruptError, apsw.IOError):
            start = _behind_damage(source, table, key, start)


def _behind_damage(source: apsw.Connection, table: str, key: str, start: int) -> int:
    """Return the first key above `start` from which the table can be read again; `_LAST` + 1 if no such key exists."""
    step = 1
    while not _readable_from(source, table, key, start + step):
        if start + step > _LAST:
            return _LAST + 1
        step *= 2
    low = start + step // 2
    high = start + step
    while low + 1 < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _readable_from(source, table, key, middle) else (middle, high)
    return high


def _readable_from(source: apsw.Connection, table: str, key: str, start: int) -> bool:
    try:
        query = f"SELECT * FROM {table} WHERE {key} >= {start} ORDER BY {key} LIMIT 1"  # noqa: S608 - names of this module
        run(source, query)
    except (apsw.CorruptError, apsw.IOError):
        return False
    return True
