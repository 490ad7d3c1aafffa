"""Every documented option and method of the Python claude-agent-sdk, over the real package and the HTTP emulator.

`OPTIONS` and `METHODS` have a row for each: the test that shows its effect, or the text with which it is refused. A new
version of the package with another option fails here until it has a row.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.headless.test_agent_sdk import Bench, blocks, of_type
from tests.examples.programs import warm_program

from callboard.adapters.models.rehearsal.emulator import Emulator, serve
from callboard.adapters.models.rehearsal.scenario_file import load_scenario

sdk = pytest.importorskip("claude_agent_sdk", reason="the package claude-agent-sdk is not installed")
pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("anyio_backend", ["asyncio"])]

MODEL = "claude-sonnet-4-5"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SCHEMA = {"type": "object", "properties": {"answer": {"type": "number"}}, "required": ["answer"]}
SCENARIO = """
agents:
  lead:
    - when: {contains: as a number}
      reply: '{"answer": 42}'
    - when: {contains: write it twice}
      reply:
        - tool_use: {name: write_file, input: {path: note.txt, content: "one\\ntwo\\n"}}
    - when: {contains: change it}
      reply:
        - tool_use: {name: edit_file, input: {path: note.txt, old_text: two, new_text: three}}
    - when: {contains: touch another}
      reply:
        - tool_use: {name: bash, input: {command: touch second.txt}}
    - when: {contains: touch}
      reply:
        - tool_use: {name: bash, input: {command: touch first.txt}}
    - when: {contains: delegate}
      reply:
        - tool_use: {name: task, input: {prompt: look around, description: look, agent_type: helper}}
    - when: {contains: ask me}
      reply:
        - tool_use: {name: ask_person, input: {question: "Which one?", options: [red, blue]}}
    - when: {contains: go wrong}
      fault: {status: 400, message: no such thing}
    - when: {contains: forever}
      reply:
        - tool_use: {name: glob, input: {pattern: "*"}}
    - when: {result_of: glob}
      reply:
        - tool_use: {name: glob, input: {pattern: "*.txt"}}
    - otherwise: true
      reply: All done.
  "*":
    - reply:
        - text: I look around.
        - tool_use: {name: glob, input: {pattern: "*"}}
    - when: {result_of: glob}
      reply: I saw it.
