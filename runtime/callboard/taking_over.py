"""Which process hosts a session: it says so in a row, and another one takes over on a person's word alone.

The lease is the truth, and the row (`HostRow`) is how processes speak of it: the one that wants to take over writes
its pid there, the host sees that and leaves in order, as at SIGTERM. A host that does not leave is killed by force
alone, and only a process that is, by pid and start time, the one that holds the lease.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio

from callboard.adapters.processes import open_pid, started_at
from callboard.core.names import host_key, host_lease
from callboard.ports.store import Delete, Lease, LeaseHolder, Put, Store
from callboard.words.errors import CallboardError, Conflict, SessionHosted, SessionTakenOver
from callboard.words.values import HostRow

LOOK = 1.0
"""Seconds between two looks at a lease whose holder cannot be watched."""
PROMISED = 30.0
"""Seconds that a session which its host has left for another process is kept for that one."""
KILLED_WITHIN = 10.0
"""Seconds in which a killed process is gone; the kernel may still be writing for it."""


@dataclass(frozen=True, slots=True)
class TakeOver:
    """A person's word that this process is to host a session in the place of another."""

    wait: float = 10.0
    """Seconds that the host has to leave in order."""
    force: bool = False
    """Kill it when it has not left by then."""


async def take_lease(store: Store, session: str, take_over: TakeOver | None = None) -> Lease:
    """The right to host this session. Raises `SessionHosted` with the process that has it, and keeps it."""
    lease = await store.acquire(host_lease(session))
    if isinstance(lease, LeaseHolder) and take_over is not None:
        await _ask_to_leave(store, session, lease, take_over.wait)
        lease = await store.acquire(host_lease(session))
        if isinstance(lease, LeaseHolder) and take_over.force:
            await _kill(lease, session)
            lease = await store.acquire(host_lease(session))
    if isinstance(lease, LeaseHolder):
        raise SessionHosted(_hosted_words(session, lease.pid, take_over), lease.pid)
    return lease


@asynccontextmanager
async def announced(store: Store, session: str, lease: Lease, now: float) -> AsyncGenerator[HostRow]:
    """Say that this process hosts the session while the block lasts; the lease is given back at its end.

    The row goes last: whoever sees that it is gone gets the lease at once.
    """
    row = HostRow(pid=os.getpid(), started=started_at(os.getpid()) or 0.0, since=now)
    await store.commit(Put(host_key(session), row.encode()), fence=lease.fence)
    try:
        yield row
    finally:
        with anyio.CancelScope(shield=True):
            await lease.release()
            await _withdraw(store, session, row)


async def heed_take_over(store: Store, session: str, mine: HostRow) -> None:
    """Watch for the word to leave, also for another process that hosts the session already: then this one was held for
    dead. Raises `SessionTakenOver`; returns only when the store is closed."""
    async with store.watch(host_key(session)) as rows:
        async for row in rows:
            if row.key != host_key(session) or row.value is None:
                continue
            said = HostRow.model_validate_json(row.value)
            if said.asked_by or not _same(said, mine):
                by = said.asked_by or said.pid
                raise SessionTakenOver(
                    f"process {by} takes over session {session}. What was under way here goes on there; "
                    f"`callboard attach {session}` follows it",
                    by,
                )


async def host_died(store: Store, session: str, holder: LeaseHolder) -> None:
    """Return when the process that held the lease has ended.

    One that is not seen from here (in another container, or in its last moment) tells nobody of its end: as long as it
    holds the lease it is looked at once a second.
    """
    await holder_died(store, host_lease(session), holder)


async def holder_died(store: Store, lease: str, holder: LeaseHolder) -> None:
    """`host_died`, of any lease."""
    watched = open_pid(holder.pid, holder.started) if holder.pid > 0 else None
    if watched is None:
        while await store.holder(lease) == holder:  # noqa: ASYNC110 - its end rings no bell
            await anyio.sleep(LOOK)
        return
    try:
        await anyio.wait_readable(watched)
    finally:
        os.close(watched)


async def until_free(store: Store, session: str) -> None:
    """Return when a session is nobody's: no process hosts it, and none is about to take it over on a person's word.
    Whoever waits hears of it by the host's row or by its death; another may be faster all the same."""
    while (found := await _in_the_way(store, session)) is not None:
        with anyio.move_on_after(PROMISED if found.promised else None) as waiting:
            async with anyio.create_task_group() as group:
                group.start_soon(_died, store, session, found.who, group.cancel_scope)
                await _other_in_the_way(store, session, found)
                group.cancel_scope.cancel()
        if waiting.cancelled_caught:
            return


