"""A team that does anything at any time: a model, a person, a service, a store and our own bugs, drawn from one seed.

Nothing here is likely to be useful work. What counts is that whatever happens is legal, that it ends, and that the
promises of `evidence` and `promises` hold: after each process that died, and when all is quiet. One seed is one run.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import ClassVar

import anyio
from tests.engine.team.team_world import TeamWorld, team_world
from tests.simulation.chaos_person import SESSION, Person, rows_of
from tests.simulation.chaos_replies import NAMES
from tests.simulation.chaos_service import Service, WildModel
from tests.simulation.chaos_store import Disk, Inner, Looks, Unkind, Wrong
from tests.simulation.chaos_tools import Bugs, Moody, Wilderness, wild_hooks
from tests.simulation.evidence import Evidence, gather
from tests.simulation.promises import Seen, broken_at_rest, broken_ever

from callboard.adapters.storage.memory import Crashed
from callboard.core.agent import decide as rules
from callboard.core.agent.state import AgentState, Facts
from callboard.core.context.pipeline import PRESETS
from callboard.core.keys import host_lease, session_key
from callboard.core.scheduling import next_wake
from callboard.engine.hooks.registry import HookRegistry
from callboard.engine.runtime import SessionRuntime
from callboard.ports.store import Lease, LeaseHolder
from callboard.testing import AllowAll, HostedSession, SteadyClock
from callboard.types.errors import Fenced, StoreFull
from callboard.types.records import Json, Request
from callboard.types.schedules import Schedule
from callboard.types.steps import Step

PATIENCE = 400_000.0
"""Virtual seconds after which a run is taken to hang."""
STEPS = 50_000
"""Decisions after which it is taken to turn on the spot; a run takes a tenth of that at most."""
BUDGETS: tuple[Json, ...] = (
    {},
    {},
    {},
    {"tokens": 20_000},
    {"steps": 12},
    {"cost_usd": 0.2},
    {"seconds": 2_500},
    {"agents": 3, "depth": 1},
)
"""Of every agent's life, all that it starts included."""
LATE = 10.0
"""Seconds after its time in which something may still be on its way into the store."""
LAST = 99
"""Number of the last process, which nothing befalls."""
Draw = random.Random


_WRONG: tuple[Wrong, ...] = ("killed_before", "killed_after", "killed_before", "killed_after", "full", "")


class Spins(BaseException):
    """Decisions follow each other and time stands still: like a kill, it passes every `except Exception`."""


@dataclass(frozen=True)
class Fate:
    """How a process of the run ends, before all is quiet or after."""

    wrong: Wrong = ""
    at: int = 0
    """At this write."""
    thaw: float = 0.0
    bugs: frozenset[int] = frozenset()
    """Records at which the agent's own code raises."""


def fates(seed: int, *, shared: bool) -> list[Fate]:
    """The processes before the last one, which nothing befalls."""
    draw, found = Draw(f"{seed}/fates"), list[Fate]()
    kinds: tuple[Wrong, ...] = (*_WRONG, "frozen") if shared else _WRONG
    for number in range(draw.randint(0, 3)):
        wrong = draw.choice(kinds)
        at = draw.randint(2, 150 if number == 0 else 60)
        first = draw.randint(20, 300)
        streak = draw.choice((1, 1, 4, 12))
        bugs = frozenset(range(first, first + streak)) if draw.random() < 0.4 else frozenset[int]()
        found.append(Fate(wrong, at, draw.choice((0.5, 40, 4_000)), bugs))
    return found


@dataclass
class ChaosWorld(TeamWorld):
    """The world of one process, with the lease under which it writes."""

    lease: Lease | None = None
    outside: Wilderness = field(default_factory=Wilderness)

    def runtime(self, session: str) -> SessionRuntime:
        runtime = super().runtime(session)
        assert self.lease is not None, "a process writes under a lease"
        runtime.fence = self.lease.fence
        runtime.services = replace(runtime.services, launcher=self.outside.processes, worktrees=self.outside.worktrees)
        return runtime


