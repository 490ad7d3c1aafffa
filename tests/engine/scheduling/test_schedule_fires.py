"""What becomes of each fire: overlap, context, retries, deadlines, ends, and its row in the history. Virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import anyio
import pytest
from structlog.testing import capture_logs
from tests.engine.agent.test_one_agent import Echo
from tests.engine.scheduling.test_schedules import add, prompts, row
from tests.engine.team.supervised import WORK, Breaks, until
from tests.engine.team.team_world import team_world

from callboard.core.keys import fires_prefix
from callboard.engine.recall import events_of
from callboard.engine.scheduling.open_fires import OpenFire, OpenFires
from callboard.testing import ScriptedModel, World, fault, say, use
from callboard.types.agent_spec import AgentSpec
from callboard.types.events import TurnBegan, TurnEnded
from callboard.types.schedules import Fire

pytestmark = pytest.mark.anyio

MINUTE, HOUR = 60, 3600


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    """Virtual time only: these tests wait for hours."""
    from trio.testing import MockClock

    return "trio", {"clock": MockClock(autojump_threshold=0)}


async def history(world: World, schedule: str = "cron_a") -> list[Fire]:
    rows = await world.store.keys(fires_prefix("s1", schedule))
    return sorted((Fire.model_validate_json(one.value or b"") for one in rows), key=lambda one: (one.nominal, one.at))


def slow(seconds: float) -> Echo:
    async def act(given: object) -> str:
        await anyio.sleep(seconds)
        return "at last"

    return Echo(name="write_file", act=act)


def busy_world(seconds: float, times: int = 1) -> World:
    """Each of the lead's first turns calls a tool that takes so long."""
    script = [one for _ in range(times) for one in (use("write_file"), say("done"))]
    return team_world(ScriptedModel({"lead": script}, end="looked"), slow(seconds))


async def turns_of(world: World, agent: str = "lead.1") -> list[str]:
    return [one.cause for one in await events_of(world.store, f"j/s1/{agent}") if isinstance(one, TurnBegan)]


async def test_each_fire_has_its_row_with_outcome_times_and_cost() -> None:
    world = World(ScriptedModel({}, end="looked"))
    async with world.session() as team:
        await add(world)
        await anyio.sleep(2 * HOUR + 120)
        await team.quiet()
        fires = await history(world)
        assert [one.outcome for one in fires] == ["done", "done"]
        assert [one.why for one in fires] == ["looked", "looked"]
        for one in fires:
            assert one.agent == "lead"
            assert one.began_at is not None
            assert one.ended_at is not None
            assert one.nominal <= one.at <= one.began_at <= one.ended_at
            assert (one.tokens, one.steps) == (15, 1)
            assert one.id == f"schedule:cron_a:{one.id.partition('cron_a:')[2]}"


@pytest.mark.slow
async def test_thirty_busy_minutes_queue_no_thirty_copies_whatever_the_overlap() -> None:
    for overlap, most in (("skip", 4), ("queue", 14), ("parallel", 14), ("replace", 40)):
        world = busy_world(30 * MINUTE)
        async with world.session() as team:
            await add(world, cron="* * * * *", overlap=overlap)
            await anyio.sleep(29 * MINUTE + 30)
            fires = await history(world)
            waits = [one for one in fires if one.outcome == "waiting"]
            assert len(waits) <= 10, overlap
            if overlap != "replace":
                assert prompts(world) <= 1, overlap
            assert len(fires) == 29, "each slot stands in the history"
            await anyio.sleep(3 * MINUTE)
            await team.quiet()
            ran = [one for one in await history(world) if one.outcome == "done"]
            assert 1 <= len(ran) <= most, overlap
            assert len(set(await turns_of(world))) == len(await turns_of(world))


@pytest.mark.parametrize("overlap", ["skip", "queue"])
async def test_fires_for_a_parked_lead_wait_for_it_and_keep_no_run_from_ending(overlap: str) -> None:
    model = ScriptedModel({"lead": [use(*WORK)]}, end="looked")
    world = team_world(model, Echo(name="write_file"), judge=Breaks(4, "lead"))
    with capture_logs():  # drawing the traces of the crashes takes a minute
        async with world.session() as team:
            await team.prompt("go")
            await until(team, "lead", "crashed")
            await add(world, overlap=overlap)
            await anyio.sleep(2 * HOUR + 120)
            assert (await history(world))[0].outcome == "waiting"
            with anyio.fail_after(HOUR):
                await team.quiet()
    async with world.session(resume=True) as team:
        await until(team, "lead", "idle")
        await team.quiet()
        assert (await history(world))[0].outcome == "done"


async def test_skip_leaves_a_row_that_says_what_was_under_way() -> None:
    world = busy_world(25 * MINUTE)
    async with world.session() as team:
        await add(world, cron="*/10 * * * *")
        await anyio.sleep(39 * MINUTE)
        await team.quiet()
        outcomes = [one.outcome for one in await history(world)]
        assert outcomes == ["done", "skipped", "skipped"] or outcomes[:3] == ["done", "skipped", "skipped"]
        assert "still running" in (await history(world))[1].why


