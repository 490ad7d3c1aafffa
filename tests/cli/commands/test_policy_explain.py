"""`callboard policy explain CALL`: the text that a person reads about one call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands.command import Command

SETTINGS = """\
permission:
  mode: acceptEdits
  allow: ['Bash(make:*)']
  deny: ['Read(secret/**)']
  never: [curl]
  agents:
    explore: {mode: plan, ask: ['Bash(git log:*)']}
hooks:
  PreToolUse:
    - matcher: Bash
      hooks: [{type: command, command: ./guard.sh}]
    - matcher: Write
      hooks: [{type: command, command: ./other.sh}]
"""


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Command:
    made = Command(tmp_path_factory.mktemp("explain"))
    settings = made.workspace.parent / "config" / "callboard" / "settings.yaml"
    settings.parent.mkdir(parents=True)
    settings.write_text(SETTINGS)
    (made.workspace / "a.txt").write_text("a")
    return made


def explanation(command: Command, *args: str) -> dict[str, Any]:
    ran = command.run_inline("policy", "explain", "--json", *args)
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def test_each_part_is_told_with_what_it_touches_and_what_stands_against_it(command: Command) -> None:
    told = explanation(command, "cat a.txt ../b | make; echo $(rm x) > out")
    assert (told["decision"], told["by"]) == ("ask", "D")
    parts = {part["text"]: part for part in told["parts"]}
    assert {"cat a.txt ../b", "make", "rm x", "> out"} <= set(parts)
    places = {touch["path"]: touch["place"] for touch in parts["cat a.txt ../b"]["touches"]}
    assert places == {"a.txt": "inside", "../b": "outside"}
    assert parts["make"]["rules"] == ["allow Bash(make:*)"]
    assert [one["lifted_by"] for one in parts["> out"]["against"]] == ["mode"]


def test_a_guess_at_unknown_words_is_marked_as_one_and_shown_once(command: Command) -> None:
    told = explanation(command, "ls; $A git push origin main")
    assert [part["text"] for part in told["parts"]] == ["ls", "perhaps git push origin main", "… git push origin main"]
    assert "perhaps" not in json.dumps(explanation(command, "ls; git push origin main"))
    assert "  perhaps git push origin main\n" in command.run_inline("policy", "explain", "$A git push origin main").out


def test_rules_mode_floor_and_agent_types_of_the_settings_count(command: Command) -> None:
    assert explanation(command, "make all")["decision"] == "allow"
    assert explanation(command, "touch x")["by"] == "mode acceptEdits"
    assert explanation(command, "touch x", "--mode", "default")["decision"] == "ask"
    assert explanation(command, "curl x")["decision"] == "deny"
    assert explanation(command, "cat secret/k")["by"] == "rule Read(secret/**)"
    assert explanation(command, "touch x", "--agent-type", "explore")["decision"] == "deny"
    ran = command.run_inline("policy", "explain", "ls", "--agent-type", "nobody")
    assert ran.code == 2
    assert "nobody" in ran.err
    assert "explore" in ran.err


def test_hooks_that_come_first_are_named_and_not_run(command: Command) -> None:
    assert ["guard.sh" in hook for hook in explanation(command, "ls")["hooks"]] == [True]
    assert explanation(command, "--tool", "Read", "a.txt")["hooks"] == []


def test_what_always_would_allow_is_said(command: Command) -> None:
    assert explanation(command, "pytest -q")["always"] == ["Bash(pytest:*)"]
    assert explanation(command, "rm x")["always"] == []


def test_other_tools_take_json_or_a_path(command: Command) -> None:
    told = explanation(command, "--tool", "Write", '{"file_path": "../x", "content": ""}')
    assert (told["tool"], told["decision"], told["by"]) == ("write_file", "ask", "O")
    (command.workspace / "sub").mkdir()
    assert explanation(command, "--tool", "Read", "a.txt", "--folder", "sub")["parts"][0]["touches"][0][
        "resolved"
    ] == str(command.workspace / "sub" / "a.txt")
    for wrong in ("{", '{"path": 5}', '{"command": "ls\\u0000"}'):
        ran = command.run_inline("policy", "explain", "--tool", "bash", wrong)
        assert (ran.code, ran.out) == (2, "")


def test_a_person_reads_decision_reason_letter_and_parts(command: Command) -> None:
    ran = command.run_inline("policy", "explain", "git push origin main && sudo ls")
    assert ran.code == 0
    assert ran.out.splitlines()[0].startswith("deny  bash  git push origin main && sudo ls")
    for words in ("S: is never run", "part 1  git push origin main", "part 2  sudo ls", "nothing lifts it", "guard.sh"):
        assert words in ran.out


def test_nothing_of_a_call_reaches_the_screen_raw(command: Command, tmp_path: Path) -> None:
    ran = command.run_inline("policy", "explain", "echo \x1b[31mred\x07 \u202e")
    assert ran.code == 0
    assert not {"\x1b", "\x07", "\u202e"} & set(ran.out)


def test_what_the_workspace_brings_counts_only_once_it_is_trusted(tmp_path: Path) -> None:
    command = Command(tmp_path)
    (command.workspace / ".callboard").mkdir()
    settings = command.workspace / ".callboard" / "settings.yaml"
    settings.write_text("permission: {allow: ['Bash(make:*)'], deny: ['Bash(ls:*)']}\n")
    assert explanation(command, "make")["decision"] == "ask"
    assert explanation(command, "ls")["decision"] == "deny"
    assert "not trusted" in command.run_inline("policy", "explain", "make").out
    assert explanation(command, "make", "--trust")["decision"] == "allow"
    assert "not trusted" not in command.run_inline("policy", "explain", "make", "--trust").out


def test_a_call_is_needed(command: Command) -> None:
    assert command.run_inline("policy", "explain").code == 2


def test_a_rule_for_one_call_is_read_as_that_call(command: Command) -> None:
    told = explanation(command, "Bash(git status)")
    assert told == explanation(command, "git status")
    assert (told["tool"], told["decision"]) == ("bash", "allow")
    told = explanation(command, "Read(secret/x)")
    assert (told["tool"], told["decision"]) == ("read_file", "deny")
    for rule in ("Bash(git *)", "Bash(npm test:*)", "Bash(*)"):
        ran = command.run_inline("policy", "explain", rule)
        assert ran.code == 2
        assert f"{rule} is a rule for many calls: write one of them" in ran.err
