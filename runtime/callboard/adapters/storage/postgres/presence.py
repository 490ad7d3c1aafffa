"""The direct connection of a process: its row among the hosts, its leases, and how it is woken.

A process that holds a lease or follows something has a row in `host`. Its thread renews the row once a second. A host
whose row is older than `DEAD_SECONDS`, by the server's clock, is dead: others may take its leases. A process that could
not renew its row for `SILENT_SECONDS`, by its own clock, must have ended its work before that (`Presence.cut_off`). So
no clocks are compared between machines, only durations. When the server answers again, such a process gets a new row:
the leases of the old one are lost to it, and free for everybody.

A dead process on the same machine is noticed at once, by its pid and start time.

The thread also listens on a channel of its own. A ring names the streams and keys that changed; it carries no data.
"""

from __future__ import annotations

import os
import queue
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import field
from typing import Any, Generic, TypeVar

import psycopg
from psycopg.errors import LockNotAvailable

from callboard.adapters.kernel.process_table import is_alive, place_here, row_of
from callboard.adapters.storage.patience import LEAVING, LOCK_WAIT, TELL_AFTER, ObstacleWait, Patience
from callboard.adapters.storage.postgres.address import (
    IDLE_SECONDS,
    AnswerWatch,
    Connection,
    ServerAddress,
    is_pooled,
    milliseconds,
    run,
)
from callboard.adapters.storage.postgres.faults import away, is_away, translate_error
from callboard.adapters.storage.postgres.queries import Query, Rows
from callboard.adapters.storage.threads import AnswerWaiter, ClosableQueue, wake
from callboard.ports.store import Fence, LeaseHolder, PresentProcess
from callboard.types.errors import StoreBusy, WorkspaceUnusable
from callboard.types.lazy_dataclass import dataclass

T = TypeVar("T")

BEAT_SECONDS = 1.0
SILENT_SECONDS = 5.0
"""Seconds without a renewal after which a process must end its own tools and agents."""
DEAD_SECONDS = 10.0
"""Seconds without a renewal, by the server's clock, after which others may take a host's leases."""
LARGEST_RING = 7_000
"""Bytes of names in one ring. The server accepts fewer than 8,000 (postgresql.org/docs/current/sql-notify.html)."""
FREED_AFTER = 2.0
"""Seconds after the end of a period until its leases are free: time for the agents of this process to end."""
FORGOTTEN_SECONDS = 86_400.0
"""Seconds without a renewal, by the server's clock, after which the row of a dead host is removed."""
LOCK_SECONDS = 0.5
"""Seconds that a statement waits for a lock. Then the thread renews its row first: the lock's owner may be frozen."""
LOCKED_SECONDS = 10.0
"""Seconds that a caller waits for such a lock. The server takes it from a frozen process before (`IDLE_SECONDS`)."""
EVERYTHING = "*"
_SEPARATOR = "\n"


def monotonic() -> float:
    """Return seconds on a clock that also counts while the machine sleeps."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(clock)


class _StillLocked(StoreBusy):
    """A row of the server was locked by another process for too long."""


@dataclass(eq=False)
class _Task(Generic[T]):
    work: Callable[[Connection], T]
    waiter: AnswerWaiter[T]
    patient: bool = False
    """True if it waits for the server also after this process was cut off."""


@dataclass(slots=True)
class _Row:
    """This process's row in `host`."""

    number: int = 0
    """0: there is no row yet."""
    renewed: float = 0.0
    """Time of the last renewal that the server has confirmed, taken before it was sent (`monotonic`)."""


@dataclass(frozen=True, slots=True)
class Callbacks:
    """Functions of the store that the thread calls."""

    handle_ring: Callable[[set[str] | None], None]
    """Called with the names of a ring, each with its letter (`s` or `k`); None: anything may have changed."""
    look: Callable[[], None]
    """Called once a second while a reader follows."""


@dataclass(slots=True)
class _State:
    row: _Row = field(default_factory=_Row)
    listening: bool = False
    listens: bool = False
    """True if the connection listens."""
    stopped: bool = False
    held: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    """Names and numbers of the leases of this process."""
    about: bytes | None = None
    """Statement of this process about itself."""
    period: int = 0
    """Number of times that this process was cut off. Leases of an earlier period are lost."""
    lost: int = 0
    """Number of the row of the period before, until it is removed; 0: none."""
    lost_at: float = 0.0
    """Time of the end of that period (`monotonic`)."""