"""
OPTIONS = {
    "tools": "test_the_request_has_what_the_options_say",
    "allowed_tools": "test_answers_of_the_client_change_rules_and_mode",
    "system_prompt": "test_the_request_has_what_the_options_say",
    "mcp_servers": "tests/cli/headless/test_sdk_servers.py",
    "strict_mcp_config": "tests/cli/headless/test_sdk_servers.py",
    "permission_mode": "test_files_are_rewound_to_a_message",
    "continue_conversation": "test_a_session_is_continued_forked_and_cut_at_a_message",
    "resume": "test_a_session_is_continued_forked_and_cut_at_a_message",
    "session_id": "test_a_session_is_continued_forked_and_cut_at_a_message",
    "max_turns": "test_limits_and_faults_have_their_results",
    "max_budget_usd": "test_limits_and_faults_have_their_results",
    "disallowed_tools": "tests/cli/headless/test_agent_sdk.py",
    "model": "test_the_request_has_what_the_options_say",
    "fallback_model": "test_limits_and_faults_have_their_results",
    "betas": "test_the_request_has_what_the_options_say",
    "permission_prompt_tool_name": "tests/cli/headless/test_sdk_servers.py",
    "cwd": "test_the_first_message_describes_the_session",
    "cli_path": "test_the_first_message_describes_the_session",
    "settings": "test_the_request_has_what_the_options_say",
    "add_dirs": "test_a_folder_may_be_read",
    "env": "test_the_first_message_describes_the_session",
    "extra_args": "test_files_are_rewound_to_a_message",
    "max_buffer_size": "the package's own",
    "debug_stderr": "the package's own",
    "stderr": "test_options_without_effect_say_so",
    "can_use_tool": "test_answers_of_the_client_change_rules_and_mode",
    "hooks": "tests/cli/headless/test_agent_sdk.py",
    "user": "the package's own",
    "include_partial_messages": "tests/cli/headless/test_agent_sdk.py",
    "include_hook_events": "tests/cli/headless/test_stream_json_input.py",
    "forward_subagent_text": "test_the_text_of_subagents_is_sent_on_request",
    "verbatim_prompts": "test_prompts_have_images_and_may_be_verbatim",
    "fork_session": "test_a_session_is_continued_forked_and_cut_at_a_message",
    "resume_session_at": "test_a_session_is_continued_forked_and_cut_at_a_message",
    "resume_drops_turn": "test_a_session_is_continued_forked_and_cut_at_a_message",
    "agents": "test_the_first_message_describes_the_session",
    "setting_sources": "tests/cli/headless/test_agent_sdk.py",
    "skills": "test_the_first_message_describes_the_session",
    "sandbox": "test_options_without_effect_say_so",
    "plugins": "test_the_first_message_describes_the_session",
    "max_thinking_tokens": "test_the_request_has_what_the_options_say",
    "thinking": "test_the_request_has_what_the_options_say",
    "effort": "test_the_request_has_what_the_options_say",
    "output_format": "test_the_request_has_what_the_options_say",
    "enable_file_checkpointing": "test_files_are_rewound_to_a_message",
    "session_store": "test_a_store_gets_the_transcripts",
    "session_store_flush": "test_a_store_gets_the_transcripts",
    "load_timeout_ms": "test_a_store_gets_the_transcripts",
    "task_budget": "refused: use --max-budget-usd or --max-turns",
    "client_app": "the package's own",
}
METHODS = {
    "connect": "test_a_client_controls_its_session",
    "disconnect": "test_a_client_controls_its_session",
    "query": "test_a_client_controls_its_session",
    "receive_messages": "tests/cli/headless/test_agent_sdk.py",
    "receive_response": "test_a_client_controls_its_session",
    "interrupt": "tests/cli/headless/test_agent_sdk.py",
    "set_permission_mode": "tests/cli/headless/test_agent_sdk.py",
    "set_model": "tests/cli/headless/test_agent_sdk.py",
    "rewind_files": "test_files_are_rewound_to_a_message",
    "reconnect_mcp_server": "tests/cli/headless/test_sdk_servers.py",
    "toggle_mcp_server": "tests/cli/headless/test_sdk_servers.py",
    "stop_task": "test_a_client_controls_its_session",
    "get_mcp_status": "test_a_client_controls_its_session",
    "get_context_usage": "test_a_client_controls_its_session",
    "get_server_info": "test_a_client_controls_its_session",
}


class ServedBench(Bench):
    """A workspace, and the emulator as its model service."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.scenario.write_text(SCENARIO)
        self.service: Emulator

    async def start(self) -> None:
        self.service = await serve(load_scenario(self.scenario))
        self.env |= {"ANTHROPIC_BASE_URL": self.service.url, "ANTHROPIC_API_KEY": "any"}

    def options(self, **more: Any) -> Any:
        return dataclasses.replace(super().options(), **{"model": MODEL, **more})

    async def ask(self, prompt: Any, **more: Any) -> list[Any]:
        return [one async for one in sdk.query(prompt=prompt, options=self.options(**more))]

    def bodies(self, agent: str = "lead") -> list[dict[str, Any]]:
        return [logged.body or {} for logged in self.service.calls(agent)]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[ServedBench]:
    made = ServedBench(tmp_path)
    with warm_program(made.cli):
        await made.start()
        yield made
        await made.service.aclose()


async def once(*messages: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    for message in messages:
        yield message


def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "user", "message": {"role": "user", "content": content}, "parent_tool_use_id": None, **more}


def result_of(messages: list[Any]) -> Any:
    return of_type(messages, sdk.ResultMessage)[-1]


