"""Opening and closing of a store's folder, and checks for damage in it. The order of the steps matters.

A process that opens a folder that no other process has open is alone with it, and holds a lock that makes others wait.
Only then may it check the files, rename a damaged one, create a new one or upgrade an old one.

Damaged data is set aside and reported, and never treated as missing data. A value that fails its checksum moves to the
table `damaged`, and its place stays empty. A stream then has a gap in its numbers, which a reader that needs every
record can detect. A file that is not a sound database is renamed, with its log, and the store refuses to open and
reports it; the next start begins without the file.

SQLite treats the first frame of the write-ahead log that does not fit as the end of the log. That is right for a write
torn by a power cut, of which nothing was acknowledged, but it silently loses data if older commits follow. The two can
be distinguished: with a sync in each commit, a transaction begins only after the previous one is complete, so an
unreadable frame with two transactions after it is damage. (File format: sqlite.org/fileformat2.html.)
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import apsw

from callboard.adapters.storage.durable import DamageReport
from callboard.adapters.storage.packing import record_crc, row_crc, unpack
from callboard.adapters.storage.patience import LEAVING, LOCK_WAIT, TELL_AFTER, ObstacleWait, Patience
from callboard.adapters.storage.sqlite import place, schema
from callboard.adapters.storage.sqlite.faults import is_cut_short, translate_error
from callboard.adapters.storage.sqlite.place import DATABASE, sync_folder
from callboard.adapters.storage.sqlite.schema import APPLICATION, SEQ_BITS, TABLES, VERSION, table_texts
from callboard.adapters.storage.sqlite.sql import each, pragma, run
from callboard.adapters.storage.sqlite.statements import ChecksumMismatch, Transaction
from callboard.adapters.storage.sqlite.writer import holder_of, in_the_way
from callboard.ports.store import Delete
from callboard.types.errors import StoreBusy, StoreDamaged
from callboard.types.lazy_dataclass import dataclass

CHECKED_ALWAYS = 8 << 20
"""Most bytes of database and log that get a full check at every opening by a process that is alone on the store."""
CHECKED_AFTER_CUT = 256 << 20
"""Most bytes that get a full check if the last process ended without closing the store."""
_MAGIC = b"SQLite format 3\0"
_HEADER = 32
_FRAME = 24
_LITTLE = 0x377F0682
_BIG = 0x377F0683


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
            with suppress(OSError):  # the parent closed it before the fork
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
            raise translate_error(error, folder, opening=True) from error
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
    """Close the files. The last process copies the log into the database first. Blocks; never fails."""
    # Granted to the last process only. A refusal also loses the shared lock (man 2 flock), which is right here.
    if place.try_lock(opened.presence, fcntl.LOCK_EX):
        with suppress(apsw.Error, StoreBusy), _locked(opened.write_lock, opened.folder, LEAVING, Patience()):
            schema.empty_log(opened.connection)  # else the log keeps all data
    opened.connection.close()
    opened.abandon()


def _open_files(folder: Path, durable: bool, presence: int, patience: Patience | None) -> OpenFolder:
    """Open the files. `patience`: given if this process is alone with the files and checks them; None: it is not."""
    alone = patience is not None
    if alone:
        _make_or_check(folder)
    elif not (folder / DATABASE).exists():
        raise StoreDamaged(f"{folder / DATABASE} is gone, but another process has it open: end that process first")
    write_lock = place.open_lock(folder / "write.lock")
    connection: apsw.Connection | None = None
    try:
        full = alone and needs_full_check(folder)
        connection = schema.connect(folder, durable=durable)
        if patience is not None:
            check_structure(connection, folder, full=full)
            with _locked(write_lock, folder, LOCK_WAIT, patience):
                check_log(connection, folder, aside_of_log(folder))
            schema.use_log(connection)
        schema.bring_up_to_date(connection, folder, alone=alone)
        if full and patience is not None:
            _set_damage_aside(connection, write_lock, folder, patience)
        return OpenFolder(folder, durable, connection, write_lock, presence, reports(connection, folder))
    except BaseException as error:
        if connection is not None:
            connection.close()
        os.close(write_lock)
        if alone and (isinstance(error, UnsoundFile | apsw.CorruptError | apsw.NotADBError) or is_cut_short(error)):
            raise set_file_aside(folder, str(error)) from error
        raise


def _make_or_check(folder: Path) -> None:
    """Create a new database, or check the headers of an existing one.

    Only for a process that is alone. Raises `StoreDamaged`.
    """
    if (folder / DATABASE).exists():
        check_headers(folder)
    elif size(log_file(folder)):
        raise set_file_aside(folder, "it is missing, and only its log exists")
    else:
        schema.create(folder)


def _set_damage_aside(connection: apsw.Connection, write_lock: int, folder: Path, patience: Patience) -> None:
    damages = list(scan(connection))
    if not damages:
        return
    with _locked(write_lock, folder, LOCK_WAIT, patience), connection:
        for damage in damages:
            set_aside(damage)(Transaction(connection))


class UnsoundFile(Exception):
    """The file is not a sound database. Never leaves the adapter."""


def needs_full_check(folder: Path) -> bool:
    """Return True if the size allows a full check. The limit is higher after an unclean end."""
    log = size(log_file(folder))
    whole = size(folder / DATABASE) + log
    return whole <= CHECKED_ALWAYS or (log > 0 and whole <= CHECKED_AFTER_CUT)


def check_headers(folder: Path) -> None:
    """Check the headers of both files. Raises `StoreDamaged`, after setting the files aside.

    SQLite treats an empty file as an empty database, and a log with a damaged header as an empty log: both would
    silently lose everything.
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
            f"It was kept as {aside}. Starting again continues from what is left"
        )


