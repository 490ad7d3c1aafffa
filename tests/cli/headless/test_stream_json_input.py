"""A run controlled by a program: lines on stdin, messages and control frames on stdout."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands.command import Command, CommandResult
from tests.warm import PIPE, Process

from callboard.sessions.hosted import HostedSession

PATIENCE = 120.0
"""Maximum seconds of a whole session."""
STREAM_OPTIONS = ("--output-format", "stream-json", "--verbose", "--input-format", "stream-json")
SCENARIO = """
agents:
  lead:
    - when: {contains: look}
      reply:
        - tool_use: {name: read_file, input: {path: hello.txt}}
    - when: {contains: touch}
      reply:
        - tool_use: {name: bash, input: {command: touch made.txt}}
    - when: {contains: slow}
      reply:
        - tool_use: {name: bash, input: {command: sleep 120}}
    - when: {contains: plan it}
      reply:
        - tool_use: {name: submit_plan, input: {plan: "I touch a file."}}
    - when: {contains: ask me}
      reply:
        - tool_use: {name: ask_person, input: {question: "Which one?", options: [red, blue]}}
    - when: {contains: measure}
      reply: '{"share": NaN}'
    - when: {contains: "it contains NaN"}
      reply: '{"share": 1e999}'
    - when: {contains: "1e999 is out of range"}
      reply: '{"share": 2}'
    - when: {contains: count}
      reply: "I count: one"
    - when: {contains: does not fit}
      reply: '{"count": 1}'
    - otherwise: true
      reply: It is done.
