"""Background commands: their end is recorded once, and told as what it was."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
import pytest
from tests.engine.agent.test_one_agent import Echo, tools

from callboard.engine.recall import events_of
from callboard.engine.runtime import SessionRuntime
from callboard.ports.tool import CallContext, ToolOutcome
from callboard.testing import HostedSession, NoLauncher, ScriptedModel, World, say, use
from callboard.types.events import BackgroundEnded, BackgroundStarted
from callboard.types.records import Json

pytestmark = pytest.mark.anyio


@dataclass
class Commands(NoLauncher):
    """Commands that run until somebody ends them."""

    over: dict[int, anyio.Event] = field(default_factory=dict[int, anyio.Event])

    name: str = "this-boot"

    @property
    def boot(self) -> str:
        return self.name

    async def wait(self, pid: int, started: float, output: Path) -> int | None:
        if pid == 0:
            return None  # nothing of that name runs in this boot, and no exit code was left
        await self.over.setdefault(pid, anyio.Event()).wait()
        return {1: 143, 4: None, 5: 3}.get(pid, 0)

    async def end(self, pid: int, started: float) -> bool:
        self.over.setdefault(pid, anyio.Event()).set()
        return True


class Starts(Echo):
    async def run(self, given: Json, context: CallContext) -> ToolOutcome:
        pid = int(given["text"])
        deadline = context.now + 5 if pid == 3 else None
        began = BackgroundStarted(
            at=context.now,
            id=f"bg_{pid}",
            command="serve",
            pid=pid,
            started=1.0,
            output="/o",
            deadline=deadline,
            boot=context.launcher.boot,
        )
        return ToolOutcome("started", events=(began,))


class Stops(Echo):
    """As `task_stop`: the process is gone a while before its result is recorded."""

    @property
    def spec(self):
        spec = super().spec
        schema = {"type": "object", "properties": {"id": {"type": "string"}}}
        return type(spec)(spec.name, spec.description, schema, "unknown", "shared")

    async def run(self, given: Json, context: CallContext) -> ToolOutcome:
        await context.launcher.end(1, 1.0)
        await anyio.sleep(0.2)
        return ToolOutcome("stopped", events=(BackgroundEnded(at=context.now, id="bg_1", status="stopped"),))


@dataclass
class CommandWorld(World):
    """Its commands outlive every process of the runtime, until the machine goes down."""

    commands: Commands = field(default_factory=Commands)

    def runtime(self, session: str) -> SessionRuntime:
        runtime = super().runtime(session)
        runtime.services = replace(runtime.services, launcher=self.commands)
        return runtime


async def said(team: HostedSession, text: str) -> None:
    """Until the lead has ended a turn with these words."""
    while (agent := team.team.agent("lead")) is None:
        await anyio.sleep(0)
    while agent.state.turns.last_text != text:
        await agent.change()


async def ends(world: World) -> list[tuple[str, str]]:
    events = await events_of(world.store, "j/s1/lead.1")
    return [(event.id, event.status) for event in events if isinstance(event, BackgroundEnded)]


async def test_a_command_that_is_stopped_ends_once_and_is_not_told_as_failed() -> None:
    model = ScriptedModel({"lead": [use("start", {"text": "1"}), use("task_stop", {"id": "bg_1"}), say("done")]})
    world = CommandWorld(model, tools(Starts(name="start"), Stops(name="task_stop")))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert await ends(world) == [("bg_1", "stopped")]
        sent = b"\n".join(message for request in model.requests for message in request.messages)
        assert b"task-notification" not in sent


async def test_a_command_that_ends_wakes_the_idle_agent_once() -> None:
    model = ScriptedModel({"lead": [use("start", {"text": "2"}), say("waiting"), say("it ended")]})
    world = CommandWorld(model, tools(Starts(name="start")))
    async with world.session() as team:
        await team.prompt("go")
        await said(team, "waiting")
        await team.team.runtime.services.launcher.end(2, 1.0)
        await team.quiet()
        assert await ends(world) == [("bg_2", "completed")]
        assert team.state("lead").turns.last_text == "it ended"
        assert b"bg_2 completed, exit code 0" in model.requests[-1].messages[-1]


async def test_a_command_past_its_deadline_is_ended_and_told() -> None:
    model = ScriptedModel({"lead": [use("start", {"text": "3"}), say("waiting"), say("too long")]})
    world = CommandWorld(model, tools(Starts(name="start")))
    async with world.session() as team:
        await team.prompt("go")
        await said(team, "too long")
        assert await ends(world) == [("bg_3", "timed_out")]


@pytest.mark.parametrize(
    ("pid", "status", "words"), [(4, "lost", b"its end is unknown"), (5, "failed", b"exit code 3")]
)
async def test_an_end_that_is_no_success_is_told_as_what_it_was(pid: int, status: str, words: bytes) -> None:
    model = ScriptedModel({"lead": [use("start", {"text": str(pid)}), say("waiting"), say("it ended")]})
    world = CommandWorld(model, tools(Starts(name="start")))
    async with world.session() as team:
        await team.prompt("go")
        await said(team, "waiting")
        await world.commands.end(pid, 1.0)
        await team.quiet()
        assert await ends(world) == [(f"bg_{pid}", status)]
        assert words in model.requests[-1].messages[-1]


async def test_a_command_that_ended_while_nobody_hosted_is_told_at_the_resume_once() -> None:
    model = ScriptedModel({"lead": [use("start", {"text": "2"}), say("waiting"), say("it ended")]})
    world = CommandWorld(model, tools(Starts(name="start")))
    async with world.session() as team:
        await team.prompt("go")
        await said(team, "waiting")
    await world.commands.end(2, 1.0)
    for _ in range(2):
        async with world.session(resume=True) as team:
            await team.quiet()
            assert team.state("lead").turns.last_text == "it ended"
    assert await ends(world) == [("bg_2", "completed")]


async def test_what_a_reboot_cut_off_is_lost_and_told_and_its_pid_is_left_alone() -> None:
    model = ScriptedModel({"lead": [use("start", {"text": "2"}), say("waiting"), say("it was lost")]})
    world = CommandWorld(model, tools(Starts(name="start")))
    async with world.session() as team:
        await team.prompt("go")
        await said(team, "waiting")
    world.commands = Commands(name="the-next-boot")
    async with world.session(resume=True) as team:
        await team.quiet()
        assert team.state("lead").turns.last_text == "it was lost"
    assert await ends(world) == [("bg_2", "lost")]
    assert world.commands.over == {}, "another process has that pid by now"


async def test_a_stopped_agent_leaves_no_command_behind() -> None:
    model = ScriptedModel({"lead": [use("start", {"text": "1"}), say("waiting")]})
    world = CommandWorld(model, tools(Starts(name="start")))
    async with world.session() as team:
        await team.prompt("go")
        await said(team, "waiting")
        await team.command("stop")
        await team.quiet()
        assert team.state("lead").lifecycle.ended is not None
    assert world.commands.over[1].is_set()
    assert await ends(world) == [("bg_1", "stopped")]
    kinds = await team.journal("lead")
    assert kinds.index("background_ended") < kinds.index("agent_stopped"), "a crash in between ends it all the same"


async def test_a_fresh_conversation_keeps_what_runs_in_the_background() -> None:
    model = ScriptedModel({"lead": [use("start", {"text": "2"}), say("waiting"), say("it ended")]})
    world = CommandWorld(model, tools(Starts(name="start")))
    async with world.session() as team:
        await team.prompt("go")
        await said(team, "waiting")
        await team.command("new")
        await team.team.wait_for_begin("lead", 2)
        await world.commands.end(2, 1.0)
        await said(team, "it ended")
        await team.quiet()
    assert await ends(world) == [], "the life that began it is over, and had no need to end it"
    assert "background_ended" in await team.journal("lead", 2)