def init_of(messages: list[Any]) -> dict[str, Any]:
    return next(one.data for one in of_type(messages, sdk.SystemMessage) if one.subtype == "init")


async def test_every_option_and_method_has_a_row(anyio_backend: str) -> None:
    assert {field.name for field in dataclasses.fields(sdk.ClaudeAgentOptions)} == set(OPTIONS)
    public = {name for name, _ in inspect.getmembers(sdk.ClaudeSDKClient, inspect.isfunction) if name[0] != "_"}
    assert public == set(METHODS)
    named = {row for row in (*OPTIONS.values(), *METHODS.values()) if row.startswith("test_")}
    assert named <= set(globals())


async def test_the_first_message_describes_the_session(bench: ServedBench, tmp_path: Path) -> None:
    plugin = tmp_path / "tools"
    (plugin / ".claude-plugin").mkdir(parents=True)
    (plugin / ".claude-plugin" / "plugin.json").write_text('{"name": "tools", "version": "1.2"}')
    for name in ("fix", "break"):
        (plugin / "skills" / name).mkdir(parents=True)
        (plugin / "skills" / name / "SKILL.md").write_text(f"---\nname: {name}\ndescription: {name} it\n---\nDo it.\n")
    plugins = [{"type": "local", "path": str(plugin)}, {"type": "local", "path": str(tmp_path / "nowhere")}]
    helper = sdk.AgentDefinition(description="Helps", prompt="You help.", tools=["Glob"])
    messages = await bench.ask("hello", plugins=plugins, agents={"helper": helper}, skills=["fix"])
    assert getattr(messages[0], "subtype", "") == "init"
    init = init_of(messages)
    assert init["cwd"] == str(bench.workspace)
    assert "helper" in init["agents"]
    assert {"tools:fix", "tools:break"} <= set(init["skills"])
    assert init["plugins"] == [{"name": "tools", "path": str(plugin), "version": "1.2"}]
    assert [error["path"] for error in init["plugin_errors"]] == [str(tmp_path / "nowhere")]
    assert init["apiKeySource"] == "ANTHROPIC_API_KEY"
    assert uuid.UUID(init["session_id"])
    system = json.dumps(bench.bodies()[0])
    assert "tools:fix" in system
    assert "tools:break" not in system, "the model is shown only the named skills"


@pytest.mark.slow(keep=2)
@pytest.mark.parametrize(
    ("more", "thinking"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 2_000}}, {"type": "enabled", "budget_tokens": 2_000}),
        ({"max_thinking_tokens": 3_000}, {"type": "enabled", "budget_tokens": 3_000}),
        ({"thinking": {"type": "disabled"}}, {"type": "disabled"}),
        (
            {"model": "claude-opus-5-5", "thinking": {"type": "adaptive", "display": "summarized"}, "effort": "low"},
            {"type": "adaptive", "display": "summarized"},
        ),
        ({}, None),
    ],
)
async def test_the_request_has_what_the_options_say(
    bench: ServedBench, more: dict[str, Any], thinking: dict[str, Any] | None
) -> None:
    messages = await bench.ask(
        "as a number",
        system_prompt={"type": "preset", "preset": "claude_code", "append": "Count in dozens."},
        output_format={"type": "json_schema", "schema": SCHEMA},
        tools=["Read", "Bash"],
        settings=json.dumps({"permissions": {"deny": ["Bash(git:*)"]}}),
        betas=["context-1m-2025-08-07"],
        **more,
    )
    body = bench.bodies()[0]
    assert body.get("thinking") == thinking
    assert body["model"] == more.get("model", MODEL)
    assert body.get("output_config", {}).get("effort") == more.get("effort")
    assert "Count in dozens." in json.dumps(body["system"])
    assert {"read_file", "bash"} <= {tool["name"] for tool in body["tools"]}
    assert "write_file" not in {tool["name"] for tool in body["tools"]}
    assert result_of(messages).structured_output == {"answer": 42}


