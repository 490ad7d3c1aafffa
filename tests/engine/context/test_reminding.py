"""What an agent is told of its surroundings in a session: once, before the person's words, and never in its way."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import cast

import anyio
import pytest
from tests.engine.team.team_world import TeamWorld, spawn, team_world

from callboard.adapters.storage.memory import MemoryStore
from callboard.core.context.reminders import ReminderFacts
from callboard.engine.recall import events_of
from callboard.engine.runtime import SessionRuntime
from callboard.ports.store import Fence, Write
from callboard.testing import HostedSession, ScriptedModel, World, say, use
from callboard.types.agent_spec import AgentSpec
from callboard.types.events import TurnEnded
from callboard.types.hook_answers import Deny
from callboard.types.records import Json

pytestmark = pytest.mark.anyio


@dataclass
class Place:
    """Surroundings that a test changes. `slow`: it looks for ever."""

    git: str | None = "Git: branch main"
    slow: bool = False
    looked: list[str] = field(default_factory=list[str])

    async def look(self, spec: AgentSpec, now: float) -> ReminderFacts:
        self.looked.append(spec.name)
        if self.slow:
            await anyio.sleep_forever()
        return ReminderFacts(datetime.fromtimestamp(now, UTC), self.git)

    async def commit(self, folder: str, why: str) -> str:
        return ""


def round_about(world: World, place: Place) -> World:
    """The world, with surroundings."""

    def runtime(session: str) -> SessionRuntime:
        made = type(world).runtime(world, session)
        made.services = replace(made.services, surroundings=place)
        return made

    world.runtime = runtime
    return world


def texts(session: HostedSession, agent: str = "lead", number: int = 0) -> list[str]:
    """The texts of one user message that the agent was sent, in order."""
    request = [one for one in session.world.model.requests if one.agent == agent][-1]
    sent = cast("list[Json]", json.loads(b"[" + b",".join(request.messages) + b"]"))
    users = [message for message in sent if message["role"] == "user"]
    return [str(block["text"]) for block in users[number]["content"] if block["type"] == "text"]


async def test_what_changed_is_told_before_the_prompt_and_what_did_not_is_not() -> None:
    place = Place()
    async with round_about(World(ScriptedModel({})), place).session() as session:
        await session.prompt("hello")
        await session.quiet()
        first = texts(session)
        assert [text.split("\n")[0] for text in first] == ["<system-reminder>", "<system-reminder>", "hello"]
        assert "15 January 2027" in first[0]
        assert "branch main" in first[1]
        await session.prompt("again")
        await session.quiet()
        assert texts(session, number=1) == ["again"]
        place.git = "Git: branch fix"
        await session.prompt("and again")
        await session.quiet()
        assert texts(session, number=2) == ["<system-reminder>\nGit: branch fix\n</system-reminder>", "and again"]
        assert len({request.system for request in session.world.model.requests}) == 1


async def test_a_long_turn_looks_round_once() -> None:
    place = Place()
    steps = [use("list_tasks") for _ in range(5)]
    async with round_about(team_world(ScriptedModel({"lead": steps})), place).session() as session:
        await session.prompt("go")
        await session.quiet()
        assert place.looked == ["lead"]
        assert (await session.journal("lead")).count("injection_queued") == 2


class CountingStore(MemoryStore):
    """How many commits there were."""

    commits = 0

    async def commit(self, *writes: Write, fence: Fence | None = None) -> tuple[int, ...]:
        self.commits += 1
        return await super().commit(*writes, fence=fence)


async def test_a_reminder_costs_no_commit_of_its_own() -> None:
    """It is written with the record of the model call that it is told in."""
    commits: list[int] = []
    for place in (Place(), None):
        store = CountingStore()
        world = World(ScriptedModel({}), store=store)
        async with (round_about(world, place) if place else world).session() as session:
            await session.prompt("hello")
            await session.quiet()
            commits.append(store.commits)
    assert commits[0] == commits[1]


async def test_the_lead_is_told_of_its_team_and_a_mate_is_not() -> None:
    script = {"lead": [use(*spawn("alice")), say("spawned"), say("heard")], "alice": [say("done")]}
    world: TeamWorld = team_world(ScriptedModel(script))
    async with round_about(world, Place(git=None)).session() as session:
        await session.prompt("go")
        await session.quiet()
        told = [str(text) for text in session.state("lead").context.reminders.values()]
        assert any("- alice (worker): idle" in text for text in told)
        assert set(session.state("alice").context.reminders) == {"date"}


async def test_a_look_that_hangs_does_not_keep_an_interrupt_out() -> None:
    """The turn ends with its prompt, which it had not read yet, and the next prompt is answered."""
    place = Place(slow=True)
    async with round_about(World(ScriptedModel({})), place).session() as session:
        await session.prompt("hello")
        while not place.looked:
            await anyio.lowlevel.checkpoint()
        place.slow = False
        await session.command("interrupt")
        await session.quiet()
        await session.prompt("again")
        await session.quiet()
        events = await events_of(session.world.store, "j/s1/lead.1")
        assert [event.reason for event in events if isinstance(event, TurnEnded)] == ["interrupted", "end"]
        assert texts(session)[-1] == "again"
        assert "hello" not in texts(session)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # a hook runs in a thread, which virtual time does not wait for
async def test_a_prompt_that_a_hook_blocks_is_not_answered_for_its_reminders() -> None:
    world = World(ScriptedModel({}))
    world.hooks.add("UserPromptSubmit", lambda event: Deny("no") if "secret" in event.text else None)
    async with round_about(world, Place()).session() as session:
        await session.prompt("secret")
        await session.quiet()
        assert world.model.requests == []
        ends = [event for event in await events_of(session.world.store, "j/s1/lead.1") if isinstance(event, TurnEnded)]
        assert [(event.reason, event.why) for event in ends] == [("blocked", "a hook blocked the prompt: no")]
        await session.prompt("hello")
        await session.quiet()
        assert len(world.model.requests) == 1
        assert texts(session)[-1] == "hello"