@dataclass
class Run:
    """One run of one seed: several processes, one after the other and sometimes beside each other, on one store."""

    seed: int
    outside: Wilderness = field(default_factory=lambda: Wilderness(slow=5.0))
    seen: Seen = field(default_factory=Seen)
    ends: Counter[str] = field(default_factory=Counter[str])
    """How processes ended, and what the person did."""
    rules: Counter[str] = field(default_factory=Counter[str])
    events: Counter[str] = field(default_factory=Counter[str])
    seconds: float = 0.0
    """Virtual, of the whole run."""
    broken: list[str] = field(default_factory=list[str])
    ended: list[anyio.Event] = field(default_factory=list[anyio.Event])
    """Of each process but the last."""

    names: ClassVar[tuple[str, ...]] = NAMES
    """Of the mates that a person may talk to."""
    settles: ClassVar[float] = 0.0
    """Seconds that a commit may be on its way which is nobody's work (what is known of the service's limits)."""

    def __post_init__(self) -> None:
        self.looks, self.service, self.clock = Looks(), self.served(), SteadyClock()
        self.outside.open(self.clock, self.seed)
        self.moody = Moody(self.seed, self.clock)
        self.tools = team_world(WildModel(self.service, 0), *self.outside.tools().values()).tools
        self.sqlite, self.hooked = self.seed % 10 == 7, self.seed % 2 == 1

    async def whole(self) -> Evidence:
        """Processes that come to an end, then one that lives; what is left when all is quiet."""
        with anyio.fail_after(PATIENCE), _counted(self.rules):
            async with Disk.made(sqlite=self.sqlite) as disk:
                evidence = await self._processes(disk)
        self.seconds = anyio.current_time()
        for life in evidence.lives:
            self.events.update(event.t for event in life.events)
        self.broken += self.judged(evidence)
        return evidence

    def served(self) -> Service:
        """The model service of the run."""
        return Service(self.seed)

    def fates(self, *, shared: bool) -> list[Fate]:
        """Of the processes before the last one, which nothing befalls."""
        return fates(self.seed, shared=shared)

    def store(self, inner: Inner, number: int, fate: Fate) -> Unkind:
        """The store as one process has it."""
        return Unkind(inner, self.looks, fate.wrong, fate.at, fate.thaw)

    def spec(self) -> Json:
        """What is special of every agent."""
        return {**_spec(Draw(f"{self.seed}/spec")), "budget": Draw(f"{self.seed}/budget").choice(BUDGETS)}

    async def look(self, inner: Inner) -> None:
        """Judge what a process left that died."""
        self.broken += broken_ever(await gather(inner, SESSION), self.seen, self.service)

    def judged(self, evidence: Evidence) -> list[str]:
        """What is broken when all is quiet."""
        return broken_at_rest(evidence, self.seen, self.service, self.outside, self.looks)

    async def _processes(self, disk: Disk) -> Evidence:
        inner = disk.reopened()
        async with anyio.create_task_group() as zombies:
            for number, fate in enumerate(self.fates(shared=disk.shared)):
                world, ended = self._world(inner, number, fate, await _leased(inner, number)), anyio.Event()
                self.ended.append(ended)
                assert isinstance(world.store, Unkind)
                stops = world.store.stops
                zombies.start_soon(self._until_dead, world, number, fate, ended)
                await either(ended, stops if fate.wrong == "frozen" else ended)
                inner = disk.reopened() if ended.is_set() else disk.beside(world.lease)
                if not ended.is_set():
                    self.seen.frozen = True
                    self.seen.died.add(number)
                else:  # a frozen process may still write while we read
                    await self.look(inner)
            last = self._world(inner, LAST, Fate(), await _leased(inner, LAST))
            await self._live(last, LAST)
        return await gather(inner, SESSION)

    def _world(self, inner: Inner, number: int, fate: Fate, lease: Lease | None) -> ChaosWorld:
        """The world of one process, with the lease."""
        model, store = WildModel(self.service, number), self.store(inner, number, fate)
        return ChaosWorld(
            model,
            self.tools,
            store=store,
            judge=AllowAll(ask=["bash"]),
            hooks=wild_hooks(self.seed) if self.hooked else HookRegistry(),
            clock=self.clock,
            observers=[Bugs(fate.bugs, raised=self.seen.bugs)],
            approvers=[self.moody],
            spec=self.spec(),
            seed=self.seed + number,
            lease=lease,
            outside=self.outside,
        )

    async def _until_dead(self, world: ChaosWorld, number: int, fate: Fate, ended: anyio.Event) -> None:
        how = "closed"
        try:
            how = await self._live_or_drop(world, number, fate)
        except* Crashed:
            how = "killed"
        except* StoreFull:
            how = "full"
        except* Fenced:
            how = "fenced"
        self.ends[how] += 1
        if how != "closed":
            self.seen.died.add(number)
        ended.set()

    async def _live_or_drop(self, world: ChaosWorld, number: int, fate: Fate) -> str:
        """One that is dropped is told to end in the middle of everything, as by a second Ctrl-C."""
        assert isinstance(world.store, Unkind)
        if fate.wrong != "dropped":
            await self._live(world, number)
            return "closed"
        async with anyio.create_task_group() as group:
            group.start_soon(_cancel_at, world.store.stops, group.cancel_scope)
            await self._live(world, number)
            group.cancel_scope.cancel()
        return "dropped" if world.store.stops.is_set() else "closed"

    async def _live(self, world: ChaosWorld, number: int) -> None:
        begun = await world.store.get(session_key(SESSION)) is not None
        draw = Draw(f"{self.seed}/person/{number}")
        async with world.session(SESSION, resume=begun) as session:
            person = Person(world, draw, number, self.ends, self.names)
            await person.acts()
            await session.quiet()
            if number == LAST:
                await self._to_the_end(session)
            await anyio.sleep(draw.choice((0, 0, 900)))
            await session.quiet()
            self.seen.live = states_of(session)

    async def _to_the_end(self, session: HostedSession) -> None:
        """Quiet is quiet: nothing is written before something is due; and what waits for a word runs into its
        deadline. Whoever sits before a process that was frozen has gone first."""
        for ended in self.ended:
            await ended.wait()
        await session.quiet()
        while True:
            if self.settles:
                await anyio.sleep(self.settles)
                await session.quiet()
            rows = await rows_of(session.world)
            due = _next_due(rows, self.clock.now(), self.moody)
            before, left = self.looks.commits, max(0.0, min(due, self.clock.now() + 4_000) - self.clock.now() - 1)
            await anyio.sleep(left)
            if self.looks.commits != before:
                self.broken.append(f"quiet was told, and then {self.looks.commits - before} commits came")
            deadlines = _deadlines(rows)
            if not deadlines:
                return
            await anyio.sleep(max(0.0, max(deadlines) - self.clock.now()) + 2)
            await session.quiet()
            if min(_deadlines(await rows_of(session.world)), default=self.clock.now()) + 100 < self.clock.now():
                return  # nobody has seen to it in time: it stands there for the judges


