"""The single thread that commits: it takes the queued commits of all agents, and makes one transaction of them.

Most transactions take one round trip: this process knows the state of the names that it wrote last, and the server
compares it (`assumptions`). Other transactions take two, whatever the number of commits. The first locks and reads the
streams, keys and leases that the commits name; `storage.draft` then decides each commit; the second writes what they
changed, and commits. Locks are taken in the order of the names, so that two hosts never wait for each other in a
circle.

The connection can break after the commit was sent. Then only the server knows the outcome, and it is asked before
anything is tried again. Each transaction writes a number of its own into the row of this process. The server's own
number of the transaction cannot be used: a server that crashes gives it to another one.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import field
from typing import Any

import psycopg
from psycopg.types.numeric import Int8Dumper

from callboard.adapters.storage.draft import PRESENT, CommitDraft, StoredRow, stored_records, stored_row
from callboard.adapters.storage.patience import LOCK_WAIT, TELL_AFTER, ObstacleWait, Patience
from callboard.adapters.storage.postgres.address import (
    ANSWER_SECONDS,
    IDLE_SECONDS,
    AnswerWatch,
    Connection,
    ServerAddress,
    milliseconds,
    run,
)
from callboard.adapters.storage.postgres.assumptions import (
    SUPERSEDED,
    WRONG_ASSUMPTION,
    Assumptions,
    GroupNames,
    NamedState,
    NumberedCommits,
    commit_if,
)
from callboard.adapters.storage.postgres.faults import (
    is_away,
    may_repeat,
    translate_error,
)
from callboard.adapters.storage.threads import AnswerWaiter, ClosableQueue, wake
from callboard.ports.store import Fence, Row, Write
from callboard.types.errors import Conflict, Fenced, StoreBusy, StoreFull
from callboard.types.lazy_dataclass import dataclass

BATCH = 256
"""Most commits in one transaction. Limits how long the first waits for the last."""
LEAVING_SECONDS = 2.0
"""Most seconds that a process waits at its end for the server to remove its row."""
TRANSACTION_SECONDS = ANSWER_SECONDS
"""Seconds after which a server that can do so ends a transaction of this process, also in the middle of a message. The
process does not wait longer either."""
LIMITING_SERVER = 170_000
"""First version of the server that can limit a whole transaction."""
Cursor = psycopg.Cursor[tuple[Any, ...]]


@dataclass(frozen=True)
class CommitHooks:
    """Functions of the store that the thread calls."""

    changed: Callable[[Collection[str], Collection[str], bool], None]
    """Called with the streams and keys of each finished transaction, and whether another host may listen."""
    host: Callable[[], int]
    """Returns the number of this process in the table `host`, 0 if it has none."""


@dataclass(eq=False)
class CommitJob:
    """One caller's commit."""

    writes: tuple[Write, ...]
    fence: Fence | None
    waiter: AnswerWaiter[tuple[int, ...]]


@dataclass(slots=True)
class _Attempt:
    """One try of a group."""

    number: int = 0
    """Number of the transaction in this process's row. Not 0 from the moment that the commit may have been sent."""
    unknown: bool = False
    """True if nobody knows whether it has committed."""
    outcomes: list[tuple[int, ...] | Exception] = field(default_factory=list[tuple[int, ...] | Exception])
    """Result of each job, valid if the transaction commits."""
    streams: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    ring: bool = True
    """False if no other host listens."""

    def take(self, draft: CommitDraft) -> None:
        """Store what the draft changes."""
        self.streams = tuple(draft.records)
        self.keys = tuple(draft.rows)


