"""What is too large, on its way into a conversation: pastes, long mail; and the order of the next user message."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from tests.engine.agent.test_one_agent import Echo, tools
from tests.engine.team.team_world import spawn, team_world

from callboard.core.context.oversize import MESSAGE, PASTE, TOGETHER, file_of, too_long
from callboard.core.context.view.invariants import invariants
from callboard.ports.tool import CallContext, ToolOutcome
from callboard.testing import ScriptedModel, World, fault, say, use
from callboard.types.hook_answers import AddContext, PostToolUse, UserPromptSubmit
from callboard.types.records import Envelope, Json

pytestmark = pytest.mark.anyio


def blocks(world: World, agent: str = "lead") -> list[dict[str, Any]]:
    """The blocks of the newest message that an agent's model was sent."""
    pieces = [r for r in world.model.requests if r.agent == agent][-1].messages
    return json.loads(b"[" + b",".join(pieces) + b"]")[-1]["content"]


def mail(number: int, size: int, kind: str = "message") -> Envelope:
    given = {"id": f"env_{number}", "sender": "bob", "recipient": "lead", "type": kind, "content": "x" * size}
    return Envelope.model_validate(given)


async def test_a_paste_over_100_000_characters_goes_to_a_file_and_its_ends_into_the_conversation() -> None:
    world = World(ScriptedModel({"lead": [say("read it")]}))
    paste = "FIRST " + "line of a log\n" * 10_000 + " why does it fail? LAST"
    async with world.session() as team:
        await team.prompt(paste)
        await team.quiet()
        ((path, kept),) = world.archive.files.items()
        assert kept == paste, "the file holds all of it"
        assert path.startswith("/data/tool-results/lead/"), "which the agent may read"
        text = blocks(world)[0]["text"]
        assert text.startswith(f"[Large input saved to {path}, {len(paste)} chars. Read it in parts.]\n")
        assert "FIRST" in text
        assert "why does it fail? LAST" in text
        assert len(text) < 5_000
        (pin,) = [block for block in team.state("lead").context.conversation.messages[0].blocks if block.pinned]
        assert pin.data["text"] == text, "the first instruction is pinned all the same"


async def test_a_paste_of_100_000_characters_stands_as_it_is() -> None:
    world = World(ScriptedModel({"lead": [say("ok")]}))
    async with world.session() as team:
        await team.prompt("x" * PASTE)
        await team.quiet()
        assert blocks(world)[0]["text"] == "x" * PASTE
        assert world.archive.files == {}


async def test_a_hook_sees_the_whole_paste_and_what_it_adds_stands_before_the_words() -> None:
    world = World(ScriptedModel({"lead": [say("ok")]}))
    seen: list[str] = []

    async def look(event: UserPromptSubmit) -> AddContext:
        seen.append(event.text)
        return AddContext("it is Monday")

    world.hooks.add("UserPromptSubmit", look)
    async with world.session() as team:
        await team.prompt("y" * (PASTE + 1))
        await team.quiet()
        assert [len(text) for text in seen] == [PASTE + 1]
        texts = [block["text"] for block in blocks(world)]
        assert texts[0] == "<user-prompt-submit-hook>\nit is Monday\n</user-prompt-submit-hook>"
        assert texts[1].startswith("[Large input saved to ")
        assert list(world.archive.files.values()) == ["y" * (PASTE + 1)]


async def test_long_mail_of_a_mate_goes_to_a_file_with_its_path_and_is_never_cut() -> None:
    report = "HEAD " + "z" * MESSAGE + " TAIL"
    script = {
        "lead": [use(*spawn("alice")), say("waiting"), say("thanks")],
        "alice": [use("report", {"status": "done", "result": report}), say("bye")],
    }
    world = team_world(ScriptedModel(script))
    async with world.session() as team:
        await team.prompt("get the report")
        await team.quiet()
        text = next(b["text"] for b in blocks(world) if b["type"] == "text" and "HEAD" in b["text"])
        path = next(path for path, whole in world.archive.files.items() if report in whole)
        assert text.startswith('<inbox from="alice" type="result"')
        assert f"[Large message saved to {path}, " in text
        assert "TAIL" in text
        assert path.startswith("/data/tool-results/lead/"), "the reader's own folder"


async def test_after_a_crash_between_file_and_record_the_delivery_finds_its_file() -> None:
    world = World(ScriptedModel({"lead": [say("ok")]}))
    kept: list[str] = []
    keep = world.archive.keep

    async def counting(path: str, text: str) -> None:
        kept.append(path)
        await keep(path, text)

    world.archive.keep = counting
    async with world.session() as team:
        await team.prompt("x" * (PASTE + 1))
        await team.quiet()
    assert len(set(kept)) == len(world.archive.files) == 1, "named by the envelope, not by the moment"


def test_many_messages_of_legal_size_do_not_fill_the_window_together() -> None:
    many = [mail(n, 20_000 + n) for n in range(30)]
    gone = too_long(many)
    left = [one for one in many if one.id not in gone]
    assert sum(len(one.content) for one in left) <= TOGETHER
    assert {one.id for one in left} == {f"env_{n}" for n in range(len(left))}, "the largest go"
    assert too_long([mail(1, MESSAGE), mail(2, PASTE, "prompt")]) == set()
    assert too_long([mail(1, MESSAGE + 1), mail(2, PASTE + 1, "prompt")]) == {"env_1", "env_2"}
    assert too_long([mail(n, 4_000) for n in range(100)]) == set(), "what is short anyway stays"