"""


SETTINGS = {"permissions": ["defaultMode"]}
"""Settings of another form than clients send."""


@contextlib.contextmanager
def on_descriptor(number: int, file: int) -> Generator[None]:
    """Put an open file in the place of a descriptor."""
    kept = os.dup(number)
    os.dup2(file, number)
    try:
        yield
    finally:
        os.dup2(kept, number)
        os.close(kept)


@pytest.fixture
def command(tmp_path: Path) -> Command:
    command = Command(tmp_path)
    (command.workspace / "hello.txt").write_text("hello\n")
    command.scenario(SCENARIO)
    return command


def user_line(text: str, **more: Any) -> str:
    return json.dumps({"type": "user", "message": {"role": "user", "content": text}, **more})


def control_request(subtype: str, name: str = "r1", **fields: Any) -> str:
    return json.dumps({"type": "control_request", "request_id": name, "request": {"subtype": subtype, **fields}})


def drive(command: Command, *lines: str, options: tuple[str, ...] = ()) -> CommandResult:
    model = f"rehearsal:{command.workspace.parent / 'scenario.yaml'}"
    return command.run(*STREAM_OPTIONS, "--model", model, *options, stdin="".join(f"{line}\n" for line in lines))


def of_type(ran: CommandResult, kind: str) -> list[dict[str, Any]]:
    return [one for one in ran.messages if one["type"] == kind]


def responses(ran: CommandResult) -> dict[str, dict[str, Any]]:
    return {one["response"]["request_id"]: one["response"] for one in of_type(ran, "control_response")}


def test_the_cost_of_a_result_is_that_of_its_models_in_this_run(command: Command) -> None:
    def costs(ran: CommandResult) -> list[float]:
        results = of_type(ran, "result")
        for result in results:
            by_model = sum(used["costUSD"] for used in result["modelUsage"].values())
            assert result["total_cost_usd"] == pytest.approx(by_model)
        return [result["total_cost_usd"] for result in results]

    def spent() -> float:
        return json.loads(command.run_inline("cost", "--json").out)["total"]["usage"]["cost_usd"]

    first, compacted, last = costs(drive(command, user_line("hello"), user_line("/compact"), user_line("look")))
    assert 0 < first < compacted < last
    assert last == pytest.approx(before := spent())
    (resumed,) = costs(drive(command, user_line("more"), options=("--continue",)))
    assert resumed == pytest.approx(spent() - before), "clients add up the runs of a session"


def test_a_turn_that_old_mail_starts_at_a_resume_has_a_result_of_its_own(command: Command) -> None:
    model = f"rehearsal:{command.workspace.parent / 'scenario.yaml'}"
    assert command.run_inline("-p", "hello", "--model", model).code == 0
    assert command.run_inline("send", "count").code == 0
    asked = (control_request("initialize", "r1"), user_line("and now", uuid="5f8b5a0e-0d1f-4a52-8d4b-0d3f6ad1c002"))
    ran = drive(command, *asked, options=("--continue",))
    results = of_type(ran, "result")
    assert [(result["result"], result.get("user_message_uuid", "")[-4:]) for result in results] == [
        ("I count: one", ""),
        ("It is done.", "c002"),
    ]
    kinds = [message.get("subtype") or message["type"] for message in ran.messages]
    assert kinds.index("control_response") < kinds.index("init") < kinds.index("assistant") < kinds.index("success")
    assert kinds.count("init") == 2


def test_each_message_has_its_result_and_each_request_its_response(command: Command) -> None:
    first = str(uuid.uuid4())
    ran = drive(
        command,
        control_request("initialize", "r1", hooks=None),
        user_line("look", uuid=first),
        json.dumps({"type": "user", "message": {"role": "user", "content": [{"type": "text", "text": "more"}]}}),
        control_request("initialize", "r2", hooks=None),
        control_request("make_coffee", "r3"),
        control_request("mcp_status", "r4"),
        control_request("rewind_files", "r5", user_message_id=first),
        json.dumps({"type": "keep_alive"}),
        json.dumps({"type": "postcard"}),
        user_line(" "),
        options=("--replay-user-messages", "--mcp-config", '{"mcpServers": {"clock": {"type": "sdk"}}}'),
    )
    assert ran.code == 1, ran.err  # the exit code of the last message, which was empty
    results = of_type(ran, "result")
    assert [one["subtype"] for one in results] == ["success", "success", "error_during_execution"]
    assert (results[0]["num_turns"], results[1]["num_turns"]) == (2, 1)
    assert results[0]["user_message_uuid"] == first
    assert "the message is empty" in results[2]["errors"][0]
    answered = responses(ran)
    assert {name: one["subtype"] for name, one in answered.items()} == {
        "r1": "success",
        "r2": "error",
        "r3": "error",
        "r4": "success",
        "r5": "error",
    }
    assert "interrupt" in answered["r3"]["error"]  # it lists the known requests
    assert answered["r4"]["response"]["mcpServers"][0]["status"] == "failed"
    assert "'postcard' is unknown" in ran.err
    assert "MCP server clock failed: the client did not carry it" in ran.err
    inits = [one for one in of_type(ran, "system") if one["subtype"] == "init"]
    assert len(inits) == len(results), "each turn begins with one"
    init = inits[0]
    assert init["mcp_servers"] == [{"name": "clock", "status": "failed"}]
    assert {"Bash", "Read", "Task"} <= set(init["tools"])
    replayed = [one for one in of_type(ran, "user") if one.get("isReplay")]
    assert [one["uuid"] == first for one in replayed] == [True, False, False]
    assert {one["session_id"] for one in ran.messages if "session_id" in one} == {init["session_id"]}
    parsed_by_the_client(ran)


def test_a_message_waits_for_the_changes_that_the_client_requested_before_it(command: Command) -> None:
    changes = [
        control_request("set_permission_mode", f"r{number}", mode=mode)
        for number, mode in enumerate(["plan", "acceptEdits"] * 10)
    ]
    ran = drive(command, *changes, user_line("look"), options=("--permission-mode", "plan"))
    assert ran.code == 0, ran.err
    kinds = [message["type"] for message in ran.messages]
    assert kinds[: kinds.index("assistant")].count("control_response") == len(changes)
    inits = [message for message in ran.messages if message.get("subtype") == "init"]
    assert inits[-1]["permissionMode"] == "acceptEdits"


def test_a_request_that_the_next_line_cancels_has_no_effect(command: Command) -> None:
    cancels = json.dumps({"type": "control_cancel_request", "request_id": "r2"})
    changes = control_request("set_permission_mode", "r1", mode="acceptEdits"), control_request("list_models", "r3")
    ran = drive(command, changes[0], control_request("set_permission_mode", "r2", mode="plan"), cancels, changes[1])
    assert ran.code == 0, ran.err
    assert set(responses(ran)) == {"r1", "r3"}
    modes = [message["permissionMode"] for message in of_type(ran, "system") if message["subtype"] == "status"]
    assert modes == ["acceptEdits"]


def test_two_requests_with_one_id_have_a_response_each(command: Command) -> None:
    ran = drive(command, control_request("list_models"), control_request("mcp_status"), user_line("look"))
    assert ran.code == 0, ran.err
    answered = [message["response"]["response"] for message in of_type(ran, "control_response")]
    assert [set(response) for response in answered] == [{"models"}, {"mcpServers"}]


def test_a_request_that_meets_a_bug_is_refused_and_ends_no_run(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> list[str]:
        raise LookupError("gone")

    monkeypatch.setattr(HostedSession, "move_to_background", broken)
    requests = [control_request("background_tasks"), control_request("apply_flag_settings", "r2", settings=SETTINGS)]
    lines = command.workspace.parent / "lines"
    lines.write_text("\n".join([*requests, user_line("hello")]))
    model = f"rehearsal:{command.workspace.parent / 'scenario.yaml'}"
    with lines.open("rb") as stdin, on_descriptor(0, stdin.fileno()):
        ran = command.run_inline(*STREAM_OPTIONS, "--model", model)
    assert responses(ran)["r1"]["error"] == "a bug in Callboard: LookupError: gone"
    assert responses(ran)["r2"]["error"] == "`permissions` is an object with the `defaultMode`"
    assert [result["result"] for result in of_type(ran, "result")] == ["It is done."], ran.err


def parsed_by_the_client(ran: CommandResult) -> None:
    parser = pytest.importorskip(
        "claude_agent_sdk._internal.message_parser", reason="claude-agent-sdk is not installed"
    )
    for message in ran.messages:
        if not message["type"].startswith("control_"):
            assert parser.parse_message(message) is not None, message
            assert uuid.UUID(message["uuid"])


def test_half_of_an_emoji_in_a_line_ends_no_run(command: Command) -> None:
    lines = user_line("hello \ud83d", uuid="a\ud83d"), user_line("hello again")
    ran = drive(command, *lines, options=("--replay-user-messages",))
    assert [result["result"] for result in of_type(ran, "result")] == ["It is done.", "It is done."]
    assert of_type(ran, "user")[0]["message"]["content"] == "hello ?"


def test_a_line_that_is_no_json_ends_the_run_and_is_named(command: Command) -> None:
    ran = drive(command, user_line("look"), "{not json")
    assert ran.code == 2
    assert "line 2 of stdin is not JSON" in ran.err
    (result,) = of_type(ran, "result")
    assert "line 2 of stdin" in result["errors"][0]


def test_without_a_message_nothing_is_begun(command: Command) -> None:
    ran = drive(command)
    assert (ran.code, ran.out) == (0, "")


def test_who_goes_while_he_is_asked_has_said_no(command: Command) -> None:
    ran = drive(command, user_line("touch"), options=("--permission-prompt-tool", "stdio"))
    assert ran.code == 0, ran.err
    (result,) = of_type(ran, "result")
    assert result["permission_denials"][0]["tool_input"] == {"command": "touch made.txt"}
    assert not (command.workspace / "made.txt").exists()


def test_a_session_that_nobody_answered_is_answered_once_a_client_goes_on_with_it(command: Command) -> None:
    first = drive(command, user_line("hello"))
    (init,) = [one for one in of_type(first, "system") if one["subtype"] == "init"]
    process = start(command, "--resume", init["session_id"])
    send(process, user_line("look"), user_line("touch"))
    question = read_until(process, "control_request", "can_use_tool")
    answer(process, question, {"behavior": "allow", "updatedInput": question["request"]["input"]})
    result = read_until(process, "result")
    assert (result["session_id"], result["permission_denials"]) == (init["session_id"], [])
    assert (command.workspace / "made.txt").exists()


def start(command: Command, *options: str) -> Process:
    model = f"rehearsal:{command.workspace.parent / 'scenario.yaml'}"
    process = command.start(
        *STREAM_OPTIONS, "--permission-prompt-tool", "stdio", "--model", model, *options, stdin=PIPE
    )
    patience = threading.Timer(PATIENCE, process.kill)  # a missing frame fails only this test
    patience.daemon = True
    patience.start()
    return process


@pytest.mark.parametrize("argument", ["", " "])
def test_an_empty_prompt_on_the_line_is_no_message(command: Command, argument: str) -> None:
    """Some editors' adapters pass an empty prompt; as a message it would delay each result by one."""
    ran = drive(command, control_request("initialize", "r1", hooks=None), user_line("count"), options=(argument,))
    assert [one["result"] for one in of_type(ran, "result")] == ["I count: one"]
    assert ran.code == 0


