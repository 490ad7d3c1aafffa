"""A serving process among the hosts of its store: which sessions it takes up, and when it hands them over.

Every `callboard serve` announces itself in the store with its labels and its limit (`HostAbout`). When a session needs
a host, each of them ranks the hosts by the same facts (`core/placement.py`). The best one takes the session's lease at
once. The others wait for a moment, longer the lower they rank, in case the best one is stuck. The lease decides.

A session needs a host if it has a row `queue/...`: it was detached, handed over, or taken up after its host died. The
row is removed by the host that finishes the work, so no crash on the way loses a session.
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import structlog

from callboard.adapters.processes.pids import started_at
from callboard.adapters.processes.tool_ancestry import refuse_inside_tool
from callboard.core.keys import drain_key, host_lease
from callboard.core.placement import ANY, HostChoice, rank_hosts
from callboard.ports.notifier import Notifier
from callboard.ports.store import Delete, LeaseHolder, PresentProcess, Put, Store
from callboard.ports.store_reading import rows_of
from callboard.sessions.inspect.hosts import StoreHosts, choices_of, key_of, name_of, read_hosts
from callboard.sessions.inspect.serving import about_of, announced_serving
from callboard.sessions.lease import host_died
from callboard.sessions.places import Notice, find_places
from callboard.sessions.stores import existing_store, reachable
from callboard.types.choices import unknown
from callboard.types.errors import CallboardError, StoreBusy, UsageError, ValueDamaged
from callboard.types.records import HostAbout, HostRow

LOOK = 1.0
"""Seconds between two looks at the hosts of other machines, while a session waits for one of them."""
FRESH = 0.2
"""Age in seconds up to which the list of hosts is used again."""
STEP = 1.0
"""Seconds for which each better host may be late before this one takes a session."""
log = structlog.get_logger("callboard.fleet")


def own_labels(workspace: Path, named: Mapping[str, str]) -> dict[str, str]:
    """Return the labels of this host: `named`, and those that are known without being named."""
    detected = {
        "machine": socket.gethostname(),
        "os": platform.system().lower(),
        "arch": platform.machine(),
        "repository": workspace.name,
    }
    detected |= {program: ANY for program in ("docker", "git") if shutil.which(program)}
    return {**detected, **named}


class Fleet:
    """This process as one of the hosts."""

    def __init__(self, store: Store, about: HostAbout) -> None:
        self.changed = Notifier()
        """Notifier of changes of the hosts, of the load of this one, and of its draining."""
        self.draining = False
        """True if this host hands its sessions over and takes up no others."""
        self._store = store
        self._about = about
        self._processes: Sequence[PresentProcess] = ()
        self._read_at = float("-inf")
        self._reading = anyio.Lock()
        self._waiting = 0
        self._interest = Notifier()
        self._here: set[str] = set()
        """Sessions that are hosted here, or for which a place is reserved."""
        pid = os.getpid()
        self._own_key = drain_key(socket.gethostname(), pid, started_at(pid) or 0.0)

    def is_own(self, host: HostRow) -> bool:
        """Return True if the row of a session's host is of this process."""
        return drain_key(host.machine, host.pid, host.started) == self._own_key

    @asynccontextmanager
    async def announce(self) -> AsyncGenerator[None]:
        """Announce this host during the block."""
        await self._forget_orders()
        async with announced_serving(self._store, self._about):
            try:
                yield
            finally:
                with anyio.CancelScope(shield=True):
                    await self._forget_orders(own=True)

    async def run(self) -> None:
        """Follow the orders to drain, and look at the other hosts while a session waits for them. Until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._look)
            await self._follow_orders()

    async def drain(self, on: bool = True) -> None:
        """Hand the sessions over, or take up sessions again."""
        if self.draining is on:
            return
        self.draining = on
        self._about = self._about.model_copy(update={"draining": on})
        self.changed.notify()
        await self._store.announce(self._about.encode())

    async def until_chosen(self, session: str, placement: Mapping[str, str]) -> None:
        """Return when this host is to take the session. The caller ends the wait if another one takes it.

        A place of this host is then reserved for the session, until `release`: other sessions are chosen before this
        one has its lease (test_a_host_with_a_limit_hosts_no_more_sessions_than_that).
        """
        while True:
            changes = self.changed.changes
            order = [choice.key for choice in rank_hosts(session, placement, await self._choices())]
            if self.draining or self._own_key not in order:
                with self._looking():
                    await self.changed.changed(changes)
                continue
            better = order.index(self._own_key)
            if better:
                with anyio.move_on_after(better * STEP) as late, self._looking():
                    await self.changed.changed(changes)
                if not late.cancelled_caught:
                    continue
            if self._reserved(session):
                return

    async def until_room(self, session: str) -> None:
        """Return when this host has a place for the session, which is then reserved for it until `release`."""
        await self.changed.until(lambda: self._reserved(session))

    def _reserved(self, session: str) -> bool:
        """Reserve a place, and return True, if there is one."""
        limit = self._about.sessions
        if not limit or len(self._here) < limit:
            self._here.add(session)
        return session in self._here

    def release(self, session: str) -> None:
        """Give up the place of a session that is not opened or hosted here any more. Without one, do nothing."""
        if session in self._here:
            self._here.discard(session)
            self.changed.notify()

    async def wait_died(self, store: Store, session: str, holder: LeaseHolder) -> None:
        """Return when the host of a session has ended or has lost it."""
        if not holder.machine:
            await host_died(store, session, holder)
            return
        # One look for all sessions that wait, not one for each.
        await self._refresh(0.0)
        with self._looking():
            await self.changed.until(lambda: not self._holds(holder, host_lease(session)))

    def _holds(self, holder: LeaseHolder, lease: str) -> bool:
        return any(each.holder == holder and lease in each.leases for each in self._processes)

    @contextmanager
    def _looking(self) -> Generator[None]:
        self._waiting += 1
        self._interest.notify()
        try:
            yield
        finally:
            self._waiting -= 1

    async def _look(self) -> None:
        while True:
            await self._interest.until(lambda: self._waiting > 0)
            await anyio.sleep(LOOK)
            try:
                await self._refresh(LOOK / 2)
            except StoreBusy:
                continue  # the server is away: nobody can be replaced until it is back

    async def _refresh(self, age: float = FRESH) -> None:
        async with self._reading:
            if anyio.current_time() - self._read_at <= age:
                return
            before = self._processes
            self._processes = await self._store.present()
            self._read_at = anyio.current_time()
        if _facts(before) != _facts(self._processes):
            self.changed.notify()

    async def _choices(self) -> list[HostChoice]:
        await self._refresh()
        return [
            replace(choice, load=max(choice.load, len(self._here))) if choice.key == self._own_key else choice
            for choice in choices_of(self._processes)
        ]

    async def _follow_orders(self) -> None:
        async with self._store.watch(self._own_key) as rows:
            while True:
                try:
                    row = await anext(rows, None)
                except ValueDamaged:
                    continue  # the order was set aside; others follow
                except StoreBusy:
                    await reachable(self._store)
                    continue
                if row is None:
                    return
                if row.key == self._own_key:
                    await self._follow_drain_order(drain=row.value is not None)

    async def _follow_drain_order(self, *, drain: bool) -> None:
        """Start or end the drain of this host. If the store cannot be reached, the announcement is made later."""
        # The store may go away right after the order (test_an_order_to_drain_that_cannot_be_announced_ends_nothing).
        try:
            await self.drain(drain)
        except StoreBusy:
            await self._tell_later()

    async def _tell_later(self) -> None:
        while True:
            await reachable(self._store)
            try:
                await self._store.announce(self._about.encode())
            except StoreBusy:
                continue
            return

    async def _forget_orders(self, *, own: bool = False) -> None:
        """Remove the orders to hosts that are gone; `own`: only those to this one."""
        try:
            living = {choice.key for choice in choices_of(await self._store.present())}
            for row in await rows_of(self._store, drain_key()):
                if row.key == self._own_key if own else row.key not in living:
                    await self._store.commit(Delete(row.key))
        except CallboardError as error:
            log.warning("orders to drain were not removed", error=str(error))


def _facts(processes: Sequence[PresentProcess]) -> list[object]:
    """Return what matters of the hosts, without the ever-changing times."""
    return [(each.holder, each.about, each.leases) for each in processes]


async def list_hosts(workspace: Path, notice: Notice) -> StoreHosts:
    """Return the hosts of the store of a workspace."""
    async with existing_store(find_places(workspace, writable=False), notice) as store:
        return StoreHosts() if store is None else await read_hosts(store)


async def drain_host(workspace: Path, name: str, notice: Notice, *, drain: bool = True) -> tuple[str, ...]:
    """Ask the serving hosts with this name, or of this machine, to hand their sessions over; return their names.

    `drain`: False withdraws that, so that they take up sessions again. Raises `UsageError` if no host has the name.
    """
    refuse_inside_tool("Draining a host")
    async with existing_store(find_places(workspace, writable=False), notice) as store:
        if store is None:
            raise UsageError(unknown("host", name, (), where="that serves this store"))
        return await drain_in(store, name, drain=drain)


async def drain_in(store: Store, name: str, *, drain: bool) -> tuple[str, ...]:
    """Drain hosts of an open store, or let them take up sessions again. Raises as `drain_host` does."""
    refuse_inside_tool("Draining a host")
    processes = [each for each in await store.present() if about_of(each).serves]
    chosen = [each for each in processes if name in (name_of(each), each.machine)]
    if not chosen:
        raise UsageError(unknown("host", name, [name_of(each) for each in processes], where="that serves this store"))
    for process in chosen:
        key = key_of(process)
        await store.commit(Put(key, b"{}") if drain else Delete(key))
    return tuple(name_of(process) for process in chosen)