@pytest.mark.slow
async def test_prompts_have_images_and_may_be_verbatim(bench: ServedBench) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
    paper = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "A paper."}}
    tiff = {"type": "image", "source": {"type": "base64", "media_type": "image/tiff", "data": PIXEL}}
    own = str(uuid.uuid4())
    first = await bench.ask(once(user([{"type": "text", "text": "what is it?"}, image, paper], uuid=own)))
    assert result_of(first).result == "All done."
    assert (result_of(first).user_message_uuid, result_of(first).user_message_uuids) == (own, [own])
    assert bench.bodies()[-1]["messages"][-1]["content"][-3:] != []
    kinds = [block["type"] for block in bench.bodies()[-1]["messages"][-1]["content"]]
    assert kinds[-3:] == ["text", "image", "document"]
    refused = of_type(await collected(bench, once(user([tiff]))), sdk.ResultMessage)[-1]
    assert refused.is_error
    assert "image/tiff" in refused.errors[0]
    unknown = of_type(await collected(bench, "/nonesuch command"), sdk.ResultMessage)[-1]
    assert unknown.is_error
    verbatim = await bench.ask("/nonesuch command", verbatim_prompts=True)
    assert result_of(verbatim).result == "All done."


async def collected(bench: ServedBench, prompt: Any, **more: Any) -> list[Any]:
    """Return the messages of a query that ends with an error."""
    messages: list[Any] = []
    with pytest.raises(sdk.ProcessError):
        await add_to(messages, sdk.query(prompt=prompt, options=bench.options(**more)))
    return messages


async def add_to(messages: list[Any], stream: AsyncIterator[Any]) -> None:
    async for message in stream:
        messages.append(message)


@pytest.mark.slow
async def test_a_session_is_continued_forked_and_cut_at_a_message(bench: ServedBench) -> None:
    own, later = str(uuid.uuid4()), str(uuid.uuid4())
    session = str(uuid.uuid4())
    first = await bench.ask(once(user("remember apples", uuid=own)), session_id=session)
    assert result_of(first).session_id == session
    reply = of_type(first, sdk.AssistantMessage)[-1].uuid
    await bench.ask(once(user("remember pears", uuid=later)), continue_conversation=True)
    fork = await bench.ask("what do you know?", resume=session, fork_session=True, resume_session_at=reply)
    assert result_of(fork).session_id != session
    assert uuid.UUID(result_of(fork).session_id)
    sent = json.dumps(bench.bodies()[-1]["messages"])
    assert ("apples" in sent, "pears" in sent) == (True, False)
    whole = await bench.ask("and now?", resume=session, fork_session=True)
    sent = json.dumps(bench.bodies()[-1]["messages"])
    assert ("apples" in sent, "pears" in sent, "what do you know" in sent) == (True, True, False)
    assert result_of(whole).session_id not in (session, result_of(fork).session_id)
    cut = await bench.ask("once more", resume=session, resume_session_at=reply, resume_drops_turn=later)
    assert result_of(cut).session_id == session
    sent = json.dumps(bench.bodies()[-1]["messages"])
    assert ("apples" in sent, "pears" in sent, "once more" in sent) == (True, False, True)
    for wrong, reason in (({"resume_session_at": later}, ""), ({"resume_session_at": str(uuid.uuid4())}, "no message")):
        if reason:
            with pytest.raises(Exception, match=reason):
                await bench.ask("hello", resume=session, **wrong)
    with pytest.raises(Exception, match="Resume rejected by --resume-drops-turn:"):
        await bench.ask("hello", resume=session, resume_session_at=own, resume_drops_turn=str(uuid.uuid4()))