@pytest.fixture
def process(command: Command) -> Iterator[Process]:
    process = start(command)
    yield process
    process.kill()


def send(process: Process, *lines: str) -> None:
    assert process.stdin is not None
    process.stdin.write("".join(f"{line}\n" for line in lines))
    process.stdin.flush()


def answer(process: Process, question: dict[str, Any], response: dict[str, Any]) -> None:
    told = {"subtype": "success", "request_id": question["request_id"], "response": response}
    send(process, json.dumps({"type": "control_response", "response": told}))


def read_until(process: Process, kind: str, subtype: str | None = None) -> dict[str, Any]:
    assert process.stdout is not None
    for line in process.stdout:
        message = json.loads(line)
        inner = message.get("request") or message
        if message["type"] == kind and subtype in (None, inner.get("subtype")):
            return message
    raise AssertionError(f"no {kind} {subtype or ''} arrived")


def test_a_question_that_an_interrupt_ends_is_taken_back(process: Process) -> None:
    send(process, user_line("touch"))
    question = read_until(process, "control_request", "can_use_tool")
    assert (question["request"]["tool_name"], question["request"]["input"]) == ("Bash", {"command": "touch made.txt"})
    assert question["request"]["permission_suggestions"][0]["destination"] == "session"
    send(process, control_request("interrupt"))
    assert read_until(process, "control_cancel_request")["request_id"] == question["request_id"]
    result = read_until(process, "result")
    assert (result["subtype"], result["is_error"]) == ("error_during_execution", False)
    send(process, user_line("hello"))
    assert read_until(process, "result")["result"] == "It is done."