def test_a_file_is_named_by_safe_characters_and_no_two_alike() -> None:
    assert file_of("env_abc-1") == "env_abc-1.txt"
    names = {file_of(name) for name in ("a/b", "a.b", "../ab", "ab", "", "a\x00b", "é", "x" * 300, "x" * 301)}
    assert len(names) == 9
    assert all(name.replace(".txt", "").replace("-", "").replace("_", "").isalnum() for name in names)


async def test_results_stand_first_then_what_is_injected_then_the_persons_words() -> None:
    running, go = anyio.Event(), anyio.Event()

    async def wait(given: Json) -> str:
        running.set()
        await go.wait()
        return "the result"

    async def note(event: PostToolUse) -> AddContext:
        return AddContext("mind the gap")

    world = World(ScriptedModel({"lead": [use("echo", {}, ("echo", {})), say("ok")]}), tools(Echo(act=wait)))
    world.hooks.add("PostToolUse", note)
    async with world.session() as team:
        await team.prompt("go")
        await running.wait()
        await team.prompt("and another thing")
        while not team.state("lead").inbox.mail:
            await anyio.sleep(0)
        go.set()
        await team.quiet()
        kinds = [block.get("text", block["type"]).split("\n")[0] for block in blocks(world)]
        hook = "<post-tool-use-hook>"
        assert kinds == ["tool_result", "tool_result", hook, hook, "and another thing"]
        assert invariants(team.state("lead").context.conversation.messages, sent=False) == []


SMALL: Json = {"models": {"scripted": {"window": 30_000, "max_output": 4_000}}, "output_tokens": 4_000}


async def test_giant_results_and_words_larger_than_the_window_are_read_by_the_model_in_parts() -> None:
    async def giant(given: Json) -> str:
        return given["text"] * 3_000_000

    calls = use("echo", {"text": "a"}, ("echo", {"text": "b"}))
    world = World(ScriptedModel({"lead": [calls, say("seen"), say("and that")]}), tools(Echo(act=giant)), spec=SMALL)
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        await team.prompt("HEAD " + "w" * 99_000 + "漢" * 900 + " TAIL")
        await team.quiet()
        assert team.state("lead").turns.last_text == "and that"
        assert team.state("lead").turns.last_reason == "end"
        assert [sum(map(len, request.messages)) < 12_000 for request in world.model.requests] == [True] * 3
        sizes = sorted(len(text) for text in world.archive.files.values() if text[0] != "{")
        assert sizes[-2:] == [3_000_000, 3_000_000]
        assert any(text.startswith("HEAD ") and text.endswith(" TAIL") for text in world.archive.files.values())
        assert invariants(team.state("lead").context.conversation.messages, sent=False) == []


async def test_what_nothing_can_shrink_ends_the_turn_and_says_what_it_is() -> None:
    refused = fault("too_long", status=400, message="prompt is too long: 31000 tokens > 30000 maximum")
    world = World(ScriptedModel({"lead": [refused, refused, refused, say("never")]}), spec=SMALL)
    async with world.session() as team:
        await team.prompt("short words")
        await team.quiet()
        assert team.state("lead").turns.last_reason == "overflow"
        assert team.state("lead").turns.last_why.endswith(
            " of 25,900 tokens that may be sent, but the service counts more"
        )
        assert len(world.model.requests) <= 3, "no loop"


async def test_a_request_too_large_in_bytes_goes_the_way_of_a_prompt_too_long() -> None:
    refused = fault("too_long", status=413, type="request_too_large", message="Request exceeds the maximum size")

    async def some(given: Json) -> str:
        return "word " * 5_000

    script = [use("echo", {}), use("echo", {}), refused, say("made it")]
    world = World(ScriptedModel({"lead": script}), tools(Echo(act=some)), spec=SMALL)
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert team.state("lead").turns.last_text == "made it"
        assert "react_asked" in await team.journal("lead")


@dataclass
class Camera(Echo):
    """A tool that returns an image."""

    side: int = 100

    async def run(self, given: Json, context: CallContext) -> ToolOutcome:
        head = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + self.side.to_bytes(4, "big") * 2 + b"\x08\x02"
        source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(head).decode()}
        return ToolOutcome([{"type": "text", "text": "look"}, {"type": "image", "source": source}])


@pytest.mark.parametrize(("side", "kinds"), [(8_000, ["text", "image"]), (8_001, ["text", "text"])])
async def test_an_image_that_no_request_could_carry_is_words_from_the_start(side: int, kinds: list[str]) -> None:
    world = World(ScriptedModel({"lead": [use("echo"), say("ok")]}), tools(Camera(side=side)))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        content = blocks(world)[0]["content"]
        assert [part["type"] for part in content] == kinds
        assert side == 8_000 or "8001 x 8001 pixels" in content[1]["text"]
