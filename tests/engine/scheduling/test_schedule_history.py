"""The history of schedules: what ends them, what was missed, kills, fires by hand, its bound. Virtual time."""

from __future__ import annotations

import anyio
import pytest
from tests.engine.scheduling.test_schedule_fires import HOUR, MINUTE, busy_world, history, slow, turns_of
from tests.engine.scheduling.test_schedules import add, prompts, row
from tests.engine.team.team_world import team_world

from callboard.core.keys import fire_key, schedule_key
from callboard.core.scheduling.history import KEPT
from callboard.engine.hooks.registry import HookRegistry
from callboard.engine.scheduling.fire import fire_by_hand
from callboard.ports.store import Put
from callboard.testing import ScriptedModel, World, say, use
from callboard.types.hook_answers import Deny
from callboard.types.schedules import Fire, Schedule

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    """Virtual time only: these tests wait for hours."""
    from trio.testing import MockClock

    return "trio", {"clock": MockClock(autojump_threshold=0)}


async def test_it_ends_when_it_expires_and_after_its_last_run() -> None:
    world = World(ScriptedModel({}, end="looked"))
    async with world.session() as team:
        await add(world, expires=world.clock.now() + 2.5 * HOUR)
        await add(world, id="cron_b", max_runs=2)
        await anyio.sleep(6 * HOUR)
        await team.quiet()
        assert (row(team).state, row(team).fires, row(team).paused_why) == ("ended", 2, "it has expired")
        other = team.team.runtime.rows.schedule_row("cron_b")
        assert other is not None
        assert (other.state, other.fires) == ("ended", 2)


async def test_slots_that_were_missed_stand_in_the_history_with_their_number() -> None:
    world = World(ScriptedModel({}, end="looked"))
    async with world.session():
        await add(world, cron="*/10 * * * *")
        await add(world, id="cron_b", cron="5 * * * *", recurring=False)
    await anyio.sleep(5 * HOUR)
    world.store = world.store.reopen()
    async with world.session(resume=True) as team:
        await anyio.sleep(5)
        await team.quiet()
        missed, ran = await history(world)
        assert (missed.outcome, ran.outcome) == ("missed", "done")
        assert (missed.missed, missed.nominal) == ((ran.nominal - missed.nominal) / 600, missed.nominal)
        (gone,) = await history(world, "cron_b")
        other = team.team.runtime.rows.schedule_row("cron_b")
        assert other is not None
        assert (gone.outcome, other.state) == ("missed", "ended")
        assert gone.why.startswith("4h55m late: "), "seconds would be hard to read"
        assert any("was missed" in one.content for one in team.state("lead").inbox.mail) or any(
            b"was missed" in message for request in world.model.requests for message in request.messages
        )


async def test_a_damaged_row_stays_in_the_list_and_the_others_fire() -> None:
    world = World(ScriptedModel({}, end="looked"))
    async with world.session() as team:
        await add(world)
        await world.store.commit(Put(schedule_key("s1", "cron_x"), b'{"id": "cron_x", "cron": '))
        await anyio.sleep(HOUR + 120)
        await team.quiet()
        found = team.team.runtime.rows.schedule_row("cron_x")
        assert found is not None
        assert found.state == "paused"
        assert "cannot be read" in found.paused_why
        assert row(team).fires == 1
    world.store = world.store.reopen()
    async with world.session(resume=True) as team:
        await team.quiet()
        assert team.team.runtime.rows.schedule_row("cron_x") is not None


async def test_a_hook_that_refuses_leaves_a_row() -> None:
    hooks = HookRegistry()

    async def refuse(event: object) -> Deny:
        return Deny("not at night")

    hooks.add("ScheduleFired", refuse)
    world = World(ScriptedModel({}, end="looked"), hooks=hooks)
    async with world.session() as team:
        await add(world)
        await anyio.sleep(HOUR + 120)
        await team.quiet()
        (fire,) = await history(world)
        assert fire.outcome == "refused"
        assert "not at night" in fire.why
        assert row(team).skips == 1


async def killed_in(world: World, seconds: float) -> None:
    """A process that fires and dies so long after the hour."""
    async with world.session():
        await add(world, recurring=False)
        await anyio.sleep(HOUR + seconds)
    world.store = world.store.reopen()


@pytest.mark.parametrize("seconds", [0.0, 1.0, 300.0])
async def test_a_process_killed_between_fire_and_turn_or_in_it_loses_nothing(seconds: float) -> None:
    world = team_world(ScriptedModel({"lead": [use("write_file"), say("done")]}, end="again"), slow(600))
    await killed_in(world, seconds)
    async with world.session(resume=True) as team:
        await anyio.sleep(20 * MINUTE)
        await team.quiet()
        (fire,) = await history(world)
        assert fire.outcome == "done"
        assert await turns_of(world) == [fire.id]
        assert row(team).state == "fired"


async def test_a_fire_by_hand_runs_beside_the_times_also_of_a_paused_schedule() -> None:
    world = World(ScriptedModel({}, end="looked"))
    async with world.session() as team:
        await add(world, state="paused")
        found = Schedule(id="cron_a", cron="0 * * * *", prompt="look around")
        fire_id = await fire_by_hand(world.store, "s1", found, now=world.clock.now(), nonce="abc")
        await anyio.sleep(5)
        await team.quiet()
        (fire,) = await history(world)
        assert (fire.id, fire.outcome) == (fire_id, "done")
        assert (row(team).fires, row(team).state) == (0, "paused")


async def test_a_fire_by_hand_while_nobody_hosts_comes_with_the_next_host_once() -> None:
    world = World(ScriptedModel({}, end="looked"))
    async with world.session():
        await add(world)
        await anyio.sleep(1)
    schedule = Schedule(id="cron_a", cron="0 * * * *", prompt="look around")
    await fire_by_hand(world.store, "s1", schedule, now=world.clock.now(), nonce="abc")
    world.store = world.store.reopen()
    for _ in range(2):
        async with world.session(resume=True) as team:
            await anyio.sleep(5)
            await team.quiet()
        world.store = world.store.reopen()
    assert prompts(world) == 1
    assert [one.outcome for one in await history(world)] == ["done"]


async def test_the_history_is_bounded_and_the_newest_are_kept() -> None:
    world = World(ScriptedModel({}, end="looked"))
    old = [
        Fire(
            id=f"schedule:cron_a:2020-01-01T{n:06}",
            schedule="cron_a",
            session="s1",
            nominal=n,
            at=n,
            outcome="done",
            ended_at=n,
        )
        for n in range(KEPT + 5)
    ]
    for one in old:
        await world.store.commit(Put(fire_key("s1", "cron_a", one.id), one.encode()))
    async with world.session() as team:
        await add(world)
        await anyio.sleep(HOUR + 120)
        await team.quiet()
        fires = await history(world)
        assert len(fires) == KEPT
        assert fires[0].nominal == 6
        assert fires[-1].outcome == "done"


async def test_a_schedule_that_is_cancelled_while_a_fire_is_held_leaves_nothing_waiting() -> None:
    world = busy_world(25 * MINUTE)
    async with world.session() as team:
        await add(world, cron="*/10 * * * *", overlap="queue")
        await anyio.sleep(21 * MINUTE)
        now = team.team.runtime.rows.schedule("cron_a")
        assert now is not None
        gone = now[0].model_copy(update={"state": "cancelled", "enabled": False})
        await world.store.commit(Put(schedule_key("s1", "cron_a"), gone.encode(), expected=now[1]))
        await team.quiet()
        assert [one.outcome for one in await history(world)] == ["done", "skipped"]
