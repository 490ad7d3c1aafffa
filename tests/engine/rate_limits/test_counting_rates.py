"""Counts of tokens have limits of their own at the service: what they are refused holds no message, and who is told to
wait, or that the key is bad, does not ask on."""

from __future__ import annotations

import anyio
import pytest
from tests.engine.agent.test_one_agent import Echo, tools
from tests.engine.context.test_counting import SPEC, long
from tests.engine.rate_limits.test_rates import KEY, events_of, meet, run_together
from tests.engine.team.team_world import Shared

from callboard.core.rate_limits.key_state import count_limiter_name
from callboard.engine.rate_limits.limiter import CallPriority, KeyLimiter
from callboard.ports.model import CallFault, CannotCount, ModelRequest
from callboard.testing import ScriptedModel, SteadyClock, fault, say, use
from callboard.types import events as ev
from callboard.types.records import Fault

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["trio"], indirect=True)]
"""Time is virtual."""
SLOW = fault("rate_limited", retry_after=40.0, status=429, message="slow down")


class Counting(ScriptedModel):
    """Refuses counts with what stands in `refuses`, one after the other, then says 30,000; notes when it was asked."""

    def __init__(self, *refuses: Fault | None, turns: int = 1, takes: float = 0.1) -> None:
        super().__init__({"lead": [use("echo"), say("done")] * turns})
        self._refuses, self._takes = list(refuses), takes
        self.counted: list[float] = []

    async def count(self, request: ModelRequest) -> int:
        self.counted.append(anyio.current_time())
        refused = self._refuses.pop(0) if self._refuses else None
        await anyio.sleep(self._takes)
        if refused is not None:
            raise CannotCount(refused.message, refused)
        return 30_000


def world(model: ScriptedModel, clock: SteadyClock, key_limiter: KeyLimiter) -> Shared:
    pipeline = ({"stage": "summarize_all"},)
    made = Shared(model, tools(Echo(act=long)), clock=clock, spec={**SPEC, "pipeline": pipeline})
    made.key_limiter = key_limiter
    return made


async def test_a_count_that_is_refused_parks_counts_and_no_message() -> None:
    clock = SteadyClock()
    key_limiter, model = KeyLimiter(clock), Counting(SLOW)
    there = world(model, clock, key_limiter)
    began = anyio.current_time()
    (team,) = await run_together([there])
    assert team.state("lead").turns.last_text == "done"
    assert anyio.current_time() < began + 1, "the message that it was about did not wait"
    assert key_limiter.parked_until("scripted") == 0.0
    assert 39 < key_limiter.parked_until(count_limiter_name("scripted")) - clock.now() < 41
    state = team.state("lead")
    assert not state.model.uncountable
    assert state.model.uncounted_until >= clock.now() + 59
    (told,) = await events_of(there, "s0", ev.TokensCounted)
    assert isinstance(told, ev.TokensCounted)
    assert (told.tokens, told.why) == (None, "slow down")


async def test_while_counts_are_parked_for_longer_than_a_count_may_take_nobody_asks() -> None:
    clock = SteadyClock()
    key_limiter, model = KeyLimiter(clock), Counting(SLOW)
    teams = await run_together([world(model, clock, key_limiter)])
    others = Counting()
    teams = await run_together([world(others, clock, key_limiter)])
    assert [team.state("lead").turns.last_text for team in teams] == ["done"]
    assert (len(model.counted), others.counted) == (1, [])


async def test_counts_wait_for_a_short_park() -> None:
    clock = SteadyClock()
    key_limiter, model = KeyLimiter(clock), Counting(SLOW.model_copy(update={"retry_after": 10.0}))
    await run_together([world(model, clock, key_limiter)])
    asked, others = anyio.current_time(), Counting()
    (team,) = await run_together([world(others, clock, key_limiter)])
    assert len(others.counted) == 1
    assert others.counted[0] >= asked + 9
    assert team.state("lead").model.uncounted_until == 0.0


@pytest.mark.parametrize("kind", ["credentials", "payment", "spend_limit"])
async def test_no_count_goes_out_with_a_refused_key_and_none_says_that_it_is_good(kind: str) -> None:
    clock = SteadyClock()
    key_limiter, asking = KeyLimiter(clock), CallPriority("scripted")
    refused = KEY.model_copy(update={"kind": kind})
    async with key_limiter.count_slot(asking):  # under way when the key is refused, and answered after it
        with pytest.raises(CallFault):
            await meet(key_limiter, asking, refused)
    await anyio.sleep(61)
    with pytest.raises(CallFault, match="bad key"):
        async with key_limiter.count_slot(asking):
            raise AssertionError("no count goes to see whether the key is good")
    async with key_limiter.slot(asking):
        pass
    async with key_limiter.count_slot(asking):
        pass


async def test_a_person_whose_key_is_refused_is_heard_without_a_count() -> None:
    clock = SteadyClock()
    key_limiter, model = KeyLimiter(clock), Counting(turns=2)
    there = world(model, clock, key_limiter)
    async with there.session() as team:
        await team.prompt("go")
        await team.quiet()
        with pytest.raises(CallFault):
            await meet(key_limiter, CallPriority("scripted", person=True), KEY)
        await team.prompt("I have mended it")
        await team.quiet()
        assert team.state("lead").turns.last_text == "done"
        assert not team.state("lead").model.uncountable


async def test_a_service_that_has_no_way_to_count_is_still_asked_once() -> None:
    clock = SteadyClock()
    model = Counting(fault("not_found", status=404), fault("not_found", status=404), turns=2)
    there = world(model, clock, KeyLimiter(clock))
    async with there.session() as team:
        for words in ("go", "again"):
            await team.prompt(words)
            await team.quiet()
        assert team.state("lead").model.uncountable
        assert len(model.counted) == 1


async def test_one_that_could_not_is_asked_again_after_a_minute() -> None:
    clock = SteadyClock()
    model = Counting(fault("server", status=500), turns=3)
    there = world(model, clock, KeyLimiter(clock))
    async with there.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert len(model.counted) == 1
        await team.prompt("again")
        await team.quiet()
        assert len(model.counted) == 1
        await anyio.sleep(61)
        await team.prompt("and again")
        await team.quiet()
        assert len(model.counted) == 2


async def test_a_count_that_is_cancelled_leaves_its_place() -> None:
    clock = SteadyClock()
    key_limiter = KeyLimiter(clock, at_once=1)
    with anyio.move_on_after(1):
        async with key_limiter.count_slot(CallPriority("m")):
            await anyio.sleep_forever()
    with anyio.fail_after(1):
        async with key_limiter.count_slot(CallPriority("m")), anyio.create_task_group() as group:
            with anyio.move_on_after(0.5):
                async with key_limiter.count_slot(CallPriority("m")):
                    raise AssertionError("there is room for one")
            group.cancel_scope.cancel()
        async with key_limiter.slot(CallPriority("m")):
            pass
