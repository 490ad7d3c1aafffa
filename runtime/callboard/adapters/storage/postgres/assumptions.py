"""Commits of one round trip: what this process assumes about the streams and keys, and the server compares.

Most commits of a host concern streams and keys that it wrote last, so it knows their state. It decides the commits with
that state, and sends the result together with the assumptions to the function `commit_if` of the server. The
function locks, compares, and writes in one transaction, or changes nothing. After a wrong assumption the writer reads
the state first, which takes two round trips; only that way ever refuses a commit.

Each transaction writes a number into this process's row of the table `writer`. So if the answer is lost, the server can
be asked whether it took place, and the same question keeps it from taking place later.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from callboard.adapters.storage.draft import PRESENT, CommitDraft, StateTables, stored_records, stored_row
from callboard.adapters.storage.postgres.address import Connection, run
from callboard.ports.store import Append, Delete, Expect, Fence, Put, Row, Write
from callboard.types.lazy_dataclass import dataclass

MOST_KNOWN = 65_536
"""Streams, and keys, whose state is remembered."""
LONGEST_DOUBT = 64
"""Most commits after a wrong assumption until a name is trusted again: another host writes it too."""
WRONG_ASSUMPTION = "CB001"
"""SQLSTATE of `commit_if` if the state differs from what this process assumed. Its detail is the name."""
SUPERSEDED = "CB002"
"""SQLSTATE of `number_commit` if the row of the writer has another number: it was asked for, or removed."""


@dataclass(slots=True)
class GroupNames:
    """Names in the commits of a group, sorted: the order in which rows are locked."""

    streams: list[str]
    keys: list[str]
    leases: list[str]
    ids: list[tuple[str, str]]

    @classmethod
    def of(cls, commits: Iterable[tuple[Sequence[Write], Fence | None]]) -> GroupNames:
        """Return the names in these commits."""
        every = [*commits]
        writes = [write for writes, _ in every for write in writes]
        appends = [write for write in writes if isinstance(write, Append)]
        return cls(
            streams=sorted({write.stream for write in writes if isinstance(write, Append | Expect)}),
            keys=sorted({write.key for write in writes if isinstance(write, Put | Delete)}),
            leases=sorted({fence.lease for _, fence in every if fence is not None}),
            ids=[(write.stream, write.id) for write in appends if write.id is not None],
        )


@dataclass(slots=True)
class NamedState(StateTables):
    """State of the names of a group (`draft.Current`)."""

    lasts: dict[str, int] = field(default_factory=dict[str, int])

    def last(self, stream: str) -> int:
        """Return the last number of the stream."""
        return self.lasts.get(stream, 0)


class Assumptions:
    """State that this process has left, or found, at the end of each name's last commit."""

    def __init__(self) -> None:
        self._lasts: dict[str, int] = {}
        self._rows: dict[str, Row] = {}
        self._doubts: dict[str, int] = {}
        """Name -> commits until it is trusted again."""
        self._mistakes: dict[str, int] = {}

    def state_for(
        self, commits: Sequence[tuple[Sequence[Write], Fence | None]], names: GroupNames
    ) -> NamedState | None:
        """Return the state to assume for a group, with an entry for each name; None if one is unknown."""
        if any(self._doubts.get(name) for name in (*names.streams, *names.keys)):
            return None
        state = NamedState()
        for writes, fence in commits:
            if fence is not None and state.fences.setdefault(fence.lease, fence.number) != fence.number:
                return None
            for write in writes:
                if not self._assume(write, state):
                    return None
        return state

    def learn(self, names: GroupNames, state: NamedState, draft: CommitDraft) -> None:
        """Store the state after a finished transaction."""
        for stream in names.streams:
            records = draft.records.get(stream)
            _remember(self._lasts, stream, records[-1][0] if records else state.last(stream))
        for key in names.keys:
            row = draft.rows.get(key) or state.row(key)
            present = row is not None and row.value is not None
            _remember(self._rows, key, Row(key, PRESENT if present else None, row.revision if row is not None else 0))
        for name in (*names.streams, *names.keys) if self._doubts else ():
            if doubt := self._doubts.pop(name, 0):
                self._doubts.update({name: doubt - 1} if doubt > 1 else {})

    def doubt(self, name: str) -> None:
        """Read this name before the next commits: another host has written it."""
        mistakes = min(2 * self._mistakes.get(name, 1), LONGEST_DOUBT)
        _remember(self._mistakes, name, mistakes)
        _remember(self._doubts, name, mistakes)

    def _assume(self, write: Write, state: NamedState) -> bool:
        """Add what to assume about the name of a write. The caller's expectation is newer than what is remembered."""
        if isinstance(write, Append | Expect):
            if write.stream in state.lasts:
                return True
            last = write.last if isinstance(write, Expect) else write.expected
            last = self._lasts.get(write.stream) if last is None else last
            if last is not None:
                state.lasts[write.stream] = last
            return last is not None
        if write.key in state.rows:
            return True
        row = self._rows.get(write.key)
        if write.expected is not None and (row is None or row.value is not None or write.expected):
            row = Row(write.key, PRESENT if write.expected else None, write.expected)
        if row is not None:
            state.rows[write.key] = row
        return row is not None


