"""A cache that finds nothing is told by name: over a whole life, over a resume, and never without a cause."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from tests.engine.context.cached_model import CachedModel
from tests.engine.team.team_world import spawn, team_world

from callboard.core.context.cache.breakpoints import anchored_list
from callboard.core.context.cache.health import cache_hit_rate
from callboard.engine.recall import events_of
from callboard.engine.runtime import SessionRuntime
from callboard.ports.environment import PromptParts
from callboard.ports.tool import CallContext, Folders, ToolOutcome, ToolSpec
from callboard.testing import HostedSession, ScriptedModel, SteadyClock, World, use
from callboard.types.agent_spec import AgentSpec
from callboard.types.events import CacheThrash, PromptSet
from callboard.types.records import Json

pytestmark = pytest.mark.anyio
LONG = "A word of guidance. " * 400


@dataclass
class Look:
    """A tool that returns a little text."""

    spec: ToolSpec = field(default_factory=lambda: ToolSpec("look", "Looks.", {"type": "object"}, "read", "shared"))

    def key(self, given: Json, folders: Folders) -> str:
        return ""

    async def prepare(self, given: Json, context: CallContext) -> Json:
        return {}

    async def run(self, given: Json, context: CallContext) -> ToolOutcome:
        return ToolOutcome(f"seen {context.call}")

    async def repair(self, given: Json, marks: Json, context: CallContext) -> ToolOutcome | None:
        return None


class LongPrompts:
    """A prompt that is worth caching."""

    async def compose(self, spec: AgentSpec, tools: Sequence[ToolSpec], servers: Sequence[str] = ()) -> PromptParts:
        listed: list[Json] = [{"name": one.name, "description": one.description} for one in tools]
        system = anchored_list([{"type": "text", "text": f"You are {spec.name}."}, clock_section("11:45")])
        return PromptParts(system, anchored_list(listed), 2_000)


def clock_section(time: str) -> Json:
    return {"type": "text", "text": f"# Clock\nIt is {time}.\n{LONG}"}


class LongWorld(World):
    """Its agents have long prompts."""

    def runtime(self, session: str) -> SessionRuntime:
        runtime = super().runtime(session)
        runtime.services = replace(runtime.services, prompts=LongPrompts())
        return runtime


def world(model: ScriptedModel, **more: object) -> LongWorld:
    return LongWorld(model, {"look": Look()}, **more)


async def thrashes(session: HostedSession, agent: str = "lead") -> list[CacheThrash]:
    found = await events_of(session.world.store, f"j/{session.id}/{agent}.1")
    return [event for event in found if isinstance(event, CacheThrash)]


async def set_prompt(session: HostedSession, system: bytes | None = None, tools: bytes | None = None) -> None:
    """Another prompt for the lead, between two of its calls."""
    agent = session.team.agent("lead")
    assert agent is not None
    store, state = session.world.store, agent.state
    event = PromptSet(
        at=session.world.clock.now(),
        system=state.context.system if system is None else await store.put_blob(system),
        tools=state.context.tools if tools is None else await store.put_blob(tools),
        overhead_tokens=2_000,
    )
    await agent.record(event)


STEPS = [use("look") for _ in range(30)]


async def test_system_and_tools_are_the_same_bytes_for_a_whole_session() -> None:
    model = CachedModel({"lead": STEPS})
    async with world(model, spec={"stuck_after": 0}).session() as session:
        await session.prompt("look thirty times")
        await session.quiet()
        assert {request.system for request in model.requests} == {model.requests[0].system}
        assert {request.tools for request in model.requests} == {model.requests[0].tools}
        assert len(model.requests) == 31
        assert await thrashes(session) == []
        assert session.state("lead").costs.health.misses == 0
        assert cache_hit_rate(session.state("lead").budget.usage) > 0.9


async def test_the_tool_list_has_one_order_whatever_the_order_of_the_spec() -> None:
    model = CachedModel({})
    tools = {**team_world(model).tools, "look": Look()}
    mixed = ("report", "look", "claim_task", "list_tasks")
    async with LongWorld(model, tools, spec={"tools": mixed}).session() as session:
        await session.prompt("go")
        await session.quiet()
    assert [one["name"] for one in json.loads(model.requests[0].tools)] == sorted(mixed)


async def test_a_clock_in_the_prompt_is_named() -> None:
    model = CachedModel({})
    async with world(model).session() as session:
        for minute in range(8):
            system = anchored_list([{"type": "text", "text": "You are lead."}, clock_section(f"12:{minute:02}")])
            await session.prompt("go on")
            await session.quiet()
            await set_prompt(session, system)
        told = await thrashes(session)
        assert [(one.calls, one.changed) for one in told] == [(3, 'system section 2 ("Clock")')]


async def test_a_tool_list_that_changes_is_named() -> None:
    model = CachedModel({})
    async with world(model).session() as session:
        for number in range(6):
            listed: list[Json] = [{"name": "look", "description": f"Looks {number}."}]
            await session.prompt("go on")
            await session.quiet()
            await set_prompt(session, tools=anchored_list(listed))
        assert [one.changed for one in await thrashes(session)] == ['tool "look"']


async def test_marks_that_are_missing_are_told_as_a_service_without_a_cache_once() -> None:
    """Two agents, one service: one line."""
    model = CachedModel({"lead": [use(*spawn("alice")), *STEPS[:6]], "alice": STEPS[:6]}, reports=False)
    both = {**team_world(model).tools, "look": Look()}
    async with LongWorld(model, both).session() as session:
        await session.prompt("look about, both of you")
        await session.quiet()
        told = [*await thrashes(session), *await thrashes(session, "alice")]
        assert min(session.state(name).costs.health.misses for name in ("lead", "alice")) >= 5
        assert len(told) == 1
        assert "reports neither writes nor reads" in told[0].changed


async def test_a_streak_goes_on_over_a_resume() -> None:
    store_world = world(CachedModel({}))
    async with store_world.session() as session:
        for minute in range(3):
            await session.prompt(f"go on {minute}")
            await session.quiet()
            await set_prompt(session, anchored_list([clock_section(f"12:{minute:02}")]))
        assert session.state("lead").costs.health.misses == 2
    async with store_world.session(resume=True) as session:
        await session.quiet()
        await set_prompt(session, anchored_list([clock_section("13:00")]))
        for number in range(4):  # the first three are known already
            await session.prompt(f"go on {number}")
        await session.quiet()
        told = await thrashes(session)
        assert [one.changed.startswith("system section 1") for one in told] == [True]


class RestingClock(SteadyClock):
    """A clock that a test moves on."""

    rested = 0.0

    def now(self) -> float:
        return super().now() + self.rested


async def test_an_agent_that_rests_longer_than_the_cache_lives_is_no_streak() -> None:
    model, clock = CachedModel({}), RestingClock()
    async with world(model, clock=clock).session() as session:
        for number in range(6):
            model.clock = clock.rested = number * 400.0
            await session.prompt("go on")
            await session.quiet()
        assert await thrashes(session) == []


def test_the_prompts_of_these_tests_are_worth_caching() -> None:
    assert len(json.dumps(clock_section(""))) > 4 * 1_024
