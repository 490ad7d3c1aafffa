"""Limits of time and alarms count the time in which the machine is awake, whatever its clock shows. Virtual time."""

from __future__ import annotations

import time

import anyio
import pytest
from tests.engine.scheduling.test_schedule_fires import history, slow
from tests.engine.scheduling.test_schedules import add
from tests.engine.team.supervised import Hangs, at_work, told
from tests.engine.team.team_world import spawn, team_world

from callboard.adapters.system.clock import SystemClock
from callboard.core.keys import rows_prefix
from callboard.engine.awake_time import AwakeTime
from callboard.testing import HostedSession, ScriptedModel, SteadyClock, say, use
from callboard.types import events as ev
from callboard.types.agent_spec import Limits
from callboard.types.records import Budget, Request

pytestmark = pytest.mark.anyio
HOUR = 3_600.0


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    """Virtual time only: these tests wait for hours."""
    from trio.testing import MockClock

    return "trio", {"clock": MockClock(autojump_threshold=0)}


class JumpingClock(SteadyClock):
    """A clock that a suspend or a time server moves. After a suspend the wall clock is ahead of the steady one too."""

    ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead


JUMPS = pytest.mark.parametrize("jump", [HOUR, -HOUR, 0.0], ids=["suspended or set forward", "set back", "untouched"])


@JUMPS
async def test_a_stall_is_noticed_after_the_time_in_which_the_machine_was_awake(jump: float) -> None:
    hangs, clock = Hangs(), JumpingClock()
    async with team_world(ScriptedModel(at_work(say("hm"), say("never"))), hangs, clock=clock).session() as team:
        await team.prompt("go")
        await hangs.begun.wait()
        began = clock.now()
        await anyio.sleep(100)
        clock.ahead = jump
        await anyio.sleep(520)
        assert await told(team, "alice", ev.StallNoticed) == []
        await anyio.sleep(20)
        (stalled,) = await told(team, "alice", ev.StallNoticed)
        assert (stalled.since, stalled.at) == (pytest.approx(began), pytest.approx(began + 630 + jump))
        hangs.free.set()
        await team.quiet()


LIMITED = {
    "budget of the session": {"budget": Budget(seconds=300)},
    "limit of a turn": {"spec": {"limits": Limits(seconds=300)}},
}


@JUMPS
@pytest.mark.parametrize("limited", LIMITED.values(), ids=LIMITED)
async def test_a_limit_of_time_ends_a_turn_after_the_time_in_which_the_machine_was_awake(
    limited: dict[str, object], jump: float
) -> None:
    script = [use("write_file", {"text": str(number)}) for number in range(20)]
    clock = JumpingClock()
    async with team_world(ScriptedModel({"lead": script}), slow(40), clock=clock, **limited).session() as team:
        await team.prompt("go")
        await anyio.sleep(100)
        clock.ahead = jump
        await anyio.sleep(190)  # several steps, each of which looks at the time
        assert team.state("lead").turn is not None
        await anyio.sleep(11)
        assert (team.state("lead").turn, team.state("lead").turns.last_reason) == (None, "limit")


@pytest.mark.slow(keep=1)
@JUMPS
async def test_the_deadline_of_a_fire_counts_the_time_in_which_the_machine_was_awake(jump: float) -> None:
    clock = JumpingClock()
    world = team_world(ScriptedModel({"lead": [use("write_file")]}, end="looked"), slow(HOUR), clock=clock)
    async with world.session() as team:
        await add(world, deadline=300)
        while not await history(world):
            await anyio.sleep(1)
        await anyio.sleep(100)
        clock.ahead = jump
        await anyio.sleep(190)
        assert (await history(world))[0].outcome == "running"
        await anyio.sleep(12)
        await team.quiet()
        assert (await history(world))[0].outcome == "timed_out"


