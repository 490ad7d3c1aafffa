"""Who fires the schedules of a session: the process that hosts it, or a `callboard serve` that is about to.

Every `callboard serve` of a workspace says that it is there in a row (`HostRow`), which it takes away when it leaves;
what a dead one left is passed over, and swept away by the next.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

import anyio

from callboard.adapters.processes import is_same, started_at
from callboard.core.names import host_lease, serving_key
from callboard.core.schedule import CronInvalid, next_wake
from callboard.ports.store import Delete, Put, Store
from callboard.words.errors import CallboardError, Conflict
from callboard.words.schedules import Schedule
from callboard.words.values import HostRow


def fires_again(schedule: Schedule) -> bool:
    """Whether its host has something to do for it, now or later. One that cannot be read any more counts: its host
    pauses it, with the reason."""
    try:
        return schedule.enabled and schedule.state == "active" and next_wake(schedule) is not None
    except CronInvalid:
        return True


async def firing(store: Store, session: str) -> str:
    """Which process fires the schedules of a session, in words; empty: none is there that would."""
    served = await serving(store)
    holder = await store.holder(host_lease(session))
    if holder is not None:
        return f"callboard serve, process {holder.pid}" if holder.pid in served else f"its host, process {holder.pid}"
    return f"callboard serve, process {min(served)}" if served else ""


async def serving(store: Store) -> Mapping[int, HostRow]:
    """Every `callboard serve` that is alive, by its pid."""
    said = [HostRow.model_validate_json(row.value) for row in await store.keys(serving_key()) if row.value is not None]
    return {one.pid: one for one in said if is_same(one.pid, one.started)}


@asynccontextmanager
async def announced_serving(store: Store, now: float) -> AsyncGenerator[None]:
    """Say that this process is a `callboard serve` for as long as the block lasts."""
    alive = await serving(store)
    for row in await store.keys(serving_key()):
        pid = row.key.removeprefix(serving_key())
        if not pid.isdigit() or int(pid) not in alive:
            await _taken_away(store, row.key, row.revision)
    pid = os.getpid()
    mine = HostRow(pid=pid, started=started_at(pid) or 0.0, since=now)
    (revision,) = await store.commit(Put(serving_key(pid), mine.encode()))
    try:
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await _taken_away(store, serving_key(pid), revision)


async def _taken_away(store: Store, key: str, revision: int) -> None:
    try:
        await store.commit(Delete(key, expected=revision))
    except Conflict:
        return  # another one swept it away
    except CallboardError:
        return  # the store fails: the row names a process that will be gone