def test_a_suggestion_that_is_taken_up_allows_its_class(process: Process) -> None:
    send(process, user_line("touch"))
    question = read_until(process, "control_request", "can_use_tool")
    allow = {"behavior": "allow", "updatedInput": question["request"]["input"]}
    allow["updatedPermissions"] = question["request"]["permission_suggestions"]
    answer(process, question, allow)
    assert read_until(process, "result")["permission_denials"] == []


def test_plans_and_questions_are_the_clients_too(command: Command) -> None:
    process = start(command, "--permission-mode", "plan")
    send(process, user_line("plan it"), user_line("ask me"))
    plan = read_until(process, "control_request", "can_use_tool")
    assert (plan["request"]["tool_name"], plan["request"]["input"]) == ("ExitPlanMode", {"plan": "I touch a file."})
    answer(process, plan, {"behavior": "allow", "updatedInput": plan["request"]["input"]})
    assert read_until(process, "result")["subtype"] == "success"
    question = read_until(process, "control_request", "can_use_tool")
    assert question["request"]["tool_name"] == "AskUserQuestion"
    given = question["request"]["input"]
    assert [one["label"] for one in given["questions"][0]["options"]] == ["red", "blue"]
    answer(process, question, {"behavior": "allow", "updatedInput": {**given, "answers": {"Which one?": "blue"}}})
    told = read_until(process, "user")
    while "blue" not in json.dumps(told):
        told = read_until(process, "user")
    process.kill()


