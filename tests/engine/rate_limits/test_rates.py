"""The rate limiter in a team: one park for all, one call after an outage, one word of a refused key, and what other
processes heard."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import anyio
import pytest
from tests.engine.agent.test_one_agent import Echo, tools
from tests.engine.team.team_world import Shared

from callboard.adapters.storage.memory import MemoryStore
from callboard.engine.rate_limits.limiter import (
    CallPriority,
    KeyLimiter,
    KeyLimiters,
    catch_up,
    rates_of,
    reset_rates,
    share,
)
from callboard.ports.model import CallFault, ModelRequest, Reply
from callboard.ports.store import Put
from callboard.testing import HostedSession, ScriptedModel, SteadyClock, World, fault, say
from callboard.types import events as ev
from callboard.types.rate_limits import RateNotice
from callboard.types.records import Fault

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["trio"], indirect=True)]
"""Time is virtual."""
KEY = fault("credentials", status=401, message="bad key")


class Service(ScriptedModel):
    """A service that refuses with what stands in `refuses`, one after the other, then answers; notes when it was
    asked."""

    def __init__(self, *refuses: Fault, clock: SteadyClock) -> None:
        super().__init__({}, delay=0.1)
        self._refuses = list(refuses)
        self._clock = clock
        self.asked: list[float] = []

    async def complete(self, request: ModelRequest, on_delta: object) -> Reply:
        self.asked.append(round(self._clock.now() - 1_800_000_000, 2))
        refused = self._refuses.pop(0) if self._refuses else None
        await anyio.sleep(0.05 if refused else 0.1)  # it refuses faster than it answers
        if refused is not None:
            raise CallFault(refused)
        return say("done")


def world(model: ScriptedModel, clock: SteadyClock, key_limiter: KeyLimiter | None = None, **more: object) -> Shared:
    made = Shared(model, tools(Echo()), clock=clock, **more)
    made.key_limiter = key_limiter
    return made


async def all_quiet(teams: Sequence[HostedSession]) -> None:
    for team in teams:
        await team.quiet()


async def run_together(worlds: Sequence[World], seconds: float = 600) -> list[HostedSession]:
    """Each world's lead gets a prompt at the same moment; until all are quiet."""
    teams: list[HostedSession] = []
    with anyio.fail_after(seconds):
        async with anyio.create_task_group() as group:
            ready = [anyio.Event() for _ in worlds]

            async def live(number: int) -> None:
                async with worlds[number].session(f"s{number}") as team:
                    teams.append(team)
                    await team.prompt("go")
                    ready[number].set()
                    await anyio.sleep_forever()

            for number in range(len(worlds)):
                group.start_soon(live, number)
            for one in ready:
                await one.wait()
            await all_quiet(teams)
            group.cancel_scope.cancel()
    return teams


async def meet(key_limiter: KeyLimiter, asking: CallPriority, refused: Fault, after: float = 0.0) -> None:
    """A call that is refused."""
    async with key_limiter.slot(asking):
        await anyio.sleep(after)
        raise CallFault(refused)


async def events_of(world_: World, session: str, kind: type[ev.Event]) -> list[ev.Event]:
    records = await world_.store.read(f"j/{session}/lead.1", 0, 10_000)
    return [one for one in (ev.decode_event(record.data) for record in records) if isinstance(one, kind)]


async def test_a_429_with_a_wait_parks_all_sessions_of_a_key_once() -> None:
    clock = SteadyClock()
    slow = fault("rate_limited", retry_after=40.0, status=429, message="slow down")
    model, key_limiter = Service(slow, clock=clock), KeyLimiter(clock)
    worlds = [world(model, clock, key_limiter) for _ in range(20)]
    teams = await run_together(worlds)
    assert [team.state("lead").turns.last_text for team in teams] == ["done"] * 20
    first = [at for at in model.asked if at < 40]
    assert len(first) <= 16, "what a new key is asked with; nobody goes while all are parked"
    assert len(model.asked) == 21
    assert min(at for at in model.asked if at not in first) >= 40.05


