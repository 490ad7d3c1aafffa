"""Is the store sound? What is damaged is set aside and told; nothing damaged is ever taken for nothing.

A value that fails its checksum moves to the table `damaged`, and its place stays empty: a stream then has a hole in its
numbers, which a reader that must not miss anything can see. A file that is no sound database is renamed, with its log,
and the store refuses to open that time: whoever starts again starts without it, having been told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import apsw

from callboard.adapters.sqlite.log import header_is_sound, log_file, size
from callboard.adapters.sqlite.place import DATABASE, sync_folder
from callboard.adapters.sqlite.schema import (
    APPLICATION,
    SEQ_BITS,
    TABLES,
    VERSION,
    record_crc,
    row_crc,
    table_texts,
)
from callboard.adapters.sqlite.sql import each, pragma, run
from callboard.adapters.sqlite.statements import Damage, Transaction
from callboard.words.errors import StoreDamaged

CHECKED_ALWAYS = 8 << 20
"""Bytes of database and log that are checked in full at every opening by a process that is alone on the store."""
CHECKED_AFTER_CUT = 256 << 20
"""Bytes that are checked in full when the last process ended without closing the store."""
_MAGIC = b"SQLite format 3\0"


@dataclass(frozen=True, slots=True)
class DamageReport:
    """One thing that was damaged: where it stood, what it was, and where its bytes were set aside."""

    where: str
    what: str
    set_aside: str

    def __str__(self) -> str:
        return f"{self.what} in {self.where} was damaged and set aside: {self.set_aside}"


class Unsound(Exception):
    """The file is no sound database; never leaves the adapter."""


def needs_full_check(folder: Path) -> bool:
    """Whether the size allows a full check now, or a cut before allows a longer one."""
    log = size(log_file(folder))
    whole = size(folder / DATABASE) + log
    return whole <= CHECKED_ALWAYS or (log > 0 and whole <= CHECKED_AFTER_CUT)


def check_headers(folder: Path) -> None:
    """See that both files begin as such files do. Raises `StoreDamaged`, after setting them aside.

    SQLite takes an empty file for an empty database, and a log with a damaged header for an empty log: both would lose
    everything in silence.
    """
    file = folder / DATABASE
    with file.open("rb") as opened:
        header = opened.read(len(_MAGIC))
    if header != _MAGIC:
        raise set_file_aside(folder, "it is empty" if not header else "it does not begin as a database does")
    log = log_file(folder)
    if not header_is_sound(log):
        aside = aside_of_log(folder)
        log.rename(aside)
        raise StoreDamaged(
            f"the log of {file} is damaged from its beginning: what was written since the last checkpoint is lost. "
            f"It was kept as {aside}. Starting again goes on from what is kept"
        )


def aside_of_log(folder: Path) -> Path:
    """Where a damaged log is kept."""
    return folder / f"{DATABASE}.damaged-{_stamp()}.log"


def _stamp() -> str:
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")


def check_structure(connection: apsw.Connection, folder: Path, *, full: bool) -> None:
    """See that the database hangs together. Raises `Unsound`, `apsw.Error`."""
    if found := _structural_faults(connection, folder, full):
        raise Unsound(found)


def _structural_faults(connection: apsw.Connection, folder: Path, full: bool) -> str:
    version = pragma(connection, "user_version")
    ours = pragma(connection, "application_id") == APPLICATION
    if ours and (version < 1 or (version == VERSION and table_texts(connection) != TABLES)):
        return "its tables are not ours"
    if full:
        rows = [str(row[0]) for row in run(connection, "PRAGMA integrity_check(3)")]
        return "" if rows == ["ok"] else "; ".join(rows)
    expected = pragma(connection, "page_count") * pragma(connection, "page_size")
    if size(log_file(folder)) == 0 and size(folder / DATABASE) < expected:
        return f"it is cut short: {expected} bytes are expected"
    return ""


def set_file_aside(folder: Path, why: str) -> StoreDamaged:
    """Rename the database with its log and shared memory; the error to raise. Only for who is alone on the store."""
    stamp = _stamp()
    for suffix in ("-wal", "-shm", ""):  # the database last: while it is there, nobody makes a new one
        part = folder / f"{DATABASE}{suffix}"
        if suffix and not size(part):
            part.unlink(missing_ok=True)
        elif part.exists():
            part.rename(folder / f"{DATABASE}.damaged-{stamp}{suffix}")
    sync_folder(folder)
    aside = folder / f"{DATABASE}.damaged-{stamp}"
    return StoreDamaged(
        f"the database {folder / DATABASE} is damaged ({why}). It was kept as {aside}: put a backup in its place, "
        f'or try `sqlite3 "{aside}" .recover`. Starting again begins with an empty store'
    )


def scan(connection: apsw.Connection) -> Iterator[Damage]:
    """Every value that fails its checksum. Raises `apsw.Error`."""
    names = {int(number): str(name) for number, name in each(connection, "SELECT number, name FROM stream")}
    for place, record_id, crc, data in each(
        connection, "SELECT place, id, crc, data FROM record WHERE data IS NOT NULL"
    ):
        stream, seq = names.get(place >> SEQ_BITS, "?"), place & ((1 << SEQ_BITS) - 1)
        if record_crc(stream, seq, record_id, data) != crc:
            yield Damage(f"record {seq} of stream {stream}", place=place)
    for key, revision, crc, value in each(
        connection, "SELECT key, revision, crc, value FROM row WHERE value IS NOT NULL"
    ):
        if row_crc(key, revision, value) != crc:
            yield Damage(f"key {key}", key=key)


def set_aside(damage: Damage) -> Callable[[Transaction], None]:
    """The work that moves the damaged bytes to the table `damaged` and empties their place. Harmless when repeated."""
    now = datetime.now(UTC).isoformat(timespec="seconds")

    def move(transaction: Transaction) -> None:
        connection = transaction.connection
        if damage.place is not None:
            run(
                connection,
                "INSERT INTO damaged (place, what, found, data) "
                "SELECT 'table record, place ' || place, ?, ?, data FROM record WHERE place = ? AND data IS NOT NULL",
                (damage.what, now, damage.place),
            )
            run(connection, "UPDATE record SET data = NULL WHERE place = ?", (damage.place,))
        if damage.key is not None:
            run(
                connection,
                "INSERT INTO damaged (place, what, found, data) "
                "SELECT 'table row, revision ' || revision, ?, ?, value FROM row WHERE key = ? AND value IS NOT NULL",
                (damage.what, now, damage.key),
            )
            transaction.remove(damage.key)

    return move


def reports(connection: apsw.Connection, folder: Path) -> tuple[DamageReport, ...]:
    """All that was ever set aside here and is still kept."""
    rows = run(connection, "SELECT number, place, what FROM damaged ORDER BY number")
    in_tables = [
        DamageReport(f"{folder / DATABASE}, {place}", str(what), f"{folder / DATABASE}, table damaged, number {number}")
        for number, place, what in rows
    ]
    files = [
        DamageReport(str(folder / DATABASE), "the log" if path.suffix == ".log" else "the whole database", str(path))
        for path in sorted(folder.glob(f"{DATABASE}.damaged-*"))
        if not path.name.endswith(("-wal", "-shm"))
    ]
    blobs = [
        DamageReport(str(folder / "blobs"), f"blob {path.name}", str(path))
        for path in sorted((folder / "damaged").iterdir())
    ]
    return (*files, *in_tables, *blobs)
