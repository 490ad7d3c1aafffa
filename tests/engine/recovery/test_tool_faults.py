"""Tools that fail in every place where they may: a result for the model each time, never the end of the agent."""

from __future__ import annotations

from dataclasses import dataclass

import anyio
import pytest
from tests.engine.agent.test_one_agent import Echo, texts, tools

from callboard.adapters.storage.memory import Crashed, MemoryStore
from callboard.ports.tool import CallContext, ToolOutcome
from callboard.testing import ScriptedModel, World, say, use
from callboard.types.records import Json

pytestmark = pytest.mark.anyio


@dataclass
class Faulty(Echo):
    """Raises in `prepare`, or in `repair`."""

    where: str = "prepare"

    async def prepare(self, given: Json, context: CallContext) -> Json:
        if self.where == "prepare":
            raise OSError("the disk is on fire")
        return {}

    async def repair(self, given: Json, marks: Json, context: CallContext) -> ToolOutcome | None:
        raise OSError("the disk is on fire")


async def test_a_bug_before_the_effect_is_a_result_and_the_agent_lives() -> None:
    tool = Faulty(effect="reconcile")
    world = World(ScriptedModel({"lead": [use("echo"), say("saw it")]}), tools(tool))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert "OSError: the disk is on fire" in texts(world)
        assert tool.ran == []
        assert team.state("lead").turns.last_text == "saw it"
        assert (await team.journal("lead")).count("agent_resumed") == 0


async def test_a_bug_in_the_repair_of_a_call_is_a_result_too() -> None:
    async def hang(given: Json) -> str:
        store.kill()
        await anyio.sleep_forever()
        return ""

    store = MemoryStore()
    tool = Faulty(effect="unknown", where="repair", act=hang)
    world = World(ScriptedModel({"lead": [use("echo"), say("saw it")]}), tools(tool), store=store)
    with pytest.raises(BaseExceptionGroup) as died:
        await first_process(world)
    assert died.group_contains(Crashed)
    world.store = store.reopen()
    async with world.session(resume=True) as team:
        await team.quiet()
        assert "OSError: the disk is on fire" in texts(world)
        assert len(tool.ran) == 1
        assert team.state("lead").turns.last_text == "saw it"


async def first_process(world: World) -> None:
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
