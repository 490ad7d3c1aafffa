"""Birth of a subagent: one commit, before which nothing of it exists, and after which every process continues it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Literal, cast

import anyio
import pytest
from tests.engine.team.supervised import to_lead
from tests.engine.team.team_world import STORE_TOOLS, TeamWorld, team_world

from callboard.adapters.storage.memory import MemoryStore
from callboard.core.keys import agent_key, journal, mailbox
from callboard.engine.recall import events_of, first_spec
from callboard.engine.runtime import SessionRuntime
from callboard.ports.environment import PromptParts, Prompts
from callboard.ports.model import ModelRequest, OnDelta, Reply
from callboard.ports.store import Append, Fence, Write
from callboard.ports.tool import ToolSpec
from callboard.testing import HostedSession, ScriptedModel, say, use
from callboard.types.agent_spec import AgentSpec
from callboard.types.errors import StoreDamaged
from callboard.types.records import AgentRow, Json

pytestmark = pytest.mark.anyio
LOOK: tuple[str, Json] = ("task", {"description": "d", "prompt": "find it", "agent_type": "explore"})
TOOLS = {tool.spec.name: tool for tool in STORE_TOOLS}
MOMENTS = ("tool_started", "agent_started", "model_replied", "agent_stopped", "tool_finished")
"""Kinds of events in the commits of a call and of its subagent, in their order."""


def model() -> ScriptedModel:
    return ScriptedModel({"lead": [use(*LOOK), say("thanks")], "*": [say("found")]}, end="found")


def kinds(writes: tuple[Write, ...]) -> str:
    return " ".join(write.record.decode() for write in writes if isinstance(write, Append))


class Cut(MemoryStore):
    """A store whose power goes at the first commit with a kind of event, before or after it is on disk."""

    def __init__(self, moment: str, side: Literal["before", "after"]) -> None:
        super().__init__()
        self.moment = moment
        self.side = side
        self.is_off = False

    async def commit(self, *writes: Write, fence: Fence | None = None) -> tuple[int, ...]:
        if self.is_off:
            raise StoreDamaged("the power is gone")
        text = kinds(writes)
        of_lead = any(isinstance(write, Append) and write.stream == journal("s1", "lead", 1) for write in writes)
        of_moment = f'"t":"{self.moment}"' in text and (of_lead == self.moment.startswith("tool_"))
        cut = of_moment and self.moment != ""
        if cut and self.side == "before":
            self.is_off = True
            raise StoreDamaged("the power is gone")
        numbers = await super().commit(*writes, fence=fence)
        if cut:
            self.is_off = True
            raise StoreDamaged("the power is gone")
        return numbers

    def repaired(self) -> None:
        self.moment = ""
        self.is_off = False


async def child_of(store: MemoryStore) -> AgentRow | None:
    """Return the row of the only subagent."""
    rows = [AgentRow.model_validate_json(row.value) for row in await store.keys(agent_key("s1", "")) if row.value]
    return next((row for row in rows if row.kind == "subagent"), None)


async def hosted(world: TeamWorld) -> None:
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_crash_at_any_commit_of_a_life_loses_nothing_and_repeats_nothing(moment: str, side: str) -> None:
    store = Cut(moment, cast("Literal['before', 'after']", side))
    world = team_world(model(), store=store)
    with pytest.raises(BaseExceptionGroup) as raised:
        await hosted(world)
    assert raised.value.split(StoreDamaged)[1] is None
    known = await child_of(store)
    calls = [request for request in world.model.requests if request.agent != "lead"]
    if (moment, side) in (("tool_started", "before"), ("tool_started", "after"), ("agent_started", "before")):
        assert known is None
        assert calls == [], "no model is called for a turn that is not known"
    else:
        assert known is not None
        born = await events_of(store, journal("s1", known.name, 1))
        assert [event.t for event in born[:4]] == ["agent_started", "prompt_set", "envelope_received", "turn_began"]
    store.repaired()
    async with world.session(resume=True) as team:
        await team.quiet()
        assert team.state("lead").turns.last_text == "thanks"
        assert to_lead(world.model).count("found") == 1
    child = await child_of(store)
    assert child is not None
    assert (child.life, child.outcome) == ("stopped", "done")
    events = Counter(event.t for event in await events_of(store, journal("s1", child.name, 1)))
    once = ("agent_started", "prompt_set", "envelope_received", "turn_began", "model_replied", "turn_ended")
    assert {kind: events[kind] for kind in (*once, "agent_stopped")} == dict.fromkeys((*once, "agent_stopped"), 1)
    assert len(await store.read(mailbox("s1", child.name, 1))) == 1
    of_lead = Counter(event.t for event in await events_of(store, journal("s1", "lead", 1)))
    assert of_lead["tool_finished"] == 1
    calls = [request for request in world.model.requests if request.agent != "lead"]
    assert len(calls) == (2 if (moment, side) == ("model_replied", "before") else 1)
    assert {json.loads(call.system)[-1]["text"] for call in calls} == {f"You are {child.name}."}, "also after a resume"


class Slow:
    """A composer of prompts that waits for the test before it composes that of a subagent."""

    def __init__(self, inner: Prompts) -> None:
        self.inner = inner
        self.begun = anyio.Event()

    async def compose(self, spec: AgentSpec, tools: list[ToolSpec], servers: tuple[str, ...] = ()) -> PromptParts:
        if spec.kind == "subagent":
            self.begun.set()
            await anyio.sleep_forever()
        return await self.inner.compose(spec, tools, servers)


class Composing(TeamWorld):
    """A world whose prompts of subagents are never composed."""

    slow: Slow

    def runtime(self, session: str) -> SessionRuntime:
        runtime = super().runtime(session)
        self.slow = Slow(runtime.services.prompts)
        runtime.services = replace(runtime.services, prompts=self.slow)
        return runtime


async def interrupted(team: HostedSession, begun: anyio.Event) -> None:
    await team.prompt("go")
    await begun.wait()
    await team.command("interrupt")
    await team.quiet()


async def test_a_call_that_is_interrupted_before_the_birth_leaves_nothing_of_its_subagent() -> None:
    store = MemoryStore()
    world = Composing(model(), TOOLS, store=store)
    async with world.session() as team:
        await team.team.wait_for_begin("lead", 1)
        agents = team.team.runtime.budgets.tree["lead"].agents
        await interrupted(team, world.slow.begun)
        assert team.team.runtime.budgets.tree["lead"].agents == agents
    assert await child_of(store) is None
    assert [request.agent for request in world.model.requests] == ["lead"]


class Silent(ScriptedModel):
    """A model that never answers a subagent."""

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        if request.agent != "lead":
            await anyio.sleep_forever()
        return await super().complete(request, on_delta)


class Late(MemoryStore):
    """A store that has the birth on disk, and acknowledges it after the call was interrupted."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = anyio.Event()
        self.free = anyio.Event()

    async def commit(self, *writes: Write, fence: Fence | None = None) -> tuple[int, ...]:
        numbers = await super().commit(*writes, fence=fence)
        text = kinds(writes)
        if '"t":"agent_started"' in text and '"kind":"subagent"' in text:
            self.begun.set()
            await self.free.wait()
        if '"t":"interrupted"' in text or '"action":"interrupt"' in text:
            self.free.set()
        return numbers