async def test_after_an_outage_one_call_goes_and_not_a_herd() -> None:
    clock = SteadyClock()
    down = fault("overloaded", status=529, message="Overloaded")
    model, key_limiter = Service(*[down] * 20, clock=clock), KeyLimiter(clock)
    worlds = [world(model, clock, key_limiter, spec={"attempts": 10}) for _ in range(40)]
    teams = await run_together(worlds)
    assert [team.state("lead").turns.last_text for team in teams] == ["done"] * 40
    probes = model.asked[16:20]
    assert len(set(probes)) == 4, "each goes alone"
    gaps = [b - a for a, b in pairwise(probes)]
    assert gaps == sorted(gaps), f"the back-off grows: {probes}"
    assert len(model.asked) == 60, "nobody is refused but those who must be"


async def test_a_call_that_was_held_is_told_with_how_long_and_why() -> None:
    clock = SteadyClock()
    slow = fault("rate_limited", retry_after=40.0, status=429, message="slow down")
    model, key_limiter = Service(slow, clock=clock), KeyLimiter(clock)
    worlds = [world(model, clock, key_limiter) for _ in range(20)]
    await run_together(worlds)
    told = [one for n, w in enumerate(worlds) for one in await events_of(w, f"s{n}", ev.CallHeld)]
    assert len(told) == 4, "those that stood in line behind the first 16"
    for one in told:
        assert isinstance(one, ev.CallHeld)
        assert 39 < one.seconds < 42
        assert "16 calls in flight" in one.why


async def test_a_refused_key_stops_everybody_at_once_and_no_other_call_goes_out() -> None:
    clock = SteadyClock()
    model, key_limiter = Service(*[KEY] * 99, clock=clock), KeyLimiter(clock)
    worlds = [world(model, clock, key_limiter) for _ in range(30)]
    teams = await run_together(worlds)
    assert all("bad key" in team.state("lead").turns.last_why for team in teams)
    assert {team.state("lead").turns.last_reason for team in teams} == {"failed"}


async def test_a_persons_new_prompt_is_tried_at_once_and_a_success_lifts_it_for_all() -> None:
    clock = SteadyClock()
    model, key_limiter = Service(KEY, clock=clock), KeyLimiter(clock)
    one = world(model, clock, key_limiter)
    async with one.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert "bad key" in team.state("lead").turns.last_why
        with pytest.raises(CallFault, match="bad key"):
            async with key_limiter.slot(CallPriority("scripted")):
                pytest.fail("no call goes out")
        await team.prompt("again")
        await team.quiet()
        assert team.state("lead").turns.last_text == "done"
    async with key_limiter.slot(CallPriority("scripted")):
        pass  # it goes out


async def test_an_answer_to_a_call_that_was_under_way_before_lifts_no_refusal() -> None:
    """One of two calls in flight is refused, then the other one is answered: it was asked before."""
    key_limiter = KeyLimiter(SteadyClock())
    async with key_limiter.slot(CallPriority("m")) as before:
        with pytest.raises(CallFault):
            async with key_limiter.slot(CallPriority("m")):
                raise CallFault(KEY)
        before.mark_reply_started()
    with pytest.raises(CallFault, match="bad key"):
        async with key_limiter.slot(CallPriority("m")):
            pytest.fail("no call goes out")
    async with key_limiter.slot(CallPriority("m", person=True)):
        pass
    async with key_limiter.slot(CallPriority("m")):
        pass  # it goes out


async def test_a_refused_key_is_tried_by_one_call_a_minute() -> None:
    clock = SteadyClock()
    key_limiter = KeyLimiter(clock)
    gone: list[float] = []

    async def tried() -> None:
        async with key_limiter.slot(CallPriority("m")):
            gone.append(clock.now() - 1_800_000_000)
            raise CallFault(KEY)

    for _ in range(260):
        with pytest.raises(CallFault):
            await tried()
        await anyio.sleep(1)
    assert gone == [0, 60, 120, 180, 240]


