"""A run whose session goes from host to host: processes of several hosts have its store open at once.

A host joins, waits until the session is free, and takes its lease; no other rule decides. It leaves when its fate
comes: it hands the session over at the end of a step, is cut off in the middle, dies, or is frozen and loses the
lease. Later it joins again, as another process. The person writes from a machine that hosts nothing, whoever is the
host. What must hold is what holds of any run (`promises`, `team_of_six_promises`), and that no host calls the model
for a session of another.
"""

from __future__ import annotations

from collections import deque

import anyio
from anyio.abc import TaskGroup
from tests.simulation.chaos import LAST, ChaosWorld, Draw, Fate, Run, either, states_of
from tests.simulation.chaos_person import SESSION, Person
from tests.simulation.chaos_service import Service, WildModel
from tests.simulation.chaos_store import Disk, Inner, Looks, Unkind
from tests.simulation.evidence import Evidence, gather
from tests.simulation.team_of_six import SixRun

from callboard.adapters.storage.memory import MemoryLease
from callboard.core.keys import host_lease
from callboard.engine.commands import create_session
from callboard.engine.team.supervisor import Team
from callboard.ports.model import ModelRequest, OnDelta, Reply
from callboard.ports.notifier import Notifier
from callboard.ports.store import Lease, LeaseHolder
from callboard.testing import HostedSession
from callboard.types.records import SessionRow

HANDED_OVER = 30.0
"""Seconds that a host has to hand its session over. Then it is cut off."""
FAR = 98
"""Number of the person's process, which hosts nothing."""


async def paused_in_time(team: Team) -> bool:
    """Pause a team at the end of a step, as a serving host that drains. Return False if it took too long."""
    with anyio.move_on_after(HANDED_OVER) as late:
        await team.pause()
    return not late.cancelled_caught


class WatchedModel(WildModel):
    """The service as one host calls it, which looks whether another host acts already."""

    def __init__(self, service: Service, process: int, lease: Lease, looks: Looks) -> None:
        super().__init__(service, process)
        self._lease, self._looks, self.frozen = lease.fence.number, looks, False

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        if self._lease < self._looks.newest and not self.frozen:
            self._looks.broken.append(f"host {self._lease} called the model after host {self._looks.newest} had begun")
        return await super().complete(request, on_delta)


class HostChanges(Run):
    """One run of one seed on two or three hosts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.sqlite = False
        self.hosts = set[int]()
        """Places that have hosted the session."""
        self._fates = deque[tuple[int, Fate]]()
        """Number and fate of each process that is still to host the session, in this order."""
        self._freed = Notifier()
        self._person_left = anyio.Event()

    def fates(self, *, shared: bool) -> list[Fate]:
        """The fates of a run on one host, and hosts that hand the session over before, between and after them."""
        draw = Draw(f"{self.seed}/hosts/fates")
        found = [fate for fate in super().fates(shared=shared) if fate.wrong]
        for _ in range(draw.randint(1, 3)):
            found.insert(draw.randint(0, len(found)), Fate("drained", draw.randint(2, 120)))
        return found

    async def look(self, inner: Inner) -> None:
        """Nothing is judged before the end: another host may already act."""

    async def _processes(self, disk: Disk) -> Evidence:
        self._fates.extend([*enumerate(self.fates(shared=True)), (LAST, Fate())])
        far = self._world(disk.joined(), FAR, Fate(), None)
        row = SessionRow(id=SESSION, workspace="/workspace", created_at=self.clock.now())
        await create_session(far.store, row, far.spec_of("lead", "lead", None), fence=None)
        async with anyio.create_task_group() as hosts:
            for place in range(Draw(f"{self.seed}/hosts").choice((2, 3))):
                hosts.start_soon(self._runtime, place, disk, hosts)
            draw = Draw(f"{self.seed}/person/{FAR}")
            person = Person(far, draw, FAR, self.ends, self.names)
            for _ in range(draw.randint(1, 3)):
                await person.acts()
            self._person_left.set()
        return await gather(disk.joined(), SESSION)

    def _world(self, inner: Inner, number: int, fate: Fate, lease: Lease | None) -> ChaosWorld:
        world = super()._world(inner, number, fate, lease)
        if lease is not None and fate.wrong != "frozen":  # a frozen host knows nothing of the next one
            world.model = WatchedModel(self.service, number, lease, self.looks)
        return world

    async def _runtime(self, place: int, disk: Disk, hosts: TaskGroup) -> None:
        """One host: its processes, one after the other."""
        draw = Draw(f"{self.seed}/host/{place}")
        while True:
            await anyio.sleep(draw.choice((0, 0, 0.5, 20, 300)))
            inner = disk.joined()
            lease = await self._lease(inner)
            number, fate = self._fates.popleft()
            self.hosts.add(place)
            world = self._world(inner, number, fate, lease)
            if number == LAST:
                await self._live(world, number)
                hosts.cancel_scope.cancel()
                return
            await self._hosted(world, number, fate, hosts)
            self._freed.notify()

    async def _lease(self, inner: Inner) -> Lease:
        """Wait until the session is free, and take its lease."""
        while True:
            changes = self._freed.changes
            lease = await inner.acquire(host_lease(SESSION))
            if not isinstance(lease, LeaseHolder):
                return lease
            await self._freed.changed(changes)

    async def _hosted(self, world: ChaosWorld, number: int, fate: Fate, hosts: TaskGroup) -> None:
        """Return when a process has ended, or is frozen and has lost the session."""
        ended = anyio.Event()
        self.ended.append(ended)
        assert isinstance(world.store, Unkind)
        if fate.wrong != "frozen":
            await self._until_dead(world, number, fate, ended)
        else:
            hosts.start_soon(self._until_dead, world, number, fate, ended)
            await either(ended, world.store.stops)
        if ended.is_set():
            world.store.inner.kill()
            return
        assert isinstance(world.lease, MemoryLease), "of the store in memory"
        world.lease.drop()
        self.seen.frozen = True
        self.seen.died.add(number)

    async def _live(self, world: ChaosWorld, number: int) -> None:
        async with world.session(SESSION, resume=True) as session, anyio.create_task_group() as group:
            group.start_soon(self._hand_over, session, number, group.cancel_scope)
            await self._person_left.wait()
            await session.quiet()
            if number == LAST:
                await self._to_the_end(session)
            group.cancel_scope.cancel()
            self.seen.live = states_of(session)

    async def _hand_over(self, session: HostedSession, number: int, scope: anyio.CancelScope) -> None:
        """Leave as a serving host does that drains (`serve_sessions.py`)."""
        store = session.world.store
        assert isinstance(store, Unkind)
        await store.stops.wait()
        if store.wrong != "drained":
            return
        handed_over = await paused_in_time(session.team)
        self.ends["handed over" if handed_over else "cut off"] += 1
        if not handed_over:
            self.seen.died.add(number)
        await session.team.end_commands()
        scope.cancel()


class SixOnHosts(HostChanges, SixRun):
    """A team of six on two or three hosts."""
