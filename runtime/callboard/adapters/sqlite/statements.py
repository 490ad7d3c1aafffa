"""What is asked of the tables, and what is done to them inside a transaction. Knows nothing of threads or locks.

Every value that is read is checked against its checksum; what does not fit raises `Damage`, never passes for data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import apsw

from callboard.adapters.sqlite.schema import SEQ_BITS, record_crc, row_crc
from callboard.adapters.sqlite.sql import run
from callboard.ports.store import Append, Delete, Fence, Put, Record, Row, Write
from callboard.words.errors import Conflict, Fenced

_SEQ = (1 << SEQ_BITS) - 1
_ABOVE_ALL_TEXT = b""  # SQLite sorts every blob after every text


class Damage(Exception):
    """A stored value no longer fits its checksum. Never leaves the adapter. Has a record's `place` or a row's `key`."""

    def __init__(self, what: str, *, place: int | None = None, key: str | None = None) -> None:
        super().__init__(what)
        self.what, self.place, self.key = what, place, key


def stream_number(connection: apsw.Connection, stream: str) -> int | None:
    """The number that stands for the stream's name in the tables."""
    found = run(connection, "SELECT number FROM stream WHERE name = ?", (stream,))
    return int(found[0][0]) if found else None


def last_seq(connection: apsw.Connection, number: int) -> int:
    """The stream's last seq, 0 for none."""
    bounds = (number << SEQ_BITS, (number << SEQ_BITS) | _SEQ)
    found = run(connection, "SELECT max(place) FROM record WHERE place BETWEEN ? AND ?", bounds)[0][0]
    return 0 if found is None else int(found) & _SEQ


def last(connection: apsw.Connection, stream: str) -> int:
    """The last seq by the stream's name."""
    number = stream_number(connection, stream)
    return 0 if number is None else last_seq(connection, number)


def read(connection: apsw.Connection, stream: str, after: int, limit: int | None) -> list[Record]:
    """The records after `after`. Those that were set aside are missing, and their numbers with them."""
    number = stream_number(connection, stream)
    if number is None:
        return []
    base = number << SEQ_BITS
    found = run(
        connection,
        "SELECT place, id, crc, data FROM record WHERE place > ? AND place <= ? AND data IS NOT NULL LIMIT ?",
        (base | max(after, 0), base | _SEQ, -1 if limit is None else max(limit, 0)),
    )
    records: list[Record] = []
    for place, record_id, crc, data in found:
        seq = place & _SEQ
        if record_crc(stream, seq, record_id, data) != crc:
            raise Damage(f"record {seq} of stream {stream}", place=place)
        records.append(Record(seq, data))
    return records


def get(connection: apsw.Connection, key: str) -> Row | None:
    """The row of the key."""
    found = run(connection, "SELECT key, revision, crc, value FROM row WHERE key = ? AND value IS NOT NULL", (key,))
    return _row(*found[0]) if found else None


def keys(connection: apsw.Connection, prefix: str) -> list[Row]:
    """The rows with the prefix, by key."""
    found = run(
        connection,
        "SELECT key, revision, crc, value FROM row WHERE key >= ? AND key < ? AND value IS NOT NULL ORDER BY key",
        (prefix, _after(prefix)),
    )
    return [_row(*row) for row in found]


def changes(connection: apsw.Connection, prefix: str, position: int) -> tuple[Sequence[Row], int]:
    """What became of the prefix's rows after revision `position` (0: the rows there are), and the revision reached."""
    bounds = (prefix, _after(prefix))
    if position == 0:
        # Asked first: a change between the two is then told twice, where the other order would not tell it at all.
        reached = run(connection, "SELECT max(revision) FROM row WHERE key >= ? AND key < ?", bounds)[0][0]
        return keys(connection, prefix), int(reached or 0)
    found = run(
        connection,
        "SELECT key, revision, crc, value FROM row INDEXED BY row_revision "
        "WHERE revision > ? AND key >= ? AND key < ? ORDER BY revision, key",
        (position, *bounds),
    )
    rows = [_row(*row) for row in found]
    return rows, rows[-1].revision if rows else position


def fence_number(connection: apsw.Connection, lease: str) -> int:
    """The number of the lease's newest holder, 0 if it never had one."""
    found = run(connection, "SELECT number FROM lease WHERE name = ?", (lease,))
    return int(found[0][0]) if found else 0


