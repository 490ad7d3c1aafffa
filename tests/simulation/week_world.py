"""A week of schedules: simulated runners on one store that are killed, machines that sleep, clocks that jump.

Each runner is a process of `serve`: it hosts what nobody else hosts, until it dies at one of its writes, leaves, or
hands it over at the end of a step. The clock is the machine's: it stands away from the time that passes, by what the
machine slept and what was set by hand.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import anyio
from structlog.testing import capture_logs
from tests.simulation.several_hosts import paused_in_time
from tests.simulation.week_slots import BERLIN, Kind, kinds

from callboard.adapters.storage.memory import Crashed, MemoryStore
from callboard.core.agent.state import AgentState
from callboard.core.keys import host_lease, schedule_key
from callboard.engine.commands import create_session
from callboard.engine.team.supervisor import Team
from callboard.ports.model import CallFault, ModelRequest, OnDelta, Reply
from callboard.ports.store import LeaseHolder, Put
from callboard.testing import ScriptedModel, SteadyClock, World, fault, say
from callboard.types.errors import Fenced
from callboard.types.records import SessionRow
from callboard.types.schedules import Schedule

HOUR = 3_600.0
START = 1_805_886_000.0
"""2027-03-24 07:00 in Berlin: the clocks change on the 28th, within the week."""
SESSIONS = ("s1", "s2", "s3", "s4", "s5")


class JumpingClock(SteadyClock):
    """The machine's clock: `away` seconds from the time that has passed."""

    away = 0.0

    def now(self) -> float:
        return super().now() + self.away

    async def sleep_until(self, when: float) -> None:
        await anyio.sleep(max(0.0, min(when - self.now(), 60.0)))


@dataclass
class WeekModel(ScriptedModel):
    """Answers after a while; a part of the schedules fails, always or now and then."""

    def __init__(self, seed: int) -> None:
        super().__init__({})
        self._seed = seed

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        text = request.messages[-1]
        draws = random.Random(f"{self._seed} {request.session} {request.agent} {request.ordinal}")
        slow, bad = b"(slow)" in text, b"(bad)" in text
        await anyio.sleep(draws.uniform(60, 2_400) if slow else draws.uniform(0.5, 20))
        if bad or (b"(shaky)" in text and draws.random() < 0.4):
            raise CallFault(fault("invalid", status=400, message="no"))
        return say("looked")


@dataclass
class Week:
    """One run, and what is left of it."""

    seed: int
    hours: float
    runners: int = 8
    schedules: int = 50
    kills: int = 0
    handed_over: int = 0
    """Times that a runner left at the end of a step."""
    jumps: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """(when, by how much) the clock was set, or the machine slept."""
    found: dict[str, Schedule] = field(default_factory=dict[str, Schedule])
    ended_at: dict[str, float] = field(default_factory=dict[str, float])
    """Schedule -> when its session was settled."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)  # reproducible, not secret
        self.clock = JumpingClock(START)
        self.store = MemoryStore()
        self.model = WeekModel(self.seed)
        self.kinds: Sequence[Kind] = kinds(self.random, self.schedules, START, self.hours)

    async def live(self) -> None:
        """The whole of it: the week, and the hours after it in which all comes to its end."""
        self.clock.now()
        await self._founded()
        with capture_logs():
            async with anyio.create_task_group() as group:
                for number in range(self.runners):
                    group.start_soon(self._runner, random.Random(f"{self.seed} {number}"))
                group.start_soon(self._machine)
                await anyio.sleep(self.hours * HOUR)
                group.cancel_scope.cancel()
            for session in SESSIONS:
                await self._settled(session)

    async def _founded(self) -> None:
        for session in SESSIONS:
            row = SessionRow(id=session, workspace="/workspace", created_at=START)
            await create_session(self.store, row, self._world(self.store).spec_of("lead", "lead", None), fence=None)
        for place, kind in enumerate(self.kinds):
            session = SESSIONS[place % len(SESSIONS)]
            await self.store.commit(Put(schedule_key(session, kind.schedule.id), kind.schedule.encode()))

    def _world(self, store: MemoryStore) -> World:
        return World(self.model, store=store, clock=self.clock)

    async def _machine(self) -> None:
        """The machine sleeps, its clock is set forwards and back."""
        while True:
            await anyio.sleep(self.random.uniform(2, 14) * HOUR)
            nap = self.random.choice([self.random.uniform(60, 9 * HOUR), -self.random.uniform(1, 2_400), 5.0])
            self.jumps.append((self.clock.now(), nap))
            self.clock.away += nap

    async def _runner(self, draws: random.Random) -> None:
        """Processes, one after the other: each hosts what is free."""
        while True:
            most = draws.choice([8, 40, 150, 600])
            store = self.store.second_store(
                crash_after=draws.randrange(2, most), crash_point=draws.choice(["before", "after"])
            )
            try:
                await self._serve(store, draws)
            except (Crashed, Fenced):
                self.kills += 1
            except BaseExceptionGroup as group:
                _, others = group.split((Crashed, Fenced, anyio.get_cancelled_exc_class()))
                if others is not None:
                    raise
                self.kills += 1
            finally:
                store.kill()
            await anyio.sleep(draws.choice([1, 30, 300, 3_000]))

    async def _serve(self, store: MemoryStore, draws: random.Random) -> None:
        for session in draws.sample(SESSIONS, len(SESSIONS)):
            lease = await store.acquire(host_lease(session))
            if isinstance(lease, LeaseHolder):
                continue
            team = self._team(store, session)
            team.runtime.fence = lease.fence
            async with anyio.create_task_group() as group:
                group.start_soon(team.run)
                await anyio.sleep(draws.uniform(60, draws.choice([0.5, 12]) * HOUR))
                if draws.random() < 0.5:
                    await self._hand_over(team)
                group.cancel_scope.cancel()
            return
        await anyio.sleep(draws.uniform(60, 600))

    async def _hand_over(self, team: Team) -> None:
        """Leave at the end of a step, as a serving host does that drains."""
        self.handed_over += await paused_in_time(team)

    def _team(self, store: MemoryStore, session: str) -> Team:
        return Team(self._world(store).runtime(session), pid=1)

    async def _expire(self, team: Team) -> None:
        """What is due by now is decided upon and run, and nothing comes after it."""
        board, now = team.runtime.rows, self.clock.now()
        for one in [one.id for one in board.schedules() if one.state == "active"]:
            found = board.schedule(one)
            assert found is not None
            until = found[0].model_copy(update={"expires": min(now, found[0].expires or now)})
            await team.runtime.commit(Put(schedule_key(team.runtime.session, one), until.encode(), expected=found[1]))

    async def _settled(self, session: str) -> None:
        """A host that nothing happens to, until nothing is under way."""
        store = self.store.second_store()
        team = self._team(store, session)
        async with anyio.create_task_group() as group:
            group.start_soon(team.run)
            await anyio.sleep(1.0)
            await self._expire(team)
            await team.quiet()
            self.found |= {one.id: one for one in team.runtime.rows.schedules()}
            self.ended_at |= {one.id: self.clock.now() for one in team.runtime.rows.schedules()}
            await team.hook_notifier.end()
            group.cancel_scope.cancel()


__all__ = ["BERLIN", "SESSIONS", "START", "AgentState", "Week"]