def test_sigterm_leaves_the_turn_unfinished_with_143(process: Process) -> None:
    send(process, user_line("touch"))
    read_until(process, "control_request", "can_use_tool")
    process.send_signal(signal.SIGTERM)
    result = read_until(process, "result")
    assert (result["is_error"], result["exit_code"]) == (True, 143)
    assert [one["kind"] for one in result["open"]["requests"]] == ["permission"]
    assert result["total_cost_usd"] > 0
    assert process.wait(180) == 143


def test_an_answer_is_held_to_a_schema_and_asked_for_again(command: Command) -> None:
    schema = json.dumps({"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]})
    model = f"rehearsal:{command.workspace.parent / 'scenario.yaml'}"
    line = ("--model", model, "--output-format", "json", "--json-schema")
    ran = command.run_inline("-p", *line, schema, "count")
    assert (ran.code, ran.messages[0]["structured_output"]) == (0, {"count": 1}), ran.err
    named = json.dumps({"$ref": "#/$defs/Total", "$defs": {"Total": {"required": ["total"]}}})
    ran = command.run_inline("-p", *line, named, "count")
    assert ran.code == 1
    assert ran.messages[0]["subtype"] == "error_max_structured_output_retries"


@pytest.mark.parametrize("output", ["json", "stream-json"])
def test_an_answer_with_numbers_that_json_lacks_is_asked_for_again(command: Command, output: str) -> None:
    model = f"rehearsal:{command.workspace.parent / 'scenario.yaml'}"
    line = ("--model", model, "--output-format", output, "--verbose", "--json-schema")
    ran = command.run_inline("-p", *line, '{"properties": {"share": {"type": "number"}}}', "measure")
    assert (ran.code, ran.messages[-1]["structured_output"]) == (0, {"share": 2}), ran.err


def test_options_are_honored_or_told(command: Command) -> None:
    model = ("--model", f"rehearsal:{command.workspace.parent / 'scenario.yaml'}")
    name = str(uuid.uuid4())
    settings = json.dumps({"permissions": {"allow": ["Bash(touch:*)"]}, "model": "m"})
    agents = json.dumps({"helper": {"description": "Helps", "prompt": "You help.", "color": "red"}})
    ran = command.run_inline(
        *("--output-format", "stream-json", "-p", "touch", *model, "--session-id", name, "--settings", settings),
        *("--agents", agents, "--agent", "helper", "--tools", "Bash,Read,Moon"),
        *("--task-budget", "9", "--include-partial-messages", "--fork-session"),
    )
    assert ran.code == 0, ran.err
    assert (command.workspace / "made.txt").exists()
    init = ran.messages[0]
    assert (init["session_id"], init["tools"]) == (name, ["bash", "read_file"])
    assert init["cwd"] == str(command.workspace)
    assert "message_stop" in [one["event"]["type"] for one in ran.messages if one["type"] == "stream_event"]
    for told in ("--task-budget is ignored", "there is no tool Moon", "color"):
        assert told in ran.err, told


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (("-p", "x", "--json-schema", "{"), "--json-schema is not JSON"),
        (("-p", "x", "--json-schema", '{"type": "strng"}'), "--json-schema: `type` of the schema must be one of"),
        (
            ("-p", "x", "--json-schema", '{"$ref": "#/$defs/Gone"}'),
            "--json-schema: `$ref` '#/$defs/Gone' names nothing",
        ),
        (("-p", "x", "--agents", "[]"), "--agents must be a JSON object"),
        (("-p", "x", "--agent", "nobody"), "unknown agent type 'nobody'"),
        (("-p", "x", "--session-id", "42"), "not a UUID"),
        (("-p", "x", "--resume-session-at", "m"), "requires -c or -r"),
        (("-p", "x", "--add-dir", "/nowhere"), "no such folder"),
        (("-p", "x", "--betas", "new"), "only context-1m-2025-08-07 is supported"),
        (("-p", "x", "--effort", "much"), "Invalid value for '--effort'"),
        (("-p", "x", "--system-prompt-file", "/nowhere"), "cannot be read"),
        (("-p", "x", "--settings", "{"), "not valid JSON"),
        (("--input-format", "stream-json"), "requires --output-format stream-json"),
        ((*STREAM_OPTIONS, "--mcp-config", "{}"), "mcpServers"),
    ],
)
def test_what_cannot_be_followed_is_a_fault_of_the_line(command: Command, line: tuple[str, ...], words: str) -> None:
    ran = command.run_inline(*line, "--model", f"rehearsal:{command.workspace.parent / 'scenario.yaml'}")
    assert ran.code in (2, 3), ran.err
    assert words in ran.err


