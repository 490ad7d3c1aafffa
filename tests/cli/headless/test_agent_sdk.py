"""The published Python claude-agent-sdk uses `callboard` as its command line."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.examples.programs import warm_program

sdk = pytest.importorskip("claude_agent_sdk", reason="the package claude-agent-sdk is not installed")

SCENARIO = """
models:
  rehearsal: {}
  other: {}
agents:
  lead:
    - when: {contains: begin}
      reply:
        - text: I begin.
        - tool_use: {name: bash, input: {command: touch guarded.txt}}
        - tool_use: {name: bash, input: {command: touch asked.txt}}
        - tool_use: {name: bash, input: {command: touch refused.txt}}
        - tool_use: {name: bash, input: {command: touch pushed.txt}}
    - when: {contains: write it}
      reply:
        - tool_use: {name: write_file, input: {path: made.txt, content: made}}
    - when: {contains: wait long}
      reply:
        - tool_use: {name: bash, input: {command: sleep 120}}
    - when: {contains: which model, model: other}
      reply: The other one.
    - when: {contains: which model}
      reply: The first one.
    - when: {contains: go on}
      reply: I know you.
    - otherwise: true
      reply: All done.
"""


class Bench:
    """A workspace, a home, a scenario, and options for a client."""

    def __init__(self, folder: Path) -> None:
        self.workspace = folder / "workspace"
        self.workspace.mkdir()
        self.scenario = folder / "scenario.yaml"
        self.scenario.write_text(SCENARIO)
        self.told: list[str] = []
        self.cli = folder / "callboard"
        self.env = {f"XDG_{kind}_HOME": str(folder / kind.lower()) for kind in ("STATE", "DATA", "CONFIG")}
        self.env |= {"HOME": str(folder), "PYTHONWARNINGS": "error"}

    def options(self, **more: Any) -> Any:
        model = f"rehearsal:{self.scenario}"
        return sdk.ClaudeAgentOptions(
            cli_path=self.cli, cwd=self.workspace, env=self.env, model=model, stderr=self.told.append, **more
        )

    def existing(self, *names: str) -> list[bool]:
        return [(self.workspace / name).exists() for name in names]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    with warm_program(made.cli):
        yield made


def of_type(messages: list[Any], kind: Any) -> list[Any]:
    return [one for one in messages if isinstance(one, kind)]


def blocks(messages: list[Any], kind: Any) -> list[Any]:
    return [block for one in messages for block in getattr(one, "content", []) if isinstance(block, kind)]


class CallbackAnswers:
    """The program's answers to callbacks, and the callbacks' inputs."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.guarded: list[Any] = []
        self.finished: list[Any] = []

    async def may(self, tool: str, given: dict[str, Any], context: Any) -> Any:
        self.asked.append((tool, given["command"]))
        assert context.tool_use_id.startswith("toolu_")
        if "asked" in given["command"]:
            return sdk.PermissionResultAllow(updated_input={"command": "touch edited.txt"})
        if "pushed" in given["command"]:  # a rule denies it, whatever the client answers
            return sdk.PermissionResultAllow(updated_input={"command": "git push origin main"})
        return sdk.PermissionResultDeny(message="not in this folder")

    async def guard(self, given: Any, tool_use_id: str | None, context: Any) -> Any:
        self.guarded.append((given["hook_event_name"], given["tool_name"]))
        if "guarded" not in given["tool_input"]["command"]:
            return {}
        decision = {"permissionDecision": "deny", "permissionDecisionReason": "it is guarded"}
        return {"hookSpecificOutput": {"hookEventName": "PreToolUse", **decision}}

    async def after(self, given: Any, tool_use_id: str | None, context: Any) -> Any:
        self.finished.append(given["tool_input"])
        return {"hookSpecificOutput": {"hookEventName": "PostToolUse", "additionalContext": "a word of the client"}}

    @property
    def hooks(self) -> dict[str, Any]:
        return {
            "PreToolUse": [sdk.HookMatcher(matcher="Bash", hooks=[self.guard])],
            "PostToolUse": [sdk.HookMatcher(matcher="Bash|Write", hooks=[self.after])],
        }


@pytest.mark.slow
def test_a_query_streams_and_asks_its_callbacks_for_permission_and_its_hooks(bench: Bench) -> None:
    mine = CallbackAnswers()

    async def prompts() -> AsyncIterator[dict[str, Any]]:
        yield {"type": "user", "message": {"role": "user", "content": "begin"}, "parent_tool_use_id": None}

    async def run() -> list[Any]:
        more = {"hooks": mine.hooks, "disallowed_tools": ["Bash(git push:*)"], "include_partial_messages": True}
        options = bench.options(can_use_tool=mine.may, **more)
        return [message async for message in sdk.query(prompt=prompts(), options=options)]

    messages = anyio.run(run)
    assert bench.existing("guarded.txt", "asked.txt", "edited.txt", "refused.txt") == [False, False, True, False]
    assert sorted(mine.asked) == [("Bash", f"touch {name}.txt") for name in ("asked", "pushed", "refused")]
    assert mine.guarded == [("PreToolUse", "Bash")] * 4
    assert mine.finished == [{"command": "touch edited.txt"}]
    (result,) = of_type(messages, sdk.ResultMessage)
    assert (result.subtype, result.is_error, result.result) == ("success", False, "All done.")
    assert {one["tool_input"]["command"] for one in result.permission_denials} == {
        f"touch {name}.txt" for name in ("guarded", "refused", "pushed")
    }
    check_results(messages)
    check_stream(messages)


