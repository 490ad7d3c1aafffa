"""What a schedule may spend: in all, then it pauses; for each fire, then the fire ends. Virtual time only."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest
from tests.engine.agent.test_one_agent import Echo
from tests.engine.scheduling.test_schedules import add, prompts, row
from tests.engine.team.team_world import spawn, team_world

from callboard.adapters.storage.memory import MemoryStore
from callboard.core.keys import schedule_key
from callboard.core.reports.spending import CallTotals, ScheduleSpent
from callboard.core.scheduling import resume_schedule
from callboard.engine.budgets.spending import session_spending
from callboard.engine.recall import events_of
from callboard.ports.store import Append, Fence, Put, Write
from callboard.testing import HostedSession, ScriptedModel, World, say, use
from callboard.types.events import BudgetReached, Event, TurnBegan
from callboard.types.records import Budget
from callboard.types.schedules import Schedule

pytestmark = pytest.mark.anyio

HOUR = 3600


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    """Virtual time only: these tests wait for hours."""
    from trio.testing import MockClock

    return "trio", {"clock": MockClock(autojump_threshold=0)}


class Kept(MemoryStore):
    """Keeps what was committed together."""

    def __init__(self) -> None:
        super().__init__()
        self.commits: list[Sequence[Write]] = []

    async def commit(self, *writes: Write, fence: Fence | None = None) -> tuple[int, ...]:
        numbers = await super().commit(*writes, fence=fence)
        self.commits.append(writes)
        return numbers


async def pass_hours(team: HostedSession, hours: int) -> None:
    await anyio.sleep(hours * HOUR + 120)
    await team.quiet()


async def spent(team: HostedSession) -> ScheduleSpent:
    found = await session_spending(team.world.store, team.id, team.team.runtime.rows.agents())
    return next(iter(found.schedules), ScheduleSpent("cron_a", 0, CallTotals()))


async def lead(team: HostedSession) -> list[Event]:
    return await events_of(team.world.store, f"j/{team.id}/lead.1")


async def test_a_schedule_whose_budget_is_used_up_says_a_last_word_and_pauses_in_the_same_commit() -> None:
    store = Kept()
    world = World(ScriptedModel({}, end="looked"), store=store)
    async with world.session() as team:
        await add(world, budget={"steps": 3})
        await pass_hours(team, 9)
        assert (await spent(team)).spent.calls == 3
        assert (prompts(world), row(team).fires) == (3, 3)
        now = row(team)
        assert now.state == "paused"
        assert "the budget of model calls of schedule cron_a is used up" in now.paused_why
    (reached,) = [one for one in await lead(team) if isinstance(one, BudgetReached)]
    assert (reached.budget, reached.kind, reached.winds_down) == ("schedule:cron_a", "steps", True)
    (together,) = [
        writes
        for writes in store.commits
        if any(isinstance(one, Append) and b'"budget_reached"' in one.record for one in writes)
    ]
    (paused,) = [one for one in together if isinstance(one, Put) and one.key == schedule_key("s1", "cron_a")]
    assert Schedule.model_validate_json(paused.value).state == "paused"
    assert any(isinstance(one, Append) and b"is paused" in one.record for one in together), "the lead is told"


async def test_the_word_to_the_lead_waits_for_it_and_wakes_nobody() -> None:
    world = World(ScriptedModel({}, end="looked"))
    async with world.session() as team:
        await add(world, budget={"steps": 2})
        await pass_hours(team, 5)
        calls = len(world.model.requests)
        assert calls == 2
        await team.prompt("What is new?")
        await team.quiet()
        assert b"schedule cron_a" in b"".join(world.model.requests[-1].messages)
        assert b"is paused" in b"".join(world.model.requests[-1].messages)


@pytest.mark.parametrize("kind", ["steps", "tokens", "cost_usd", "seconds"])
async def test_nothing_allowed_is_nothing_and_never_unlimited(kind: str) -> None:
    world = World(ScriptedModel({}, end="looked"))
    async with world.session() as team:
        await add(world, budget={kind: 0})
        await pass_hours(team, 3)
        assert world.model.requests == []
        assert (row(team).state, row(team).fires) == ("paused", 0)
        assert row(team).paused_why


@pytest.mark.parametrize("budget", [{"tokens": 4_000}, {"cost_usd": 0.05}, {"steps": 7}, {"tokens": 2_500}])
async def test_all_fires_together_never_use_more_than_the_budget(budget: dict[str, float]) -> None:
    # 1,000 tokens in and 300 out: at the prices of the tests' model 0.0075 dollars.
    reply = say("looked")
    big = reply.usage.model_copy(update={"input_tokens": 1_000, "output_tokens": 300})
    world = World(ScriptedModel({"lead": [reply.__class__(reply.blocks, "end_turn", big, "scripted")] * 50}))
    async with world.session() as team:
        await add(world, budget=budget)
        await pass_hours(team, 20)
        found = (await spent(team)).spent
        assert row(team).state == "paused"
        assert found.calls > 0
        limits = Budget.model_validate(budget)
        assert limits.tokens is None or found.tokens <= limits.tokens
        assert limits.cost_usd is None or found.usage.cost_usd <= limits.cost_usd
        assert limits.steps is None or found.calls <= limits.steps


async def test_a_fire_that_has_used_its_own_budget_ends_and_the_next_one_has_as_much_again() -> None:
    looks = [use("list_tasks") for _ in range(40)]
    world = team_world(ScriptedModel({"lead": looks}, end="looked"))
    async with world.session() as team:
        await add(world, fire_budget={"steps": 4})
        await pass_hours(team, 3)
        assert row(team).state == "active", "the schedule itself has no limit"
        events = await lead(team)
        reached = [one for one in events if isinstance(one, BudgetReached)]
        assert len(reached) == row(team).fires == 3
        assert {one.budget.rpartition("Z")[0].rpartition(":20")[0] for one in reached} == {"fire:schedule:cron_a"}
        assert all(one.winds_down for one in reached)
        assert (await spent(team)).spent.calls == 3 * 4
        ends = [(one.reason, one.why) for one in events if one.t == "turn_ended"]
        assert [reason for reason, _ in ends] == ["limit"] * 3
        assert all("a fire of schedule" in why for _, why in ends)


async def test_an_agent_that_a_fire_started_draws_on_the_schedule() -> None:
    script = {"lead": [use(*spawn("alice"))], "alice": [use("list_tasks") for _ in range(30)]}
    world = team_world(ScriptedModel(script, end="done"))
    async with world.session() as team:
        await add(world, budget={"steps": 6})
        await pass_hours(team, 5)
        assert row(team).state == "paused"
        found = await spent(team)
        assert found.spent.calls <= 6
        alice = await events_of(world.store, "j/s1/alice.1")
        assert any(isinstance(one, BudgetReached) and one.budget == "schedule:cron_a" for one in alice)


async def test_what_a_schedule_has_spent_survives_a_resume() -> None:
    world = World(ScriptedModel({}, end="looked"))
    async with world.session() as team:
        await add(world, budget={"steps": 4})
        await pass_hours(team, 2)
        assert (await spent(team)).spent.calls == 2
    world.store = world.store.reopen()
    async with world.session(resume=True) as team:
        await pass_hours(team, 6)
        assert row(team).state == "paused"
        assert (await spent(team)).spent.calls == 4


async def test_a_person_lets_it_go_on_with_more_and_what_it_missed_never_runs() -> None:
    world = World(ScriptedModel({}, end="looked"))
    async with world.session() as team:
        await add(world, budget={"steps": 2})
        await pass_hours(team, 8)
        found = team.team.runtime.rows.schedule("cron_a")
        assert found is not None
        assert (found[0].state, prompts(world)) == ("paused", 2)
        again = resume_schedule(found[0], world.clock.now(), Budget(steps=4), Budget())
        await world.store.commit(Put(schedule_key("s1", "cron_a"), again.encode(), expected=found[1]))
        await pass_hours(team, 1)
        assert prompts(world) == 3, "one of the next hour, none of the hours before"
        await pass_hours(team, 8)
        assert (row(team).state, (await spent(team)).spent.calls) == ("paused", 4)


async def test_resumed_without_more_it_pauses_again_at_its_next_time() -> None:
    world = World(ScriptedModel({}, end="looked"))
    async with world.session() as team:
        await add(world, budget={"steps": 2})
        await pass_hours(team, 4)
        found = team.team.runtime.rows.schedule("cron_a")
        assert found is not None
        again = resume_schedule(found[0], world.clock.now(), Budget(), Budget())
        await world.store.commit(Put(schedule_key("s1", "cron_a"), again.encode(), expected=found[1]))
        await anyio.sleep(60)
        assert row(team).state == "active"
        await pass_hours(team, 2)
        assert row(team).state == "paused"
        assert (await spent(team)).spent.calls == 2


async def busy_lead(**fields: object) -> tuple[ScheduleSpent, int]:
    """A person's turn of an hour and a half, and an hourly schedule that would join it: what it spent, and how many
    turns there were."""

    async def long(given: object) -> str:
        await anyio.sleep(1.5 * HOUR)
        return "at last"

    world = team_world(
        ScriptedModel({"lead": [use("write_file"), say("done")]}, end="looked"), Echo("write_file", act=long)
    )
    async with world.session() as team:
        await add(world, deliver="step", recurring=False, **fields)
        await team.prompt("work")
        await pass_hours(team, 2)
        assert prompts(world) == 1
        return await spent(team), sum(isinstance(one, TurnBegan) for one in await lead(team))


async def test_a_prompt_that_joins_a_turn_is_counted_with_that_turn() -> None:
    found, turns = await busy_lead()
    assert (found.spent.calls, turns) == (0, 1)


@pytest.mark.parametrize("which", ["budget", "fire_budget"])
async def test_a_fire_of_a_schedule_with_a_budget_has_a_turn_of_its_own_which_is_charged_to_it(which: str) -> None:
    found, turns = await busy_lead(**{which: {"steps": 5}})
    assert (found.spent.calls, turns) == (1, 2)