@dataclass(frozen=True, slots=True)
class _InTheWay:
    """Why a session is not free."""

    who: LeaseHolder
    promised: bool = False
    """It holds no lease yet: the host has left for it."""


async def _in_the_way(store: Store, session: str) -> _InTheWay | None:
    holder = await store.holder(host_lease(session))
    if holder is not None:
        return _InTheWay(holder)
    row = await store.get(host_key(session))
    asked_by = HostRow.model_validate_json(row.value).asked_by if row is not None and row.value is not None else 0
    started = started_at(asked_by) if asked_by not in (0, os.getpid()) else None
    return None if started is None else _InTheWay(LeaseHolder(asked_by, started), promised=True)


async def _died(store: Store, session: str, who: LeaseHolder, scope: anyio.CancelScope) -> None:
    await host_died(store, session, who)
    scope.cancel()


async def _other_in_the_way(store: Store, session: str, found: _InTheWay) -> None:
    """Return when it is another's turn, or nobody's."""
    async with store.watch(host_key(session)) as rows:
        while await _in_the_way(store, session) == found:
            row = await store.get(host_key(session))
            said = HostRow.model_validate_json(row.value) if row is not None and row.value is not None else None
            # One that has said nothing yet may leave without a word too: a desk that takes the lease for one commit.
            silent = not found.promised and (said is None or said.pid != found.who.pid)
            with anyio.move_on_after(LOOK if silent else None):
                await anext(rows, None)


async def _ask_to_leave(store: Store, session: str, holder: LeaseHolder, wait: float) -> None:
    """Return when the host has left or died, or when time is up."""

    async def died() -> None:
        await host_died(store, session, holder)
        group.cancel_scope.cancel()

    with anyio.move_on_after(wait):
        async with anyio.create_task_group() as group:
            group.start_soon(died)
            await _asked(store, session, holder)
            group.cancel_scope.cancel()


async def _asked(store: Store, session: str, holder: LeaseHolder) -> None:
    """Ask the host to leave, as soon as it says that it is there; return when it has left."""
    async with store.watch(host_key(session)) as rows:
        async for row in rows:
            if row.key != host_key(session):
                continue
            if row.value is None:
                return
            said = HostRow.model_validate_json(row.value)
            if said.pid != holder.pid or said.started != holder.started:
                continue  # of a host before this one
            if said.left:
                return
            if said.asked_by:
                continue
            asked = said.model_copy(update={"asked_by": os.getpid()})
            try:
                await store.commit(Put(row.key, asked.encode(), expected=row.revision))
            except Conflict:
                continue  # it has changed meanwhile: the watch tells how


async def _kill(holder: LeaseHolder, session: str) -> None:
    """Kill the process that holds the lease, and wait until it is gone. Raises `SessionHosted` for one that cannot be
    told apart from others."""
    watched = open_pid(holder.pid, holder.started) if holder.pid > 0 else None
    if watched is None:
        raise SessionHosted(
            f"the host of session {session} cannot be killed: process {holder.pid} is not seen from here as the one "
            "that holds the lease (another container, perhaps). End it where it runs",
            holder.pid,
        )
    try:
        signal.pidfd_send_signal(watched, signal.SIGKILL)
        with anyio.move_on_after(KILLED_WITHIN):
            await anyio.wait_readable(watched)
    finally:
        os.close(watched)


async def _withdraw(store: Store, session: str, mine: HostRow) -> None:
    """Take the row away, or say in it that this host has left for another; not where that one's stands there already.
    Nothing of ours depends on it any more."""
    try:
        row = await store.get(host_key(session))
        said = HostRow.model_validate_json(row.value) if row is not None and row.value is not None else None
        if row is None or said is None or not _same(said, mine):
            return
        if said.asked_by:
            await store.commit(Put(row.key, said.model_copy(update={"left": True}).encode(), expected=row.revision))
        else:
            await store.commit(Delete(row.key, expected=row.revision))
    except Conflict:
        return  # another process was faster, and hosts the session now
    except CallboardError:
        return  # the store fails: the lease is free all the same, and the row names a process that will be gone


def _same(one: HostRow, other: HostRow) -> bool:
    return (one.pid, one.started, one.since) == (other.pid, other.started, other.since)


def _hosted_words(session: str, pid: int, take_over: TakeOver | None) -> str:
    if take_over is not None and not take_over.force:
        words = f"process {pid} hosts session {session} and has not left within {take_over.wait:g} s"
        return f"{words}: wait longer (--wait), or kill it with --take-over --force"
    return (
        f"session {session} is hosted by process {pid}: `callboard attach {session}` follows it, `callboard send` and "
        "`approve` speak to it, and --take-over makes it leave"
    )
