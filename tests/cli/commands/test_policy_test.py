"""`callboard policy test`: examples beside rules, checked in CI."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.commands.command import Command

SETTINGS = """\
permission:
  allow: ['Bash(make:*)']
  deny: ['Read(keys/**)']
  agents:
    explore: {mode: plan}
  examples:
    - {call: make all, decision: allow}
    - {call: cat keys/a, decision: deny, by: 'rule Read(keys/**)'}
    - call: {tool: Write, input: {file_path: x, content: ''}}
      decision: allow
      mode: acceptEdits
    - {call: touch x, decision: deny, agent: explore}
"""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    made = Command(tmp_path)
    (made.workspace / ".callboard").mkdir()
    return made


def settings(command: Command, text: str = SETTINGS) -> Path:
    file = command.workspace / ".callboard" / "settings.yaml"
    file.write_text(text)
    return file


def write_tests(command: Command, text: str) -> Path:
    file = command.workspace / ".callboard" / "policy-tests.yaml"
    file.write_text(text)
    return file


def test_examples_that_hold_pass_though_nobody_trusted_the_workspace(command: Command) -> None:
    settings(command)
    write_tests(command, "- {call: sudo ls, decision: deny, by: S}\n")
    ran = command.run_inline("policy", "test")
    assert (ran.code, ran.out.strip()) == (0, "5 of 5 examples pass"), ran.out + ran.err


def test_each_failing_example_is_told_with_its_place_and_why_and_the_exit_code_is_1(command: Command) -> None:
    file = settings(command, SETTINGS.replace("{call: make all, decision: allow}", "{call: make all, decision: ask}"))
    second = write_tests(
        command, "examples:\n- {call: ls, decision: allow}\n- {call: git push, decision: ask, by: X}\n"
    )
    ran = command.run_inline("policy", "test")
    assert ran.code == 1
    assert f"FAILED {file}:7: permission.examples[0]" in ran.out
    assert "expected ask, got allow: make all" in ran.out
    assert f"FAILED {second}:3: examples[1]" in ran.out
    assert "expected by X, got by N: git push" in ran.out
    assert ran.out.splitlines()[-1] == "4 of 6 examples pass"


def test_json_has_every_example(command: Command) -> None:
    settings(command)
    ran = command.run_inline("policy", "test", "--json")
    assert [row["holds"] for row in json.loads(ran.out)] == [True] * 4


def test_no_examples_are_no_success(command: Command) -> None:
    ran = command.run_inline("policy", "test")
    assert ran.code == 1
    assert "no examples" in ran.out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- {call: ls, decision: perhaps}\n", "policy-tests.yaml:1"),
        ("- {call: ls, decison: allow}\n", "policy-tests.yaml:1"),
        ("- {call: ls}\n", "policy-tests.yaml:1"),
        ("- ls\n", "policy-tests.yaml:1"),
        ("ls: allow\n", "list of examples"),
        ("- {call: [\n", "policy-tests.yaml"),
    ],
)
def test_a_file_that_is_none_is_told_with_its_line(command: Command, text: str, words: str) -> None:
    write_tests(command, text)
    ran = command.run_inline("policy", "test")
    assert (ran.code, ran.out) == (3, "")
    assert words in ran.err


def test_an_example_of_no_call_fails_and_says_why(command: Command) -> None:
    write_tests(
        command, "- {call: {tool: Bash, input: {}}, decision: ask}\n- {call: ls, decision: allow, agent: none}\n"
    )
    ran = command.run_inline("policy", "test")
    assert ran.code == 1
    assert "has no `command`" in ran.out
    assert "unknown agent type 'none'" in ran.out