def check_results(messages: list[Any]) -> None:
    uses, results = blocks(messages, sdk.ToolUseBlock), blocks(messages, sdk.ToolResultBlock)
    assert [use.name for use in uses] == ["Bash"] * 4
    told = {use.input["command"]: result for use in uses for result in results if result.tool_use_id == use.id}
    assert told["touch asked.txt"].is_error is False
    assert "it is guarded" in str(told["touch guarded.txt"].content)
    assert "not in this folder" in str(told["touch refused.txt"].content)
    assert "the input was changed" in str(told["touch pushed.txt"].content)


def check_stream(messages: list[Any]) -> None:
    """Check that the raw events of each reply add up to the reply that follows them."""
    open_blocks: dict[int, Any] = {}
    seen: list[str] = []
    replies = 0
    for message in messages:
        if isinstance(message, sdk.AssistantMessage):
            texts = [open_blocks[index] for index in sorted(open_blocks)]
            said = [getattr(block, "text", None) or block.input for block in message.content]
            assert [text if isinstance(text, str) else json.loads(text[0]) for text in texts] == said
            assert seen[0] == "message_start"
            assert seen[-1] == "message_stop"
            open_blocks, seen, replies = {}, [], replies + 1
        elif isinstance(message, sdk.StreamEvent):
            event = message.event
            seen.append(event["type"])
            if event["type"] == "content_block_start":
                open_blocks[event["index"]] = "" if event["content_block"]["type"] == "text" else [""]
            elif event["type"] == "content_block_delta" and "text" in event["delta"]:
                open_blocks[event["index"]] += event["delta"]["text"]
            elif event["type"] == "content_block_delta":
                open_blocks[event["index"]][0] += event["delta"]["partial_json"]
    assert replies == 2


@pytest.mark.slow
def test_a_client_talks_interrupts_and_changes_mode_and_model(bench: Bench) -> None:
    async def run() -> None:
        async with sdk.ClaudeSDKClient(bench.options(allowed_tools=["Bash(sleep:*)"])) as client:
            await client.query("write it")
            first = [one async for one in client.receive_response()]
            assert first[-1].permission_denials[0]["tool_name"] == "Write"  # no person can be asked
            assert not bench.existing("made.txt")[0]

            await client.query("wait long")
            async for message in client.receive_messages():
                if blocks([message], sdk.ToolUseBlock):
                    await client.interrupt()
                if isinstance(message, sdk.ResultMessage):
                    assert (message.subtype, message.is_error) == ("error_during_execution", False)
                    break

            await client.set_permission_mode("acceptEdits")
            with pytest.raises(Exception, match="requested at the start"):
                await client.set_permission_mode("bypassPermissions")
            await client.set_model("other")
            with pytest.raises(Exception, match="nonesuch"):
                await client.set_model("nonesuch")
            await client.query("which model?")
            answer = [one async for one in client.receive_response()]
            assert answer[-1].result == "The other one."
            usage = await client.get_context_usage()
            assert 0 < usage["totalTokens"] < usage["maxTokens"]
            info = await client.get_server_info()
            assert info is not None
            assert "other" in [one["value"] for one in info["models"]]
            session.append(answer[-1].session_id)

    async def again() -> list[Any]:
        return [one async for one in sdk.query(prompt="go on", options=bench.options(resume=session[0]))]

    session: list[str] = []
    anyio.run(run)
    messages = anyio.run(again)
    assert messages[-1].result == "I know you."
    assert messages[-1].session_id == session[0]


@pytest.mark.slow
def test_setting_sources_decide_what_of_an_untrusted_workspace_is_read(bench: Bench) -> None:
    """Its agents, skills, and commands are read as texts; they grant and run nothing."""
    files = {
        "agents/helper.md": "---\nname: helper\ndescription: Helps\npermissionMode: acceptEdits\n---\nYou help.\n",
        "commands/look.md": "Look at this: !`touch run.txt`\n",
        "skills/fix/SKILL.md": "---\nname: fix\ndescription: Fixes\nallowed-tools: Bash\n---\nFix it.\n",
        "settings.json": json.dumps(
            {
                "permissions": {"allow": ["Bash(touch:*)"]},
                "hooks": {"SessionStart": [{"hooks": [{"type": "command", "command": "touch hook.txt"}]}]},
            }
        ),
    }
    for name, text in files.items():
        file = bench.workspace / ".claude" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    bench.scenario.write_text(
        """
agents:
  lead:
    - when: {contains: "not run: nobody has trusted"}
      reply:
        - tool_use: {name: bash, input: {command: touch allowed.txt}}
    - otherwise: true
      reply: All done.
"""
    )

    async def begun(prompt: str, **more: Any) -> tuple[set[str], set[str]]:
        messages = [one async for one in sdk.query(prompt=prompt, options=bench.options(**more))]
        init = next(one.data for one in of_type(messages, sdk.SystemMessage) if one.subtype == "init")
        return set(init["agents"]), set(init["slash_commands"])

    async def check() -> None:
        assert {"look", "fix"} <= (await begun("/look"))[1], "all sources are read by default"
        agents, commands = await begun("/fix", setting_sources=["user", "project"])
        assert ("helper" in agents, {"look", "fix"} <= commands) == (True, True)
        agents, commands = await begun("hello", setting_sources=["user"])
        assert ("helper" in agents, {"look", "fix"} & commands) == (False, set())
        assert not any(bench.existing("run.txt", "hook.txt", "allowed.txt"))
        assert any("this workspace is not trusted: its agents, skills and commands" in line for line in bench.told)
        trusted = bench.options(extra_args={"trust": None})
        assert [one async for one in sdk.query(prompt="/look", options=trusted)]
        assert bench.existing("hook.txt") == [True]

    anyio.run(check)