@pytest.mark.parametrize(
    "option", [("--dangerously-skip-permissions",), ("--permission-prompt-tool", "stdio"), STREAM_OPTIONS]
)
def test_no_tool_call_allows_itself_anything(command: Command, option: tuple[str, ...]) -> None:
    ran = command.run_inline("-p", "x", *option, CALLBOARD_TOOL="1")
    assert ran.code == 2
    assert "is for a person" in ran.err


LINGERING = """
agents:
  lead:
    - when: {contains: begin}
      reply: [{tool_use: {name: bash, input: {command: "echo $$ > pid; exec sleep 100000", run_in_background: true}}}]
    - when: {result_of: bash}
      reply: [{tool_use: {name: bash, input: {command: "until [ -s pid ]; do sleep 0.05; done"}}}]
    - otherwise: true
      reply: It is done.
"""


def test_a_result_waits_for_background_commands_within_bounds_and_the_end_of_stdin_ends_them(command: Command) -> None:
    command.scenario(LINGERING)
    settings = command.workspace.parent / "config" / "callboard" / "settings.yaml"
    settings.parent.mkdir(parents=True)
    settings.write_text("sandbox: {level: 0, unattended: any}\nbackground: {at_end: 0.2}\n")
    ran = drive(command, user_line("begin"), user_line("more"), options=("--permission-mode", "bypassPermissions"))
    assert ran.code == 0, ran.err
    assert [one["subtype"] for one in of_type(ran, "result")] == ["success", "success"]
    assert ran.err.count("waiting for background commands") == 1
    assert "still ran, and was stopped" in ran.err
    pid = (command.workspace / "pid").read_text().strip()
    assert not Path(f"/proc/{pid}/cwd").exists()


def test_an_image_that_the_service_refuses_is_left_out_and_the_conversation_goes_on(command: Command) -> None:
    fault = "{status: 400, message: 'messages.2.content.1.image.source.url: Unable to download the file'}"
    command.scenario(f"agents: {{lead: [{{reply: Hello.}}, {{fault: {fault}, reply: I see no image.}}]}}\n")
    image = {"type": "image", "source": {"type": "url", "url": "https://example.org/gone.png"}}
    content = [{"type": "text", "text": "look"}, image]
    prompt = json.dumps({"type": "user", "message": {"role": "user", "content": content}})
    ran = drive(command, user_line("hello"), prompt)
    assert ran.code == 0, ran.err
    assert [one["result"] for one in of_type(ran, "result")] == ["Hello.", "I see no image."]
    cuts = command.run_inline("context", "explain").out
    assert "leave_out_refused" in cuts
    assert "left out what the service refuses to read: messages.2.content.1.image" in cuts
