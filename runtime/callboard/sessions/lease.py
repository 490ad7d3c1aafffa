"""Hosting of a session: the host announces itself in a row, and another process takes over only at a person's request.

The lease is authoritative; processes communicate through the row (`HostRow`). A process that wants to take over writes
its pid there; the host sees that and exits in order, as at SIGTERM. A host that does not exit is killed only with
force, and only if its pid and start time match the holder of the lease.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import anyio

from callboard import __version__
from callboard.adapters.kernel.exits import signal_process
from callboard.adapters.processes.pids import is_same, open_pid, started_at
from callboard.adapters.system.clock import SystemClock
from callboard.core.decoding import read_value
from callboard.core.keys import host_key, host_lease
from callboard.ports.store import Delete, Lease, LeaseHolder, Put, Store
from callboard.types.errors import CallboardError, Conflict, SessionHosted, SessionTakenOver
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import HostRow

LOOK = 1.0
"""Seconds between two checks of a lease whose holder cannot be watched."""
PROMISED = 30.0
"""Seconds for which a session that its host has left for another process is reserved for that process."""
FREED_WITHIN = 3.0
"""Seconds to wait for the lease of a host that is gone, or that another container hides from this process."""
KILLED_WITHIN = 10.0
"""Seconds within which a killed process ends; the kernel may still be writing for it."""


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Request of a person that this process replaces another as the host of a session."""

    wait: float = 10.0
    """Seconds that the host has to exit in order."""
    force: bool = False
    """True to kill the host if it has not exited by then."""


async def take_lease(store: Store, session: str, take_over: TakeOver | None = None) -> Lease:
    """Acquire the lease to host this session. Raises `SessionHosted` with the process that holds and keeps it."""
    lease = await store.acquire(host_lease(session))
    if isinstance(lease, LeaseHolder) and not lease.machine and not is_same(lease.pid, lease.started):
        # The kernel frees the lock with the last copy of its descriptor. A child that the host was starting when it
        # was killed holds a copy until its exec (tests/sessions/test_lease.py).
        with anyio.move_on_after(FREED_WITHIN):
            await host_died(store, session, lease)
        lease = await store.acquire(host_lease(session))
    if isinstance(lease, LeaseHolder) and take_over is not None:
        await _ask_to_leave(store, session, lease, take_over.wait)
        lease = await store.acquire(host_lease(session))
        if isinstance(lease, LeaseHolder) and take_over.force:
            await _kill(lease, session)
            lease = await store.acquire(host_lease(session))
    if isinstance(lease, LeaseHolder):
        raise SessionHosted(_hosted_words(session, lease, take_over), lease.pid, lease.machine)
    return lease


@asynccontextmanager
async def hold_lease(
    store: Store, session: str, take_over: TakeOver | None = None, *, unattended: bool = False
) -> AsyncGenerator[tuple[Lease, HostRow]]:
    """Host the session while the block lasts, and announce it in a row. Raises as `take_lease` does.

    The lease is released before the row is removed, so that a process that sees the removal gets the lease at once.
    `unattended`: no person sits at this process.
    """
    lease = await take_lease(store, session, take_over)
    row: HostRow | None = None
    try:  # from here on: a shared store outlives a failed opening (test_a_lease_whose_row_cannot_be_written_is_free)
        row = HostRow(
            pid=os.getpid(),
            started=started_at(os.getpid()) or 0.0,
            since=SystemClock().now(),
            machine=socket.gethostname(),
            version=__version__,
            unattended=unattended,
        )
        await store.commit(Put(host_key(session), row.encode()), fence=lease.fence)
        yield lease, row
    finally:
        with anyio.CancelScope(shield=True):
            # In this order, so that a process that sees the removal of the row gets the lease at once
            # (test_a_take_over_makes_the_host_leave_in_order_and_goes_on_where_it_was).
            await lease.release()
            if row is not None:
                await _withdraw(store, session, row)


async def watch_take_over(store: Store, session: str, own_row: HostRow) -> None:
    """Watch for the request to leave.

    This includes another process that already hosts the session because this one was presumed dead. Raises
    `SessionTakenOver`; returns only when the store is closed.
    """
    async with store.watch(host_key(session)) as rows:
        async for row in rows:
            if row.key != host_key(session) or row.value is None:
                continue
            host = read_value(HostRow, row.value, row.key)
            # The lease can be lost without a request, if this process was presumed dead
            # (test_a_host_whose_lease_is_gone_sees_the_next_one_and_leaves).
            if host.asked_by or not _same(host, own_row):
                by = host.asked_by or host.pid
                machine = host.asked_from if host.asked_by else host.machine
                raise SessionTakenOver(
                    f"{process_at(by, machine)} takes over session {session}. The work that was in progress here "
                    f"continues there; `callboard attach {session}` follows it",
                    by,
                    machine,
                )


