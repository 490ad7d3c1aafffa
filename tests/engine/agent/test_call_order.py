"""Calls of one reply with the real tools: their results are those of one call for each reply, and they overlap."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.adapters.shell.outside_world import ENVIRONMENT
from tests.engine.team.team_world import TeamWorld, team_world

from callboard.adapters.processes.launcher import ShellLauncher
from callboard.adapters.tools.files import file_tools
from callboard.adapters.tools.roots import RootCache
from callboard.adapters.tools.search import search_tools
from callboard.adapters.tools.shell import shell_tools
from callboard.engine.runtime import SessionRuntime
from callboard.ports.environment import Answer, PermissionDecision, PermissionQuery
from callboard.ports.tool import CallContext, Tool, ToolOutcome
from callboard.testing import HostedSession, ScriptedModel, use
from callboard.testing.world import AllowAll, MemoryArchive
from callboard.types.records import Json, Request

pytestmark = pytest.mark.anyio

Call = tuple[str, Json]


@pytest.fixture
def anyio_backend() -> str:
    """Processes are real, so that time is."""
    return "asyncio"


@dataclass
class RealWorld(TeamWorld):
    """Real files and commands in a folder."""

    def runtime(self, session: str) -> SessionRuntime:
        runtime = super().runtime(session)
        runtime.services = replace(runtime.services, launcher=ShellLauncher(self.archive.root, ENVIRONMENT))
        return runtime


def real_world(folder: Path, model: ScriptedModel, wrap: Callable[[Tool], Tool] = lambda tool: tool) -> TeamWorld:
    work = (folder / "work").resolve()
    work.mkdir(parents=True)
    root_cache = RootCache()
    real = (*file_tools(root_cache), *search_tools(work, ENVIRONMENT, (), root_cache), *shell_tools())
    world = team_world(model, *real, archive=MemoryArchive(work, folder))
    tools = {name: wrap(tool) for name, tool in world.tools.items()}
    return RealWorld(model, tools, archive=world.archive, judge=Denying())


class Denying(AllowAll):
    """A judge that denies what says so, and asks about what says so."""

    async def judge(self, query: PermissionQuery) -> PermissionDecision:
        decision = await super().judge(query)
        text = json.dumps(query.call.input)
        if "deny-this" in text:
            return replace(decision, decision="deny", why="it says so")
        return replace(decision, decision="ask", rule="mode") if "ask-this" in text else decision


async def results(folder: Path, replies: Sequence[Sequence[Call]]) -> list[str]:
    """The results of all calls, in order, without the ids that the runtime makes up."""
    model = ScriptedModel({"lead": [use(calls[0][0], calls[0][1], *calls[1:]) for calls in replies]})
    world = real_world(folder, model)
    world.approvers = [Yes()]
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
    return [text.replace(str(folder), "") for text in result_texts(model)]


def result_texts(model: ScriptedModel) -> list[str]:
    """Return the texts without what is of the moment: ids, whether the teammate has taken a task, the hint which names
    there are beside a missing one."""
    last = [request for request in model.requests if request.agent == "lead"][-1]
    blocks = [block for message in last.messages for block in json.loads(message)["content"] if isinstance(block, dict)]
    texts = [json.dumps(block["content"]) for block in blocks if block.get("type") == "tool_result"]
    plain = [re.sub(r"\b(task|req|env|bg|sub)_[a-z2-7]{6,}", r"\1_ID", text) for text in texts]
    return [re.sub(r" Similar names: [^\"]*|\[(ready|in_progress, bob)\]", "", text) for text in plain]


class Yes:
    async def answer(self, request: Request) -> Answer | None:
        return Answer("approved", "person") if request.kind == "permission" else None


def reply(draw: random.Random) -> list[Call]:
    """A random reply. Few paths, so that calls meet; a text tells which call wrote it."""

    def path() -> str:
        return draw.choice(["a.txt", "./a.txt", "link.txt", "b.txt", "d/c.txt", "d", "d/../b.txt"])

    def note(place: int) -> str:
        return draw.choice(["", "", "", "deny-this ", "ask-this "]) + f"call {place}"

    kinds: list[Callable[[int], Call]] = [
        lambda place: ("read_file", {"path": path()}),
        lambda place: ("read_file", {"path": path()}),
        lambda place: ("write_file", {"path": path(), "content": note(place)}),
        lambda place: ("edit_file", {"path": path(), "old_text": "call", "new_text": f"call {place} after"}),
        lambda place: ("glob", {"pattern": "**/*.txt"}),
        lambda place: ("grep", {"pattern": "call", "output_mode": "count"}),
        lambda place: ("bash", {"command": f"cat a.txt d/c.txt b.txt; echo '{note(place)}' >> {path()}"}),
        lambda place: ("bash", {"command": "ln -sf b.txt link.txt"}),
        lambda place: ("create_task", {"subject": note(place)}),
        lambda place: ("list_tasks", {}),
        lambda place: ("todo_write", {"todos": [{"content": note(place), "status": "pending"}]}),
        lambda place: ("send_message", {"to": "bob", "content": note(place)}),
        lambda place: ("spawn_teammate", {"name": "bob", "role": "r", "prompt": note(place)}),
        lambda place: ("ask_person", {"question": note(place)}),
        lambda place: ("task", {"description": "look", "prompt": note(place), "agent_type": "general"}),
        lambda place: ("no_such_tool", {"path": path()}),
    ]
    return [draw.choice(kinds)(place) for place in range(draw.randrange(2, 8))]


@pytest.mark.slow(keep=4)
@pytest.mark.parametrize("seed", range(12))
async def test_a_reply_has_the_results_of_its_calls_made_one_by_one(tmp_path: Path, seed: int) -> None:
    calls = reply(random.Random(seed))  # reproducible, not secret
    together = await results(tmp_path / "together", [calls])
    apart = await results(tmp_path / "apart", [[call] for call in calls])
    assert dict(enumerate(zip(calls, together, strict=True))) == dict(enumerate(zip(calls, apart, strict=True)))
    files = [
        sorted((p.relative_to(f), p.read_text()) for p in f.rglob("*.txt") if p.is_file())
        for f in (tmp_path / "together/work", tmp_path / "apart/work")
    ]
    assert files[0] == files[1]


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(12, 400))
async def test_very_many_replies_have_the_results_of_their_calls_made_one_by_one(tmp_path: Path, seed: int) -> None:
    await test_a_reply_has_the_results_of_its_calls_made_one_by_one(tmp_path, seed)


@dataclass
class Meeting:
    """Tools that end only when all that are expected have begun."""

    names: list[str]
    begun: list[str] = field(default_factory=list[str])
    all_here: anyio.Event = field(default_factory=anyio.Event)

    def wrap(self, tool: Tool) -> Tool:
        return Met(tool, self) if tool.spec.name in self.names else tool

    async def arrive(self, name: str) -> None:
        self.begun.append(name)
        if len(self.begun) == len(self.names):
            self.all_here.set()
        await self.all_here.wait()


@dataclass(frozen=True)
class Met:
    """A tool that waits for the others before it does its work."""

    tool: Tool
    meeting: Meeting

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tool, name)

    def at_hand(self, given: Json, context: CallContext) -> ToolOutcome | None:
        return None

    async def run(self, given: Json, context: CallContext) -> ToolOutcome:
        await self.meeting.arrive(self.tool.spec.name)
        return await self.tool.run(given, context)


TASK: Call = ("task", {"description": "look", "prompt": "look round", "agent_type": "general"})


@pytest.mark.parametrize(
    "calls",
    [
        [("read_file", {"path": "a"}), ("read_file", {"path": "a"}), ("grep", {"pattern": "x"})],
        [
            ("write_file", {"path": "a", "content": ""}),
            ("read_file", {"path": "b"}),
            ("edit_file", {"path": "c", "old_text": "x", "new_text": "y"}),
        ],
        [TASK, TASK, TASK],
        [TASK, ("create_task", {"subject": "x"})],
        [TASK, ("todo_write", {"todos": []}), ("list_tasks", {})],
        [("grep", {"pattern": "x"}), ("create_task", {"subject": "x"}), ("todo_write", {"todos": []})],
    ],
    ids=lambda calls: "-".join(name for name, _ in calls),
)
async def test_calls_that_do_not_depend_on_each_other_overlap(tmp_path: Path, calls: list[Call]) -> None:
    meeting = Meeting([name for name, _ in calls])
    model = ScriptedModel({"lead": [use(calls[0][0], calls[0][1], *calls[1:])]})
    world = real_world(tmp_path, model, meeting.wrap)
    (tmp_path / "work/c").write_text("x")
    with anyio.fail_after(20):  # it would wait for ever
        async with world.session() as team:
            await team.prompt("go")
            await team.quiet()
    assert sorted(meeting.begun) == sorted(meeting.names)


class Slow:
    """Answers permissions when the test says so."""

    def __init__(self, status: Any = "approved") -> None:
        self.asked, self.word, self.status = anyio.Event(), anyio.Event(), status

    async def answer(self, request: Request) -> Answer | None:
        self.asked.set()
        await self.word.wait()
        return Answer(self.status, "person")


@pytest.mark.parametrize(("status", "expected"), [("approved", "1\\tcall"), ("rejected", "does not exist")])
async def test_while_a_write_waits_for_approval_its_reader_waits_and_others_go_on(
    tmp_path: Path, status: str, expected: str
) -> None:
    calls: list[Call] = [
        ("write_file", {"path": "a.txt", "content": "call ask-this"}),
        ("read_file", {"path": "./a.txt"}),
        ("read_file", {"path": "b.txt"}),
        ("todo_write", {"todos": []}),
    ]
    model = ScriptedModel({"lead": [use(calls[0][0], calls[0][1], *calls[1:])]})
    world, person = real_world(tmp_path, model), Slow(status)
    world.approvers = [person]
    async with world.session() as team:
        await team.prompt("go")
        await person.asked.wait()
        await stages(team, ["asking", "proposed", "settled", "settled"])
        person.word.set()
        await team.quiet()
    assert expected in result_texts(model)[1]


async def stages(team: HostedSession, expected: list[str]) -> None:
    """Wait until the calls of the lead's reply are at these stages."""
    while [one.stage for one in team.state("lead").calls] != expected:
        agent = team.team.agent("lead")
        assert agent is not None
        with anyio.fail_after(30):
            await agent.change()


