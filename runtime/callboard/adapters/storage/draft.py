"""Outcome of commits, computed from the current state without writing: the store's rules as a pure function.

A store reads what the writes name (`Current`), lets a `CommitDraft` decide, and then writes its `records` and
`rows`.
A commit that fails leaves nothing in the draft, so a group of commits can share one transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Protocol

from callboard.adapters.storage.packing import SMALLEST_RECORD, SMALLEST_ROW, pack, record_crc, row_crc
from callboard.ports.store import Append, Delete, Expect, Fence, Put, Row, Write
from callboard.types.errors import Conflict, Fenced
from callboard.types.lazy_dataclass import dataclass

PRESENT = b""
"""Marks a key that has a value; no decision needs its bytes."""

NewRecord = tuple[int, bytes, str | None]
"""Number, data, and id of a record that a draft appends."""

StoredRecord = tuple[str, int, str | None, int, bytes]
"""Stream, number, id, checksum, and data as in the tables."""
StoredRow = tuple[str, int, int, bytes | None]
"""Key, revision, checksum, and value as in the tables."""


class Current(Protocol):
    """State before the first commit of a draft."""

    def last(self, stream: str) -> int:
        """Return the last number of the stream, 0 for a missing one."""
        ...

    def seen(self, stream: str, record_id: str) -> int:
        """Return the number of the record with this id, 0 if the stream has none."""
        ...

    def row(self, key: str) -> Row | None:
        """Return the key's row, also that of a deleted key. Only the presence of the value matters, not its bytes."""
        ...

    def fence(self, lease: str) -> int:
        """Return the number of the lease's newest holder, 0 if it never had one."""
        ...


@dataclass(slots=True)
class StateTables:
    """Ids, rows, and fences as tables: the part of `Current` that is the same wherever the state is kept."""

    ids: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    rows: dict[str, Row] = field(default_factory=dict[str, Row])
    """Rows by key, the last changed one last. A deleted key remains, without a value, so that watchers are notified."""
    fences: dict[str, int] = field(default_factory=dict[str, int])

    def seen(self, stream: str, record_id: str) -> int:
        """See `Current`."""
        return self.ids.get((stream, record_id), 0)

    def row(self, key: str) -> Row | None:
        """See `Current`."""
        return self.rows.get(key)

    def fence(self, lease: str) -> int:
        """See `Current`."""
        return self.fences.get(lease, 0)


@dataclass(slots=True)
class _Changes:
    records: dict[str, list[NewRecord]] = field(default_factory=dict[str, list[NewRecord]])
    ids: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    rows: dict[str, Row] = field(default_factory=dict[str, Row])


class CommitDraft:
    """Changes of the commits that were applied so far."""

    def __init__(self, current: Current) -> None:
        self._current = current
        self._done = _Changes()

    @property
    def records(self) -> dict[str, list[NewRecord]]:
        """Return the new records of each stream, in order."""
        return self._done.records

    @property
    def rows(self) -> dict[str, Row]:
        """Return the newest row of each changed key, without a value if it was deleted."""
        return self._done.rows

    def commit(self, writes: Sequence[Write], fence: Fence | None) -> tuple[int, ...]:
        """Apply the writes in order, and return one number for each, as `Store.commit` does.

        Raises `Conflict` and `Fenced`; the draft is then as before.
        """
        if fence is not None and (newest := self._current.fence(fence.lease)) != fence.number:
            raise Fenced(
                f"lease {fence.lease} went to another process (number {newest}, after {fence.number}): "
                "this process has stopped writing, so that two never write one journal"
            )
        part = _Part(self._current, self._done)
        numbers = tuple([part.write(write) for write in writes])
        for stream, records in part.new.records.items():
            self._done.records.setdefault(stream, []).extend(records)
        self._done.ids.update(part.new.ids)
        for key, row in part.new.rows.items():
            self._done.rows.pop(key, None)  # the last changed key comes last
            self._done.rows[key] = row
        return numbers


class _Part:
    """One commit, on top of what the commits before it have changed."""

    def __init__(self, current: Current, before: _Changes) -> None:
        self._current = current
        self._before = before
        self.new = _Changes()

    def write(self, write: Write) -> int:
        match write:
            case Append():
                return self._append(write)
            case Put():
                return self._set(write.key, bytes(write.value), write.expected)
            case Delete():
                self._set(write.key, None, write.expected)
                return 0
            case Expect():
                if (last := self._last(write.stream)) != write.last:
                    raise Conflict(write.stream, write.last, last)
                return 0

    def _append(self, write: Append) -> int:
        # Before the expectation is compared, because a caller that repeats a commit after a crash expects the old
        # number (test_an_id_seen_before_wins_over_an_expectation_so_a_commit_may_be_repeated).
        if write.id is not None and (seen := self._seen(write.stream, write.id)):
            return seen
        stream = write.stream
        appended = self.new.records.get(stream)
        last = appended[-1][0] if appended else self._last(stream)
        if write.expected is not None and write.expected != last:
            raise Conflict(stream, write.expected, last)
        seq = last + 1
        if appended is None:
            appended = self.new.records[stream] = []
        appended.append((seq, bytes(write.record), write.id))
        if write.id is not None:
            self.new.ids[stream, write.id] = seq
        return seq

    def _seen(self, stream: str, record_id: str) -> int:
        name = (stream, record_id)
        return self.new.ids.get(name) or self._before.ids.get(name) or self._current.seen(stream, record_id)

    def _last(self, stream: str) -> int:
        for changes in (self.new, self._before):
            if records := changes.records.get(stream):
                return records[-1][0]
        return self._current.last(stream)

    def _set(self, key: str, value: bytes | None, expected: int | None) -> int:
        # A deleted key keeps its row without a value, so that its revision never decreases
        # (test_a_revision_never_falls_also_over_deletion).
        row = self.new.rows.get(key) or self._before.rows.get(key) or self._current.row(key)
        newest = row.revision if row is not None else 0
        revision = newest if row is not None and row.value is not None else 0
        if expected is not None and expected != revision:
            raise Conflict(key, expected, revision)
        if value is not None or revision:
            self.new.rows[key] = Row(key, value, newest + 1)
        return newest + 1


def stored_records(draft: CommitDraft) -> list[StoredRecord]:
    """Return the new records as they are stored."""
    records: list[StoredRecord] = []
    for stream, appended in draft.records.items():
        for seq, data, record_id in appended:
            stored, crc = pack(data, record_crc(stream, seq, record_id, data), SMALLEST_RECORD)
            records.append((stream, seq, record_id, crc, stored))
    return records


def stored_row(row: Row) -> StoredRow:
    """Return a changed row as it is stored."""
    if row.value is None:
        return row.key, row.revision, 0, None
    stored, crc = pack(row.value, row_crc(row.key, row.revision, row.value), SMALLEST_ROW)
    return row.key, row.revision, crc, stored