async def _leased(inner: Inner, number: int) -> Lease:
    lease = await inner.acquire(host_lease(SESSION))
    assert not isinstance(lease, LeaseHolder), f"process {number} finds the session hosted by {lease}"
    return lease


async def _cancel_at(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


async def either(one: anyio.Event, other: anyio.Event) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(_cancel_at, one, group.cancel_scope)
        group.start_soon(_cancel_at, other, group.cancel_scope)


def _deadlines(rows: list[Request | Schedule]) -> list[float]:
    """Of what waits for an answer."""
    return [one.expires_at for one in rows if isinstance(one, Request) and one.status == "pending" and one.expires_at]


def _next_due(rows: list[Request | Schedule], now: float, moody: Moody) -> float:
    """When the next thing happens by time alone."""
    times = [now + 10_000.0]
    for one in rows:
        if isinstance(one, Schedule) and one.state == "active" and one.enabled:
            times.append(next_wake(one) or now)
        if isinstance(one, Request) and one.status == "pending":
            times += [one.expires_at or now, moody.due.get(one.id, now)]
    return min(at for at in times if at >= now - LATE)


def states_of(session: HostedSession) -> dict[tuple[str, int], AgentState]:
    """The states of those who live here now."""
    members = session.team.members.items()
    return {key: one.agent.state for key, one in members if one.agent is not None and not one.ended.is_set()}


def _spec(draw: Draw) -> Json:
    pipeline = draw.choice(sorted(PRESETS))
    return {
        "fallback_models": draw.choice((("two",), ("two", "three"), ())),
        "small_model": draw.choice((None, "three")),
        "limits": {"seconds": 3_000, "steps": draw.choice((None, None, 9))},
        "context_limit": draw.choice((4_000, 6_000)),
        "pipeline": tuple(stage.model_dump() for stage in PRESETS[pipeline]),
        "react_limit": draw.choice(("per_success", "per_turn")),
        "after_compact": draw.choice(("continue", "end_turn")),
    }


@contextmanager
def _counted(counts: Counter[str]) -> Generator[None]:
    """Count which rule of `decide` gave each step: they are measured, not changed."""
    before, left = rules.RULES, count(STEPS, -1)

    def counting(rule: rules.Rule) -> rules.Rule:
        def counted(state: AgentState, facts: Facts) -> Step | None:
            step = rule(state, facts)
            if step is not None:
                counts[rule.__name__] += 1
                if not next(left):
                    raise Spins(f"{state.me.name} is told {step} without end, at {facts.now}")
            return step

        return counted

    rules.RULES = tuple(counting(rule) for rule in before)
    try:
        yield
    finally:
        rules.RULES = before
