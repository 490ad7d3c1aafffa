"""Schedules through outages of the model service and through clocks that jump. Virtual time."""

from __future__ import annotations

import anyio
import pytest
from tests.engine.scheduling.test_schedule_fires import HOUR, MINUTE, history
from tests.engine.scheduling.test_schedules import add, row

from callboard.ports.model import CallFault, ModelRequest, OnDelta, Reply
from callboard.testing import ScriptedModel, SteadyClock, World, fault
from callboard.types.records import FaultKind

pytestmark = pytest.mark.anyio
YEARS = 5 * 365 * 24 * HOUR


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    """Virtual time only: these tests wait for hours."""
    from trio.testing import MockClock

    return "trio", {"clock": MockClock(autojump_threshold=0)}


class Outage(ScriptedModel):
    """A service that cannot be used before a moment, counted from the first call."""

    def __init__(self, kind: FaultKind, seconds: float) -> None:
        super().__init__({}, end="looked")
        self._kind: FaultKind = kind
        self._seconds = seconds
        self._began: float | None = None

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        now = anyio.current_time()
        self._began = now if self._began is None else self._began
        if now - self._began < self._seconds:
            raise CallFault(fault(self._kind, message="no route to host"))
        return await super().complete(request, on_delta)


class MovableClock(SteadyClock):
    """A clock that somebody sets."""

    ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("kind", ["connection", "server", "overloaded", "rate_limited", "silence"])
async def test_an_outage_of_the_service_pauses_no_schedule_and_its_fires_are_made_up(kind: FaultKind) -> None:
    world = World(Outage(kind, 40 * MINUTE))
    async with world.session() as team:
        await add(world, cron="*/10 * * * *")
        await anyio.sleep(2 * HOUR)
        await team.quiet()
        assert (row(team).state, row(team).failures) == ("active", 0)
        fires = await history(world)
        first = fires[0]
        assert first.outcome == "done", "it ran as soon as the service was back"
        assert first.unserved == first.attempt - 1 > 3
        assert {one.outcome for one in fires} == {"done", "skipped"}
        assert [one.outcome for one in fires[-5:]] == ["done"] * 5


@pytest.mark.slow
async def test_a_fire_that_comes_too_late_after_an_outage_is_given_up_and_counts_no_failure() -> None:
    world = World(Outage("connection", 3 * HOUR))
    async with world.session() as team:
        await add(world, window=HOUR)
        await anyio.sleep(6 * HOUR)
        await team.quiet()
        fires = await history(world)
        assert [one.outcome for one in fires[:2]] == ["failed", "failed"]
        assert "no route to host" in fires[0].why
        assert fires[-1].outcome == "done"
        assert (row(team).state, row(team).failures) == ("active", 0)


async def test_a_key_that_is_refused_still_pauses_its_schedule() -> None:
    world = World(Outage("credentials", 12 * HOUR))
    async with world.session() as team:
        await add(world)
        await anyio.sleep(6 * HOUR)
        await team.quiet()
        assert (row(team).state, row(team).failures) == ("paused", 3)


async def jumped(world: World, seconds: float = 80.0) -> None:
    """The clock is years ahead for so long."""
    clock = world.clock
    assert isinstance(clock, MovableClock)
    clock.ahead = YEARS
    await anyio.sleep(seconds)
    clock.ahead = 0.0


@pytest.mark.slow
async def test_a_clock_that_was_years_ahead_for_a_moment_silences_no_schedule() -> None:
    world = World(ScriptedModel({}, end="looked"), clock=MovableClock())
    async with world.session() as team:
        await add(world)
        await add(world, id="cron_b", cron="at 2027-01-15T16:00", recurring=False)
        await add(world, id="cron_c", expires=world.clock.now() + 40 * HOUR)
        await anyio.sleep(HOUR + 120)
        await jumped(world)
        await anyio.sleep(3 * HOUR)
        await team.quiet()
        now = world.clock.now()
        assert [one.outcome for one in await history(world) if one.nominal <= now] == ["done"] * 4
        assert [one.outcome for one in await history(world, "cron_c") if one.nominal <= now] == ["done"] * 4
        for name in ("cron_a", "cron_b", "cron_c"):
            schedule = team.team.runtime.rows.schedule_row(name)
            assert schedule is not None
            assert schedule.state == "active"
            assert (schedule.last_slot or 0.0) <= now
        await anyio.sleep(6 * HOUR)
        assert [one.outcome for one in await history(world, "cron_b")] == ["done"], "its time came only now"
        told = [one for request in world.model.requests for one in request.messages if b"is corrected" in one]
        assert told, "the lead hears of it with its next turn"


async def test_a_clock_that_is_put_back_fires_nothing_twice() -> None:
    world = World(ScriptedModel({}, end="looked"), clock=MovableClock())
    async with world.session() as team:
        await add(world, cron="*/5 * * * *")
        await anyio.sleep(HOUR)
        assert isinstance(world.clock, MovableClock)
        world.clock.ahead = -20.0 * MINUTE
        await anyio.sleep(HOUR)
        await team.quiet()
        fires = await history(world)
        assert len({one.id for one in fires}) == len(fires)
        assert len({one.nominal for one in fires}) == len(fires)
        assert all(one.attempt == 1 for one in fires)


class CountedClock(MovableClock):
    """A clock that fails when it is asked without end, as by a loop that never sleeps."""

    asked = 0

    def now(self) -> float:
        self.asked += 1
        assert self.asked < 20_000, "the scheduler turns on the spot"
        return super().now()


async def test_a_clock_that_is_set_back_after_a_failure_ends_the_wait() -> None:
    """The next process begins before the failure that it reads, and waits from its own beginning."""
    world = World(Outage("invalid", 3 * MINUTE), clock=CountedClock())
    async with world.session() as team:
        await add(world, cron="* * * * *")
        while await failures(world) < 2:
            await anyio.sleep(1)
        await team.quiet()
    assert isinstance(world.clock, MovableClock)
    world.clock.ahead = -30.0
    world.store = world.store.reopen()
    async with world.session(resume=True) as team:
        await anyio.sleep(5 * MINUTE)
        await team.quiet()
        assert "done" in {one.outcome for one in await history(world)}


async def failures(world: World) -> int:
    return sum(one.outcome == "failed" for one in await history(world))
