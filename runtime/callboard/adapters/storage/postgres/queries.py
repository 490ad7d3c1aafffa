"""Reads: statements, how their rows become values of the port, what damaged values become, and the reading threads.

Every value that is read is compared with its checksum. A mismatch raises `ValueMismatch` and is never treated as
data.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, LiteralString, TypeVar

import psycopg

from callboard.adapters.storage.durable import (
    DIGEST_IN_VALUE,
    ERASED_TOGETHER,
    DamageReport,
    range_of,
    text_after,
)
from callboard.adapters.storage.packing import record_crc, row_crc, unpack
from callboard.adapters.storage.patience import LOCK_WAIT, TELL_AFTER, ObstacleWait, Patience
from callboard.adapters.storage.postgres.address import AnswerWatch, Connection, ServerAddress, run, short_transaction
from callboard.adapters.storage.postgres.faults import translate_error
from callboard.adapters.storage.threads import AnswerWaiter, ClosableQueue, wake
from callboard.ports.store import Record, Row
from callboard.types.errors import StoreBusy
from callboard.types.lazy_dataclass import dataclass

T = TypeVar("T")

Rows = Sequence[tuple[Any, ...]]


class ValueMismatch(Exception):
    """A stored value does not match its checksum. Never leaves the adapter."""

    def __init__(self, problem: str, where: str, *, key: str = "", stream: str = "", seq: int = 0) -> None:
        """Store the details. `where`: the key, or the stream and the number as `STREAM#SEQ`."""
        super().__init__(problem)
        self.what = problem
        self.where = where
        self.key = key
        self.stream = stream
        self.seq = seq


@dataclass(frozen=True, slots=True)
class Query(Generic[T]):
    """One read."""

    sql: LiteralString
    parameters: tuple[object, ...]
    decode: Callable[[Rows], T]


def last(space: int, stream: str) -> Query[int]:
    """Return the read of the last number of a stream."""

    def decode(rows: Rows) -> int:
        return int(rows[0][0]) if rows else 0

    return Query("SELECT last FROM callboard.stream WHERE space = %s AND name = %s", (space, stream), decode)


def read(space: int, stream: str, after: int, limit: int | None) -> Query[list[Record]]:
    """Return the read of the records after `after`. Records that were set aside are missing."""

    def decode(rows: Rows) -> list[Record]:
        return [_decoded(stream, row) for row in rows]

    return Query(
        "SELECT r.seq, r.id, r.crc, r.data FROM callboard.record r "
        "WHERE r.stream = (SELECT number FROM callboard.stream WHERE space = %s AND name = %s) "
        "AND r.seq > %s AND r.data IS NOT NULL ORDER BY r.seq LIMIT %s",
        (space, stream, max(after, 0), None if limit is None else max(limit, 0)),
        decode,
    )


def _decoded(stream: str, row: tuple[int, str | None, int, bytes]) -> Record:
    seq, record_id, stored_crc, stored = row
    data, crc = unpack(stored, stored_crc)
    if record_crc(stream, seq, record_id, data) != crc:
        raise ValueMismatch(f"record {seq} of stream {stream}", f"{stream}#{seq}", stream=stream, seq=seq)
    return Record(seq, data)


def get(space: int, key: str) -> Query[Row | None]:
    """Return the read of one row."""

    def decode(rows: Rows) -> Row | None:
        return _row(*rows[0]) if rows else None

    return Query(
        "SELECT key, revision, crc, value FROM callboard.row WHERE space = %s AND key = %s AND value IS NOT NULL",
        (space, key),
        decode,
    )


def keys(space: int, prefix: str) -> Query[list[Row]]:
    """Return the read of the rows with the prefix, by key."""

    def decode(rows: Rows) -> list[Row]:
        return [_row(*row) for row in rows]

    return Query(
        "SELECT key, revision, crc, value FROM callboard.row "
        "WHERE space = %s AND key >= %s AND (%s::text IS NULL OR key < %s) AND value IS NOT NULL ORDER BY key",
        (space, prefix, *(2 * (text_after(prefix),))),
        decode,
    )


class WatchPosition:
    """Position of a watch: everything that was visible to its last look has been read.

    A transaction that was still running then may have a lower number than one that was visible. So a look reads again
    from the oldest transaction that was running (`pg_snapshot_xmin`), and leaves out what it has returned before.
    """

    def __init__(self, space: int, prefix: str) -> None:
        self._space = space
        self._prefix = prefix
        self._returned: dict[str, tuple[int, int]] = {}
        """Key -> revision and transaction of rows that the next look may read again."""

    def next(self, position: int) -> Query[Rows]:
        """Return the read of the rows that changed since the last look. `position` is 0 for the first one."""
        return Query(
            "WITH seen AS (SELECT pg_snapshot_xmin(pg_current_snapshot()) AS oldest) "
            "SELECT seen.oldest::text::bigint, r.changed::text::bigint, r.key, r.revision, r.crc, r.value "
            "FROM seen LEFT JOIN callboard.row r ON r.space = %s AND r.key >= %s AND (%s::text IS NULL OR r.key < %s) "
            "AND r.changed >= %s::text::xid8 AND (r.value IS NOT NULL OR %s) ORDER BY r.changed, r.key",
            (self._space, self._prefix, *(2 * (text_after(self._prefix),)), str(position), position > 0),
            _as_read,
        )

    def take(self, rows: Rows, position: int) -> tuple[list[Row], int]:
        """Return the new rows of a look, and the next position.

        Call it where nothing can be cancelled between this and the use of the rows: they are not returned again.
        Raises `ValueMismatch`; the same rows are then read again.
        """
        # Never 0, which means a first look. No transaction has a number below 3.
        reached = max(int(rows[0][0]), position, 1)
        found: list[Row] = []
        returned = dict(self._returned)
        for _, changed, key, revision, crc, value in rows:
            if key is None or returned.get(key, (0, 0))[0] >= revision:
                continue
            found.append(_row(key, revision, crc, value))
            returned[key] = (revision, changed)
        self._returned = {key: known for key, known in returned.items() if known[1] >= reached}
        return (found if position else sorted(found, key=lambda row: row.key)), reached


def _as_read(rows: Rows) -> Rows:
    return rows


def _row(key: str, revision: int, stored_crc: int, stored: bytes | None) -> Row:
    if stored is None:
        return Row(key, None, revision)
    value, crc = unpack(stored, stored_crc)
    if row_crc(key, revision, value) != crc:
        raise ValueMismatch(f"key {key}", key, key=key)
    return Row(key, value, revision)


def has_blob(space: int, digest: str) -> Query[bool]:
    """Return the check whether a blob is complete. No removal deletes it for the next hours then."""
    return Query(
        "WITH known AS (SELECT used FROM callboard.blob WHERE space = %s AND digest = %s AND part = 0), "
        "renewed AS (UPDATE callboard.blob SET used = now() WHERE space = %s AND digest = %s AND part = 0 "
        "AND used < now() - interval '1 hour' RETURNING 1) "
        # Not what `known` says of an older one: a removal may have deleted it since.
        "SELECT 1 FROM known WHERE used >= now() - interval '1 hour' UNION ALL SELECT 1 FROM renewed",
        (space, digest, space, digest),
        bool,
    )


def stored_bytes(connection: Connection, *, space: int, names: Sequence[str]) -> int:
    """Return the bytes of the values with these names (`durable.range_of`)."""
    total = 0
    for name in names:
        sql = "SELECT coalesce(sum(length(value)), 0) FROM callboard.row WHERE space = %s AND key >= %s AND key < %s"
        total += int(run(connection, sql, (space, *range_of(name)))[0][0])
    for name in names:
        sql = (
            "SELECT coalesce(sum(length(r.data)), 0) FROM callboard.stream s JOIN callboard.record r "
            "ON r.stream = s.number WHERE s.space = %s AND s.name >= %s AND s.name < %s"
        )
        total += int(run(connection, sql, (space, *range_of(name)))[0][0])
    return total


def erase_streams(connection: Connection, *, space: int, names: Sequence[str]) -> None:
    """Delete these streams, `ERASED_TOGETHER` records in each transaction, the first ones first."""
    for name in names:
        sql = "SELECT number FROM callboard.stream WHERE space = %s AND name >= %s AND name < %s"
        for (number,) in run(connection, sql, (space, *range_of(name))):
            while run(
                connection,
                "DELETE FROM callboard.record WHERE stream = %s AND seq = ANY(ARRAY("
                "SELECT seq FROM callboard.record WHERE stream = %s ORDER BY seq LIMIT %s)) RETURNING 1",
                (number, number, ERASED_TOGETHER),
            ):
                pass
            run(connection, "DELETE FROM callboard.stream WHERE number = %s", (number,))


def erase_keys(connection: Connection, *, space: int, names: Sequence[str]) -> None:
    """Delete the rows of these keys."""
    for name in names:
        sql = "DELETE FROM callboard.row WHERE space = %s AND key >= %s AND key < %s"
        run(connection, sql, (space, *range_of(name)))


def erase_blobs(connection: Connection, *, space: int, unused: float) -> tuple[int, int]:
    """Delete the blobs that no value names and that were not put within `unused` seconds. As slow as the server."""
    candidates = [
        str(digest)
        for (digest,) in run(
            connection,
            "SELECT digest FROM callboard.blob WHERE space = %s AND part = 0 "
            "AND used < now() - make_interval(secs => %s)",
            (space, unused),
        )
    ]
    named = _digests(connection, space) if candidates else frozenset[str]()
    sizes: list[int] = []
    for digest in candidates:
        if digest in named:
            continue
        with short_transaction(connection):
            locked = run(
                connection,
                "SELECT 1 FROM callboard.blob WHERE space = %s AND digest = %s AND part = 0 "
                "AND used < now() - make_interval(secs => %s) FOR UPDATE",
                (space, digest, unused),
            )
            sql = "DELETE FROM callboard.blob WHERE space = %s AND digest = %s RETURNING length(data)"
            parts = run(connection, sql, (space, digest)) if locked else []
        sizes += [sum(int(length) for (length,) in parts)] if parts else []
    return len(sizes), sum(sizes)


def _digests(connection: Connection, space: int) -> frozenset[str]:
    """Return all digests of blobs in the values of the space."""
    digests: set[bytes] = set()
    for (number,) in run(connection, "SELECT number FROM callboard.stream WHERE space = %s", (space,)):
        seq = 0
        sql = (
            "SELECT seq, crc, data FROM callboard.record WHERE stream = %s AND seq > %s AND data IS NOT NULL "
            "ORDER BY seq LIMIT %s"
        )
        while rows := run(connection, sql, (number, seq, ERASED_TOGETHER)):
            digests |= _digests_in([row[1:] for row in rows])
            seq = int(rows[-1][0])
    key = ""
    sql = (
        "SELECT key, crc, value FROM callboard.row WHERE space = %s AND key > %s AND value IS NOT NULL "
        "ORDER BY key LIMIT %s"
    )
    while rows := run(connection, sql, (space, key, ERASED_TOGETHER)):
        digests |= _digests_in([row[1:] for row in rows])
        key = str(rows[-1][0])
    return frozenset(digest.decode() for digest in digests)


def _digests_in(values: Rows) -> set[bytes]:
    return {digest for crc, stored in values for digest in DIGEST_IN_VALUE.findall(unpack(stored, crc)[0])}


def put_blob_part(space: int, digest: str, number: int, parts: Sequence[bytes]) -> Query[None]:
    """Return the write of one part of a blob. Repeating it changes nothing."""
    return Query(
        "INSERT INTO callboard.blob (space, digest, part, parts, data) VALUES (%s, %s, %s, %s, %b) "
        "ON CONFLICT DO NOTHING",
        (space, digest, number, len(parts), parts[number]),
        _nothing,
    )


def get_blob(space: int, digest: str) -> Query[bytes | None]:
    """Return the read of a blob; None if it is not there, or not complete."""

    def decode(rows: Rows) -> bytes | None:
        if not rows or rows[0][0] != 0:
            return None
        return b"".join(data for _, data in rows)

    return Query(
        "SELECT part, data FROM callboard.blob WHERE space = %s AND digest = %s ORDER BY part", (space, digest), decode
    )


def ends(space: int, streams: Sequence[str]) -> Query[dict[str, int]]:
    """Return the read of the last numbers of these streams; missing streams have none."""

    def decode(rows: Rows) -> dict[str, int]:
        return {str(name): int(end) for name, end in rows}

    return Query(
        "SELECT name, last FROM callboard.stream WHERE space = %s AND name = ANY(%s)", (space, list(streams)), decode
    )


def changed_keys(space: int, position: int) -> Query[tuple[list[str], int]]:
    """Return the read of the keys that changed since a look, and the next position.

    `position`: 0 reads only the position. A key may be returned more than once.
    """

    def decode(rows: Rows) -> tuple[list[str], int]:
        return [str(key) for _, key in rows if key is not None], int(rows[0][0])

    return Query(
        "WITH seen AS (SELECT pg_snapshot_xmin(pg_current_snapshot()) AS oldest) "
        "SELECT seen.oldest::text::bigint, r.key FROM seen LEFT JOIN callboard.row r "
        "ON %s AND r.space = %s AND r.changed >= %s::text::xid8",
        (position > 0, space, str(position)),
        decode,
    )


def _nothing(_rows: Rows) -> None:
    return None


_PAGE = 1_000


def damage_reports(connection: Connection, address: ServerAddress, space: int) -> tuple[DamageReport, ...]:
    """Return all damage of the space that is still stored."""
    rows = run(
        connection, "SELECT number, place, what FROM callboard.damaged WHERE space = %s ORDER BY number", (space,)
    )
    return tuple(
        DamageReport(f"{address}, {place}", str(what), f"{address}, table callboard.damaged, number {number}")
        for number, place, what in rows
    )


def set_aside(connection: Connection, *, space: int, mismatch: ValueMismatch) -> None:
    """Move a damaged value to the table `damaged`. Does nothing if another process has done it."""
    with short_transaction(connection):
        if mismatch.key:
            run(
                connection,
                "INSERT INTO callboard.damaged (space, place, what, data) "
                "SELECT space, 'table row, revision ' || revision, %s, value FROM callboard.row "
                "WHERE space = %s AND key = %s AND value IS NOT NULL",
                (mismatch.what, space, mismatch.key),
            )
            run(
                connection,
                "UPDATE callboard.row SET value = NULL, crc = 0, revision = revision + 1, "
                "changed = pg_current_xact_id() WHERE space = %s AND key = %s AND value IS NOT NULL",
                (space, mismatch.key),
            )
            return
        number = run(
            connection, "SELECT number FROM callboard.stream WHERE space = %s AND name = %s", (space, mismatch.stream)
        )[0][0]
        run(
            connection,
            "INSERT INTO callboard.damaged (space, place, what, data) "
            "SELECT %s, 'table record, stream ' || stream || ', seq ' || seq, %s, data FROM callboard.record "
            "WHERE stream = %s AND seq = %s AND data IS NOT NULL",
            (space, mismatch.what, number, mismatch.seq),
        )
        run(
            connection, "UPDATE callboard.record SET data = NULL WHERE stream = %s AND seq = %s", (number, mismatch.seq)
        )


def set_aside_blob(connection: Connection, *, space: int, digest: str) -> None:
    """Move a damaged blob to the table `damaged`."""
    with short_transaction(connection):
        run(
            connection,
            "INSERT INTO callboard.damaged (space, place, what, data) "
            "SELECT space, 'table blob, part ' || part, 'blob ' || digest, data FROM callboard.blob "
            "WHERE space = %s AND digest = %s",
            (space, digest),
        )
        run(connection, "DELETE FROM callboard.blob WHERE space = %s AND digest = %s", (space, digest))


def describe(connection: Connection, *, space: int) -> dict[str, str]:
    """Return facts about the server and this workspace on it, for a person."""
    version = run(connection, "SELECT current_setting('server_version')")[0][0]
    schema_version = run(connection, "SELECT number FROM callboard.version")[0][0]
    name = run(connection, "SELECT name FROM callboard.space WHERE number = %s", (space,))[0][0]
    size = run(
        connection,
        "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c "
        "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'callboard' AND c.relkind = 'r'",
    )[0][0]
    hosts = run(
        connection,
        "SELECT machine, count(*) FROM callboard.host WHERE space = %s AND seen > clock_timestamp() - interval '10 s' "
        "GROUP BY machine ORDER BY machine",
        (space,),
    )
    safe = run(connection, "SELECT current_setting('fsync')")[0][0]
    return {
        "engine": f"PostgreSQL {version}, schema {schema_version}",
        "workspace": str(name),
        "size": f"{size:,} bytes of all workspaces",
        "processes": ", ".join(f"{count} on {machine}" for machine, count in hosts) or "none",
        **({} if safe == "on" else {"warning": "the server has fsync off: it loses data when its machine fails"}),
    }


def scan(connection: Connection, *, space: int) -> list[ValueMismatch]:
    """Read all records and rows, and return what is damaged. As slow as the server."""
    found: list[ValueMismatch] = []
    for (name,) in run(connection, "SELECT name FROM callboard.stream WHERE space = %s ORDER BY name", (space,)):
        _scan_stream(connection, space, str(name), found.append)
    for (key,) in run(
        connection, "SELECT key FROM callboard.row WHERE space = %s AND value IS NOT NULL ORDER BY key", (space,)
    ):
        query = get(space, str(key))
        try:
            query.decode(run(connection, query.sql, query.parameters))
        except ValueMismatch as mismatch:
            found.append(mismatch)
    return found


def _scan_stream(connection: Connection, space: int, stream: str, tell: Callable[[ValueMismatch], None]) -> None:
    position = 0
    while True:
        query = read(space, stream, position, _PAGE)
        rows = run(connection, query.sql, query.parameters)
        if not rows:
            return
        for row in rows:
            try:
                query.decode([row])
            except ValueMismatch as mismatch:
                tell(mismatch)
        position = int(rows[-1][0])


TOGETHER = 64
"""Most reads in one round trip."""


@dataclass(eq=False)
class _Look(Generic[T]):
    query: Query[T]
    waiter: AnswerWaiter[T] | None


@dataclass(eq=False)
class _LateLook:
    """A statement that is made when a thread takes it, with everything that it has to say by then."""

    make: Callable[[], Query[Any]]


class PostgresReaders:
    """Threads for reads, and for statements that may be repeated without harm."""

    def __init__(self, address: ServerAddress, patience: Patience, watch: AnswerWatch, *, count: int) -> None:
        self._address = address
        self._watch = watch
        self._patience = patience
        self._queue = ClosableQueue[_Look[Any] | _LateLook | None]()
        self._threads = [
            threading.Thread(target=self._run, name=f"callboard-store-reader-{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    async def do(self, query: Query[T]) -> T:
        """Return or raise the result. Cancelling the caller does not stop the read."""
        waiter = AnswerWaiter[T]()
        self._queue.put(_Look(query, waiter))
        return await waiter.wait()

    def tell(self, make: Callable[[], Query[Any]]) -> None:
        """Run the statement that `make` returns soon; nobody waits for its result. Called from any thread.

        `make` and the query's `decode` are called in a reader's thread.
        """
        with suppress(RuntimeError):  # the store is closing: nobody needs it any more
            self._queue.put(_LateLook(make))

    def stop(self) -> None:
        """Finish the queued reads, close the connections, and end the threads. Blocks until they have ended."""
        self._queue.close(*(None for _ in self._threads))
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        connection: Connection | None = None
        ended = False
        while not ended:
            looks, ended = self._take()
            if looks:
                connection = self._read(looks, connection)
                wake(look.waiter for look in looks if look.waiter is not None)
        if connection is not None:
            connection.close()

    def _take(self) -> tuple[list[_Look[Any]], bool]:
        looks: list[_Look[Any]] = []
        entry = self._queue.get()
        while entry is not None:
            looks.append(_Look(entry.make(), None) if isinstance(entry, _LateLook) else entry)
            if len(looks) == TOGETHER:
                return looks, False
            try:
                entry = self._queue.get_nowait()
            except queue.Empty:
                return looks, False
        return looks, True

    def _read(self, looks: Sequence[_Look[Any]], connection: Connection | None) -> Connection | None:
        """Give each read its result or error. Return the connection for the next ones."""
        wait = ObstacleWait(self._patience, alone=LOCK_WAIT, tell_after=TELL_AFTER)
        while True:
            try:
                connection = connection or self._watch.connect(self._address.url)
                with self._watch.break_if_silent(connection):
                    results = _all(looks, connection)
                break
            except Exception as error:  # noqa: BLE001 - the callers get any exception: a name that no table can hold
                if connection is not None:
                    connection.close()
                    connection = None
                failure = translate_error(error, self._address) if isinstance(error, psycopg.Error) else error
            if isinstance(failure, StoreBusy) and self._watch.goes_on(wait, f"{failure}. Waiting for that"):
                continue
            if len(looks) > 1 and not isinstance(failure, StoreBusy):
                return self._read_each(looks)
            _fail(looks, failure)
            return None
        wait.over(f"the server of the store {self._address} can be used again")
        for look, rows in zip(looks, results, strict=True):
            _answer(look, rows)
        return connection

    def _read_each(self, looks: Sequence[_Look[Any]]) -> Connection | None:
        """Read one by one, because one of them is wrong, and the others are not."""
        connection: Connection | None = None
        for look in looks:
            connection = self._read([look], connection)
        return connection


def _all(looks: Sequence[_Look[Any]], connection: Connection) -> list[list[tuple[Any, ...]]]:
    with connection.pipeline():
        cursors = [connection.execute(look.query.sql, look.query.parameters, binary=True) for look in looks]
    return [cursor.fetchall() if cursor.description is not None else [] for cursor in cursors]


def _fail(looks: Sequence[_Look[Any]], failure: Exception) -> None:
    for look in looks:
        if look.waiter is not None:
            look.waiter.error = failure


def _answer(look: _Look[Any], rows: list[tuple[Any, ...]]) -> None:
    if look.waiter is None:
        look.query.decode(rows)
        return
    try:
        look.waiter.result = look.query.decode(rows)
    except Exception as error:  # noqa: BLE001 - the caller gets any exception
        look.waiter.error = error
