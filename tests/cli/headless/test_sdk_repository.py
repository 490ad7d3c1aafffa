"""Situations of the end-to-end tests in the repository of the Python claude-agent-sdk, over the HTTP emulator.

They are written anew: the emulator plays the replies that a model would give there. The names of the sections are those
of the files in that repository. An option that the installed package does not have yet is passed as the flag that it
stands for.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cli.headless.test_agent_sdk import blocks, of_type
from tests.cli.headless.test_sdk_options import MODEL, ServedBench, add_to, init_of, result_of
from tests.examples.programs import warm_program

sdk = pytest.importorskip("claude_agent_sdk", reason="the package claude-agent-sdk is not installed")
pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]


class Stage(ServedBench):
    """A workspace, and an emulator whose replies each test sets."""

    async def play(self, *steps: Mapping[str, Any] | str, **more: Any) -> None:
        """Serve these replies of the lead, in order, then `All done.`; `more`: further parts of the scenario."""
        lead = [{"reply": step} if isinstance(step, str) else step for step in steps]
        agents = {"lead": [*lead, {"otherwise": True, "reply": "All done."}], **more.pop("agents", {})}
        self.scenario.write_text(json.dumps({"agents": agents, **more}))
        await self.start()

    async def talk(self, prompt: Any, **more: Any) -> list[Any]:
        """Return the messages of one turn of a client."""
        async with sdk.ClaudeSDKClient(self.options(**more)) as client:
            return await turn(client, prompt)

    def sessions(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """Return the ids of the sessions that the package lists for the workspace."""
        monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(Path(self.env["HOME"]) / ".claude"))
        return [info.session_id for info in sdk.list_sessions(str(self.workspace))]


@asynccontextmanager
async def playing(folder: Path) -> AsyncGenerator[Stage]:
    """Yield a stage in a folder, with a warm program."""
    made = Stage(folder)
    with warm_program(made.cli):
        yield made
        await made.service.aclose()


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with playing(tmp_path) as made:
        yield made


async def turn(client: Any, prompt: Any) -> list[Any]:
    await client.query(prompt)
    return [message async for message in client.receive_response()]


def use(name: str, /, **tool_input: Any) -> dict[str, Any]:
    return {"reply": [{"tool_use": {"name": name, "input": tool_input}}]}


def texts(messages: Sequence[Any]) -> list[str]:
    return [block.text for block in blocks(list(messages), sdk.TextBlock)]


def hook_that(record: list[Any], answer: Mapping[str, Any]) -> Callable[..., Any]:
    """Return a callback that records its input and answers always the same."""

    async def hook(given: Any, tool_use_id: str | None, context: Any) -> Any:
        record.append(given)
        return dict(answer)

    return hook


def matched(hook: Any, matcher: str | None = None) -> list[Any]:
    return [sdk.HookMatcher(matcher=matcher, hooks=[hook])]


# test_agents_and_settings

STYLE = "---\nname: local-test-style\ndescription: A style\n---\nAnswer in one word.\n"
AGENT = {"test-agent": sdk.AgentDefinition(description="For a test", prompt="You test.", tools=["Read"])}


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("by", ["client", "query"])
async def test_an_agent_definition_is_listed_and_runs(stage: Stage, by: str) -> None:
    await stage.play(
        use("task", prompt="test it", description="test", agent_type="test-agent"),
        agents={"*": [{"reply": "Agent activated."}]},
    )
    run = stage.talk if by == "client" else stage.ask
    messages = await run("delegate", agents=AGENT)
    assert "test-agent" in init_of(messages)["agents"]
    (started,) = of_type(messages, sdk.TaskStartedMessage)
    assert "Agent activated." in str(blocks(messages, sdk.ToolResultBlock))
    assert started.tool_use_id == blocks(messages, sdk.ToolUseBlock)[0].id


async def test_large_definitions_of_agents_arrive(stage: Stage) -> None:
    await stage.play("Hello.")
    many = {
        f"agent-{number}": sdk.AgentDefinition(description=f"Number {number}", prompt="x" * 13_000)
        for number in range(20)
    }
    assert sum(len(agent.prompt) for agent in many.values()) > 250_000
    assert set(many) <= set(init_of(await stage.talk("hello", agents=many))["agents"])


async def test_an_agent_of_the_project_is_loaded(stage: Stage) -> None:
    await stage.play("Hello.")
    file = stage.workspace / ".claude/agents/from-file.md"
    file.parent.mkdir(parents=True)
    file.write_text("---\nname: from-file\ndescription: From a file\ntools: Read\n---\nYou come from a file.\n")
    messages = await stage.talk("hello", setting_sources=["project"])
    assert "from-file" in init_of(messages)["agents"]
    assert texts(messages) == ["Hello."]
    assert result_of(messages).subtype == "success"


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    ("more", "style", "has_command", "files"),
    [
        ({}, "default", True, {"output-styles/local-test-style.md": STYLE}),
        ({"setting_sources": ["user"]}, "default", False, {}),
        ({"setting_sources": ["user", "project", "local"]}, "local-test-style", True, {}),
        (
            {"setting_sources": ["user", "project", "local"]},
            "local-test-style",
            True,
            {"output-styles/local-test-style.md": STYLE},
        ),
    ],
)
async def test_setting_sources_select_style_and_commands(
    stage: Stage, more: dict[str, Any], style: str, files: dict[str, str], *, has_command: bool
) -> None:
    await stage.play({"when": {"anywhere": "Answer in one word"}, "reply": "Brief."}, "Hello.")
    settings = {"settings.local.json": '{"outputStyle": "local-test-style"}'}
    command = {"commands/testcmd.md": "---\ndescription: A command\n---\nDo it.\n"}
    for name, text in {**settings, **command, **files}.items():
        file = stage.workspace / ".claude" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    messages = await stage.talk("hello", **more)
    init = init_of(messages)
    assert (init["output_style"], "testcmd" in init["slash_commands"]) == (style, has_command)
    assert texts(messages) == (["Brief."] if files and more else ["Hello."])


# test_dynamic_control


@pytest.mark.slow
async def test_the_mode_changes_between_turns_and_the_first_message_has_it(stage: Stage) -> None:
    await stage.play()
    async with sdk.ClaudeSDKClient(stage.options(permission_mode="default")) as client:
        for mode in ("acceptEdits", "plan", "default"):
            await client.set_permission_mode(mode)
            messages = await turn(client, "hello")
            assert init_of(messages)["permissionMode"] == mode
            assert not result_of(messages).is_error


@pytest.mark.slow
async def test_the_model_changes_between_turns_and_the_first_message_has_it(stage: Stage) -> None:
    await stage.play(models={MODEL: {}, "claude-haiku-4-5": {}, "claude-haiku-5-5": {}})
    async with sdk.ClaudeSDKClient(stage.options()) as client:
        for chosen, model in (("claude-haiku-4-5", "claude-haiku-4-5"), (None, MODEL), ("haiku", "claude-haiku-5-5")):
            await client.set_model(chosen)
            messages = await turn(client, "hello")
            assert init_of(messages)["model"] == model
            assert of_type(messages, sdk.AssistantMessage)[0].model == model


@pytest.mark.slow
async def test_a_resumed_session_says_the_mode_and_model_in_force(stage: Stage) -> None:
    await stage.play(models={MODEL: {}, "claude-haiku-4-5": {}})
    async with sdk.ClaudeSDKClient(stage.options(model=None)) as client:
        await client.set_permission_mode("acceptEdits")
        await client.set_model("claude-haiku-4-5")
        first = await turn(client, "hello")
    session = result_of(first).session_id
    init = init_of(await stage.ask("again", resume=session, model=None))
    assert (init["permissionMode"], init["model"]) == ("acceptEdits", "claude-haiku-4-5")
    init = init_of(await stage.ask("again", resume=session, permission_mode="plan"))
    assert (init["permissionMode"], init["model"]) == ("plan", MODEL)


async def test_a_turn_is_interrupted(stage: Stage) -> None:
    await stage.play(use("bash", command="sleep 120"))
    async with sdk.ClaudeSDKClient(stage.options(allowed_tools=["Bash"])) as client:
        await client.query("count slowly")
        async for message in client.receive_response():
            if blocks([message], sdk.ToolUseBlock):
                await client.interrupt()
        assert not message.is_error
        assert result_of(await turn(client, "hello")).result == "All done."


# test_include_partial_messages

THOUGHT = {"reply": [{"thinking": "2 and 2 are counted one by one: 4."}, {"text": "It is 4."}]}


async def test_partial_messages_stream_thinking_and_text(stage: Stage) -> None:
    await stage.play(THOUGHT)
    stage.env["MAX_THINKING_TOKENS"] = "5000"
    messages = await stage.talk("think", include_partial_messages=True, max_turns=2)
    assert (type(messages[0]), messages[0].subtype) == (sdk.SystemMessage, "init")
    events = [message.event for message in of_type(messages, sdk.StreamEvent)]
    kinds = {event["type"] for event in events}
    assert {"message_start", "content_block_start", "content_block_delta", "content_block_stop"} <= kinds
    assert "message_stop" in kinds
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    thought = "".join(delta["thinking"] for delta in deltas if delta["type"] == "thinking_delta")
    assert thought == "2 and 2 are counted one by one: 4."
    assert blocks(messages, sdk.ThinkingBlock)[0].thinking == thought
    assert texts(messages) == ["It is 4."]
    assert result_of(messages).subtype == "success"
    assert stage.bodies()[0]["thinking"] == {"type": "enabled", "budget_tokens": 5_000}


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    ("value", "more", "thinking"),
    [
        ("5000", {"max_thinking_tokens": 2_000}, {"type": "enabled", "budget_tokens": 2_000}),
        ("0", {}, {"type": "disabled"}),
        ("", {}, None),
    ],
)
async def test_an_option_overrides_the_variable_of_thinking(
    stage: Stage, value: str, more: dict[str, Any], thinking: dict[str, Any] | None
) -> None:
    await stage.play()
    stage.env["MAX_THINKING_TOKENS"] = value
    await stage.ask("think", **more)
    assert stage.bodies()[0].get("thinking") == thinking


async def test_a_variable_of_thinking_that_is_no_number_is_refused(stage: Stage) -> None:
    await stage.play()
    stage.env["MAX_THINKING_TOKENS"] = "many"
    with pytest.raises(sdk.ProcessError):
        await stage.ask("think")
    assert any("MAX_THINKING_TOKENS=many is not a number of tokens" in line for line in stage.told)


async def test_without_the_option_nothing_is_streamed(stage: Stage) -> None:
    await stage.play("Hello.")
    messages = await stage.talk("hello", max_turns=2)
    assert not of_type(messages, sdk.StreamEvent)
    assert all(of_type(messages, kind) for kind in (sdk.SystemMessage, sdk.AssistantMessage, sdk.ResultMessage))


# test_message_fields


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("partial", [False, True])
async def test_messages_keep_their_fields(stage: Stage, *, partial: bool) -> None:
    await stage.play("Hi.")
    messages = await stage.talk("hello", include_partial_messages=partial, max_turns=1)
    said = of_type(messages, sdk.AssistantMessage)[0]
    assert said.model == MODEL
    assert said.message_id.startswith("msg_")
    assert {"input_tokens", "output_tokens"} <= set(said.usage)
    assert uuid.UUID(said.session_id)
    assert uuid.UUID(said.uuid)
    (result,) = of_type(messages, sdk.ResultMessage)
    used = result.model_usage[MODEL]
    assert {"inputTokens", "outputTokens", "costUSD"} <= set(used)
    assert sum(each["costUSD"] for each in result.model_usage.values()) == pytest.approx(result.total_cost_usd)
    assert result.permission_denials == []
    assert uuid.UUID(result.uuid)


# test_error_result_text


async def test_the_text_of_an_error_of_the_service_reaches_the_exception(stage: Stage) -> None:
    await stage.play(models={MODEL: {}})
    messages: list[Any] = []
    with pytest.raises(sdk.ProcessError) as error:
        await add_to(messages, sdk.query(prompt="hello", options=stage.options(model="claude-sonnet-9", max_turns=1)))
    result = result_of(messages)
    assert (result.is_error, result.subtype) == (True, "success")
    assert result.result
    assert result.result in str(error.value)


# test_sdk_mcp_tools


def echoing(record: list[str]) -> Any:
    @sdk.tool("echo", "Echo a text", {"text": str})
    async def echo(given: dict[str, Any]) -> dict[str, Any]:
        record.append("echo")
        return {"content": [{"type": "text", "text": f"Echo: {given['text']}"}]}

    @sdk.tool("greet", "Greet a person", {"name": str})
    async def greet(given: dict[str, Any]) -> dict[str, Any]:
        record.append("greet")
        return {"content": [{"type": "text", "text": f"Hello, {given['name']}!"}]}

    return sdk.create_sdk_mcp_server(name="test", version="1.0.0", tools=[echo, greet])


BOTH = (use("mcp__test__greet", name="Alice"), use("mcp__test__echo", text="test"))


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    ("more", "ran"),
    [
        ({"allowed_tools": ["mcp__test__echo"]}, ["echo"]),
        ({"allowed_tools": ["mcp__test__greet"], "disallowed_tools": ["mcp__test__echo"]}, ["greet"]),
        ({"allowed_tools": ["mcp__test__echo", "mcp__test__greet"]}, ["greet", "echo"]),
        ({}, []),
    ],
)
async def test_tools_of_the_client_run_as_they_are_allowed(stage: Stage, more: dict[str, Any], ran: list[str]) -> None:
    await stage.play(*BOTH)
    record: list[str] = []
    messages = await stage.talk("use both", mcp_servers={"test": echoing(record)}, **more)
    assert record == ran
    assert len(blocks(messages, sdk.ToolResultBlock)) == 2


@pytest.mark.slow
async def test_a_text_prompt_reaches_a_tool_of_the_client(stage: Stage) -> None:
    await stage.play(use("mcp__test__echo", text="hello world"))
    record: list[str] = []
    servers = {"test": echoing(record)}
    messages = await stage.ask("echo", mcp_servers=servers, allowed_tools=["mcp__test__echo"])
    assert record == ["echo"]
    assert "Echo: hello world" in str(blocks(messages, sdk.ToolResultBlock))
    assert of_type(messages, sdk.ResultMessage)


# test_tool_permissions, test_permission_prompts


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(("prompts", "asked_for"), [("host", ["Write"]), ("none", [])])
async def test_the_callback_is_asked_unless_no_one_is_to_be_asked(
    stage: Stage, prompts: str, asked_for: list[str]
) -> None:
    await stage.play(use("write_file", path="out.txt", content="hi"))
    asked: list[str] = []

    async def may(tool: str, given: dict[str, Any], context: Any) -> Any:
        asked.append(tool)
        return sdk.PermissionResultAllow()

    messages = await stage.talk("write it", can_use_tool=may, extra_args={"permission-prompts": prompts})
    assert asked == asked_for
    assert (stage.workspace / "out.txt").exists() == bool(asked_for)
    assert not result_of(messages).is_error


@pytest.mark.slow
async def test_a_query_without_prompts_denies_and_finishes(stage: Stage) -> None:
    await stage.play(use("write_file", path="out.txt", content="hi"))
    result = result_of(await stage.ask("write it", extra_args={"permission-prompts": "none"}))
    assert (result.is_error, len(result.permission_denials)) == (False, 1)
    assert not (stage.workspace / "out.txt").exists()


# test_stderr_callback


async def test_stderr_is_empty_without_a_reason(stage: Stage) -> None:
    await stage.play()
    await stage.talk("What is 1 and 1?")
    assert without_notice(stage.told) == []


def without_notice(lines: Sequence[str]) -> list[str]:
    """The lines without the one that a machine without bubblewrap gives a reason for."""
    return [line for line in lines if not line.startswith("callboard: configuration: sandbox: ")]


async def test_stderr_has_the_log_on_request(stage: Stage) -> None:
    await stage.play()
    await stage.talk("What is 1 and 1?", extra_args={"debug-to-stderr": None})
    assert stage.told
    lines = [json.loads(line.removeprefix("[DEBUG] ")) for line in without_notice(stage.told)]
    assert {"agent_started", "turn_ended"} <= {line["event"] for line in lines}
    assert "1 and 1" not in str(lines), "the log has no content"


# test_structured_output

COUNT = {
    "type": "object",
    "properties": {"file_count": {"type": "number"}, "has_tests": {"type": "boolean"}},
    "required": ["file_count", "has_tests"],
}
NESTED = {
    "type": "object",
    "properties": {
        "analysis": {"type": "object", "properties": {"words": {"type": "number"}}, "required": ["words"]},
        "words": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["analysis", "words"],
}
CHOICE = {
    "type": "object",
    "properties": {"framework": {"type": "string", "enum": ["pytest", "unittest", "unknown"]}},
    "required": ["framework"],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "steps", "output"),
    [
        (COUNT, [use("glob", pattern="**/*.py")], {"file_count": 2, "has_tests": True}),
        (NESTED, [], {"analysis": {"words": 2}, "words": ["Hello", "world"]}),
        (CHOICE, ['{"framework": "nose"}'], {"framework": "pytest"}),
        (COUNT, [use("bash", command="ls")], {"file_count": 0, "has_tests": False}),
    ],
)
async def test_the_output_has_the_schema(
    stage: Stage, schema: dict[str, Any], steps: list[Any], output: dict[str, Any]
) -> None:
    await stage.play(*steps, json.dumps(output))
    result = result_of(
        await stage.ask(
            "analyze", output_format={"type": "json_schema", "schema": schema}, permission_mode="acceptEdits"
        )
    )
    assert (result.is_error, result.subtype, result.structured_output) == (False, "success", output)


# test_tools_option


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    ("tools", "has", "lacks"),
    [
        (["Read", "Glob", "Grep"], {"Read", "Glob", "Grep"}, {"Bash", "Write", "Edit"}),
        ([], set[str](), {"Read", "Bash", "Write", "Glob", "Task", "Agent"}),
        ({"type": "preset", "preset": "claude_code"}, {"Read", "Bash", "Write", "Glob"}, set[str]()),
    ],
)
async def test_tools_are_selected(stage: Stage, tools: Any, has: set[str], lacks: set[str]) -> None:
    await stage.play()
    listed = set(init_of(await stage.ask("hello", tools=tools, max_turns=1))["tools"])
    assert has <= listed
    assert not lacks & listed


# test_persist_session and the functions for sessions


@pytest.mark.slow
@pytest.mark.parametrize("by", ["client", "query"])
@pytest.mark.parametrize("kept", [True, False])
async def test_a_session_is_listed_unless_it_is_not_kept(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, by: str, *, kept: bool
) -> None:
    await stage.play(use("bash", command="echo hi"))
    more: dict[str, Any] = {} if kept else {"extra_args": {"no-session-persistence": None}}
    run = stage.talk if by == "client" else stage.ask
    result = result_of(await run("hello", **more))
    assert (result.is_error, result.result) == (False, "All done.")
    assert stage.sessions(monkeypatch) == ([result.session_id] if kept else [])
    files = [path for path in Path(stage.env["HOME"]).rglob("*") if path.is_file() and path.name != "scenario.yaml"]
    texts_on_disk = b"".join(path.read_bytes() for path in files)
    assert (result.session_id.encode() in texts_on_disk or any(result.session_id in str(file) for file in files)) or (
        not kept
    )
    assert kept or b"All done." not in texts_on_disk
    if not kept:
        with pytest.raises(sdk.ProcessError):
            await stage.ask("again", resume=result.session_id)
        with pytest.raises(sdk.ProcessError):
            await stage.ask("again", continue_conversation=True, **more)


@pytest.mark.slow
async def test_the_functions_for_sessions_read_and_change_a_session(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.play("First.", "Second.")
    first = result_of(await stage.ask("remember apples"))
    await stage.ask("remember pears", resume=first.session_id)
    folder = str(stage.workspace)
    assert stage.sessions(monkeypatch) == [first.session_id]
    info = sdk.get_session_info(first.session_id, folder)
    assert (info.first_prompt, info.cwd) == ("remember apples", folder)
    messages = sdk.get_session_messages(first.session_id, folder)
    assert [message.type for message in messages] == ["user", "assistant"] * 2
    sdk.rename_session(first.session_id, "Fruit", folder)
    sdk.tag_session(first.session_id, "food", folder)
    info = sdk.get_session_info(first.session_id, folder)
    assert (info.custom_title, info.tag) == ("Fruit", "food")
    fork = sdk.fork_session(first.session_id, folder)
    assert len(sdk.get_session_messages(fork.session_id, folder)) == 4
    sdk.delete_session(fork.session_id, folder)
    assert stage.sessions(monkeypatch) == [first.session_id]


# test_run_end, test_end_user_input


async def test_a_query_with_a_hook_has_one_result(stage: Stage) -> None:
    await stage.play("OK.")
    seen: list[Any] = []
    messages = await stage.ask("hello", tools=[], hooks={"PreToolUse": matched(hook_that(seen, {}))})
    (result,) = of_type(messages, sdk.ResultMessage)
    assert (result.is_error, result.result) == (False, "OK.")
    assert not [one for one in of_type(messages, sdk.SystemMessage) if one.subtype == "session_state_changed"]


@pytest.mark.slow
async def test_the_hook_of_a_turn_after_a_teammate_has_finished_is_asked(stage: Stage) -> None:
    worker = {"worker": sdk.AgentDefinition(description="Says one word", prompt="Say DONE.", tools=[])}
    await stage.play(
        use("spawn_teammate", name="worker", role="worker", agent_type="worker", prompt="Say it."),
        {"when": {"not_contains": "DONE"}, "reply": "LAUNCHED"},
        {"when": {"contains": "DONE"}, **use("write_file", path="out.txt", content="DONE")},
        agents={"*": [{"reply": "DONE", "latency_ms": 300}]},
    )
    seen: list[Any] = []
    messages = await stage.ask(
        "start it",
        agents=worker,
        hooks={"PreToolUse": matched(hook_that(seen, {}), "Write")},
        allowed_tools=["Write"],
        permission_mode="acceptEdits",
    )
    assert [given["tool_name"] for given in seen] == ["Write"]
    assert (stage.workspace / "out.txt").exists()
    assert not any(result.is_error for result in of_type(messages, sdk.ResultMessage))


# test_verbatim_prompts


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("by", ["client", "query"])
@pytest.mark.parametrize("verbatim", [True, False])
async def test_no_prompt_attaches_a_file_that_it_names(stage: Stage, by: str, *, verbatim: bool) -> None:
    """A model reads such a file by a call, which the permission rules decide, also without `verbatim_prompts`."""
    await stage.play()
    marker = f"MARKER-{uuid.uuid4().hex[:12]}"
    file = stage.workspace / "secret.txt"
    file.write_text(f"The marker is {marker}.\n")
    run = stage.talk if by == "client" else stage.ask
    await run(f"What does it say? @{file}", tools=[], verbatim_prompts=verbatim, max_turns=1)
    sent = json.dumps(stage.bodies()[0])
    assert (f"@{file}" in sent, marker in sent) == (True, False)
