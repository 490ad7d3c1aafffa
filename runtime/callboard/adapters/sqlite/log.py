"""Is the write-ahead log whole? SQLite takes the first frame that does not fit for the end of the log.

That is right for a write that a power cut tore: nothing of it was acknowledged. It is silent loss when older commits
follow. The two can be told apart: with a sync in each commit, a transaction begins only after the one before is whole,
so an unreadable frame with two transactions behind it is damage. (Form of the file: sqlite.org/fileformat2.html.)
"""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import apsw

from callboard.adapters.sqlite.place import DATABASE
from callboard.adapters.sqlite.sql import pragma
from callboard.words.errors import StoreDamaged

_HEADER, _FRAME = 32, 24
_LITTLE, _BIG = 0x377F0682, 0x377F0683


def log_file(folder: Path) -> Path:
    """The log of the folder's database."""
    return folder / f"{DATABASE}-wal"


def size(path: Path) -> int:
    """Bytes, 0 for no such file."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def header_is_sound(log: Path) -> bool:
    """Whether SQLite would read the log at all. One without a whole frame holds nothing, and is sound."""
    if size(log) <= _HEADER + _FRAME:
        return True
    with log.open("rb") as opened:
        header = opened.read(_HEADER)
    magic = struct.unpack(">I", header[:4])[0]
    if magic not in (_LITTLE, _BIG):
        return False
    words = struct.unpack(f"{'<' if magic == _LITTLE else '>'}6I", header[:24])
    first = second = 0
    for one, two in zip(words[0::2], words[1::2], strict=True):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + two + first) & 0xFFFFFFFF
    return struct.unpack(">2I", header[24:]) == (first, second)


def check_log(connection: apsw.Connection, folder: Path, aside: Path) -> None:
    """Copy what is readable of the log into the database, and empty it. For who is alone on the store.

    Raises `StoreDamaged` when that was not all, after copying the log to `aside`; and `apsw.Error`.
    """
    log = log_file(folder)
    if not size(log):
        return
    readable, copied = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
    lost = _commits_behind(log, readable, _FRAME + pragma(connection, "page_size"))
    if lost:
        shutil.copyfile(log, aside)
    if copied == readable:
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    if lost:
        raise StoreDamaged(
            f"the log of {folder / DATABASE} is damaged in its middle: what was written before is kept, and at least "
            f"{lost} later writes are lost. The log was kept as {aside}. Starting again goes on from what is kept"
        )


def _commits_behind(log: Path, readable: int, frame_size: int) -> int:
    """How many transactions lie behind the first unreadable frame, the last one (it may be torn) not counted."""
    commits, last_was_commit = 0, False
    with log.open("rb") as opened:
        salt = opened.read(_HEADER)[16:24]
        opened.seek(_HEADER + readable * frame_size)
        while len(frame := opened.read(_FRAME)) == _FRAME and frame[8:16] == salt:
            commits += last_was_commit
            last_was_commit = frame[4:8] != bytes(4)
            opened.seek(frame_size - _FRAME, 1)
    return commits