@pytest.mark.slow
async def test_files_are_rewound_to_a_message(bench: ServedBench) -> None:
    more = {"enable_file_checkpointing": True, "extra_args": {"replay-user-messages": None}}
    async with sdk.ClaudeSDKClient(bench.options(permission_mode="acceptEdits", **more)) as client:
        points: list[str] = []
        for text in ("write it twice", "change it"):
            await client.query(once(user(text, uuid=str(uuid.uuid4()))))
            messages = [one async for one in client.receive_response()]
            points += [one.uuid for one in of_type(messages, sdk.UserMessage) if isinstance(one.content, str)]
        assert (bench.workspace / "note.txt").read_text() == "one\nthree\n"
        changed = of_type(messages, sdk.UserMessage)[-1].tool_use_result
        assert (changed["oldString"], changed["newString"]) == ("two", "three")
        assert changed["structuredPatch"][0]["lines"] == [" one", "-two", "+three"]
        await client.rewind_files(points[1])
        assert (bench.workspace / "note.txt").read_text() == "one\ntwo\n"
        await client.rewind_files(points[0])
        assert not (bench.workspace / "note.txt").exists()
        with pytest.raises(Exception, match="has no message"):
            await client.rewind_files(str(uuid.uuid4()))
    async with sdk.ClaudeSDKClient(bench.options()) as client:
        with pytest.raises(Exception, match="no copies of files are made"):
            await client.rewind_files(points[0])


@pytest.mark.slow
async def test_answers_of_the_client_change_rules_and_mode(bench: ServedBench) -> None:
    asked: list[str] = []
    Rule = sdk.types.PermissionRuleValue  # noqa: N806 - a class

    async def may(tool: str, given: dict[str, Any], context: Any) -> Any:
        asked.append(given.get("command") or given["file_path"])
        rule = sdk.PermissionUpdate(
            type="addRules",
            behavior="allow",
            destination="session",
            rules=[Rule("Bash", "touch:*")],
        )
        mode = sdk.PermissionUpdate(type="setMode", mode="acceptEdits", destination="session")
        kept = sdk.PermissionUpdate(
            type="addRules", behavior="allow", destination="userSettings", rules=[Rule("WebFetch")]
        )
        return sdk.PermissionResultAllow(updated_permissions=[rule, mode, kept])

    async with sdk.ClaudeSDKClient(bench.options(can_use_tool=may)) as client:
        for text in ("touch a file", "touch another file", "write it twice"):
            await client.query(text)
            messages = [one async for one in client.receive_response()]
    assert asked == ["touch first.txt"], "the rule and the mode of the first answer allow everything after it"
    assert bench.existing("first.txt", "second.txt", "note.txt") == [True, True, True]
    assert init_of(messages)["permissionMode"] == "acceptEdits"
    assert any("the destination userSettings: the change lasts as long as the session" in line for line in bench.told)


@pytest.mark.slow
async def test_answers_of_the_client_deny_and_ask_and_take_that_back(bench: ServedBench) -> None:
    calls = {"write it": "note", "a first": "first", "a second": "second"}
    steps = [
        {
            "when": {"contains": text},
            "repeat": "forever",
            "reply": [{"tool_use": {"name": "bash", "input": {"command": f"touch {name}.txt"}}}],
        }
        for text, name in calls.items()
    ]
    bench.scenario.write_text(json.dumps({"agents": {"lead": [*steps, {"otherwise": True, "reply": "All done."}]}}))
    await bench.service.aclose()
    await bench.start()
    Rule = sdk.types.PermissionRuleValue  # noqa: N806 - a class
    asked: list[str] = []
    answers = [
        [("addRules", "deny", "touch first.txt"), ("addRules", "ask", "touch second.txt"), ("addRules", "allow", None)],
        [("removeRules", "deny", "touch first.txt"), ("removeRules", "deny", "nothing like it")],
        [("replaceRules", "allow", "ls:*")],
        [],
    ]

    async def may(tool: str, given: dict[str, Any], context: Any) -> Any:
        asked.append(given["command"].removeprefix("touch "))
        updates = [
            sdk.PermissionUpdate(type=kind, behavior=behavior, rules=[Rule("Bash", content)])
            for kind, behavior, content in answers.pop(0)
        ]
        return sdk.PermissionResultAllow(updated_permissions=updates)

    async def run(client: Any, text: str) -> list[str]:
        await client.query(text)
        messages = [one async for one in client.receive_response()]
        return [str(one.content) for one in blocks(messages, sdk.ToolResultBlock) if one.is_error]

    async with sdk.ClaudeSDKClient(bench.options(can_use_tool=may)) as client:
        assert await run(client, "write it") == []
        (denied,) = await run(client, "a first file")
        assert "a deny rule matches (rule Bash(touch first.txt))" in denied
        assert await run(client, "a second file") == []
        assert asked == ["note.txt", "second.txt"], "the ask rule asks although Bash is allowed"
        assert await run(client, "a first file") == []
        assert asked[2:] == [], "the deny rule is removed, and Bash is allowed"
        assert await run(client, "a second file") == []
        assert await run(client, "a first file") == []
        assert asked[2:] == ["second.txt", "first.txt"], "the allow rules are replaced"
    assert any("removal of Bash(nothing like it) (deny): the session has no such rule" in line for line in bench.told)


