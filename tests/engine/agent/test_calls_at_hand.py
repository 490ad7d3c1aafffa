"""Calls that need no wait: their records are noted together, and the tool runs in no operation."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from tests.engine.agent.test_one_agent import Echo, texts, tools

from callboard.ports.tool import CallContext, ToolOutcome
from callboard.testing import AllowAll, ScriptedModel, World, say, use
from callboard.types.errors import ToolRefused
from callboard.types.hook_answers import Deny, PostToolUse, PreToolUse
from callboard.types.records import Json

pytestmark = pytest.mark.anyio


@dataclass
class AtHand(Echo):
    """Answers at once, except to a text that must wait or that is wrong."""

    def at_hand(self, given: Json, context: CallContext) -> ToolOutcome | None:
        match given["text"]:
            case "refused":
                raise ToolRefused("it is refused")
            case "broken":
                raise ZeroDivisionError("a bug")
            case "slow":
                return None
            case text:
                return ToolOutcome(f"at hand: {text}")


@pytest.mark.parametrize(
    ("text", "expected", "ran"),
    [
        ("x", "at hand: x", 0),
        ("slow", "echo slow", 1),
        ("refused", "it is refused", 0),
        ("broken", "ZeroDivisionError: a bug", 0),
    ],
)
async def test_what_is_at_hand_does_not_run_again(text: str, expected: str, ran: int) -> None:
    echo = AtHand()
    world = World(ScriptedModel({"lead": [use("echo", {"text": text}), say("done")]}), tools=tools(echo))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        events = [kind for kind in await team.journal("lead") if kind.startswith(("call_judged", "tool_"))]
    assert expected in texts(world)
    assert len(echo.ran) == ran
    assert events == ["call_judged", "tool_started", "tool_finished"]


async def test_a_call_that_is_denied_is_not_answered_at_once() -> None:
    async def never(event: PreToolUse) -> Deny:
        return Deny("not today")

    world = World(ScriptedModel({"lead": [use("echo", {"text": "x"}), say("done")]}), tools=tools(AtHand()))
    world.hooks.add("PreToolUse", never)
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert "tool_started" not in await team.journal("lead")
    assert "not today" in texts(world)


@pytest.mark.parametrize("judge", [AllowAll(deny=["echo"]), AllowAll(ask=["echo"])])
async def test_a_call_that_no_rule_allows_is_not_answered(judge: AllowAll) -> None:
    @dataclass
    class Never(Echo):
        def at_hand(self, given: Json, context: CallContext) -> ToolOutcome | None:
            raise AssertionError("the rules come first")

    world = World(ScriptedModel({"lead": [use("echo", {"text": "x"}), say("done")]}), tools=tools(Never()), judge=judge)
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert "tool_started" not in await team.journal("lead")
    assert "the rules come first" not in texts(world)


async def test_a_result_that_hooks_read_is_durable_first() -> None:
    seen: list[str] = []

    async def look(event: PostToolUse) -> None:
        seen.extend(await team.journal("lead"))

    echo = AtHand()
    world = World(ScriptedModel({"lead": [use("echo", {"text": "x"}), say("done")]}), tools=tools(echo))
    world.hooks.add("PostToolUse", look)
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
    assert "tool_finished" in seen
    assert len(echo.ran) == 1
