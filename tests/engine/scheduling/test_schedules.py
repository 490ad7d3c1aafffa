"""Schedules in a hosted session: fired once for each slot, delivered as envelopes, never dropped in silence."""

from __future__ import annotations

import anyio
import pytest
from tests.engine.agent.test_one_agent import Echo
from tests.engine.team.team_world import team_world

from callboard.core.keys import schedule_key
from callboard.ports.store import Put
from callboard.testing import HostedSession, ScriptedModel, World, say, use
from callboard.types.schedules import Schedule

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    """Virtual time only: these tests wait for hours."""
    from trio.testing import MockClock

    return "trio", {"clock": MockClock(autojump_threshold=0)}


async def add(world: World, **fields: object) -> None:
    """A schedule in the store, as another process would put it there."""
    base = {"id": "cron_a", "cron": "0 * * * *", "prompt": "look around", "created_at": world.clock.now()}
    schedule = Schedule.model_validate({**base, **fields})
    await world.store.commit(Put(schedule_key("s1", schedule.id), schedule.encode()))


def prompts(world: World) -> int:
    """How often the model was asked on account of a schedule."""
    return sum(b"<scheduled id" in request.messages[-1] for request in world.model.requests)


def row(team: HostedSession) -> Schedule:
    found = team.team.runtime.rows.schedule("cron_a")
    assert found is not None
    return found[0]


async def test_each_slot_wakes_the_idle_lead_once_and_is_rendered_as_scheduled() -> None:
    world = World(ScriptedModel({}, end="looked"))
    async with world.session() as team:
        await add(world)
        await anyio.sleep(3 * 3600 + 120)
        await team.quiet()
        assert prompts(world) == 3
        assert row(team).fires == 3
        assert b"look around" in world.model.requests[0].messages[-1]


async def test_a_one_shot_is_marked_fired_and_kept_in_the_commit_that_fires_it() -> None:
    world = World(ScriptedModel({}, end="looked"))
    async with world.session() as team:
        await add(world, recurring=False)
        await anyio.sleep(26 * 3600)
        await team.quiet()
        assert prompts(world) == 1
        assert row(team).state == "fired"


async def test_a_run_that_was_missed_while_nobody_hosted_comes_once_within_the_window() -> None:
    world = World(ScriptedModel({}, end="looked"))
    async with world.session():
        await add(world, cron="*/10 * * * *")
    await anyio.sleep(45 * 60)
    world.store = world.store.reopen()
    async with world.session(resume=True) as team:
        await anyio.sleep(1)
        await team.quiet()
        assert prompts(world) == 1, "four were missed, the newest runs"


async def test_a_schedule_does_not_pile_up_behind_a_turn_that_is_still_running() -> None:
    async def two_hours(given: object) -> str:
        await anyio.sleep(2 * 3600)
        return "at last"

    echo = Echo(name="write_file", act=two_hours)
    world = team_world(ScriptedModel({"lead": [use("write_file"), say("done")]}, end="again"), echo)
    async with world.session() as team:
        await add(world, cron="*/10 * * * *")
        await anyio.sleep(2 * 3600 + 35 * 60)
        await team.quiet()
        assert 2 <= prompts(world) <= 4, "a dozen slots passed while the first turn ran"


async def test_a_schedule_that_cannot_be_read_is_paused_and_told_and_the_others_fire() -> None:
    world = World(ScriptedModel({}, end="looked"))
    async with world.session() as team:
        await add(world, id="cron_b", cron="61 * * * *")
        await add(world)
        await anyio.sleep(3600 + 120)
        await team.quiet()
        bad = team.team.runtime.rows.schedule("cron_b")
        assert bad is not None
        assert bad[0].state == "paused"
        said = b"\n".join(message for request in world.model.requests for message in request.messages)
        assert b"cron_b" in said
        assert b"minute" in said
        assert prompts(world) == 1


async def test_a_schedule_that_is_not_durable_ends_with_its_process() -> None:
    world = World(ScriptedModel({}, end="looked"))
    async with world.session():
        await add(world, durable=False)
        await anyio.sleep(1)
    world.store = world.store.reopen()
    async with world.session(resume=True) as team:
        await anyio.sleep(2 * 3600)
        await team.quiet()
        assert prompts(world) == 0
        assert row(team).state == "cancelled"