async def test_the_answer_to_a_question_is_the_result_of_its_call(bench: ServedBench) -> None:
    async def may(tool: str, given: dict[str, Any], context: Any) -> Any:
        assert (tool, given["questions"][0]["options"][1]["label"]) == ("AskUserQuestion", "blue")
        return sdk.PermissionResultAllow(updated_input={**given, "answers": {"Which one?": "blue"}})

    messages = await bench.ask(once(user("ask me")), can_use_tool=may)
    (result,) = blocks(messages, sdk.ToolResultBlock)
    assert result.content == "The person answered: blue"
    used = of_type(messages, sdk.UserMessage)[-1].tool_use_result
    assert used["answers"] == {"Which one?": "blue"}
    assert len(bench.bodies()) == 2, "the model is asked again only with the answer"


@pytest.mark.slow
async def test_a_folder_may_be_read(bench: ServedBench, tmp_path: Path) -> None:
    beside = tmp_path / "beside"
    beside.mkdir()
    (beside / "paper.txt").write_text("Read me.")
    call = {"name": "read_file", "input": {"path": str(beside / "paper.txt")}}
    bench.scenario.write_text(
        json.dumps({"agents": {"lead": [{"reply": [{"tool_use": call}]}, {"otherwise": True, "reply": "All done."}]}})
    )
    await bench.service.aclose()
    await bench.start()
    messages = await bench.ask("read it", add_dirs=[beside])
    (result,) = blocks(messages, sdk.ToolResultBlock)
    assert "Read me." in str(result.content)
    used = of_type(messages, sdk.UserMessage)[-1].tool_use_result
    assert used["file"] == {
        "filePath": str(beside / "paper.txt"),
        "content": "Read me.",
        "numLines": 1,
        "startLine": 1,
        "totalLines": 1,
    }
    with pytest.raises(sdk.ProcessError):
        await bench.ask("read it", add_dirs=[tmp_path / "nowhere"])


@pytest.mark.slow
async def test_the_text_of_subagents_is_sent_on_request(bench: ServedBench) -> None:
    helper = {"helper": sdk.AgentDefinition(description="Helps", prompt="You help.", tools=["Glob"])}
    for forwarded in (False, True):
        messages = await bench.ask("delegate", agents=helper, forward_subagent_text=forwarded)
        (task,) = [use for use in blocks(messages, sdk.ToolUseBlock) if use.name == "Agent" or use.name == "Task"]
        inner = [one for one in of_type(messages, sdk.AssistantMessage) if one.parent_tool_use_id == task.id]
        assert [use.name for use in blocks(inner, sdk.ToolUseBlock)] == ["Glob"]
        said = [block.text for block in blocks(inner, sdk.TextBlock)]
        assert said == (["I look around.", "I saw it."] if forwarded else [])
        progress = of_type(messages, sdk.TaskProgressMessage)
        assert [(one.tool_use_id, one.last_tool_name) for one in progress] == [(task.id, "Glob")]
        outer = [one for one in of_type(messages, sdk.UserMessage) if one.parent_tool_use_id is None]
        assert outer[-1].tool_use_result["content"] == [{"type": "text", "text": "I saw it."}]