class Presence:
    """Owner of the direct connection and of its thread. Both begin at the first lease or follower."""

    def __init__(
        self, address: ServerAddress, space: int, patience: Patience, watch: AnswerWatch, *, callbacks: Callbacks
    ) -> None:
        self._address = address
        self._space = space
        self._patience = patience
        self._watch = watch
        self._call = callbacks
        self._state = _State()
        self._connection: Connection | None = None
        self._tasks = ClosableQueue[_Task[Any] | None]()
        self._wakes, self._woken = socket.socketpair()
        for channel in (self._wakes, self._woken):
            channel.setblocking(False)
        self._lock = threading.Lock()
        self._ended: list[AnswerWaiter[None]] = []
        """Callers that wait for the end of the period."""
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        process = row_of(self._pid)
        self._started = 0.0 if process is None else process.started
        self._place = place_here()

    # From the store's callers

    async def acquire(self, name: str) -> Fence | LeaseHolder:
        """Return the fence of the new lease, or the holder of the lease."""
        try:
            return await self._do(lambda connection: self._acquire(connection, name))
        except _StillLocked:
            # Not free while a transaction under it may still commit, even if its holder counts as dead
            # (test_a_lease_that_stays_locked_is_held_and_the_candidate_goes_on_renewing).
            last = await self._do(lambda connection: self._last_holder(connection, name))
            if last is None:
                raise
            return last

    async def holder(self, name: str) -> LeaseHolder | None:
        """Return the living holder of the lease."""
        return await self._do(lambda connection: self._living_holder(connection, name))

    async def release(self, fence: Fence) -> None:
        """Free the lease. Raises nothing: what cannot be told to the server now ends with this process's row."""
        if (fence.lease, fence.number) in self._state.held and not self._watch.silent:
            with suppress(Exception):
                await self._do(lambda connection: self._release(connection, fence))

    async def announce(self, about: bytes) -> None:
        """Add a statement of this process to its row."""
        self._state.about = about
        await self._do(self._announce)

    def present(self) -> Query[Sequence[PresentProcess]]:
        """Return the statement that reads the living processes, with their leases."""
        return Query(
            "SELECT h.number, h.pid, h.started, h.place, h.machine, "
            "extract(epoch FROM clock_timestamp() - h.seen)::float8, h.about, l.names "
            "FROM callboard.host h LEFT JOIN (SELECT host, array_agg(name ORDER BY name) AS names "
            "FROM callboard.lease WHERE space = %s AND host IS NOT NULL GROUP BY host) l ON l.host = h.number "
            "WHERE h.space = %s AND h.seen > clock_timestamp() - make_interval(secs => %s) "
            "ORDER BY h.machine, h.pid, h.number",
            (self._space, self._space, DEAD_SECONDS),
            self._decoded,
        )

    def listen(self, active: bool) -> None:
        """Set whether a reader follows."""
        self._state.listening = active
        if active:
            self._begin()
        self._nudge()

    def ring(self, streams: Iterable[str], keys: Iterable[str]) -> Query[None]:
        """Return the statement that wakes the other processes that listen."""
        names = [f"s{stream}" for stream in streams] + [f"k{key}" for key in keys]
        payload = _SEPARATOR.join(names)
        if len(payload.encode()) > LARGEST_RING or any(_SEPARATOR in name for name in names):
            payload = EVERYTHING
        return Query(
            "SELECT pg_notify('callboard_' || number, %s) FROM callboard.host "
            "WHERE space = %s AND listening AND number <> %s AND seen > clock_timestamp() - make_interval(secs => %s)",
            (payload, self._space, self._state.row.number, 6 * DEAD_SECONDS),
            _nothing,
        )

    @property
    def host(self) -> int:
        """Return the number of this process's row in `host`, 0 if it has none."""
        return self._state.row.number

    @property
    def period(self) -> int:
        """Return the number of times that this process was cut off."""
        return self._state.period

    def period_of(self, fence: Fence | None) -> int:
        """Return the period in which this process holds the lease, one that has ended if it holds it no more.

        Without a fence: the period now.
        """
        with self._lock:
            period = self._state.period
            return period if fence is None or (fence.lease, fence.number) in self._state.held else period - 1

    def cut_off_in(self, period: int) -> float:
        """Return the seconds until this process must have ended the work of a period, unless the server answers before.

        Not more than 0 if the period is over.
        """
        if period != self._state.period:
            return 0.0
        renewed = self._state.row.renewed
        return float("inf") if not renewed else renewed + SILENT_SECONDS - monotonic()

    def cut_off(self, period: int) -> None:
        """End a period, and let everything that waits for the server fail until it answers. Once for each period."""
        if self._end_period(period):
            self._watch.give_up()
            self._patience.suspend()

    def _end_period(self, period: int) -> bool:
        """Give up the leases of this process, and its row. Return False if the period has ended already."""
        with self._lock:
            state = self._state
            if period != state.period:
                return False
            state.period += 1
            state.held.clear()
            state.lost = state.row.number or state.lost
            state.lost_at = monotonic()
            state.row = _Row()
            state.listens = False
            waiters, self._ended = self._ended, []
        wake(waiters)
        return True

    async def until_cut_off(self, period: int) -> None:
        """Return when a period has ended."""
        waiter = AnswerWaiter[None]()
        with self._lock:
            if period != self._state.period:
                return
            self._ended.append(waiter)
        try:
            await waiter.wait()
        finally:
            with self._lock:
                if waiter in self._ended:
                    self._ended.remove(waiter)

    async def reachable(self) -> None:
        """Return when the server answers."""
        await self._do(self._renew, patient=True)

    def stop(self) -> None:
        """Release all leases, remove the row, and end the thread. Blocks until it has ended."""
        self._state.stopped = True
        self._tasks.close(None)
        self._nudge()
        if self._thread is not None:
            self._thread.join()
        self._wakes.close()
        self._woken.close()

    def _decoded(self, rows: Rows) -> Sequence[PresentProcess]:
        processes: list[PresentProcess] = []
        for number, pid, started, place, machine, silent, about, names in rows:
            if number == self._state.lost:
                continue
            here = place == self._place
            own = number == self._state.row.number
            if here and not own and not is_alive(pid, started):
                continue
            leases: tuple[str, ...] = tuple(names or ())
            if own:
                held = {name for name, _ in self._state.held.copy()}
                leases = tuple(name for name in leases if name in held)
            if not leases and about is None:
                continue  # it only reads
            holder = LeaseHolder(pid, started, "" if here else machine)
            processes.append(PresentProcess(holder, machine, max(0.0, silent), bytes(about or b""), leases))
        return processes

    # In the thread

    async def _do(self, work: Callable[[Connection], T], *, patient: bool = False) -> T:
        until = monotonic() + LOCKED_SECONDS
        while True:
            try:
                return await self._queued(work, patient)
            except LockNotAvailable as locked:  # the row is renewed, and other callers come, before the next try
                if monotonic() >= until:
                    raise _StillLocked(str(away(locked, self._address))) from locked

    async def _queued(self, work: Callable[[Connection], T], patient: bool) -> T:
        waiter = AnswerWaiter[T]()
        self._tasks.put(_Task(work, waiter, patient))
        self._begin()
        self._nudge()
        return await waiter.wait()

    def _begin(self) -> None:
        with self._lock:
            if self._thread is None and not self._state.stopped:
                self._thread = threading.Thread(target=self._run, name="callboard-store-presence", daemon=True)
                self._thread.start()

    def _nudge(self) -> None:
        with suppress(BlockingIOError, OSError):  # the thread was woken often enough, or has ended
            self._wakes.send(b"\0")

    def _run(self) -> None:
        beat_at = monotonic()
        while True:
            # Before the next task, so that no number of tasks makes this process count as cut off
            # (test_a_host_with_more_work_than_time_renews_its_row).
            if monotonic() >= beat_at and not self._state.stopped:
                beat_at = monotonic() + BEAT_SECONDS
                self._beat()
                if self._state.listening:
                    # Rings can get lost, with the connection for example.
                    self._call.look()
            task = self._next_task()
            if task is not None:
                self._perform(task)
                continue
            if self._state.stopped:
                break
            self._wait(beat_at - monotonic())
        self._leave()

    def _next_task(self) -> _Task[Any] | None:
        try:
            return self._tasks.get_nowait()
        except queue.Empty:
            return None

    def _perform(self, task: _Task[Any]) -> None:
        wait = ObstacleWait(self._patience, alone=LOCK_WAIT, tell_after=TELL_AFTER, endless=task.patient)
        while True:
            try:
                connection = self._connected()
                with self._watch.break_after(connection, SILENT_SECONDS):
                    task.waiter.result = task.work(connection)
            except LockNotAvailable as locked:  # no fault of the connection
                task.waiter.error = locked
            except psycopg.Error as error:
                self._drop()
                failure = translate_error(error, self._address)
                if is_away(error) and self._watch.goes_on(wait, f"{failure}. Waiting for that"):
                    continue
                task.waiter.error = failure
            except BaseException as error:  # noqa: BLE001 - the caller gets any exception
                task.waiter.error = error
            wake([task.waiter])
            return

    def _beat(self) -> None:
        """Renew the row, and listen if a reader follows."""
        state = self._state
        if not state.row.number and not state.listening and not state.lost:
            return
        with suppress(psycopg.Error, WorkspaceUnusable):  # the next beat tries again, and `cut_off_in` counts
            try:
                connection = self._connected()
                with self._watch.break_after(connection, SILENT_SECONDS):
                    self._renew(connection)
            except psycopg.Error:
                self._drop()
                raise

    def _wait(self, seconds: float) -> None:
        with selectors.DefaultSelector() as ready:
            ready.register(self._woken, selectors.EVENT_READ)
            if self._connection is not None and not self._connection.closed:
                ready.register(self._connection.pgconn.socket, selectors.EVENT_READ)
            ready.select(max(0.0, seconds))
        with suppress(BlockingIOError):
            self._woken.recv(4096)
        self._take_rings()

    def _take_rings(self) -> None:
        """Read what the server has sent, and pass on the rings."""
        if self._connection is None:
            return
        try:
            self._connection.pgconn.consume_input()
            rings: list[str] = []
            while (notify := self._connection.pgconn.notifies()) is not None:
                rings.append(notify.extra.decode())
        except psycopg.Error:
            self._drop()
            return
        self._pass_on(rings)

    def _pass_on(self, rings: list[str]) -> None:
        if EVERYTHING in rings:
            self._call.handle_ring(None)
        elif rings:
            self._call.handle_ring({name for ring in rings for name in ring.split(_SEPARATOR) if name})

    def _connected(self) -> Connection:
        if self._connection is None:
            connection = self._watch.connect(self._address.direct, tries_on=True)
            with self._watch.break_after(connection, SILENT_SECONDS):
                if is_pooled(connection):
                    connection.close()
                    raise WorkspaceUnusable(
                        f"the address {self._address.direct} leads to a connection pooler, through which no process "
                        "can be woken and no lease be held: name the server itself in the setting store_direct"
                    )
                connection.add_notify_handler(lambda notify: self._pass_on([notify.payload]))
                self._connection = connection
                self._state.listens = False
                run(
                    connection,
                    "SELECT set_config('lock_timeout', %s, false), "
                    "set_config('idle_in_transaction_session_timeout', %s, false)",
                    (milliseconds(LOCK_SECONDS), milliseconds(IDLE_SECONDS)),
                )
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            with suppress(psycopg.Error):  # it is broken, and is given up in any case
                self._connection.close()
            self._connection = None

    def _renew(self, connection: Connection) -> int:
        """Renew or create the row, and return its number."""
        state = self._state
        listening = state.listening  # read once: a reader may begin to follow at any moment
        sent = monotonic()
        if state.row.number and state.row.renewed + SILENT_SECONDS <= sent:
            # This process slept, or was stopped: others may have its leases by now, whatever the row says.
            self._end_period(state.period)
        if state.lost and sent >= state.lost_at + FREED_AFTER:
            self._free_lost(connection)
        if state.row.number:
            changed = run(
                connection,
                "UPDATE callboard.host SET seen = clock_timestamp(), listening = %s WHERE number = %s RETURNING number",
                (listening, state.row.number),
            )
            if not changed:  # an administrator removed it, or the server was restored: leases must be acquired again
                self._end_period(state.period)
                state.lost = 0
        if not state.row.number:
            state.row.number = run(
                connection,
                "INSERT INTO callboard.host (space, pid, started, place, machine, listening, about) "
                "VALUES (%s, %s, %s, %s, %s, %s, %s) RETURNING number",
                (self._space, self._pid, self._started, self._place, socket.gethostname(), listening, state.about),
            )[0][0]
        state.row.renewed = sent
        self._watch.allow_connections()
        self._patience.resume()
        # Only once the row says so: until then nobody rings, and the look at everything would come too early
        # (test_a_follower_that_begins_while_its_row_is_renewed_is_rung).
        if listening and not state.listens:
            connection.execute(b"LISTEN callboard_%d" % state.row.number)
            state.listens = True
            self._call.handle_ring(None)  # whatever happened before is found by a look at everything
        return state.row.number

    def _free_lost(self, connection: Connection) -> None:
        """Remove the row of the period before. Leases that nobody has taken meanwhile are then free for everybody."""
        state = self._state
        try:
            with connection.transaction():
                run(connection, "UPDATE callboard.lease SET host = NULL WHERE host = %s", (state.lost,))
                run(connection, "DELETE FROM callboard.host WHERE number = %s", (state.lost,))
            state.lost = 0
        except LockNotAvailable:
            # The server has not noticed yet that a connection of that period is broken: tried again later. Meanwhile
            # the new row is renewed (test_a_host_that_is_back_lives_while_its_old_transaction_is_still_open).
            state.lost_at = monotonic()

    def _announce(self, connection: Connection) -> None:
        number = self._renew(connection)
        run(connection, "UPDATE callboard.host SET about = %s WHERE number = %s", (self._state.about, number))
        # A lease that names a removed row is free, as one of a dead host is, and numbers of rows are not used again.
        # Hosts that start together do not wait for each other.
        run(
            connection,
            "DELETE FROM callboard.host WHERE number IN (SELECT number FROM callboard.host "
            "WHERE seen < clock_timestamp() - make_interval(secs => %s) FOR UPDATE SKIP LOCKED)",
            (FORGOTTEN_SECONDS,),
        )

    def _acquire(self, connection: Connection, name: str) -> Fence | LeaseHolder:
        """Take the lease in a transaction that excludes every other candidate."""
        number = self._renew(connection)
        with connection.transaction():
            run(
                connection,
                "INSERT INTO callboard.lease (space, name, number) VALUES (%s, %s, 0) ON CONFLICT DO NOTHING",
                (self._space, name),
            )
            holder = self._holder(connection, name, lock=True)
            if holder is not None:
                return holder
            newest = run(
                connection,
                "UPDATE callboard.lease SET number = number + 1, host = %s WHERE space = %s AND name = %s "
                "RETURNING number",
                (number, self._space, name),
            )[0][0]
        with self._lock:
            # The process may have been cut off meanwhile: the lease then names a row that is about to be removed
            # (test_a_lease_that_is_acquired_while_its_process_is_cut_off_is_not_held).
            if not number or self._state.row.number != number:
                raise psycopg.OperationalError("this process was cut off from the server")
            self._state.held.add((name, newest))
        return Fence(name, newest)

    def _living_holder(self, connection: Connection, name: str) -> LeaseHolder | None:
        return self._holder(connection, name, lock=False)

    def _holder(self, connection: Connection, name: str, *, lock: bool) -> LeaseHolder | None:
        sql = (
            "SELECT l.number, h.number, h.pid, h.started, h.place, h.machine, "
            "h.seen > clock_timestamp() - make_interval(secs => %s) "
            "FROM callboard.lease l JOIN callboard.host h ON h.number = l.host "
            "WHERE l.space = %s AND l.name = %s"
        )
        parameters = (DEAD_SECONDS, self._space, name)
        rows = run(connection, sql + " FOR UPDATE OF l" if lock else sql, parameters)
        if not rows:
            return None
        lease, host, pid, started, place, machine, alive = rows[0]
        if host in (self._state.row.number, self._state.lost):
            # After a lost connection the server may name this process although it has released the lease.
            return LeaseHolder(pid, started) if (name, lease) in self._state.held else None
        if place == self._place:
            return LeaseHolder(pid, started) if alive and is_alive(pid, started) else None
        return LeaseHolder(pid, started, machine) if alive else None

    def _last_holder(self, connection: Connection, name: str) -> LeaseHolder | None:
        """Return the process that the lease names, dead or alive."""
        rows = run(
            connection,
            "SELECT h.pid, h.started, h.place, h.machine FROM callboard.lease l "
            "JOIN callboard.host h ON h.number = l.host WHERE l.space = %s AND l.name = %s",
            (self._space, name),
        )
        for pid, started, place, machine in rows:
            return LeaseHolder(pid, started, "" if place == self._place else machine)
        return None

    def _release(self, connection: Connection, fence: Fence) -> None:
        self._state.held.discard((fence.lease, fence.number))
        run(
            connection,
            "UPDATE callboard.lease SET host = NULL WHERE space = %s AND name = %s AND number = %s AND host = %s",
            (self._space, fence.lease, fence.number, self._state.row.number),
        )

    def _leave(self) -> None:
        """Free everything in order, if the server can be reached; it notices a silent host otherwise."""
        if self._state.row.number and not self._watch.silent:
            with suppress(psycopg.Error, WorkspaceUnusable):
                connection = self._connected()
                number = self._state.row.number
                with self._watch.break_after(connection, LEAVING), connection.transaction():
                    run(connection, "UPDATE callboard.lease SET host = NULL WHERE host = %s", (number,))
                    run(connection, "DELETE FROM callboard.host WHERE number = %s", (number,))
        self._drop()


def _nothing(_rows: Rows) -> None:
    return None
