"""Slash commands of the runtime without a prompt line: in `-p`, and in messages of a client."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.commands.command import Command
from tests.cli.headless.test_stream_json_input import control_request, drive, of_type, responses, user_line

from callboard.cli.headless.messages import PROMPT_COMMANDS
from callboard.cli.headless.prompt_commands import command_in

LONG = "Say many words"
SCENARIO = f"""
agents:
  lead:
    - when: {{contains: Say many words}}
      reply: {"a word " * 2000}
    - when: {{contains: "the second question"}}
      reply: Two.
    - otherwise: true
      reply: It is done.
"""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    command = Command(tmp_path)
    command.scenario(SCENARIO)
    return command


def model_of(command: Command) -> str:
    return f"rehearsal:{command.workspace.parent / 'scenario.yaml'}"


@pytest.mark.parametrize(
    ("prompt", "name", "text"),
    [
        ("/compact", "compact", ""),
        (" /compact keep\nthe numbers ", "compact", "keep\nthe numbers"),
        ("/context explain", "context", "explain"),
    ],
)
def test_a_prompt_that_begins_with_its_name_is_a_command(prompt: str, name: str, text: str) -> None:
    command = command_in(prompt)
    assert command is not None
    assert (command.name, command.text) == (name, text)


@pytest.mark.parametrize("prompt", ["", "  ", "compact", "/compacted", "/nothing", "see /cost", "\\/cost"])
def test_any_other_prompt_is_none(prompt: str) -> None:
    assert command_in(prompt) is None


def test_messages_of_a_client_run_commands_and_each_has_a_result(command: Command) -> None:
    ran = drive(
        command,
        control_request("initialize", "r1"),
        user_line("/compact"),
        user_line(LONG),
        user_line("/compact keep the numbers"),
        user_line("the second question"),
        user_line("/context", uuid="5f8b5a0e-0d1f-4a52-8d4b-0d3f6ad1c001"),
        user_line("/tasks now"),
        user_line("/clear"),
        user_line("/rewind"),
    )
    results = of_type(ran, "result")
    assert [result["is_error"] for result in results] == [False, False, False, False, False, True, False, True]
    empty, _, compacted, after, context, tasks, cleared, rewind = results
    assert empty["result"] == "Nothing was compacted: the conversation is empty"
    assert compacted["result"].startswith("The conversation was compacted: ")
    assert (after["result"], after["num_turns"]) == ("Two.", 1)
    assert "tokens" in context["result"]
    assert (context["num_turns"], context["user_message_uuid"][-4:]) == (0, "c001")
    assert "/tasks takes no arguments here" in tasks["errors"][0]
    assert cleared["result"] == ""
    assert "there is no command /rewind here" in rewind["errors"][0]
    (boundary,) = [message for message in ran.messages if message.get("subtype") == "compact_boundary"]
    order = [ran.messages.index(message) for message in (results[1], boundary, compacted)]
    assert order == sorted(order), "the boundary comes before the result of its message"
    (output,) = [message for message in ran.messages if message.get("subtype") == "local_command_output"]
    assert output["content"] == context["result"]
    assert len(of_type(ran, "conversation_reset")) == 1
    names = {command.name for command in PROMPT_COMMANDS}
    assert names <= {entry["name"] for entry in responses(ran)["r1"]["response"]["commands"]}
    init = next(message for message in ran.messages if message.get("subtype") == "init")
    assert names <= set(init["slash_commands"])


def test_a_run_compacts_a_continued_session_and_shows_its_context(command: Command) -> None:
    model = model_of(command)
    assert command.run_inline("-p", LONG, "--model", model).code == 0
    compacted = command.run_inline("-c", "-p", "/compact the words", "--model", model, "--output-format", "stream-json")
    assert compacted.code == 0, compacted.err
    kinds = [(message["type"], message.get("subtype")) for message in compacted.messages]
    assert ("system", "compact_boundary") in kinds
    assert kinds[-1] == ("result", "success")
    assert "The conversation was compacted: " in compacted.messages[-1]["result"]
    shown = command.run_inline("-c", "-p", "/context", "--model", model)
    assert (shown.code, "tokens" in shown.out) == (0, True), shown.err
    asked = command.run_inline("-c", "-p", "the second question", "--model", model)
    assert (asked.code, asked.out) == (0, "Two.\n")


def test_a_new_session_has_nothing_to_compact(command: Command) -> None:
    run = command.run_inline("-p", "/compact", "--model", model_of(command))
    assert run.code == 2
    assert "a new session has no conversation for /compact: add -c, or --resume ID" in run.err
    assert "no session yet" in command.run_inline("sessions").out


def test_a_command_of_the_person_goes_first(command: Command, tmp_path: Path) -> None:
    own = tmp_path / ".claude/commands/cost.md"
    own.parent.mkdir(parents=True)
    own.write_text("the second question")
    run = command.run_inline("-p", "/cost", "--model", model_of(command))
    assert (run.code, run.out) == (0, "Two.\n")