@pytest.mark.slow
async def test_limits_and_faults_have_their_results(bench: ServedBench) -> None:
    result = of_type(await collected(bench, "forever", max_turns=2), sdk.ResultMessage)[-1]
    assert (result.subtype, result.is_error, result.terminal_reason) == ("error_max_turns", True, "max_turns")
    result = of_type(await collected(bench, "hello", max_budget_usd=0.000001), sdk.ResultMessage)[-1]
    assert (result.subtype, result.is_error) == ("error_max_budget_usd", True)
    messages = await collected(bench, "go wrong")
    result = of_type(messages, sdk.ResultMessage)[-1]
    assert (result.subtype, result.is_error, result.api_error_status) == ("success", True, 400)
    assert result.result.startswith("API Error: 400 ")
    assert "no such thing" in result.result
    said = of_type(messages, sdk.AssistantMessage)[-1]
    assert (said.error, said.model) == ("invalid_request", "<synthetic>")
    messages = await bench.ask("hello", model="claude-nonesuch-9", fallback_model=MODEL)
    assert result_of(messages).result == "All done."


@pytest.mark.slow
async def test_a_client_controls_its_session(bench: ServedBench) -> None:
    async with sdk.ClaudeSDKClient(bench.options()) as client:
        info = await client.get_server_info()
        assert {"compact", "clear"} - {command["name"] for command in info["commands"]} <= {"compact", "clear"}
        assert MODEL in [model["value"] for model in info["models"]]
        assert info["account"]["apiKeySource"] == "ANTHROPIC_API_KEY"
        for _ in range(2):
            await client.query("hello")
            messages = [one async for one in client.receive_response()]
            assert init_of(messages)["model"] == MODEL, "each turn begins with the state of the session"
        usage = await client.get_context_usage()
        assert sum(part["tokens"] for part in usage["categories"] if part["kind"] == "used") == usage["totalTokens"]
        assert await client.get_mcp_status() == {"mcpServers": []}
        with pytest.raises(Exception, match="no agent"):
            await client.stop_task("nobody")
        used = messages[-1].model_usage[MODEL]
        assert (used["contextWindow"], used["webSearchRequests"]) == (200_000, 0)


@pytest.mark.parametrize("name", [name for name, row in OPTIONS.items() if row.startswith("refused: ")])
async def test_options_without_effect_say_so(bench: ServedBench, name: str) -> None:
    values: dict[str, Any] = {"task_budget": {"total": 50_000}}
    await bench.ask("hello", sandbox={"enabled": True}, **{name: values[name]})
    assert any(OPTIONS[name].removeprefix("refused: ") in line for line in bench.told)


@pytest.mark.slow
@pytest.mark.parametrize("flush", ["batched", "eager"])
async def test_a_store_gets_the_transcripts(bench: ServedBench, flush: str) -> None:
    store = sdk.InMemorySessionStore()
    bench.env["CLAUDE_CONFIG_DIR"] = str(bench.workspace.parent / ".claude")
    helper = {"helper": sdk.AgentDefinition(description="Helps", prompt="You help.", tools=["Glob"])}
    chosen = {"session_store": store, "session_store_flush": flush, "load_timeout_ms": 5_000}
    first = result_of(await bench.ask("delegate", agents=helper, **chosen))
    key = {"project_key": sdk.project_key_for_directory(str(bench.workspace)), "session_id": first.session_id}
    entries = await store.load(key)
    assert next(entry["type"] for entry in entries if entry["type"] in ("user", "assistant")) == "user"
    assert any(name.startswith("subagents/") for name in await store.list_subkeys(key))
    again = result_of(await bench.ask("hello", resume=first.session_id, **chosen))
    assert again.session_id == first.session_id
    later = await store.load(key)
    assert later[: len(entries)] == entries
    assert "All done." in json.dumps(later[len(entries) :])
    assert len({entry["uuid"] for entry in later if "uuid" in entry}) == sum("uuid" in entry for entry in later)