def next_fence(connection: apsw.Connection, lease: str) -> int:
    """Count one more holder of the lease."""
    number = fence_number(connection, lease) + 1
    run(connection, "INSERT OR REPLACE INTO lease (name, number) VALUES (?, ?)", (lease, number))
    return number


def _row(key: str, revision: int, crc: int, value: bytes | None) -> Row:
    if value is not None and row_crc(key, revision, value) != crc:
        raise Damage(f"key {key}", key=key)
    return Row(key, value, revision)


def _after(prefix: str) -> str | bytes:
    """The least value that sorts after every text with this prefix."""
    stem = prefix.rstrip("\U0010ffff")
    if not stem:
        return _ABOVE_ALL_TEXT
    following = ord(stem[-1]) + 1
    return stem[:-1] + chr(0xE000 if following == 0xD800 else following)  # no text holds a surrogate


@dataclass
class Touched:
    """What a transaction changed: whose followers and watchers are to be woken."""

    streams: set[str] = field(default_factory=set[str])
    keys: set[str] = field(default_factory=set[str])

    def __bool__(self) -> bool:
        return bool(self.streams or self.keys)


class Transaction:
    """The writes of one commit, on a connection with a transaction open. Raises `Conflict`, `Fenced`, `apsw.Error`.

    Whoever made it rolls back when it raises.
    """

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection
        self.touched = Touched()
        self._revision = 0

    def write_all(self, writes: Sequence[Write], fence: Fence | None) -> tuple[int, ...]:
        """Do the writes in order; one number for each."""
        if fence is not None and (newest := fence_number(self.connection, fence.lease)) != fence.number:
            raise Fenced(
                f"lease {fence.lease} went to another process (number {newest}, after {fence.number}): "
                "this one writes no more, so that two never write one journal"
            )
        return tuple(self._write(write) for write in writes)

    def remove(self, key: str) -> None:
        """Delete the key, whatever its revision."""
        self._set(key, None, None)

    def _write(self, write: Write) -> int:
        match write:
            case Append():
                return self._append(write)
            case Put():
                return self._set(write.key, bytes(write.value), write.expected)
            case Delete():
                self._set(write.key, None, write.expected)
                return 0

    def _append(self, write: Append) -> int:
        number = stream_number(self.connection, write.stream)
        if number is None:
            run(self.connection, "INSERT INTO stream (name) VALUES (?)", (write.stream,))
            number = self.connection.last_insert_rowid()
        elif write.id is not None and (seen := self._seen(number, write.id)) is not None:
            return seen
        last = last_seq(self.connection, number)
        if write.expected is not None and write.expected != last:
            raise Conflict(write.stream, write.expected, last)
        seq, data = last + 1, bytes(write.record)
        run(
            self.connection,
            "INSERT INTO record (place, id, crc, data) VALUES (?, ?, ?, ?)",
            ((number << SEQ_BITS) | seq, write.id, record_crc(write.stream, seq, write.id, data), data),
        )
        self.touched.streams.add(write.stream)
        return seq

    def _seen(self, number: int, record_id: str) -> int | None:
        found = run(self.connection, "SELECT place FROM record WHERE place >> 40 = ? AND id = ?", (number, record_id))
        return int(found[0][0]) & _SEQ if found else None

    def _set(self, key: str, value: bytes | None, expected: int | None) -> int:
        there = run(self.connection, "SELECT revision FROM row WHERE key = ? AND value IS NOT NULL", (key,))
        found = int(there[0][0]) if there else 0
        if expected is not None and expected != found:
            raise Conflict(key, expected, found)
        revision = self._number()
        if value is None and not there:
            return revision
        run(
            self.connection,
            "INSERT INTO row (key, revision, crc, value) VALUES (?, ?, ?, ?) ON CONFLICT (key) DO UPDATE "
            "SET revision = excluded.revision, crc = excluded.crc, value = excluded.value",
            (key, revision, 0 if value is None else row_crc(key, revision, value), value),
        )
        self.touched.keys.add(key)
        return revision

    def _number(self) -> int:
        """The number of this commit: one above the largest revision before it."""
        if not self._revision:
            self._revision = 1 + int(run(self.connection, "SELECT max(revision) FROM row")[0][0] or 0)
        return self._revision