async def host_died(store: Store, session: str, holder: LeaseHolder) -> None:
    """Return when the process that held the lease has ended.

    A process that is not visible from here (in another container, or while it ends) cannot be watched: its lease is
    checked once a second.
    """
    await holder_died(store, host_lease(session), holder)


async def holder_died(store: Store, lease: str, holder: LeaseHolder) -> None:
    """Return when the holder of any lease has ended; see `host_died`."""
    watched = _open(holder)
    if watched is None:
        # The process is on another machine or in another container, or already gone: no descriptor can be opened for it
        # (test_its_end_is_seen_by_its_lease).
        while await store.holder(lease) == holder:  # noqa: ASYNC110 - nothing reports its end
            await anyio.sleep(LOOK)
        return
    try:
        await anyio.wait_readable(watched)
    finally:
        os.close(watched)


def _open(holder: LeaseHolder) -> int | None:
    """Return a descriptor of the holder's process; None if it is not visible from here."""
    return open_pid(holder.pid, holder.started) if holder.pid > 0 and not holder.machine else None


def is_row_of(row: HostRow | None, holder: LeaseHolder) -> bool:
    """Return True if the row belongs to this process.

    In containers that start together, the process of each has the pid 1 and can have the same start time: their
    machines distinguish them (test_a_host_with_the_same_pid_and_start_time_is_another_one).
    """
    if row is None or (row.pid, row.started) != (holder.pid, holder.started):
        return False
    return row.machine in ("", holder.machine or socket.gethostname())


def holder_of(row: HostRow) -> LeaseHolder:
    """Return the process of a row, as a holder of its lease."""
    return LeaseHolder(row.pid, row.started, _other_machine(row.machine))


def process_at(pid: int, machine: str) -> str:
    """Return `process 4711`, with the machine if it is named and another one."""
    return process_words(LeaseHolder(pid, 0.0, _other_machine(machine)))


def _other_machine(machine: str) -> str:
    """Return the machine's name; empty if it is this one."""
    return "" if machine == socket.gethostname() else machine


def process_words(holder: LeaseHolder) -> str:
    """Return `process 4711`, with the machine if it is another one."""
    return f"process {holder.pid}" + (f" on {holder.machine}" if holder.machine else "")


Died = Callable[[Store, str, LeaseHolder], Awaitable[None]]


async def until_free(store: Store, session: str, died: Died = host_died) -> None:
    """Return when a session is free: no process hosts it, and none is about to take it over at a person's request.

    The host's row or its death wakes the waiting process; another process may still be faster. `died`: function that
    returns when a process no longer holds the lease of the session.
    """
    while (obstacle := await _in_the_way(store, session)) is not None:
        with anyio.move_on_after(PROMISED if obstacle.promised else None) as waiting:
            async with anyio.create_task_group() as group:
                group.start_soon(_died, partial(died, store, session, obstacle.holder), obstacle, group.cancel_scope)
                await _other_in_the_way(store, session, obstacle)
                group.cancel_scope.cancel()
        if waiting.cancelled_caught:
            return


@dataclass(frozen=True, slots=True)
class _InTheWay:
    """Process that keeps a session from being free."""

    holder: LeaseHolder
    promised: bool = False
    """True if it holds no lease yet, but the host has left for it."""


async def _in_the_way(store: Store, session: str) -> _InTheWay | None:
    holder = await store.holder(host_lease(session))
    if holder is not None:
        return _InTheWay(holder)
    row = await store.get(host_key(session))
    host = read_value(HostRow, row.value, row.key) if row is not None and row.value is not None else None
    if host is None or not host.asked_by:
        return None
    if host.asked_from not in ("", socket.gethostname()):
        # A request of another machine holds only if the host has left for it. A host that died has left for nobody.
        return _InTheWay(LeaseHolder(host.asked_by, 0.0, host.asked_from), promised=True) if host.left else None
    started = started_at(host.asked_by) if host.asked_by != os.getpid() else None
    return None if started is None else _InTheWay(LeaseHolder(host.asked_by, started), promised=True)


