"""Queries of the tables, and changes to them inside a transaction, without threads or locks.

Every value that is read is compared with its checksum. A mismatch raises `ChecksumMismatch` and is never treated as
data.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType

import apsw

from callboard.adapters.storage.draft import PRESENT, CommitDraft, stored_records, stored_row
from callboard.adapters.storage.durable import DIGEST_IN_VALUE, ERASED_TOGETHER, range_of, text_after
from callboard.adapters.storage.packing import record_crc, row_crc, unpack
from callboard.adapters.storage.sqlite.schema import SEQ_BITS
from callboard.adapters.storage.sqlite.sql import insert, run
from callboard.ports.store import Fence, Record, Row, Write
from callboard.types.lazy_dataclass import dataclass

_SEQ = (1 << SEQ_BITS) - 1
VALUE_COLUMNS: Mapping[str, str] = MappingProxyType({"record": "data", "row": "value"})
"""Tables of values, and the column of the value."""
_ABOVE_ALL_TEXT = b""  # SQLite sorts every blob after every text


class ChecksumMismatch(Exception):
    """A stored value does not match its checksum. Never leaves the adapter. Has a record's `place` or a row's `key`."""

    def __init__(self, problem: str, where: str, *, place: int | None = None, key: str | None = None) -> None:
        """Store the details. `where`: the key, or the stream and the number as `STREAM#SEQ`."""
        super().__init__(problem)
        self.what = problem
        self.where = where
        self.place = place
        self.key = key


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """Number of a stream in the tables, and its last seq, which is 0 if it has no records."""

    number: int
    last: int


def stream_number(connection: apsw.Connection, stream: str) -> int | None:
    """Return the number of the stream in the tables."""
    rows = run(connection, "SELECT number FROM stream WHERE name = ?", (stream,))
    return int(rows[0][0]) if rows else None


def end_of(connection: apsw.Connection, stream: str) -> StreamEnd | None:
    """Return the end of the stream with this name; None if there is no such stream."""
    rows = run(
        connection,
        "SELECT number, (SELECT max(place) FROM record WHERE place BETWEEN number << 40 AND ((number + 1) << 40) - 1) "
        "FROM stream WHERE name = ?",
        (stream,),
    )
    return StreamEnd(int(rows[0][0]), int(rows[0][1] or 0) & _SEQ) if rows else None


def last(connection: apsw.Connection, stream: str) -> int:
    """Return the last seq of the stream with this name."""
    end = end_of(connection, stream)
    return 0 if end is None else end.last


def read(connection: apsw.Connection, stream: str, after: int, limit: int | None) -> list[Record]:
    """Return the records after `after`. Records that were set aside are missing, and so are their numbers."""
    number = stream_number(connection, stream)
    if number is None:
        return []
    base = number << SEQ_BITS
    rows = run(
        connection,
        "SELECT place, id, crc, data FROM record WHERE place > ? AND place <= ? AND data IS NOT NULL LIMIT ?",
        (base | max(after, 0), base | _SEQ, -1 if limit is None else max(limit, 0)),
    )
    records: list[Record] = []
    for place, record_id, crc, data in rows:
        seq = place & _SEQ
        data, crc = unpack(data, crc)
        if record_crc(stream, seq, record_id, data) != crc:
            raise ChecksumMismatch(f"record {seq} of stream {stream}", f"{stream}#{seq}", place=place)
        records.append(Record(seq, data))
    return records


def get(connection: apsw.Connection, key: str) -> Row | None:
    """Return the row of the key."""
    rows = run(connection, "SELECT key, revision, crc, value FROM row WHERE key = ? AND value IS NOT NULL", (key,))
    return _row(*rows[0]) if rows else None


def keys(connection: apsw.Connection, prefix: str) -> list[Row]:
    """Return the rows with the prefix, by key."""
    rows = run(
        connection,
        "SELECT key, revision, crc, value FROM row WHERE key >= ? AND key < ? AND value IS NOT NULL ORDER BY key",
        (prefix, _end_of_prefix(prefix)),
    )
    return [_row(*row) for row in rows]


def changes(connection: apsw.Connection, prefix: str, position: int) -> tuple[Sequence[Row], int]:
    """Return the rows of the prefix that changed after a commit, and the newest commit of the whole store.

    `position`: the number of the commit; 0: all existing rows. A follower that continued from the newest row of its
    own prefix would each time read every later row of all other prefixes again.
    """
    bounds = (prefix, _end_of_prefix(prefix))
    # Read first: the next call then returns a change between the two queries. The other order would lose it.
    reached = _newest_change(connection)
    if position == 0:
        return keys(connection, prefix), reached
    rows = run(
        connection,
        "SELECT key, revision, crc, value FROM row INDEXED BY row_changed "
        "WHERE changed > ? AND changed <= ? AND key >= ? AND key < ? ORDER BY changed, key",
        (position, reached, *bounds),
    )
    return [_row(*row) for row in rows], max(reached, position)


def _newest_change(connection: apsw.Connection) -> int:
    """Return the number of the last commit that changed a row."""
    return int(run(connection, "SELECT max(changed) FROM row")[0][0] or 0)


def fence_number(connection: apsw.Connection, lease: str) -> int:
    """Return the number of the lease's newest holder, 0 if it never had one."""
    rows = run(connection, "SELECT number FROM lease WHERE name = ?", (lease,))
    return int(rows[0][0]) if rows else 0