@pytest.mark.parametrize(("paused", "calls"), [(200.0, 1), (400.0, 0), (-HOUR, 1)])
async def test_after_a_restart_the_wall_clock_tells_how_long_ago_a_session_began(paused: float, calls: int) -> None:
    """Also where it was set back meanwhile: then no time has passed, and the limit has not grown."""
    clock = JumpingClock()
    world = team_world(ScriptedModel({"lead": [say("one"), say("two")]}), clock=clock, budget=Budget(seconds=300))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
    clock.ahead = paused
    async with world.session(resume=True) as team:
        await anyio.sleep(1)  # its journals are read
        node = team.team.runtime.budgets.tree["session"]
        assert team.team.runtime.awake.now() - node.began_at == pytest.approx(max(0.0, paused), abs=2)
        await team.prompt("go")  # the same envelope as before the restart
        await team.prompt("again")
        await anyio.sleep(10)
        await team.quiet()
        assert len(world.model.requests) == 1 + calls


def test_the_steady_clock_of_the_machine_stands_still_in_a_suspend() -> None:
    """Linux keeps CLOCK_BOOTTIME for who wants to count a suspend."""
    before = time.clock_gettime(time.CLOCK_MONOTONIC)
    assert before <= SystemClock().steady() <= time.clock_gettime(time.CLOCK_MONOTONIC)


@pytest.mark.parametrize(("jump", "slept"), [(-HOUR, 300.0), (-100.0, 300.0), (0.0, 300.0), (250.0, 60.0)])
async def test_a_sleep_ends_early_where_the_clock_is_set_forward_and_never_late(
    jump: float, slept: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, clock = anyio.current_time(), SystemClock()
    ahead = [0.0]
    monkeypatch.setattr(clock, "steady", anyio.current_time)
    monkeypatch.setattr(clock, "now", lambda: 1_800_000_000.0 + anyio.current_time() + ahead[0])
    async with anyio.create_task_group() as group:
        group.start_soon(clock.sleep_until, clock.now() + 300)
        await anyio.sleep(45)
        ahead[0] = jump
    assert anyio.current_time() - began == pytest.approx(slept)


@pytest.mark.parametrize("jump", [-HOUR, -100.0, 0.0])
async def test_a_question_expires_after_its_time_where_the_clock_is_set_back(jump: float) -> None:
    clock = JumpingClock()
    model = ScriptedModel({"lead": [use("ask_person", {"question": "Which?"}), say("waiting"), say("I chose A.")]})
    async with team_world(model, clock=clock).session() as team:
        await team.prompt("go")
        await team.quiet()
        await anyio.sleep(200)
        clock.ahead = jump
        await anyio.sleep(1_605)
        await team.quiet()
        assert team.state("lead").turns.last_text == "I chose A."


async def asked(team: HostedSession) -> list[Request]:
    rows = await team.world.store.keys(rows_prefix("s1"))
    return [Request.model_validate_json(row.value or b"") for row in rows if "/request/" in row.key]


@pytest.mark.parametrize("jump", [-HOUR, -100.0, 0.0])
async def test_a_plan_expires_after_its_time_where_the_clock_is_set_back(jump: float) -> None:
    clock, plan = JumpingClock(), use("submit_plan", {"plan": "Thatch it."})
    model = ScriptedModel({"lead": [use(*spawn("alice", plan_required=True)), say("ok")], "alice": [plan, say("hm")]})
    async with team_world(model, clock=clock).session() as team:
        await team.prompt("go")
        await anyio.sleep(200)
        (waits,) = await asked(team)
        assert (waits.kind, waits.status) == ("plan", "pending")
        clock.ahead = jump
        await anyio.sleep(10)
        agent = team.team.agent("alice")
        assert agent is not None
        agent.wake()  # who looks again does not wait anew
        await anyio.sleep(1_595)
        assert [one.status for one in await asked(team)] == ["expired"], "without a wait for the end of the run"


def test_what_a_clock_recorded_that_was_set_back_since_began_now() -> None:
    clock = SteadyClockByHand()
    awake = AwakeTime(clock)
    clock.wall, clock.passed = 500.0, 10.0
    assert (awake.now(), awake.at(490.0), awake.at(9_999.0)) == (1_010.0, 1_000.0, 1_010.0)


class SteadyClockByHand(SteadyClock):
    wall, passed = 1_000.0, 0.0

    def now(self) -> float:
        return self.wall

    def steady(self) -> float:
        return self.passed