async def test_a_key_that_may_not_use_one_model_is_good_for_the_others() -> None:
    key_limiter = KeyLimiter(SteadyClock())
    with pytest.raises(CallFault):
        async with key_limiter.slot(CallPriority("large")):
            raise CallFault(fault("credentials", status=403))
    async with key_limiter.slot(CallPriority("small")):
        pass
    with pytest.raises(CallFault):
        async with key_limiter.slot(CallPriority("large")):
            pytest.fail("no call goes out")


async def test_another_model_of_the_key_is_not_parked_with_the_first() -> None:
    key_limiter = KeyLimiter(SteadyClock())
    with pytest.raises(CallFault):
        async with key_limiter.slot(CallPriority("large")):
            raise CallFault(fault("rate_limited", retry_after=50.0))
    with anyio.fail_after(30):
        async with key_limiter.slot(CallPriority("small")):
            pass
    assert key_limiter.parked_until("large") > key_limiter.parked_until("small") == 0.0


@pytest.mark.parametrize("wait", [3_600.0, 31_536_000.0])
async def test_a_wait_of_any_length_is_tried_again_within_a_minute(wait: float) -> None:
    clock = SteadyClock()
    slow = fault("rate_limited", retry_after=wait, status=429, message="slow down")
    model, key_limiter = Service(slow, slow, clock=clock), KeyLimiter(clock)
    teams = await run_together([world(model, clock, key_limiter)])
    assert teams[0].state("lead").turns.last_text == "done"
    assert [round(at) for at in model.asked] == [0, 60, 120]


async def test_a_persons_prompt_during_a_park_is_tried_at_once_by_a_parked_agent() -> None:
    clock = SteadyClock()
    slow = fault("rate_limited", retry_after=3_600.0, status=429, message="slow down")
    model, key_limiter = Service(slow, clock=clock), KeyLimiter(clock)
    async with world(model, clock, key_limiter).session() as team:
        await team.prompt("go")
        await anyio.sleep(20)
        await team.prompt("try again")
        await team.quiet()
    assert [round(at) for at in model.asked] == [0, 20]


async def meet_after_prompt(key_limiter: KeyLimiter, team: HostedSession, refused: Fault) -> None:
    """A call that is refused while the lead's call stands in line behind it."""
    async with key_limiter.slot(CallPriority("scripted")):
        await team.prompt("go")
        await anyio.sleep(1)
        raise CallFault(refused)


async def test_a_persons_prompt_has_a_call_go_that_stands_in_line_for_a_parked_model() -> None:
    clock = SteadyClock()
    slow = fault("rate_limited", retry_after=3_600.0, status=429, message="slow down")
    model, key_limiter = Service(slow, clock=clock), KeyLimiter(clock, 1)
    async with world(model, clock, key_limiter).session() as team:
        with pytest.raises(CallFault):
            await meet_after_prompt(key_limiter, team, slow)
        await anyio.sleep(20)
        await team.prompt("hurry")
        await team.quiet()
    assert [round(at) for at in model.asked] == [3, 21], "the prompt's own try was refused; the next words try again"


async def test_agents_with_a_fallback_use_it_at_once_and_the_first_model_again_later() -> None:
    clock = SteadyClock()
    slow = fault("rate_limited", retry_after=3_600.0, status=429, message="slow down")
    model, key_limiter = Service(slow, clock=clock), KeyLimiter(clock)
    worlds = [world(model, clock, key_limiter, spec={"fallback_models": ("other",)}) for _ in range(3)]
    teams = await run_together(worlds)
    assert [team.state("lead").turns.last_text for team in teams] == ["done"] * 3
    assert max(model.asked) < 10
    switched = [one for n, w in enumerate(worlds) for one in await events_of(w, f"s{n}", ev.ModelSwitched)]
    assert switched, "the one that was refused, at least"


async def test_a_reset_of_another_process_lets_parked_agents_go_on_at_once() -> None:
    clock = SteadyClock()
    slow = fault("rate_limited", retry_after=3_600.0, status=429, message="slow down")
    model, key_limiter = Service(slow, clock=clock), KeyLimiter(clock, key="k")
    one = world(model, clock, key_limiter)
    async with one.session() as team:
        await team.prompt("go")
        await anyio.sleep(5)
        rows = await reset_rates(one.store, now=clock.now())
        assert [row.model for row in rows] == ["scripted"]
        await team.quiet()
    assert [round(at) for at in model.asked] == [0, 5]
    assert [row for row in await rates_of(one.store) if row.parked_until] == []


