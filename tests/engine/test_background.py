"""Background commands: their end is recorded once, and told as what it was."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest
from tests.engine.test_one_agent import Echo, tools

from callboard.engine.memory import events_of
from callboard.ports.tool import ToolContext, ToolOutcome
from callboard.testing import HostedSession, NoLauncher, ScriptedModel, World, say, use
from callboard.words.events import BackgroundEnded, BackgroundStarted
from callboard.words.values import Json

pytestmark = pytest.mark.anyio


@dataclass
class Commands(NoLauncher):
    """Commands that run until somebody ends them."""

    over: dict[int, anyio.Event] = field(default_factory=dict)

    async def wait(self, pid: int, started: float, output: Path) -> int | None:
        await self.over.setdefault(pid, anyio.Event()).wait()
        return 143 if pid == 1 else 0

    async def end(self, pid: int, started: float) -> bool:
        self.over.setdefault(pid, anyio.Event()).set()
        return True


class Starts(Echo):
    async def run(self, given: Json, context: ToolContext) -> ToolOutcome:
        pid = int(given["text"])
        deadline = context.now + 5 if pid == 3 else None
        began = BackgroundStarted(
            at=context.now, id=f"bg_{pid}", command="serve", pid=pid, started=1.0, output="/o", deadline=deadline
        )
        return ToolOutcome("started", events=(began,))


class Stops(Echo):
    """As `task_stop`: the process is gone a while before its result is recorded."""

    @property
    def spec(self):
        spec = super().spec
        schema = {"type": "object", "properties": {"id": {"type": "string"}}}
        return type(spec)(spec.name, spec.description, schema, "unknown", "shared")

    async def run(self, given: Json, context: ToolContext) -> ToolOutcome:
        await context.launcher.end(1, 1.0)
        await anyio.sleep(0.2)
        return ToolOutcome("stopped", events=(BackgroundEnded(at=context.now, id="bg_1", status="stopped"),))


class CommandWorld(World):
    def host(self, session: str):
        host = super().host(session)
        import dataclasses

        host.ports = dataclasses.replace(host.ports, launcher=Commands())
        return host


async def said(team: HostedSession, text: str) -> None:
    """Until the lead has ended a turn with these words."""
    while (agent := team.team.agent("lead")) is None:
        await anyio.sleep(0)
    while agent.state.last_text != text:
        await agent.change()


async def ends(world: World) -> list[tuple[str, str]]:
    events = await events_of(world.store, "j/s1/lead.1")
    return [(event.id, event.status) for event in events if isinstance(event, BackgroundEnded)]


async def test_b28_a_command_that_is_stopped_ends_once_and_is_not_told_as_failed() -> None:
    model = ScriptedModel({"lead": [use("start", {"text": "1"}), use("task_stop", {"id": "bg_1"}), say("done")]})
    world = CommandWorld(model, tools(Starts(name="start"), Stops(name="task_stop")))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert await ends(world) == [("bg_1", "stopped")]
        sent = b"\n".join(message for request in model.requests for message in request.messages)
        assert b"task-notification" not in sent


async def test_b5_a_command_that_ends_wakes_the_idle_agent_once() -> None:
    model = ScriptedModel({"lead": [use("start", {"text": "2"}), say("waiting"), say("it ended")]})
    world = CommandWorld(model, tools(Starts(name="start")))
    async with world.session() as team:
        await team.prompt("go")
        await said(team, "waiting")
        await team.team.host.ports.launcher.end(2, 1.0)
        await team.quiet()
        assert await ends(world) == [("bg_2", "completed")]
        assert team.state("lead").last_text == "it ended"
        assert b"bg_2 completed, exit code 0" in model.requests[-1].messages[-1]


async def test_a_command_past_its_deadline_is_ended_and_told() -> None:
    model = ScriptedModel({"lead": [use("start", {"text": "3"}), say("waiting"), say("too long")]})
    world = CommandWorld(model, tools(Starts(name="start")))
    async with world.session() as team:
        await team.prompt("go")
        await said(team, "too long")
        assert await ends(world) == [("bg_3", "timed_out")]
