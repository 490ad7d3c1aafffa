"""The transcript that hooks are given: complete at each moment, and the same whenever it is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest
from tests.engine.agent.test_one_agent import Echo, tools
from tests.engine.context.test_summaries import Summarising, fine, long_result, prompted
from tests.engine.hooks.hook_handlers import Handler
from tests.engine.team.team_world import team_world

from callboard.core.context.view.transcript import load_transcript
from callboard.core.keys import journal
from callboard.core.reports.transcript_pages import TranscriptProgress
from callboard.engine import transcripts
from callboard.engine.recall import numbered_events, unedited_messages
from callboard.ports.hooks import HookHandler
from callboard.testing import HostedSession, MemoryArchive, Played, ScriptedModel, World, fault, say, use
from callboard.types.errors import StoreFull
from callboard.types.hook_answers import HandlerResult
from callboard.types.records import Json

pytestmark = pytest.mark.anyio

T = TypeVar("T")
MOMENTS = ("SessionStart", "UserPromptSubmit", "PreToolUse", "PostToolUse", "PostToolBatch", "PreCompact", "Stop")
PATH = "/data/transcripts/lead.jsonl"


class Reading(Handler):
    """A handler that reads the transcript it is told of."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.archive = world.archive
        self.read: list[tuple[str, list[Json]]] = []

    async def run(self, event_json: Json, timeout: float) -> HandlerResult:
        text = self.archive.files.get(event_json["transcript_path"], "")
        self.read.append((event_json["hook_event_name"], [json.loads(line) for line in text.splitlines()]))
        return await super().run(event_json, timeout)


def reading(world: World, *events: str) -> Reading:
    handler = Reading(world)
    for event in events:
        world.hooks.add(event, handler)
    return handler


async def lines_anew(team: HostedSession) -> str:
    """The transcript as another process writes it, from the journal alone."""
    agent = team.team.agent("lead")
    assert agent is not None
    del team.world.archive.files[PATH]
    agent.written = TranscriptProgress()
    return team.world.archive.files[await transcripts.write(agent)]


def texts_of(lines: Sequence[Json]) -> list[str]:
    return [
        "".join(part["text"] for part in line["message"]["content"] if part["type"] == "text")
        for line in lines
        if line["type"] == "assistant"
    ]


@pytest.mark.parametrize("pause", ["pause_turn", "compaction"])
async def test_a_paused_reply_is_written_once_it_is_whole(pause: str) -> None:
    world = World(ScriptedModel({"lead": [say("First,", pause), say("then.")]}), spec={"pipeline": ()})
    handler = reading(world, "Stop")
    async with world.session() as team:
        await prompted(team)
        agent = team.team.agent("lead")
        assert agent is not None
        records = await numbered_events(world.store, journal("s1", "lead", 1))
        ((_, lines),) = handler.read
        assert texts_of(lines) == ["First,then."]
        assert load_transcript(world.archive.files[PATH].encode()) == tuple(unedited_messages(records))


@pytest.mark.parametrize(
    "script",
    [
        [use("echo", {"text": "a"}, ("echo", {"text": "b"}), text="Look."), say("Cut", "max_tokens"), say("off.")],
        [use("echo", {"text": "a"}), say("First,", "pause_turn"), use("echo", {"text": "b"}), say("Done.")],
        [say("One."), use("echo", {"text": "a"}), fault("invalid", status=400), say("Two.")],
    ],
)
@pytest.mark.parametrize("page", [1, 500])
async def test_what_hooks_read_at_any_moment_is_a_beginning_of_the_whole_transcript(
    script: list[Played], page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = {"context_limit": 3_000, "pipeline": ({"stage": "summarize_all"},)}
    world = World(Summarising(script, fine), tools(Echo(act=long_result)), spec=spec)
    handler = reading(world, *MOMENTS)
    async with world.session() as team:
        await prompted(team)
        await prompted(team, "and now?")
        read = world.archive.files[PATH]
        monkeypatch.setattr(transcripts, "PAGE", page)  # one record at a time: each may be the newest
        whole = await lines_anew(team)
        assert whole == read, "lines written early are the lines that are written at once"
        for moment, lines in handler.read:
            assert lines == [json.loads(line) for line in whole.splitlines()[: len(lines)]], moment
        stops = [texts_of(lines)[-1] for moment, lines in handler.read if moment == "Stop"]
        told = [one["last_assistant_message"] for one in handler.told if one["hook_event_name"] == "Stop"]
        assert [one in last for one, last in zip(stops, told, strict=True)] == [True] * len(stops)
        assert stops


async def test_no_transcript_is_written_where_no_hook_reads_it() -> None:
    world = World(ScriptedModel({"lead": [say("Done.")]}), spec={"pipeline": ()})

    async def hear(event: Any) -> None:
        """A function of the program, which is handed the messages themselves."""

    world.hooks.add("Stop", hear)
    async with world.session() as team:
        await prompted(team)
    assert PATH not in world.archive.files


class FullDisk(MemoryArchive):
    """An archive that takes no line."""

    async def extend(self, path: str, first: int, work: Callable[[], tuple[T, Sequence[bytes]]]) -> T:
        raise StoreFull(f"{path}: cannot be written (No space left on device): make room, then resume")


async def test_a_hook_is_asked_and_the_person_told_when_the_transcript_cannot_be_written() -> None:
    world = World(ScriptedModel({"lead": [say("Done.")]}), archive=FullDisk(), spec={"pipeline": ()})
    handler: HookHandler = Handler()
    world.hooks.add("Stop", handler)
    notices: list[str] = []

    class Listening:
        def on_event(self, agent: str, seq: int, event: object) -> None: ...
        def on_mail(self, envelope: object) -> None: ...
        def on_delta(self, agent: str, delta: Any) -> None:
            notices.extend([delta.text] if delta.kind == "notice" else [])

    world.observers = (Listening(),)
    async with world.session() as team:
        await prompted(team)
        assert team.state("lead").turns.last_text == "Done."
    assert len(handler.told) == 1
    assert len([one for one in notices if PATH in one and "No space left" in one]) == 1


class SharedFiles(MemoryArchive):
    """An archive whose files other programs read."""

    shares = True


async def test_an_ended_agent_keeps_no_message_in_memory_and_its_transcript_is_whole() -> None:
    task = use("task", {"description": "find", "prompt": "find it", "agent_type": "explore"})
    world = team_world(ScriptedModel({"lead": [task, say("found")]}, end="It is in the cellar."))
    world.archive = SharedFiles()
    async with world.session() as team:
        await prompted(team)
        (name,) = team.team.past
        assert list(team.team.members) == [("lead", 1)], "its runtime is gone"
        state = team.team.state(name)
        assert state is not None
        assert not state.context.conversation.messages
        assert state.budget.usage.output_tokens > 0
        (whole,) = [text for path, text in world.archive.files.items() if f"{name}.jsonl" in path]
        assert whole.count("find it") == 1
        assert whole.count("It is in the cellar.") == 1
