"""Processes that fire the schedules of a session: the one that hosts it, or a `callboard serve` that is about to.

Every `callboard serve` of a workspace announces itself in a row (`HostRow`), which it removes when it exits. A row left
by a dead process is ignored, and removed by the next one.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import anyio

from callboard.adapters.processes.pids import is_same, started_at
from callboard.core.decoding import read_value
from callboard.core.keys import host_lease, serving_key
from callboard.core.scheduling import CronInvalid, next_wake
from callboard.ports.store import Delete, LeaseHolder, PresentProcess, Put, Row, Store
from callboard.ports.store_reading import rows_of
from callboard.sessions.lease import process_words
from callboard.types.errors import CallboardError, Conflict, SessionUnreadable
from callboard.types.records import HostAbout, HostRow
from callboard.types.schedules import Schedule


def fires_again(schedule: Schedule) -> bool:
    """Return True if the schedule needs its host, now or later.

    This includes an unreadable schedule: its host pauses it, with the reason.
    """
    try:
        return schedule.enabled and schedule.state == "active" and next_wake(schedule) is not None
    except CronInvalid:
        return True


def about_of(process: PresentProcess) -> HostAbout:
    """Return the statement of a process; an empty one if it has made none that this version can read."""
    try:
        return read_value(HostAbout, process.about, "hosts") if process.about else HostAbout()
    except SessionUnreadable:
        return HostAbout()


async def firing_process(store: Store, session: str) -> str:
    """Return a description of the process that fires the schedules of a session; empty if there is none."""
    served = await serving_processes(store)
    holder = await store.holder(host_lease(session))
    if holder is not None:
        return (
            f"callboard serve, {process_words(holder)}"
            if holder in served
            else f"the process that hosts its session, {process_words(holder).removeprefix('process ')}"
        )
    return f"callboard serve, {process_words(served[0])}" if served else ""


async def serving_processes(store: Store) -> Sequence[LeaseHolder]:
    """Return every live `callboard serve` of the store, those of this machine first."""
    rows = [_host_row(row) for row in await rows_of(store, serving_key())]
    here = {LeaseHolder(row.pid, row.started) for row in rows if row is not None and is_same(row.pid, row.started)}
    announced = {process.holder for process in await store.present() if about_of(process).serves}
    return sorted(here | announced, key=lambda holder: (holder.machine, holder.pid))


def _host_row(row: Row) -> HostRow | None:
    """Return the row's value; None if this version cannot read it.

    An unreadable row is removed like that of a dead process.
    """
    try:
        return read_value(HostRow, row.value or b"", row.key)
    except SessionUnreadable:
        return None


@asynccontextmanager
async def announced_serving(store: Store, about: HostAbout) -> AsyncGenerator[None]:
    """Announce this process as a `callboard serve` during the block."""
    await store.announce(about.encode())
    for row in await rows_of(store, serving_key()):
        host = _host_row(row)
        # Rows of other machines are theirs: their pids mean nothing here.
        here = host is None or host.machine in ("", socket.gethostname())
        if here and (host is None or not is_same(host.pid, host.started)):
            await _row_changed(store, row.key, row.revision)
    pid = os.getpid()
    host = HostRow(pid=pid, started=started_at(pid) or 0.0, since=about.since, machine=socket.gethostname())
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