async def test_a_call_that_is_interrupted_during_the_birth_stops_its_subagent() -> None:
    store = Late()
    world = team_world(Silent({"lead": [use(*LOOK), say("thanks")]}), store=store)
    async with world.session() as team:
        await interrupted(team, store.begun)
    child = await child_of(store)
    assert child is not None
    assert (child.life, child.outcome) == ("stopped", "stopped")
    assert len(await store.read(mailbox("s1", child.name, 1))) == 2, "its assignment, and the order to stop"


async def test_the_spec_of_a_subagent_is_stored_once_in_its_journal() -> None:
    store = MemoryStore()
    world = team_world(model(), store=store)
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
    child = await child_of(store)
    assert child is not None
    assert child.spec == ""
    assert (await first_spec(store, "s1", child)).name == child.name
    assert len(await store.keys("s/s1/spec/")) == 1, "that of the lead"


class Blobs(MemoryStore):
    """A store that counts what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.given = Counter[bytes]()

    async def put_blob(self, data: bytes) -> str:
        self.given[data] += 1
        return await super().put_blob(data)


async def test_the_tool_list_of_a_type_is_stored_once_and_each_prompt_once() -> None:
    store = Blobs()
    world = team_world(ScriptedModel({"lead": [use(*LOOK), use(*LOOK), say("thanks")]}, end="found"), store=store)
    await hosted(world)
    rows = [AgentRow.model_validate_json(row.value) for row in await store.keys(agent_key("s1", "")) if row.value]
    assert [row.kind for row in rows].count("subagent") == 2
    assert set(store.given.values()) == {1}


async def test_an_agent_and_the_board_share_its_row() -> None:
    """Both would otherwise keep a copy, which is a fortieth of the memory of an agent."""
    world = team_world(ScriptedModel({"lead": [use(*LOOK), say("thanks")]}, end="found"))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        lead = team.team.agent("lead")
        row = team.team.runtime.rows.agent("lead")
        assert lead is not None
        assert row is not None
        assert row[0].life == "idle"
        assert row[0] is lead.row