async def _died(until: Callable[[], Awaitable[None]], obstacle: _InTheWay, scope: anyio.CancelScope) -> None:
    if obstacle.promised and obstacle.holder.machine:
        return  # it holds no lease yet, and cannot be seen from here: the time limit ends the wait
    await until()
    scope.cancel()


async def _other_in_the_way(store: Store, session: str, obstacle: _InTheWay) -> None:
    """Return when another process, or none, is next."""
    async with store.watch(host_key(session)) as rows:
        # Read what there is first: a row that is removed before the first read is no change for the watch, and its
        # process may live on (test_a_session_that_is_left_while_its_host_is_looked_at_is_free).
        await rows.existing()
        while await _in_the_way(store, session) == obstacle:
            row = await store.get(host_key(session))
            host = read_value(HostRow, row.value, row.key) if row is not None and row.value is not None else None
            # A process without a row, such as one that takes the lease for a single commit, may leave without a notice.
            silent = not obstacle.promised and (host is None or host.pid != obstacle.holder.pid)
            with anyio.move_on_after(LOOK if silent else None):
                await anext(rows, None)


async def _ask_to_leave(store: Store, session: str, holder: LeaseHolder, wait: float) -> None:
    """Return when the host has left or died, or when the time is up."""

    async def died() -> None:
        await host_died(store, session, holder)
        group.cancel_scope.cancel()

    with anyio.move_on_after(wait):
        async with anyio.create_task_group() as group:
            group.start_soon(died)
            await _request_release(store, session, holder)
            group.cancel_scope.cancel()


async def _request_release(store: Store, session: str, holder: LeaseHolder) -> None:
    """Ask the host to leave as soon as it has announced itself; return when it has left."""
    async with store.watch(host_key(session)) as rows:
        async for row in rows:
            if row.key != host_key(session):
                continue
            if row.value is None:
                return
            host = read_value(HostRow, row.value, row.key)
            if not is_row_of(host, holder):
                continue  # the row of an earlier host
            if host.left:
                return
            if host.asked_by:
                continue
            request = host.model_copy(update={"asked_by": os.getpid(), "asked_from": socket.gethostname()})
            try:
                await store.commit(Put(row.key, request.encode(), expected=row.revision))
            except Conflict:
                continue  # the row has changed: the watch yields it again


async def _kill(holder: LeaseHolder, session: str) -> None:
    """Kill the process that holds the lease, and wait until it has ended.

    Raises `SessionHosted` if the process cannot be identified with certainty.
    """
    watched = _open(holder)
    if watched is None:
        raise SessionHosted(
            f"the host of session {session} cannot be killed: {process_words(holder)} is not visible from here as the "
            "holder of the lease (another container, perhaps). End it where it runs",
            holder.pid,
        )
    try:
        # Through the descriptor of the process that holds the lease, because the pid could belong to another process by
        # now (test_a_host_that_hangs_is_killed_only_by_force).
        signal_process(watched, holder.pid, signal.SIGKILL)
        with anyio.move_on_after(KILLED_WITHIN):
            await anyio.wait_readable(watched)
    finally:
        os.close(watched)


async def _withdraw(store: Store, session: str, own_row: HostRow) -> None:
    """Remove the row, or note in it that this host has left for another process.

    A row of that process is not changed, and failures are ignored, because the lease is already free.
    """
    try:
        row = await store.get(host_key(session))
        host = read_value(HostRow, row.value, row.key) if row is not None and row.value is not None else None
        if row is None or host is None or not _same(host, own_row):
            return
        if host.asked_by:
            await store.commit(Put(row.key, host.model_copy(update={"left": True}).encode(), expected=row.revision))
        else:
            await store.commit(Delete(row.key, expected=row.revision))
    except Conflict:
        return  # another process already hosts the session
    except CallboardError:
        return  # the store fails, but the lease is free and the row names a process that is about to end


def _same(row: HostRow, other: HostRow) -> bool:
    return (row.pid, row.started, row.since) == (other.pid, other.started, other.since)


def _hosted_words(session: str, holder: LeaseHolder, take_over: TakeOver | None) -> str:
    if take_over is not None and not take_over.force:
        message = f"{process_words(holder)} hosts session {session} and has not left within {take_over.wait:g} s"
        return f"{message}: wait longer (--wait), or kill it with --take-over --force"
    return (
        f"session {session} is hosted by {process_words(holder)}: `callboard attach {session}` follows it, `callboard "
        "send` and `approve` work with it, and --take-over makes it release the session"
    )
