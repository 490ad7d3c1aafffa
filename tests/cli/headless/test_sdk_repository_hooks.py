"""Situations of the end-to-end tests of hooks in the repository of the Python claude-agent-sdk, over the HTTP emulator.

See `test_sdk_repository.py`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.headless.test_agent_sdk import blocks, of_type
from tests.cli.headless.test_sdk_options import result_of
from tests.cli.headless.test_sdk_repository import Stage, hook_that, matched, playing, turn, use

sdk = pytest.importorskip("claude_agent_sdk", reason="the package claude-agent-sdk is not installed")
pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with playing(tmp_path) as made:
        yield made


# test_hooks


async def test_a_hook_denies_with_a_reason(stage: Stage) -> None:
    await stage.play(use("bash", command="touch made.txt"))
    denied = {"permissionDecision": "deny", "permissionDecisionReason": "Not this command."}
    answer = {
        "reason": "Blocked.",
        "systemMessage": "A command was blocked.",
        "hookSpecificOutput": {"hookEventName": "PreToolUse", **denied},
    }
    seen: list[Any] = []
    messages = await stage.talk(
        "run it", allowed_tools=["Bash"], hooks={"PreToolUse": matched(hook_that(seen, answer), "Bash")}
    )
    assert [given["tool_name"] for given in seen] == ["Bash"]
    assert not (stage.workspace / "made.txt").exists()
    assert "Not this command." in str(blocks(messages, sdk.ToolResultBlock))


@pytest.mark.slow
async def test_a_hook_stops_the_run_with_a_reason(stage: Stage) -> None:
    await stage.play(use("bash", command="echo hi"))
    answer = {"continue_": False, "stopReason": "The hook stops it.", "reason": "A test.", "systemMessage": "Stopped."}
    seen: list[Any] = []
    await stage.talk("run it", allowed_tools=["Bash"], hooks={"PostToolUse": matched(hook_that(seen, answer), "Bash")})
    assert [given["hook_event_name"] for given in seen] == ["PostToolUse"]
    assert len(stage.bodies()) == 1, "the model is not called again"


@pytest.mark.slow
async def test_a_hook_adds_context(stage: Stage) -> None:
    await stage.play(use("bash", command="echo hi"))
    added = {"hookEventName": "PostToolUse", "additionalContext": "It ran in a test."}
    seen: list[Any] = []
    hook = hook_that(seen, {"systemMessage": "Context added.", "hookSpecificOutput": added})
    await stage.talk("run it", allowed_tools=["Bash"], hooks={"PostToolUse": matched(hook, "Bash")})
    assert seen
    assert "It ran in a test." in json.dumps(stage.bodies()[1])


# test_hook_events


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("event", ["PreToolUse", "PostToolUse"])
async def test_hooks_of_calls_have_the_id_of_the_call_and_add_context(stage: Stage, event: str) -> None:
    await stage.play(use("bash", command="echo hi"))
    allowed = {"permissionDecision": "allow"} if event == "PreToolUse" else {}
    output = {"hookEventName": event, "additionalContext": "A test environment.", **allowed}
    seen: list[Any] = []
    hooks = {event: matched(hook_that(seen, {"hookSpecificOutput": output}), "Bash")}
    messages = await stage.talk("run it", allowed_tools=["Bash"], hooks=hooks)
    assert [given["tool_use_id"] for given in seen] == [blocks(messages, sdk.ToolUseBlock)[0].id]
    assert "A test environment." in json.dumps(stage.bodies()[1])


@pytest.mark.parametrize("event", ["Notification", "SessionStart"])
async def test_hooks_of_the_session_are_registered_and_called(stage: Stage, event: str) -> None:
    await stage.play()
    seen: list[Any] = []
    output = {"hookSpecificOutput": {"hookEventName": event, "additionalContext": "From a test."}}
    messages = await stage.talk("hello", hooks={event: matched(hook_that(seen, output))})
    assert not result_of(messages).is_error
    if event == "SessionStart":
        assert [(given["hook_event_name"], given["source"]) for given in seen] == [(event, "startup")]
    assert all(given["notification_type"] for given in seen if event == "Notification")


@pytest.mark.slow
async def test_hooks_of_several_events_work_together(stage: Stage) -> None:
    await stage.play(use("bash", command="echo hi"))
    seen: list[Any] = []
    hook = hook_that(seen, {})
    events = {"SessionStart": None, "Notification": None, "PreToolUse": "Bash", "PostToolUse": "Bash"}
    hooks = {event: matched(hook, matcher) for event, matcher in events.items()}
    await stage.talk("run it", allowed_tools=["Bash"], hooks=hooks)
    names = [given["hook_event_name"] for given in seen]
    assert [name for name in names if name != "Notification"] == ["SessionStart", "PreToolUse", "PostToolUse"]


# test_deferred_tool_resume


@pytest.mark.slow
@pytest.mark.parametrize("by", ["client", "query"])
async def test_a_deferred_call_asks_the_hook_again_when_the_session_is_resumed(stage: Stage, by: str) -> None:
    await stage.play(use("bash", command="touch resumed.txt"))
    calls: list[Any] = []

    def deciding(decision: str) -> dict[str, Any]:
        output = {"permissionDecision": decision, "permissionDecisionReason": f"It is {decision}."}
        hook = hook_that(calls, {"hookSpecificOutput": {"hookEventName": "PreToolUse", **output}})
        return {"hooks": {"PreToolUse": matched(hook, "Bash")}, "allowed_tools": ["Bash"], "max_turns": 3}

    first = result_of(await stage.ask("run it", **deciding("defer")))
    assert (first.stop_reason, first.is_error) == ("tool_deferred", False)
    assert (first.deferred_tool_use.name, first.deferred_tool_use.input) == ("Bash", {"command": "touch resumed.txt"})
    assert not (stage.workspace / "resumed.txt").exists()
    again = {**deciding("deny"), "resume": first.session_id}

    async def no_prompt() -> AsyncIterator[dict[str, Any]]:
        for none in ():  # the package closes stdin at once
            yield none

    if by == "query":
        messages = [message async for message in sdk.query(prompt=no_prompt(), options=stage.options(**again))]
    else:
        async with sdk.ClaudeSDKClient(stage.options(**again)) as client:
            messages = [message async for message in client.receive_response()]
    (result,) = of_type(messages, sdk.ResultMessage)
    assert (result.is_error, result.result) == (False, "All done.")
    assert not (stage.workspace / "resumed.txt").exists()
    assert [given["tool_use_id"] for given in calls] == [first.deferred_tool_use.id] * 2


@pytest.mark.slow
async def test_a_deferred_call_runs_when_a_resumed_session_allows_it(stage: Stage) -> None:
    await stage.play(use("bash", command="touch resumed.txt"))
    deferred = {"hookEventName": "PreToolUse", "permissionDecision": "defer"}
    hooks = {"PreToolUse": matched(hook_that([], {"hookSpecificOutput": deferred}), "Bash")}
    async with sdk.ClaudeSDKClient(stage.options(hooks=hooks)) as client:
        first = result_of(await turn(client, "run it"))
    messages = await stage.ask("and now?", resume=first.session_id, allowed_tools=["Bash"])
    assert len(of_type(messages, sdk.ResultMessage)) == 1, "the prompt joins the turn"
    assert (stage.workspace / "resumed.txt").exists()


@pytest.mark.slow
async def test_a_call_beside_others_is_asked_about_instead_of_deferred(stage: Stage) -> None:
    await stage.play({"reply": [use("bash", command=f"touch {name}.txt")["reply"][0] for name in ("one", "two")]})
    deferred = {"hookEventName": "PreToolUse", "permissionDecision": "defer"}
    hooks = {"PreToolUse": matched(hook_that([], {"hookSpecificOutput": deferred}), "Bash")}
    result = result_of(await stage.ask("run both", hooks=hooks, allowed_tools=["Bash"]))
    assert (result.deferred_tool_use, len(result.permission_denials)) == (None, 2)
    assert any("it is asked about instead" in line for line in stage.told)
