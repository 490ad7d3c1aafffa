"""`callboard policy lint`: rules and hooks of settings that do not work as they seem to, with their positions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands.command import Command

SETTINGS = """\
permission:
  allow:
    - Bash(make:*)
    - Bash(make all)
    - Bash(sudo:*)
    - Edit(.git/**)
    - Foo
  deny: ['Bash(curl:*)']
  ask: ['Bash(curl -s:*)']
  agents:
    explore: {allow: ['Bash(make test)']}
hooks:
  PreToolUse:
    - matcher: ^Bash|Edit$
      hooks: [{type: command, command: ./gone.sh}]
    - matcher: ^(?!Bash$)
      hooks: [{type: command, command: "true"}]
"""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    made = Command(tmp_path)
    (made.workspace / ".callboard").mkdir()
    return made


def lint(command: Command, text: str, code: int) -> list[dict[str, Any]]:
    (command.workspace / ".callboard" / "settings.yaml").write_text(text)
    ran = command.run_inline("policy", "lint", "--json")
    assert ran.code == code, ran.err
    return json.loads(ran.out)


def test_each_finding_has_its_place_and_reason(command: Command) -> None:
    found = {(one["code"], one["text"]): one for one in lint(command, SETTINGS, 1)}
    assert set(found) == {
        ("double", "allow Bash(make all)"),
        ("double", "allow Bash(make test)"),
        ("no-effect", "allow Bash(sudo:*)"),
        ("no-effect", "allow Edit(.git/**)"),
        ("ignored", "allow Foo"),
        ("shadowed", "ask Bash(curl -s:*)"),
        ("matcher", "PreToolUse ^Bash|Edit$"),
        ("note", "PreToolUse ^(?!Bash$)"),
        ("dead-script", "./gone.sh"),
    }
    assert ":5: permission.allow[2]" in found["no-effect", "allow Bash(sudo:*)"]["place"]
    assert "agents.explore" in found["double", "allow Bash(make test)"]["place"]
    assert all(one["why"] for one in found.values())


def test_rules_and_hooks_that_mean_what_they_say_are_left_alone(command: Command) -> None:
    text = "permission: {allow: ['Bash(make:*)', 'Edit(/src/**)'], deny: ['Read(keys/**)'], ask: [Skill]}\n"
    assert lint(command, text, 0) == []
    ran = command.run_inline("policy", "lint")
    assert (ran.code, ran.out.strip()) == (0, "no findings")


def test_a_note_alone_is_no_fault(command: Command) -> None:
    text = "hooks: {PreToolUse: [{matcher: '^(?!Bash$)', hooks: [{type: command, command: 'true'}]}]}\n"
    assert [one["code"] for one in lint(command, text, 0)] == ["note"]


def test_settings_in_the_other_format_are_read_too(command: Command) -> None:
    (command.workspace / ".claude").mkdir()
    group = {"matcher": "mcp__memory", "hooks": [{"type": "command", "command": "./no.sh"}]}
    given = {"permissions": {"allow": ["Write(x)"]}, "hooks": {"PreToolUse": [group]}}
    (command.workspace / ".claude" / "settings.json").write_text(json.dumps(given))
    found = lint(command, "{}\n", 1)
    assert {"ignored", "matcher", "dead-script"} <= {one["code"] for one in found}
    assert all("settings.json" in one["place"] for one in found)


def test_a_rule_that_is_none_is_told_with_its_place(command: Command) -> None:
    (command.workspace / ".callboard" / "settings.yaml").write_text("permission:\n  allow: ['((']\n")
    ran = command.run_inline("policy", "lint")
    assert ran.code == 3
    assert "settings.yaml:2" in ran.err
