"""Subagents in the background, driven by the Python claude-agent-sdk over the HTTP emulator.

The first test is the situation of `test_run_end` in the repository of the SDK.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from tests.cli.headless.test_agent_sdk import of_type
from tests.cli.headless.test_sdk_repository import Stage, hook_that, matched, playing, use

sdk = pytest.importorskip("claude_agent_sdk", reason="the package claude-agent-sdk is not installed")
pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with playing(tmp_path) as made:
        yield made


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("by", ["call", "definition"])
async def test_a_subagent_in_the_background_ends_in_a_turn_with_a_result_of_its_own(stage: Stage, by: str) -> None:
    own: dict[str, Any] = {"background": True} if by == "definition" else {}
    worker = {"worker": sdk.AgentDefinition(description="Says one word", prompt="Say DONE.", tools=[], **own)}
    started = {} if own else {"run_in_background": True}
    await stage.play(
        use("task", description="say done", prompt="Say it.", agent_type="worker", **started),
        {"when": {"not_contains": "its report"}, "reply": "LAUNCHED"},
        {"when": {"contains": "its report"}, **use("write_file", path="out.txt", content="DONE")},
        "FINISHED",
        agents={"*": [{"reply": "DONE", "latency_ms": 300}]},
    )
    seen: list[Any] = []
    messages = await stage.ask(
        "start it",
        agents=worker,
        hooks={"PreToolUse": matched(hook_that(seen, {}), "Write")},
        tools=["Agent", "Write"],
        permission_mode="acceptEdits",
    )
    results = of_type(messages, sdk.ResultMessage)
    assert [(result.is_error, result.result) for result in results] == [(False, "LAUNCHED"), (False, "FINISHED")]
    assert [given["tool_name"] for given in seen] == ["Write"]
    assert (stage.workspace / "out.txt").exists()
    (task,) = of_type(messages, sdk.TaskStartedMessage)
    assert task.data["is_backgrounded"] is True
    (ended,) = of_type(messages, sdk.TaskNotificationMessage)
    assert (ended.task_id, ended.status, ended.summary) == (task.task_id, "completed", "DONE")
    assert Path(ended.output_file).read_text() == "DONE\n"
    order = [type(one).__name__ if not isinstance(one, sdk.SystemMessage) else one.subtype for one in messages]
    assert order.count("init") == 2
    assert (
        order.index("ResultMessage") < order.index("init", 1) < order.index("AssistantMessage", order.index("init", 1))
    )
    assert not order[order.index("ResultMessage") + 1 : order.index("init", 1)].count("UserMessage")


async def test_the_output_of_a_background_command_is_in_the_file_that_its_end_names(stage: Stage) -> None:
    await stage.play(
        use("bash", command="echo made", run_in_background=True),
        {"when": {"not_contains": "exit code"}, "reply": "LAUNCHED"},
        {"when": {"contains": "exit code"}, "reply": "FINISHED"},
    )
    messages = await stage.ask("start it", allowed_tools=["Bash"])
    (ended,) = of_type(messages, sdk.TaskNotificationMessage)
    assert Path(ended.output_file).read_text() == "made\n"


@pytest.mark.slow
async def test_a_client_moves_a_subagent_to_the_background(stage: Stage) -> None:
    await stage.play(
        use("task", description="look", prompt="look", agent_type="explore"),
        {"when": {"not_contains": "its report"}, "reply": "MOVED"},
        {"when": {"contains": "its report"}, "reply": "FINISHED"},
        agents={"*": [{"reply": "DONE", "latency_ms": 1_500}]},
    )
    kinds, results, files = list[str](), list[str](), list[str]()
    async with sdk.ClaudeSDKClient(stage.options()) as client:
        request: dict[str, Any] = {"subtype": "background_tasks"}
        await client.query("look")
        async for message in client.receive_messages():
            kinds.append(getattr(message, "subtype", ""))
            if isinstance(message, sdk.TaskNotificationMessage):
                files.append(message.output_file)
            if isinstance(message, sdk.TaskStartedMessage):
                other = await client._query._send_control_request({**request, "tool_use_id": "toolu_other"})
                assert other["backgrounded"] is False
                moved = await client._query._send_control_request({**request, "tool_use_id": message.tool_use_id})
                assert moved["backgrounded"] is True
            if isinstance(message, sdk.ResultMessage):
                results.append(str(message.result))
                if len(results) == 2:
                    break
    assert results == ["MOVED", "FINISHED"]
    assert [Path(file).read_text() for file in files] == ["DONE\n"]
    assert kinds.index("task_started") < kinds.index("task_updated") < kinds.index("success")


def used_by(message: Any) -> list[str]:
    """Return the ids of the calls in a message."""
    content = message.content if isinstance(message, sdk.AssistantMessage) else ()
    return [block.id for block in content if isinstance(block, sdk.ToolUseBlock)]


@pytest.mark.slow
async def test_a_client_moves_a_running_command_to_the_background(stage: Stage) -> None:
    for name in ("ready", "gate"):
        os.mkfifo(stage.workspace / name)
    (stage.workspace / "wait.sh").write_text("echo begun > ready; read line < gate; echo ended\n")
    await stage.play(
        use("bash", command="bash wait.sh"),
        {"when": {"contains": "moved this command to the background"}, "reply": "MOVED"},
        {"when": {"contains": "exit code 0"}, "reply": "FINISHED"},
    )
    request = {"subtype": "background_tasks"}
    results, files, answers, used = list[str](), list[str](), list[Any](), list[Any]()
    async with sdk.ClaudeSDKClient(stage.options(permission_mode="bypassPermissions")) as client:
        await client.query("wait for it")
        async for message in client.receive_messages():
            for use_id in used_by(message):
                await anyio.to_thread.run_sync((stage.workspace / "ready").read_text)
                answers.append(await client._query._send_control_request({**request, "tool_use_id": use_id}))
            if isinstance(message, sdk.UserMessage) and message.tool_use_result:
                used.append(message.tool_use_result)
            if isinstance(message, sdk.TaskNotificationMessage):
                files.append(message.output_file)
            if isinstance(message, sdk.ResultMessage):
                results.append(str(message.result))
                if len(results) == 2:
                    break
                await anyio.to_thread.run_sync((stage.workspace / "gate").write_text, "go\n")
    assert results == ["MOVED", "FINISHED"]
    assert [answer["backgrounded"] for answer in answers] == [True]
    assert used[0]["backgroundedByUser"] is True
    assert used[0]["backgroundTaskId"].startswith("bg_")
    assert [Path(file).read_text().splitlines()[-1] for file in files] == ["ended"]
