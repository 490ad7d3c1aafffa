"""The registry at each moment of a turn: results, prompts, ends; and hooks that come and go."""

from __future__ import annotations

import threading
from typing import Any

import anyio
import pytest
from tests.engine.agent.test_one_agent import Echo, Person, texts, tools
from tests.engine.hooks.hook_handlers import answering, call, result

from callboard.engine.hooks.registry import HookRegistry
from callboard.ports.environment import Answer as Said
from callboard.testing import AllowAll, ScriptedModel, World, say, use
from callboard.types.errors import UsageError
from callboard.types.hook_answers import (
    AddContext,
    Answer,
    Caller,
    Deny,
    GoOn,
    Halt,
    PreToolUse,
    Rewrite,
    Stop,
    UserPromptSubmit,
    hook,
)

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Real time: hooks run in threads, and a virtual clock would jump while they do."""
    return str(request.param)


async def test_results_are_rewritten_and_told_beside() -> None:
    registry = HookRegistry()
    registry.add("PostToolUse", lambda event: Rewrite(content=event.result.content[0]["text"] + "!"))
    registry.add("PostToolUse", lambda event: Rewrite(content=event.result.content[0]["text"] + "?", is_error=True))
    registry.add("PostToolUse", lambda _: AddContext("note"))
    registry.add("PostToolUse", lambda _: Halt("over"))
    verdict = await registry.post_tool_use(result())
    assert verdict.content == ({"type": "text", "text": "old!?"},)
    assert (verdict.is_error, verdict.context, verdict.halt) == (True, ("note",), "over")


async def test_failed_calls_reach_callables_and_no_compatible_handler() -> None:
    registry, handler = HookRegistry(), answering()
    seen: list[bool] = []
    registry.add("PostToolUse", handler)
    registry.add("PostToolUse", lambda event: seen.append(event.result.is_error))
    await registry.post_tool_use(result(is_error=True))
    assert (seen, handler.told) == ([True], [])
    await registry.post_tool_use(result())
    assert [told["tool_response"]["stdout"] for told in handler.told] == ["old"]


async def test_prompts_are_blocked_or_told_more() -> None:
    registry = HookRegistry()
    registry.add("UserPromptSubmit", lambda event: AddContext(f"{event.origin} in {event.by.folder}"))
    prompt = UserPromptSubmit("hi", "schedule", Caller(folder="/w"))
    verdict = await registry.user_prompt_submit(prompt)
    assert (verdict.block, verdict.context) == ("", ("schedule in /w",))
    registry.add("UserPromptSubmit", lambda event: Deny("no keys") if "sk-" in event.text else None)
    assert (await registry.user_prompt_submit(UserPromptSubmit("sk-123"))).block == "no keys"


async def test_a_failing_stop_hook_lets_the_turn_end() -> None:
    registry = HookRegistry()
    registry.add("Stop", lambda _: 1 / 0)
    verdict = await registry.stop(Stop())
    assert (verdict.go_on, verdict.halt) == ("", "")
    assert "ZeroDivisionError" in verdict.notices[0]
    registry.add("Stop", lambda event: GoOn("run the tests") if not event.blocks else None)
    assert (await registry.stop(Stop())).go_on == "run the tests"
    assert (await registry.stop(Stop(blocks=1))).go_on == ""


async def test_a_removed_hook_is_asked_no_more() -> None:
    registry = HookRegistry()
    handle = registry.add("PreToolUse", lambda _: "no")
    other = registry.add("PreToolUse", lambda _: None)
    handle.remove()
    handle.remove()
    assert (await registry.pre_tool_use(call())).decision is None
    assert registry.has("PreToolUse")
    other.remove()
    assert not registry.has("PreToolUse")


async def test_marked_functions_are_included_once_for_each_mark() -> None:
    @hook("PreToolUse", matcher="bash")
    @hook("Stop")
    def guard(event: PreToolUse | Stop) -> Answer:
        return Deny("no") if isinstance(event, PreToolUse) else GoOn("on")

    registry = HookRegistry()
    assert len(registry.include(guard)) == 2
    assert (await registry.pre_tool_use(call())).by == "hook guard (person)"
    assert (await registry.stop(Stop())).go_on == "on"
    with pytest.raises(UsageError, match="@hook"):
        registry.include(lambda _: None)


@pytest.mark.parametrize(
    ("event", "handler", "matcher", "source"),
    [
        ("PreTooluse", print, "", "person"),
        ("Setup", print, "", "person"),
        ("Stop", print, "bash", "person"),
        ("PreToolUse", print, "(", "person"),
        ("PreToolUse", print, "", "repository"),
        ("PreToolUse", "print", "", "person"),
    ],
)
async def test_what_could_never_run_is_refused_at_once(event: str, handler: Any, matcher: str, source: Any) -> None:
    with pytest.raises(UsageError):
        HookRegistry().add(event, handler, matcher, source=source)


async def test_threads_may_register_and_remove_while_agents_ask() -> None:
    registry = HookRegistry()

    def churn() -> None:
        for _ in range(200):
            registry.add("PreToolUse", lambda _: None).remove()

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(anyio.to_thread.run_sync, churn)
        for _ in range(20):
            assert (await registry.pre_tool_use(call())).decision is None
    assert not registry.has("PreToolUse")


async def test_a_cancelled_agent_waits_for_no_hook() -> None:
    released = threading.Event()
    registry = HookRegistry()
    registry.add("PreToolUse", lambda _: released.wait(30))
    try:
        with anyio.move_on_after(0.05) as scope:
            await registry.pre_tool_use(call())
    finally:
        released.set()
    assert scope.cancelled_caught


@pytest.mark.parametrize("answer", ["approved", "rejected"])
async def test_what_a_hook_adds_to_a_call_that_asks_stands_beside_its_result(answer: Any) -> None:
    world = World(
        ScriptedModel({"lead": [use("echo", {"text": "x"}), say("ok")]}),
        tools(Echo()),
        judge=AllowAll(ask=["echo"]),
        approvers=[Person(Said(answer, "person"))],
    )
    world.hooks.add("PreToolUse", lambda _: AddContext("mind the gap"))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert texts(world).count("mind the gap") == 1


async def test_what_a_hook_adds_to_a_call_that_a_rule_denies_stands_beside_the_denial() -> None:
    model = ScriptedModel({"lead": [use("echo", {"text": "x"}), say("ok")]})
    world = World(model, tools(Echo()), judge=AllowAll(deny=["echo"]))
    world.hooks.add("PreToolUse", lambda _: AddContext("mind the gap"))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert texts(world).count("mind the gap") == 1