def aside_of_log(folder: Path) -> Path:
    """Return the path for a damaged log."""
    return folder / f"{DATABASE}.damaged-{_stamp()}.log"


def _stamp() -> str:
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")


def check_structure(connection: apsw.Connection, folder: Path, *, full: bool) -> None:
    """Check the structure of the database. Raises `UnsoundFile`, `apsw.Error`."""
    if faults := _structural_faults(connection, folder, full):
        raise UnsoundFile(faults)


def _structural_faults(connection: apsw.Connection, folder: Path, full: bool) -> str:
    version = pragma(connection, "user_version")
    is_own = pragma(connection, "application_id") == APPLICATION
    if is_own and (version < 1 or (version == VERSION and not table_texts(connection) >= frozenset(TABLES))):
        return "its tables are not those of Callboard"
    expected = pragma(connection, "page_count") * pragma(connection, "page_size")
    # With a log the file may be shorter, because its last pages can be only in the log.
    if size(log_file(folder)) == 0 and size(folder / DATABASE) < expected:
        return f"it is cut short: {expected} bytes are expected"
    if not full:
        return ""
    lines = [line for row in run(connection, "PRAGMA integrity_check(3)") for line in str(row[0]).splitlines()]
    return "" if lines == ["ok"] else "; ".join(line for line in lines if not line.startswith("***"))


def set_file_aside(folder: Path, reason: str) -> StoreDamaged:
    """Rename the database with its log and shared memory, and return the error to raise.

    Only for a process that is alone on the store.
    """
    stamp = _stamp()
    for suffix in ("-wal", "-shm", ""):  # the database last: no process creates a new one while it exists
        part = folder / f"{DATABASE}{suffix}"
        if suffix and not size(part):
            part.unlink(missing_ok=True)
        elif part.exists():
            part.rename(folder / f"{DATABASE}.damaged-{stamp}{suffix}")
    sync_folder(folder)
    aside = folder / f"{DATABASE}.damaged-{stamp}"
    return StoreDamaged(
        f"the database {folder / DATABASE} is damaged ({reason}). It was kept as {aside}. `callboard restore {aside}` "
        "brings back what can be read of it, `callboard restore BACKUP` a backup. "
        "Starting again begins with an empty store"
    )