def next_fence(connection: apsw.Connection, lease: str) -> int:
    """Increment and return the number of the lease's holders."""
    number = fence_number(connection, lease) + 1
    run(connection, "INSERT OR REPLACE INTO lease (name, number) VALUES (?, ?)", (lease, number))
    return number


def _row(key: str, revision: int, crc: int, value: bytes | None) -> Row:
    if value is None:
        return Row(key, None, revision)
    value, crc = unpack(value, crc)
    if row_crc(key, revision, value) != crc:
        raise ChecksumMismatch(f"key {key}", key, key=key)
    return Row(key, value, revision)


def _end_of_prefix(prefix: str) -> str | bytes:
    """Return the least value that sorts after every text with this prefix."""
    following = text_after(prefix)
    return _ABOVE_ALL_TEXT if following is None else following


def stored_bytes(connection: apsw.Connection, names: Sequence[str]) -> int:
    """Return the bytes of the values with these names (`durable.range_of`)."""
    total = 0
    for name in names:
        sql = "SELECT coalesce(sum(length(value)), 0) FROM row WHERE key >= ? AND key < ?"
        total += int(run(connection, sql, range_of(name))[0][0])
    for name in names:
        for number, _ in _streams(connection, name):
            sql = "SELECT coalesce(sum(length(data)), 0) FROM record WHERE place BETWEEN ? AND ?"
            total += int(run(connection, sql, (number << SEQ_BITS, (number << SEQ_BITS) | _SEQ))[0][0])
    return total


def _streams(connection: apsw.Connection, name: str) -> list[tuple[int, str]]:
    rows = run(connection, "SELECT number, name FROM stream WHERE name >= ? AND name < ?", range_of(name))
    return [(int(number), str(stream)) for number, stream in rows]


def erase_records(connection: apsw.Connection, names: Sequence[str]) -> bool:
    """Delete some of the records of these streams, and streams without records; return False if there is nothing left.

    The first records go first: the last number of a stream stays until the stream itself goes.
    """
    number = next((stream[0] for name in names for stream in _streams(connection, name)), None)
    if number is None:
        return False
    run(
        connection,
        "DELETE FROM record WHERE place IN (SELECT place FROM record WHERE place BETWEEN ? AND ? LIMIT ?)",
        (number << SEQ_BITS, (number << SEQ_BITS) | _SEQ, ERASED_TOGETHER),
    )
    if connection.changes() < ERASED_TOGETHER:
        run(connection, "DELETE FROM stream WHERE number = ?", (number,))
    return True


def erase_keys(connection: apsw.Connection, names: Sequence[str]) -> None:
    """Delete the rows of these keys, except the newest row of the store: the next commit counts from its number."""
    for name in names:
        run(
            connection,
            "DELETE FROM row WHERE key >= ? AND key < ? AND changed < (SELECT max(changed) FROM row)",
            range_of(name),
        )


def digests_in(connection: apsw.Connection, *, table: str, after: int) -> tuple[set[bytes], int]:
    """Return the digests of blobs in the next values of a table, and the place of the last one; 0 at the end."""
    value = VALUE_COLUMNS[table]
    rows = run(
        connection,
        f"SELECT rowid, crc, {value} FROM {table} "  # noqa: S608 - names of our own tables
        f"WHERE rowid > ? AND {value} IS NOT NULL ORDER BY rowid LIMIT ?",
        (after, ERASED_TOGETHER),
    )
    found = {digest for _, crc, stored in rows for digest in DIGEST_IN_VALUE.findall(unpack(stored, crc)[0])}
    return found, int(rows[-1][0]) if rows else 0


@dataclass
class TransactionChanges:
    """Streams and keys that a transaction changed, whose followers and watchers must be woken."""

    streams: set[str] = field(default_factory=set[str])
    keys: set[str] = field(default_factory=set[str])

    def add(self, others: TransactionChanges) -> None:
        """Add the changes of a part of the transaction."""
        self.streams |= others.streams
        self.keys |= others.keys

    def __bool__(self) -> bool:
        return bool(self.streams or self.keys)


