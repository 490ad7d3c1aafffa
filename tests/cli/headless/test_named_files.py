"""A file that a prompt names with an `@` is in the conversation, as if the agent had read it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.commands.command import Command

LOOK = """
agents:
  lead:
    - when: {contains: 'apple'}
      reply: I see all of it.
    - when: {contains: 'plum'}
      reply: I see plum.
    - when: {contains: 'not read:'}
      reply: It was not read.
    - otherwise: true
      reply: I see nothing.
"""
EDIT = """
agents:
  lead:
    - reply:
        - tool_use: {name: edit_file, input: {path: notes/a.txt, old_text: plum, new_text: pear}}
    - when: {result_of: edit_file}
      reply: Done.
"""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    command = Command(tmp_path)
    (command.workspace / "notes").mkdir()
    (command.workspace / "notes" / "a.txt").write_text("The word is plum.\n")
    (command.workspace / "a b.txt").write_text("The word is plum.\n")
    (command.workspace / "long.txt").write_text("apple\nbanana\nplum\ncherry\n")
    (command.workspace / ".env").write_text("KEY=plum\n")
    (tmp_path / "outside.txt").write_text("plum\n")
    return command


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize(
    ("prompt", "reply"),
    [
        ("What does @notes/a.txt say?", "I see plum."),
        ("@notes/a.txt", "I see plum."),
        ("Read (or guess) @./notes/a.txt.", "I see plum."),
        ("Read @a\\ b.txt, please", "I see plum."),
        ("Read @long.txt", "I see all of it."),
        ("Read @long.txt#L3", "I see plum."),
        ("Read @long.txt#2-3", "I see plum."),
        ("Read @long.txt#L9-12", "I see nothing."),
        ("Ask @alice about me@notes/a.txt, @missing.txt and @notes", "I see nothing."),
        ("Explain `@notes/a.txt`", "I see nothing."),
        ('Go\n<piped-input command="ls" exit_code="0">\nsee @notes/a.txt\n</piped-input>', "I see nothing."),
        ("Read @.env", "It was not read."),
        ("Read @../outside.txt", "It was not read."),
    ],
)
def test_a_named_file_is_read_if_the_rules_allow_it_without_a_question(
    command: Command, prompt: str, reply: str
) -> None:
    ran = command.run_inline("-p", prompt, "--model", command.scenario(LOOK))
    assert (ran.code, ran.out) == (0, f"{reply}\n")


@pytest.mark.parametrize(
    ("answer", "reply"),
    [
        ({"permissionDecision": "deny", "permissionDecisionReason": "no"}, "It was not read."),
        ({"permissionDecision": "allow", "updatedInput": {"path": "long.txt"}}, "I see all of it."),
    ],
)
def test_a_hook_may_refuse_a_named_file_or_change_it(command: Command, answer: dict[str, object], reply: str) -> None:
    output = json.dumps({"hookSpecificOutput": {"hookEventName": "PreToolUse", **answer}})
    (command.workspace / "answer.json").write_text(output)
    hook = {"type": "command", "command": 'cat "$CLAUDE_PROJECT_DIR/answer.json"'}
    settings = command.workspace / ".claude" / "settings.json"
    settings.parent.mkdir()
    settings.write_text(json.dumps({"hooks": {"PreToolUse": [{"matcher": "Read", "hooks": [hook]}]}}))
    ran = command.run_inline("-p", "Read @notes/a.txt", "--trust", "--model", command.scenario(LOOK))
    assert (ran.code, ran.out) == (0, f"{reply}\n")


def test_piped_input_names_no_file(command: Command) -> None:
    ran = command.run("-p", "review this", "--model", command.scenario(LOOK), stdin="see @notes/a.txt\n")
    assert (ran.code, ran.out) == (0, "I see nothing.\n")


def test_a_named_file_counts_as_read_and_may_be_edited(command: Command) -> None:
    line = ("--model", command.scenario(EDIT), "--permission-mode", "acceptEdits")
    ran = command.run_inline("-p", "Replace the word in @notes/a.txt", *line)
    assert (ran.code, ran.out) == (0, "Done.\n")
    assert (command.workspace / "notes" / "a.txt").read_text() == "The word is pear.\n"