class _Waits:
    """Waits of one group: for a server that cannot be reached, and for room on its disk."""

    def __init__(self, patience: Patience, address: ServerAddress, watch: AnswerWatch) -> None:
        self._watch = watch
        self._server = ObstacleWait(patience, alone=LOCK_WAIT, tell_after=TELL_AFTER)
        self._room = ObstacleWait(patience, alone=0.0)
        self._address = address

    def go_on(self, error: Exception) -> bool:
        """Wait one more moment for the end of this obstacle; return False if it is none, or after the time limit."""
        if isinstance(error, StoreBusy):
            return self._watch.goes_on(self._server, f"{error}. Waiting for that")
        return isinstance(error, StoreFull) and self._room.goes_on(f"{error}. Waiting for that")

    def end(self) -> None:
        """Report the end of the waits that were reported."""
        self._server.over(f"the server of the store {self._address} can be used again: nothing was lost")
        self._room.over(f"the server of the store {self._address} has room again: nothing was lost")


class PostgresWriter:
    """Owner of the committing connection and of the thread. The connection is made at the first commit."""

    def __init__(
        self,
        address: ServerAddress,
        space: int,
        patience: Patience,
        watch: AnswerWatch,
        *,
        hooks: CommitHooks,
        durable: bool,
    ) -> None:
        """Start the thread."""
        self._address = address
        self._space = space
        self._patience = patience
        self._watch = watch
        self._hooks = hooks
        self._durable = durable
        self._connection: Connection | None = None
        self._assumptions = Assumptions()
        self._numbers = NumberedCommits()
        self._queue = ClosableQueue[CommitJob | None]()
        self._thread = threading.Thread(target=self._run, name="callboard-store-writer", daemon=True)
        self._thread.start()

    async def commit(self, writes: tuple[Write, ...], fence: Fence | None) -> tuple[int, ...]:
        """Return the numbers once the commit is durable. Cancelling the caller does not undo it."""
        waiter = AnswerWaiter[tuple[int, ...]]()
        self._queue.put(CommitJob(writes, fence, waiter))
        return await waiter.wait()

    def stop(self) -> None:
        """Finish the queued commits, close the connection, and end the thread. Blocks until it has ended."""
        self._queue.close(None)
        self._thread.join()

    def _run(self) -> None:
        ended = False
        while not ended:
            jobs, ended = self._take()
            if jobs:
                self._commit(jobs)
                wake(job.waiter for job in jobs)
        self._leave()
        self._drop()

    def _take(self) -> tuple[list[CommitJob], bool]:
        jobs: list[CommitJob] = []
        entry = self._queue.get()
        while entry is not None:
            jobs.append(entry)
            if len(jobs) == BATCH:
                return jobs, False
            try:
                entry = self._queue.get_nowait()
            except queue.Empty:
                return jobs, False
        return jobs, True

    def _commit(self, jobs: list[CommitJob]) -> None:
        """Commit the jobs, in one transaction if the server takes them so. Every job gets a result or an error."""
        waits = _Waits(self._patience, self._address, self._watch)
        while True:
            attempt = _Attempt()
            failure = self._failure_of(jobs, attempt, waits)
            if failure is None:
                break
            self._assumptions = Assumptions()
            if attempt.unknown:
                error = translate_error(failure, self._address) if isinstance(failure, psycopg.Error) else failure
                _answer(jobs, [error] * len(jobs))
                return
            if isinstance(failure, psycopg.Error) and may_repeat(failure):
                if failure.sqlstate == SUPERSEDED:
                    self._numbers = NumberedCommits()
                continue
            gone = isinstance(failure, psycopg.Error) and is_away(failure)
            if len(jobs) > 1 and not gone:
                # Only one of them may be refused, such as one that is too large for the server's disk.
                for job in jobs:
                    self._commit([job])
                return
            error = translate_error(failure, self._address) if isinstance(failure, psycopg.Error) else failure
            if not waits.go_on(error):
                _answer(jobs, [error] * len(jobs))
                return
        waits.end()
        _answer(jobs, attempt.outcomes)
        if attempt.streams or attempt.keys:
            self._hooks.changed(attempt.streams, attempt.keys, attempt.ring)

    def _failure_of(self, jobs: list[CommitJob], attempt: _Attempt, waits: _Waits) -> Exception | None:
        """Try once. Return None if the transaction is committed, else why it is not."""
        try:
            self._run_transaction(jobs, attempt)
        except psycopg.Error as error:
            return None if self._is_committed(attempt, error, waits) else error
        except Exception as error:  # noqa: BLE001 - the callers get any exception: a name that no table can hold
            self._drop()
            return error
        return None

    def _is_committed(self, attempt: _Attempt, error: psycopg.Error, waits: _Waits) -> bool:
        """Return True if the attempt has committed although it failed with `error`. Forgets a broken connection.

        Raises nothing: while the server cannot be asked, it waits like any commit; without an answer the caller gets
        the error, and repeats or not as after a crash.
        """
        if self._connection is not None and (self._connection.broken or not may_repeat(error)):
            self._drop()
        elif self._connection is not None:
            self._roll_back()
        if not attempt.number or may_repeat(error):
            return False
        while True:
            try:
                connection = self._connected()
                with self._watch.break_if_silent(connection):
                    took_place = self._numbers.took_place(connection, attempt.number)
            except psycopg.Error as unanswered:
                self._drop()
                took_place = None
                if waits.go_on(
                    translate_error(unanswered, self._address)
                ):  # it writes, so a full disk is waited for, too
                    continue
            attempt.unknown = took_place is None
            return bool(took_place)

    def _run_transaction(self, jobs: list[CommitJob], attempt: _Attempt) -> None:
        """Run one transaction. Raises `psycopg.Error`."""
        connection = self._connected()
        names = GroupNames.of((job.writes, job.fence) for job in jobs)
        with self._watch.break_if_silent(connection):
            if not self._commit_at_once(connection, jobs, names, attempt):
                self._transact(connection, jobs, names, attempt)

    def _commit_at_once(
        self, connection: Connection, jobs: list[CommitJob], names: GroupNames, attempt: _Attempt
    ) -> bool:
        """Commit with what is assumed. Return False if nothing was done: the state has to be read first."""
        commits = [(job.writes, job.fence) for job in jobs]
        state = self._assumptions.state_for(commits, names)
        if state is None:
            return False
        draft = CommitDraft(state)
        try:
            attempt.outcomes = [draft.commit(*commit) for commit in commits]
        except (Conflict, Fenced):  # perhaps only because of a wrong assumption
            return False
        attempt.take(draft)
        if not (attempt.streams or attempt.keys):
            return False
        attempt.number = self._numbers.next()
        try:
            attempt.ring = commit_if(
                connection,
                names,
                state,
                draft,
                numbers={
                    "space": self._space,
                    "durable": self._durable,
                    "host": self._hooks.host(),
                    "writer": self._numbers.writer,
                    "done": self._numbers.done,
                    "number": attempt.number,
                },
            )
        except psycopg.Error as error:
            if not self._was_refused(error):
                raise
            attempt.number = 0
            return False
        self._numbers.done = attempt.number
        self._assumptions.learn(names, state, draft)
        return True

    def _was_refused(self, error: psycopg.Error) -> bool:
        """Return True if the server has compared, and has written nothing."""
        if error.sqlstate == WRONG_ASSUMPTION:
            self._assumptions.doubt(error.diag.message_detail or "")
            return True
        return may_repeat(error)

    def _transact(self, connection: Connection, jobs: list[CommitJob], names: GroupNames, attempt: _Attempt) -> None:
        """Read the state, decide, and write. Two round trips."""
        with connection.pipeline() as pipeline:
            state = self._lock(connection, pipeline, names)
            draft = CommitDraft(state)
            attempt.outcomes = []
            for job in jobs:
                try:
                    attempt.outcomes.append(draft.commit(job.writes, job.fence))
                except (Conflict, Fenced) as refused:
                    attempt.outcomes.append(refused)
            attempt.take(draft)
            if attempt.streams or attempt.keys:
                attempt.number = self._numbers.next()
                self._write_records(connection, draft, state)
                self._write_rows(connection, draft, state)
                connection.execute(
                    "SELECT callboard.number_commit(%s::uuid, %s::bigint, %s::bigint)",
                    (self._numbers.writer, self._numbers.done, attempt.number),
                )
            connection.execute("COMMIT")
        if attempt.number:
            self._numbers.done = attempt.number
        self._assumptions.learn(names, state, draft)

    def _lock(self, connection: Connection, pipeline: psycopg.Pipeline, names: GroupNames) -> NamedState:
        """Begin a transaction, and lock and read what the commits name. One round trip."""
        state = NamedState()
        connection.execute("BEGIN")
        self._set_up(connection)
        leases: Cursor | None = None
        streams: Cursor | None = None
        ids: Cursor | None = None
        rows: Cursor | None = None
        if names.leases:
            # Not FOR UPDATE: commits of one host need not wait for each other, only a new holder for all of them.
            leases = connection.execute(
                "SELECT name, number FROM callboard.lease WHERE space = %s AND name = ANY(%s) ORDER BY name FOR SHARE",
                (self._space, names.leases),
            )
        if names.streams:
            streams = connection.execute(
                "SELECT name, last FROM callboard.stream WHERE space = %s AND name = ANY(%s) ORDER BY name FOR UPDATE",
                (self._space, names.streams),
            )
        if names.ids:
            ids = connection.execute(
                "SELECT w.stream, w.id, r.seq FROM unnest(%s::text[], %s::text[]) AS w (stream, id) "
                "JOIN callboard.stream s ON s.space = %s AND s.name = w.stream "
                "JOIN callboard.record r ON r.stream = s.number AND r.id = w.id",
                ([stream for stream, _ in names.ids], [record_id for _, record_id in names.ids], self._space),
            )
        if names.keys:
            rows = connection.execute(
                "SELECT key, revision, value IS NOT NULL FROM callboard.row WHERE space = %s AND key = ANY(%s) "
                "ORDER BY key FOR UPDATE",
                (self._space, names.keys),
            )
        # Not the end of the pipeline, which sends one more message: with that, the server counts as busy, and the
        # time of a process that says nothing does not begin.
        pipeline.sync()
        state.fences = dict(leases.fetchall()) if leases else {}
        state.lasts = dict(streams.fetchall()) if streams else {}
        state.ids = {(stream, record_id): seq for stream, record_id, seq in (ids.fetchall() if ids else ())}
        current: list[tuple[str, int, bool]] = rows.fetchall() if rows else []
        state.rows = {key: Row(key, PRESENT if present else None, revision) for key, revision, present in current}
        return state

    def _set_up(self, connection: Connection) -> None:
        """Set how durable a transaction is, and when the server ends it because this process says nothing.

        If this process is frozen or cut off now, its locks must not keep others from its leases, streams, and keys
        (test_a_host_that_is_frozen_in_a_transaction_is_replaced_and_does_not_cut_off_the_next_one).
        """
        # The server may be configured otherwise, and a pooler keeps no setting of a session.
        connection.execute(
            "SELECT set_config('synchronous_commit', %s, true), "
            "set_config('idle_in_transaction_session_timeout', %s, true)",
            ("on" if self._durable else "off", milliseconds(IDLE_SECONDS)),
        )
        if connection.info.server_version >= LIMITING_SERVER:
            # In the middle of a message no process is idle.
            limit = milliseconds(TRANSACTION_SECONDS)
            connection.execute("SELECT set_config('transaction_timeout', %s, true)", (limit,))

    def _write_records(self, connection: Connection, draft: CommitDraft, state: NamedState) -> None:
        records = stored_records(draft)
        lasts = {stream: appended[-1][0] for stream, appended in sorted(draft.records.items())}
        new = {stream: last for stream, last in lasts.items() if stream not in state.lasts}
        old = {stream: last for stream, last in lasts.items() if stream in state.lasts}
        if new:  # fails if another host has created the same stream: the group is then tried again
            connection.execute(
                "INSERT INTO callboard.stream (space, name, last) "
                "SELECT %s, w.name, w.last FROM unnest(%s::text[], %s::bigint[]) AS w (name, last)",
                (self._space, list(new), list(new.values())),
            )
        if old:
            connection.execute(
                "UPDATE callboard.stream s SET last = w.last FROM unnest(%s::text[], %s::bigint[]) AS w (name, last) "
                "WHERE s.space = %s AND s.name = w.name",
                (list(old), list(old.values()), self._space),
            )
        if records:
            streams, seqs, ids, crcs, data = zip(*records, strict=True)
            connection.execute(
                "INSERT INTO callboard.record (stream, seq, id, crc, data) "
                "SELECT s.number, w.seq, w.id, w.crc, w.data "
                "FROM unnest(%s::text[], %s::bigint[], %s::text[], %s::bigint[], %b::bytea[]) "
                "AS w (stream, seq, id, crc, data) "
                "JOIN callboard.stream s ON s.space = %s AND s.name = w.stream",
                (list(streams), list(seqs), list(ids), list(crcs), list(data), self._space),
            )

    def _write_rows(self, connection: Connection, draft: CommitDraft, state: NamedState) -> None:
        new: list[StoredRow] = []
        old: list[StoredRow] = []
        for key, row in sorted(draft.rows.items()):
            (old if key in state.rows else new).append(stored_row(row))
        if new:  # fails if another host has created the same key: the group is then tried again
            connection.execute(
                "INSERT INTO callboard.row (space, key, revision, crc, value) "
                "SELECT %s, w.* FROM unnest(%s::text[], %s::bigint[], %s::bigint[], %b::bytea[]) AS w",
                (self._space, *_columns(new)),
            )
        if old:
            connection.execute(
                "UPDATE callboard.row r SET revision = w.revision, crc = w.crc, value = w.value, "
                "changed = pg_current_xact_id() "
                "FROM unnest(%s::text[], %s::bigint[], %s::bigint[], %b::bytea[]) AS w (key, revision, crc, value) "
                "WHERE r.space = %s AND r.key = w.key",
                (*_columns(old), self._space),
            )

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = self._watch.connect(self._address.url)
            # Numbers of all sizes have one type, so that a statement is prepared once.
            self._connection.adapters.register_dumper(int, Int8Dumper)
        return self._connection

    def _roll_back(self) -> None:
        if self._connection is not None:
            try:
                self._connection.execute("ROLLBACK")
            except psycopg.Error:
                self._drop()

    def _leave(self) -> None:
        """Remove this process's row, and those of processes that were killed long ago."""
        if self._numbers.done and self._connection is not None and not self._watch.silent:
            # The row matters no more.
            with suppress(psycopg.Error), self._watch.break_after(self._connection, LEAVING_SECONDS):
                run(
                    self._connection,
                    "DELETE FROM callboard.writer WHERE id = %s::uuid OR used < now() - interval '7 days'",
                    (self._numbers.writer,),
                )

    def _drop(self) -> None:
        if self._connection is not None:
            with suppress(psycopg.Error):  # it may be broken, and is given up in any case
                self._connection.close()
            self._connection = None


def _answer(jobs: Sequence[CommitJob], outcomes: Sequence[tuple[int, ...] | Exception]) -> None:
    for job, outcome in zip(jobs, outcomes, strict=True):
        if isinstance(outcome, Exception):
            job.waiter.error = outcome
        else:
            job.waiter.result = outcome


def _columns(rows: Sequence[tuple[Any, ...]]) -> tuple[list[Any], ...]:
    return tuple(list(column) for column in zip(*rows, strict=True))