async def test_a_teammate_begins_while_a_subagent_of_the_same_reply_is_still_at_work(tmp_path: Path) -> None:
    begun = anyio.Event()

    calls: list[Call] = [
        ("spawn_teammate", {"name": "bob", "role": "r", "prompt": "go"}),
        ("create_task", {"subject": "x"}),
        ("send_message", {"to": "bob", "content": "hi"}),
        TASK,
    ]

    class Watching(ScriptedModel):
        async def complete(self, request: Any, on_delta: Any) -> Any:
            if request.agent == "bob":
                begun.set()
            elif request.agent != "lead":
                await begun.wait()
            return await super().complete(request, on_delta)

    model = Watching({"lead": [use(calls[0][0], calls[0][1], *calls[1:])]})
    world = real_world(tmp_path, model)
    with anyio.fail_after(20):  # it would wait for ever
        async with world.session() as team:
            await team.prompt("go")
            await team.quiet()


async def test_a_reply_that_was_cut_in_the_middle_goes_on_in_order_after_a_resume(tmp_path: Path) -> None:
    calls: list[Call] = [
        ("read_file", {"path": "a.txt"}),
        ("write_file", {"path": "a.txt", "content": "call ask-this"}),
        ("read_file", {"path": "a.txt"}),
        ("bash", {"command": "cat a.txt; echo more >> a.txt"}),
        ("read_file", {"path": "a.txt"}),
    ]
    model = ScriptedModel({"lead": [use(calls[0][0], calls[0][1], *calls[1:])]})
    world, person = real_world(tmp_path, model), Slow()
    world.approvers = [person]
    with anyio.CancelScope() as life:
        async with world.session() as team:
            await team.prompt("go")
            await person.asked.wait()
            await stages(team, ["settled", "asking", "proposed", "proposed", "proposed"])
            life.cancel()
            await anyio.sleep_forever()
    person.word.set()
    async with world.session(resume=True) as team:
        await team.quiet()
    expected = ["a.txt does not exist", "Made a.txt", "1\\tcall ask-this", "call ask-this", "1\\tcall ask-thismore"]
    for text, result in zip(expected, result_texts(model), strict=True):
        assert text in result