def scan(connection: apsw.Connection) -> Iterator[ChecksumMismatch]:
    """Yield every value that fails its checksum. Raises `apsw.Error`."""
    names = {int(number): str(name) for number, name in each(connection, "SELECT number, name FROM stream")}
    for record_place, record_id, crc, data in each(
        connection, "SELECT place, id, crc, data FROM record WHERE data IS NOT NULL"
    ):
        stream = names.get(record_place >> SEQ_BITS, "?")
        seq = record_place & ((1 << SEQ_BITS) - 1)
        original, checksum = unpack(data, crc)
        if record_crc(stream, seq, record_id, original) != checksum:
            yield ChecksumMismatch(f"record {seq} of stream {stream}", f"{stream}#{seq}", place=record_place)
    for key, revision, crc, value in each(
        connection, "SELECT key, revision, crc, value FROM row WHERE value IS NOT NULL"
    ):
        original, checksum = unpack(value, crc)
        if row_crc(key, revision, original) != checksum:
            yield ChecksumMismatch(f"key {key}", key, key=key)


def set_aside(damage: ChecksumMismatch) -> Callable[[Transaction], None]:
    """Return the work that moves the damaged bytes to the table `damaged` and empties their place. Idempotent."""
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
            transaction.write_all([Delete(damage.key)], None)

    return move


def reports(connection: apsw.Connection, folder: Path) -> tuple[DamageReport, ...]:
    """Return all damage that was ever set aside and is still stored."""
    rows = run(connection, "SELECT number, place, what FROM damaged ORDER BY number")
    in_tables = [
        DamageReport(
            f"{folder / DATABASE}, {record_place}", str(problem), f"{folder / DATABASE}, table damaged, number {number}"
        )
        for number, record_place, problem in rows
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


def log_file(folder: Path) -> Path:
    """Return the log of the folder's database."""
    return folder / f"{DATABASE}-wal"


def size(path: Path) -> int:
    """Return the bytes of a file, 0 if it does not exist."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def header_is_sound(log: Path) -> bool:
    """Return True if SQLite would read the log at all. A log without a complete frame is empty, and sound."""
    if size(log) <= _HEADER + _FRAME:
        return True
    with log.open("rb") as opened:
        header = opened.read(_HEADER)
    magic = struct.unpack(">I", header[:4])[0]
    if magic not in (_LITTLE, _BIG):
        return False
    numbers = struct.unpack(f"{'<' if magic == _LITTLE else '>'}6I", header[:24])
    first = second = 0
    for even, two in zip(numbers[0::2], numbers[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + two + first) & 0xFFFFFFFF
    return struct.unpack(">2I", header[24:]) == (first, second)


def check_log(connection: apsw.Connection, folder: Path, aside: Path) -> None:
    """Copy the readable part of the log into the database, and empty the log.

    Only for a process that is alone on the store. Raises `StoreDamaged` if later commits are lost, after copying the
    log to `aside`. Also raises `apsw.Error`.
    """
    log = log_file(folder)
    if not size(log):
        return
    readable, copied = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
    lost = _commits_behind(log, readable, _FRAME + pragma(connection, "page_size"))
    if lost:
        # Before the checkpoint that empties the log (test_a_flipped_byte_in_the_log_is_never_silent).
        shutil.copyfile(log, aside)
    if copied == readable:
        schema.empty_log(connection)
    if lost:
        raise StoreDamaged(
            f"the log of {folder / DATABASE} is damaged in its middle: what was written before is kept, and at least "
            f"{lost} later writes are lost. The log was kept as {aside}. Starting again continues from what is left"
        )


def _commits_behind(log: Path, readable: int, frame_size: int) -> int:
    """Count the transactions after the first unreadable frame, without the last one, which may be torn."""
    commits = 0
    last_was_commit = False
    with log.open("rb") as opened:
        salt = opened.read(_HEADER)[16:24]
        opened.seek(_HEADER + readable * frame_size)
        # Frames that remain from an earlier use of the log have another salt, and do not belong to its commits.
        while len(frame := opened.read(_FRAME)) == _FRAME and frame[8:16] == salt:
            commits += last_was_commit
            # The last frame of a transaction has the size of the database in this field, all others have 0.
            last_was_commit = frame[4:8] != bytes(4)
            opened.seek(frame_size - _FRAME, 1)
    return commits