class LookedChanges:
    """Changes between one look at the store and the next, whoever made them."""

    def __init__(self) -> None:
        self._change = -1
        """Number of the newest change at the last look; -1 before the first one."""
        self._ends: dict[str, int] = {}
        """Last seq of each stream that was followed at the last look."""

    def since_last_look(self, connection: apsw.Connection, streams: Collection[str]) -> TransactionChanges:
        """Return the changed keys, and which of these streams grew. A stream that is new here counts as grown.

        A host of hundreds of idle sessions looks once a second while another process writes. One look-up for each
        followed stream costs a hundredth of waking its reader (test_idle_readers_sleep_while_another_process_writes).
        """
        change = _newest_change(connection)
        rows = run(
            connection,
            "SELECT key FROM row INDEXED BY row_changed WHERE changed > ? AND changed <= ?",
            (self._change, change),
        )
        ends = {stream: last(connection, stream) for stream in streams}
        grown = {stream for stream, end in ends.items() if self._ends.get(stream) != end}
        self._change = change
        self._ends = ends
        return TransactionChanges(grown, {str(row[0]) for row in rows})


class _StoredState:
    """State in the tables before a commit (`draft.Current`)."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._ends: dict[str, StreamEnd | None] = {}
        self._fences: dict[str, int] = {}

    def end(self, stream: str) -> StreamEnd | None:
        """Return the end of the stream; None if it is not in the tables."""
        if stream not in self._ends:
            self._ends[stream] = end_of(self._connection, stream)
        return self._ends[stream]

    def last(self, stream: str) -> int:
        """See `Current`."""
        end = self.end(stream)
        return 0 if end is None else end.last

    def seen(self, stream: str, record_id: str) -> int:
        """See `Current`."""
        end = self.end(stream)
        if end is None:
            return 0
        sql = "SELECT place FROM record WHERE place >> 40 = ? AND id = ?"
        rows = run(self._connection, sql, (end.number, record_id))
        return int(rows[0][0]) & _SEQ if rows else 0

    def row(self, key: str) -> Row | None:
        """See `Current`."""
        rows = run(self._connection, "SELECT revision, value IS NOT NULL FROM row WHERE key = ?", (key,))
        return Row(key, PRESENT if rows[0][1] else None, int(rows[0][0])) if rows else None

    def fence(self, lease: str) -> int:
        """See `Current`."""
        if lease not in self._fences:
            self._fences[lease] = fence_number(self._connection, lease)
        return self._fences[lease]


class Transaction:
    """Writes of a transaction, on a connection with an open one. Raises `Conflict`, `Fenced`, `apsw.Error`.

    The creator rolls back after an exception, except one of `draft`.
    """

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection
        self.touched = TransactionChanges()
        self._begin_draft()

    def _begin_draft(self) -> None:
        self._state = _StoredState(self.connection)
        self._draft = CommitDraft(self._state)

    def write_all(self, writes: Sequence[Write], fence: Fence | None) -> tuple[int, ...]:
        """Perform the writes in order, and return one number for each."""
        numbers = self.draft(writes, fence)
        self.write_drafts()
        return numbers

    def draft(self, writes: Sequence[Write], fence: Fence | None) -> tuple[int, ...]:
        """Decide a commit, and return one number for each write. `write_drafts` performs them.

        If it raises, the transaction is as before.
        """
        return self._draft.commit(writes, fence)

    def write_drafts(self) -> None:
        """Write the commits that were decided, all records together, and all rows.

        Each statement passes the interpreter's lock to and fro, so few are run.
        """
        draft = self._draft
        if draft.records:
            self._write_records(draft, self._state)
        if draft.rows:
            self._write_rows(draft)
        self._begin_draft()  # also after a commit that failed: it may have read what other work changes next

    def _write_records(self, draft: CommitDraft, state: _StoredState) -> None:
        places: dict[str, int] = {}
        for stream in draft.records:
            end = state.end(stream)
            if end is None:
                run(self.connection, "INSERT INTO stream (name) VALUES (?)", (stream,))
            places[stream] = (self.connection.last_insert_rowid() if end is None else end.number) << SEQ_BITS
        insert(
            self.connection,
            "INSERT INTO record (place, id, crc, data)",
            [
                (places[stream] | seq, record_id, crc, stored)
                for stream, seq, record_id, crc, stored in stored_records(draft)
            ],
        )
        self.touched.streams.update(places)

    def _write_rows(self, draft: CommitDraft) -> None:
        change = 1 + _newest_change(self.connection)
        insert(
            self.connection,
            "INSERT INTO row (key, revision, crc, value, changed)",
            [(*stored_row(row), change) for row in draft.rows.values()],
            "ON CONFLICT (key) DO UPDATE SET revision = excluded.revision, crc = excluded.crc, value = excluded.value, "
            "changed = excluded.changed",
        )
        self.touched.keys.update(draft.rows)