async def test_processes_that_share_a_store_heed_each_other_and_a_restart_reads_it() -> None:
    clock, store = SteadyClock(), MemoryStore()
    here, there = KeyLimiter(clock, key="k"), KeyLimiter(clock, key="k")
    other = KeyLimiter(clock, key="another key")
    async with anyio.create_task_group() as group:
        for one in (here, there, other):
            group.start_soon(share, one, store)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(CallFault):
            async with here.slot(CallPriority("m")):
                raise CallFault(fault("rate_limited", retry_after=50.0, message="slow"))
        await anyio.sleep(1)
        assert there.parked_until("m") == here.parked_until("m") == 1_800_000_050.0
        assert other.parked_until("m") == 0.0
        with pytest.raises(CallFault):
            async with there.slot(CallPriority("n")):
                raise CallFault(KEY)
        await anyio.sleep(1)
        with pytest.raises(CallFault, match="bad key"):
            async with here.slot(CallPriority("n")):
                pytest.fail("no call goes out")
        restarted = KeyLimiter(clock, key="k")
        await catch_up(restarted, store)
        assert restarted.parked_until("m") == 1_800_000_050.0
        with pytest.raises(CallFault, match="bad key"):
            async with restarted.slot(CallPriority("n")):
                pytest.fail("no call goes out")
        async with here.slot(CallPriority("n", person=True)):
            pass
        await anyio.sleep(1)
        async with there.slot(CallPriority("n")):
            pass  # it is good again, there as well
        group.cancel_scope.cancel()


async def test_two_hosts_that_share_a_store_are_parked_together() -> None:
    clock, store = SteadyClock(), MemoryStore()
    slow = fault("rate_limited", retry_after=40.0, status=429, message="slow down")
    model = Service(slow, clock=clock)
    here, there = world(model, clock, store=store), world(model, clock, store=store)
    async with here.session("here") as one, there.session("there") as other:
        await one.prompt("go")
        await anyio.sleep(5)
        await other.prompt("go")
        await other.quiet()
        await one.quiet()
        assert other.state("lead").turns.last_text == one.state("lead").turns.last_text == "done"
    assert model.asked[0] < 1
    assert len(model.asked) == 3
    assert min(model.asked[1:]) >= 40, "each has a rate limiter of its own, and heeds what the other one heard"


async def test_a_flood_of_refusals_writes_few_rows() -> None:
    clock, store = SteadyClock(), MemoryStore()
    key_limiter = KeyLimiter(clock, key="k")
    async with anyio.create_task_group() as group:
        group.start_soon(share, key_limiter, store)
        await anyio.wait_all_tasks_blocked()

        async def refused(after: float) -> None:
            with pytest.raises(CallFault):
                await meet(key_limiter, CallPriority("m"), fault("rate_limited", retry_after=50.0), after / 100)

        async with anyio.create_task_group() as calls:
            for number in range(16):
                calls.start_soon(refused, float(number))
        await anyio.sleep(1)
        rows = await store.keys("rate/k/")
        assert [RateNotice.model_validate_json(row.value or b"").model for row in rows] == ["m"]
        assert rows[0].revision == 1, "sixteen refusals within a second are one row"
        group.cancel_scope.cancel()


async def test_a_row_that_cannot_be_read_holds_nobody() -> None:
    store, key_limiter = MemoryStore(), KeyLimiter(SteadyClock(), key="k")
    await store.commit(Put("rate/k/m", b"{not json"), Put("rate/k/n", b'{"parked_until": "soon"}'))
    await catch_up(key_limiter, store)
    assert key_limiter.parked_until("m") == key_limiter.parked_until("n") == 0.0


async def test_one_limiter_for_a_key() -> None:
    key_limiters = KeyLimiters(SteadyClock())
    assert key_limiters.of("a") is key_limiters.of("a")
    assert key_limiters.of("a") is not key_limiters.of("b")
