"""Processes that fire the schedules of a session: the one that hosts it, or a `callboard serve` that is about to.

Every `callboard serve` of a workspace announces itself in a row (`HostRow`), which it removes when it exits. A row left
by a dead process is ignored, and removed by the next one.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

import anyio

from callboard.adapters.processes.pids import is_same, started_at
from callboard.core.decoding import read_value
from callboard.core.keys import host_lease, serving_key
from callboard.core.scheduling import CronInvalid, next_wake
from callboard.ports.store import Delete, Put, Row, Store
from callboard.ports.store_reading import rows_of
from callboard.types.errors import CallboardError, Conflict, SessionUnreadable
from callboard.types.records import HostRow
from callboard.types.schedules import Schedule


def fires_again(schedule: Schedule) -> bool:
    """Return True if the schedule needs its host, now or later.

    This includes an unreadable schedule: its host pauses it, with the reason.
    """
    try:
        return schedule.enabled and schedule.state == "active" and next_wake(schedule) is not None
    except CronInvalid:
        return True


async def firing(store: Store, session: str) -> str:
    """Return a description of the process that fires the schedules of a session; empty if there is none."""
    served = await serving(store)
    holder = await store.holder(host_lease(session))
    if holder is not None:
        return (
            f"callboard serve, process {holder.pid}"
            if holder.pid in served
            else f"the process that hosts its session, {holder.pid}"
        )
    return f"callboard serve, process {min(served)}" if served else ""


async def serving(store: Store) -> Mapping[int, HostRow]:
    """Return every live `callboard serve`, by its pid."""
    hosts = [_host_row(row) for row in await rows_of(store, serving_key())]
    return {host.pid: host for host in hosts if host is not None and is_same(host.pid, host.started)}


def _host_row(row: Row) -> HostRow | None:
    """Return the row's value; None if this version cannot read it.

    An unreadable row is removed like that of a dead process.
    """
    try:
        return read_value(HostRow, row.value or b"", row.key)
    except SessionUnreadable:
        return None


@asynccontextmanager
async def announced_serving(store: Store, now: float) -> AsyncGenerator[None]:
    """Announce this process as a `callboard serve` during the block."""
    alive = await serving(store)
    for row in await rows_of(store, serving_key()):
        pid = row.key.removeprefix(serving_key())
        if not pid.isdigit() or int(pid) not in alive:
            await _row_changed(store, row.key, row.revision)
    pid = os.getpid()
    host = HostRow(pid=pid, started=started_at(pid) or 0.0, since=now)
    (revision,) = await store.commit(Put(serving_key(pid), host.encode()))
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await _row_changed(store, serving_key(pid), revision)


async def _row_changed(store: Store, key: str, revision: int) -> None:
    try:
        await store.commit(Delete(key, expected=revision))
    except Conflict:
        return  # another process has removed it
    except CallboardError:
        return  # the store fails: the row names a process that is about to end