async def test_queue_runs_what_came_meanwhile_one_after_another_in_order() -> None:
    world = busy_world(25 * MINUTE)
    async with world.session() as team:
        await add(world, cron="*/10 * * * *", overlap="queue")
        await anyio.sleep(38 * MINUTE)
        await team.quiet()
        fires = await history(world)
        assert [one.outcome for one in fires] == ["done"] * 3
        assert await turns_of(world) == [one.id for one in fires]
        assert row(team).fires == 3


async def test_missed_slots_that_wait_are_not_each_compared_with_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work for each fire does not grow with the number of those that wait: a thousand may be missed at night."""
    listings = 0
    iterate = OpenFires.__iter__

    def counted(fires: OpenFires) -> Iterator[OpenFire]:
        nonlocal listings
        listings += 1
        return iterate(fires)

    monkeypatch.setattr(OpenFires, "__iter__", counted)
    world = World(ScriptedModel({}, end="looked"))
    async with world.session() as team:
        missed = {"created_at": world.clock.now() - 40 * MINUTE, "window": HOUR, "misfire": "all", "misfire_cap": 40}
        await add(world, cron="* * * * *", overlap="queue", expires=world.clock.now(), **missed)
        await anyio.sleep(HOUR)
        await team.quiet()
        assert [one.outcome for one in await history(world)] == ["done"] * 39
        assert listings < 39 * 15, "a few for each fire, and 46 if each looks at all others"


async def test_replace_interrupts_the_turn_of_the_older_fire_and_no_other() -> None:
    world = busy_world(25 * MINUTE)
    async with world.session() as team:
        await add(world, cron="*/10 * * * *", overlap="replace")
        await anyio.sleep(25 * MINUTE)
        await team.quiet()
        fires = await history(world)
        assert [one.outcome for one in fires] == ["replaced", "done"]
        assert fires[0].ended_at is not None
        assert fires[0].why.startswith(fires[1].id)
        ends = [one.reason for one in await events_of(world.store, "j/s1/lead.1") if isinstance(one, TurnEnded)]
        assert ends == ["interrupted", "end"]


async def test_replace_takes_back_what_still_waits_for_a_persons_turn_and_leaves_that_alone() -> None:
    world = busy_world(25 * MINUTE)
    async with world.session() as team:
        await add(world, cron="*/10 * * * *", overlap="replace")
        await team.prompt("work")
        await anyio.sleep(38 * MINUTE)
        await team.quiet()
        fires = await history(world)
        assert [one.outcome for one in fires] == ["replaced", "done", "done"]
        ends = [one.reason for one in await events_of(world.store, "j/s1/lead.1") if isinstance(one, TurnEnded)]
        assert ends == ["end"] * 3


async def test_a_deadline_stops_the_turn() -> None:
    world = busy_world(25 * MINUTE)
    async with world.session() as team:
        await add(world, deadline=300)
        await anyio.sleep(HOUR + 10 * MINUTE)
        await team.quiet()
        (fire,) = await history(world)
        assert fire.outcome == "timed_out"
        assert fire.began_at is not None
        assert fire.ended_at is not None
        assert 300 <= fire.ended_at - fire.began_at < 302
        assert row(team).failures == 1


def failing(count: int) -> list[object]:
    return [fault("invalid", status=400, message="no") for _ in range(count)]


async def test_a_failing_schedule_waits_and_three_failures_in_a_row_pause_it_and_tell() -> None:
    world = World(ScriptedModel({"lead": failing(40)}, end="looked"))
    async with world.session() as team:
        await add(world, cron="* * * * *")
        await anyio.sleep(30 * MINUTE)
        await team.quiet()
        fires = [one for one in await history(world) if one.outcome == "failed"]
        assert len(fires) == 3
        assert fires[1].at - (fires[0].ended_at or 0) >= 60
        assert fires[2].at - (fires[1].ended_at or 0) >= 120
        assert (row(team).state, row(team).failures) == ("paused", 3)
        assert "3 times in a row" in row(team).paused_why
        mail = team.state("lead").inbox.mail
        assert any("is paused" in one.content for one in mail)


async def test_a_success_sets_the_failures_back() -> None:
    world = World(ScriptedModel({"lead": failing(2)}, end="looked"))
    async with world.session() as team:
        await add(world)
        await anyio.sleep(2 * HOUR + 600)
        assert row(team).failures == 2
        await anyio.sleep(HOUR)
        await team.quiet()
        assert (row(team).state, row(team).failures) == ("active", 0)


async def test_a_fire_that_failed_is_tried_again_with_backoff_and_not_each_second() -> None:
    world = World(ScriptedModel({"lead": failing(3)}, end="looked"))
    async with world.session() as team:
        await add(world, retries=3)
        await anyio.sleep(HOUR + 10 * MINUTE)
        await team.quiet()
        (fire,) = await history(world)
        assert (fire.outcome, fire.attempt, fire.why) == ("done", 4, "looked")
        assert row(team).failures == 0
        began = [one.at for one in await events_of(world.store, "j/s1/lead.1") if isinstance(one, TurnBegan)]
        assert [round((later - earlier) / 60) for earlier, later in pairwise(began)] == [1, 2, 4]


async def test_a_retry_that_waits_survives_the_process_and_comes_at_its_time() -> None:
    world = World(ScriptedModel({"lead": failing(2)}, end="looked"))
    async with world.session():
        await add(world, retries=2, recurring=False)
        await anyio.sleep(HOUR + 90)
    world.store = world.store.reopen()
    async with world.session(resume=True) as team:
        await anyio.sleep(10 * MINUTE)
        await team.quiet()
        (fire,) = await history(world)
        assert (fire.outcome, fire.attempt) == ("done", 3)
        assert row(team).state == "fired"


async def test_a_fresh_agent_is_made_for_each_fire_and_its_words_wait_for_the_lead() -> None:
    world = team_world(ScriptedModel({}, end="all is well\nand more"))
    async with world.session() as team:
        await add(world, context="fresh", target="general")
        await anyio.sleep(2 * HOUR + 120)
        await team.quiet()
        fires = await history(world)
        assert [one.outcome for one in fires] == ["done", "done"]
        assert fires[0].why == "all is well"
        assert len({one.agent for one in fires}) == 2
        assert all(one.agent.startswith("sched-a-") for one in fires)
        assert await turns_of(world) == [], "the lead was not woken"
        assert [one.type for one in team.state("lead").inbox.mail] == ["result", "result"]
        assert all(found.life == "stopped" for found in team.team.runtime.rows.agents() if found.name != "lead")


async def test_fresh_agents_of_a_parallel_schedule_work_at_the_same_time() -> None:
    async def act(given: object) -> str:
        await anyio.sleep(25 * MINUTE)
        return "at last"

    class Each(ScriptedModel):
        def _entry(self, request: object) -> object:
            return use("write_file") if request.ordinal == 1 else say("done")

    world = team_world(Each({}), Echo(name="write_file", act=act))
    async with world.session() as team:
        await add(world, cron="*/10 * * * *", overlap="parallel", context="fresh")
        await anyio.sleep(38 * MINUTE)
        working = [
            one.name for one in team.team.runtime.rows.agents() if one.life == "working" and one.kind == "subagent"
        ]
        assert len(working) == 2


async def test_an_agent_of_its_own_is_there_from_the_first_fire_on() -> None:
    world = team_world(ScriptedModel({}, end="looked"))
    async with world.session() as team:
        await add(world, context="own", name="Night watch", target="teammate")
        await anyio.sleep(3 * HOUR + 120)
        await team.quiet()
        fires = await history(world)
        assert [(one.outcome, one.agent) for one in fires] == [("done", "sched-night-watch")] * 3
        assert await turns_of(world, "sched-night-watch.1") == [one.id for one in fires]
        found = team.team.runtime.rows.agent("sched-night-watch")
        assert found is not None
        assert found[0].life == "idle"


async def test_an_unknown_agent_type_refuses_the_fire_and_says_so() -> None:
    world = team_world(ScriptedModel({}, end="looked"))

    def refuse(agent_type: str, name: str, parent: object, kind: str) -> object:
        from callboard.types.errors import ToolRefused

        raise ToolRefused(f"there is no type {agent_type!r}")

    async with world.session() as team:
        team.team.runtime.types = refuse
        await add(world, context="fresh", target="nobody")
        await anyio.sleep(HOUR + 120)
        await team.quiet()
        (fire,) = await history(world)
        assert (fire.outcome, fire.why) == ("refused", "there is no type 'nobody'")


@pytest.mark.parametrize("context", ["fresh", "own"])
@pytest.mark.parametrize("deadline", [0.0, 60.0, None])
async def test_agents_of_a_schedule_wait_for_answers_no_longer_than_the_sessions_lead(
    context: str, deadline: float | None
) -> None:
    world = World(ScriptedModel({}, end="looked"))
    types = world.spec_of

    def spec_of(agent_type: str, name: str, parent: AgentSpec | None) -> AgentSpec:
        waits = deadline if parent is None else 1_800.0
        return types(agent_type, name, parent).model_copy(update={"ask_deadline": waits})

    world.spec_of = spec_of
    async with world.session() as team:
        await add(world, context=context, name="mine", target="general")
        await anyio.sleep(HOUR + 120)
        await team.quiet()
        (agent,) = [one for one in team.team.runtime.rows.agents() if one.name != "lead"]
        state = team.team.state(agent.name)
        assert state is not None
        assert state.me.ask_deadline == (1_800.0 if deadline is None else deadline)