def _remember(table: dict[str, Any], name: str, value: object) -> None:
    """Store the value as the newest entry, and forget the oldest ones."""
    table.pop(name, None)
    table[name] = value
    while len(table) > MOST_KNOWN:
        del table[next(iter(table))]


class NumberedCommits:
    """Row of this process in the table `writer`: the number of its last transaction that wrote something."""

    def __init__(self) -> None:
        self.writer = str(uuid.uuid4())
        """Name of the row."""
        self.done = 0
        """Number in the row, as far as this process knows; 0: there is no row yet."""
        self._newest = 0

    def next(self) -> int:
        """Return a number that was never used for this row."""
        self._newest += 1
        return self._newest

    def took_place(self, connection: Connection, number: int) -> bool | None:
        """Return whether the transaction with this number has committed, and keep it from doing so later.

        None: the row is gone, and nobody knows. Repeat the call if its answer is lost. Raises `psycopg.Error`.
        """
        bar = self._newest = max(self._newest, number) + 1
        # Both wait for a transaction of the broken connection that is still at work.
        if self.done:
            run(
                connection,
                "UPDATE callboard.writer SET commits = %s WHERE id = %s::uuid AND commits = %s",
                (bar, self.writer, self.done),
            )
        else:
            run(
                connection,
                "INSERT INTO callboard.writer (id, commits) VALUES (%s::uuid, %s) ON CONFLICT DO NOTHING",
                (self.writer, bar),
            )
        rows = run(connection, "SELECT commits FROM callboard.writer WHERE id = %s::uuid", (self.writer,))
        if not rows:
            return None
        self.done = int(rows[0][0])
        return self.done == number


def commit_if(
    connection: Connection, names: GroupNames, state: NamedState, draft: CommitDraft, *, numbers: Mapping[str, object]
) -> bool:
    """Write the draft if the state is as assumed, and return whether another host listens. One round trip.

    `numbers`: the parameters `space`, `durable`, `host`, `writer`, `done`, and `number`. Raises `psycopg.Error`;
    nothing is written then, unless the connection is lost.
    """
    positions = {stream: at for at, stream in enumerate(names.streams, 1)}
    ends = {stream: records[-1][0] for stream, records in draft.records.items()}
    rows = [_row_change(key, state, draft) for key in names.keys]
    records = stored_records(draft)
    cursor = connection.execute(
        "SELECT callboard.commit_if(%(space)s::int, %(durable)s, %(host)s::int, "
        "%(writer)s::uuid, %(done)s::bigint, %(number)s::bigint, "
        "%(leases)s::text[], %(fences)s::bigint[], "
        "%(streams)s::text[], %(lasts)s::bigint[], %(ends)s::bigint[], "
        "%(places)s::int[], %(seqs)s::bigint[], %(ids)s::text[], %(crcs)s::bigint[], %(data)b::bytea[], "
        "%(keys)s::text[], %(before)s::bigint[], %(present)s::boolean[], "
        "%(revisions)s::bigint[], %(row_crcs)s::bigint[], %(values)b::bytea[])",
        {
            **numbers,
            "leases": names.leases,
            "fences": [state.fences[lease] for lease in names.leases],
            "streams": names.streams,
            "lasts": [state.lasts[stream] for stream in names.streams],
            "ends": [ends.get(stream, state.lasts[stream]) for stream in names.streams],
            "places": [positions[record[0]] for record in records],
            "seqs": [record[1] for record in records],
            "ids": [record[2] for record in records],
            "crcs": [record[3] for record in records],
            "data": [record[4] for record in records],
            "keys": names.keys,
            "before": [row[0] for row in rows],
            "present": [row[1] for row in rows],
            "revisions": [row[2] for row in rows],
            "row_crcs": [row[3] for row in rows],
            "values": [row[4] for row in rows],
        },
    )
    return bool(cursor.fetchall()[0][0])


def _row_change(key: str, state: NamedState, draft: CommitDraft) -> tuple[int, bool, int, int, bytes | None]:
    """Return the assumed revision, whether the key is assumed to have a value, and what to write."""
    before = state.rows[key]
    row = draft.rows.get(key)
    present = before.value is not None
    if row is None:  # only compared
        return before.revision, present, before.revision, 0, None
    _, revision, crc, value = stored_row(row)
    return before.revision, present, revision, crc, value
