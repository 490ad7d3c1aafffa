"""An agent that repeats itself, in a whole world: told once, stopped, and the lead hears of it."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from tests.engine.agent.test_one_agent import Echo, texts, tools
from tests.engine.team.team_world import spawn, team_world

from callboard.engine.recall import events_of
from callboard.ports.model import ModelRequest, Reply
from callboard.testing import HostedSession, ScriptedModel, World, say, use
from callboard.types.events import StuckNoticed
from callboard.types.hook_answers import GoOn, Stop
from callboard.types.records import Json

pytestmark = pytest.mark.anyio

AGAIN = use("echo", {"text": "same"})


async def notices(team: HostedSession, agent: str = "lead") -> list[tuple[str, int, str]]:
    found = await events_of(team.world.store, f"j/{team.id}/{agent}.1")
    return [(e.pattern, e.count, e.action) for e in found if isinstance(e, StuckNoticed)]


async def test_it_is_told_once_then_its_turn_ends_with_the_reason() -> None:
    world = World(ScriptedModel({"lead": [AGAIN] * 9}), tools(Echo()))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        state = team.state("lead")
        assert (state.turns.last_reason, state.turns.steps) == ("limit", 6)
        assert state.turns.last_why.startswith("stuck: echo text same, with the same result, 3 times")
        assert await notices(team) == [("repeat", 3, "nudge"), ("repeat", 3, "stop")]
        assert texts(world).count("You repeat yourself") == 1
        await team.prompt("never mind, do something else")
        await team.quiet()
        assert (await notices(team))[2:] == [("repeat", 3, "nudge")], "a new turn has a nudge of its own"


async def test_an_agent_that_heeds_the_nudge_goes_on_unharmed() -> None:
    def heeds(request: ModelRequest) -> Reply:
        told = b"You repeat yourself" in b"".join(request.messages)
        return say("I cannot do it: echo only echoes.") if told else AGAIN

    world = World(ScriptedModel({"lead": [heeds] * 9}), tools(Echo()))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert team.state("lead").turns.last_reason == "end"
        assert team.state("lead").turns.last_text.startswith("I cannot")
        assert await notices(team) == [("repeat", 3, "nudge")]


async def test_a_stop_hook_that_goes_on_and_on_ends_in_a_stop_that_says_why() -> None:
    world = World(ScriptedModel({}, end="All is done."))

    async def more(event: Stop) -> GoOn:
        return GoOn("look again")

    world.hooks.add("Stop", more)
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert team.state("lead").turns.last_reason == "limit"
        assert "nearly the same words, All is done." in team.state("lead").turns.last_why
        assert len(world.model.requests) == 6


async def test_a_teammate_that_is_stopped_is_reported_to_its_lead() -> None:
    model = ScriptedModel(
        {"lead": [use(*spawn("alice")), say("waiting"), say("I see")], "alice": [use("write_file", {"text": "x"})] * 9}
    )
    world = team_world(model, Echo(name="write_file"))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        told = texts(world)
        assert "alice stopped at a limit: stuck: " in told
        assert team.state("lead").turns.last_text == "I see"
        assert [action for _, _, action in await notices(team, "alice")] == ["nudge", "stop"]


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("busy", [True, False])
async def test_a_loop_that_polls_is_left_alone_while_a_mate_works(busy: bool) -> None:
    """Alice works as long as the lead polls, or is long done."""
    polls = [use("list_tasks")] * 20
    works = [use("write_file", {"text": str(n)}) for n in range(200)] if busy else []
    script: dict[str, Any] = {"lead": [use(*spawn("alice")), *polls, say("enough")], "alice": [*works, say("done")]}
    world = team_world(ScriptedModel(script), Echo(name="write_file"))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        actions = [action for _, _, action in await notices(team)]
        assert actions == ([] if busy else ["nudge", "stop"])


async def test_nought_lets_an_agent_repeat_itself_for_ever() -> None:
    world = World(ScriptedModel({"lead": [AGAIN] * 20}), tools(Echo()), spec={"stuck_after": 0})
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert team.state("lead").turns.steps == 21
        assert await notices(team) == []


async def test_a_resume_counts_on_where_the_process_died() -> None:
    """The process ends while the third of the same calls is made: its result is noticed in the next life."""
    asked = anyio.Event()

    async def third(given: Json) -> str:
        if len(echo.ran) == 3:
            asked.set()
            await anyio.sleep_forever()
        return "same"

    echo = Echo(act=third)
    world = World(ScriptedModel({"lead": [AGAIN] * 9}), tools(echo))
    async with world.session() as team:
        await team.prompt("go")
        await asked.wait()
        assert await notices(team) == []
    async with world.session(resume=True) as team:
        await team.quiet()
        assert await notices(team) == [("repeat", 3, "nudge"), ("repeat", 3, "stop")]
        assert team.state("lead").turns.steps == 6
