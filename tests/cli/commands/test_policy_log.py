"""`callboard policy log`: every decision on a call of lead, teammate, and subagent, during the run and after it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.commands.command import Command

TEAM = """
agents:
  lead:
    - reply:
        - tool_use: {name: read_file, input: {path: a.txt}}
        - tool_use: {name: bash, input: {command: touch made.txt}}
        - tool_use: {name: spawn_teammate, input: {name: alice, role: worker, prompt: do it}}
        - tool_use: {name: read_file, input: {}}
    - reply: I wait for Alice.
    - repeat: forever
      reply: All is done.
  alice:
    - reply:
        - tool_use: {name: task, input: {description: look, prompt: look, agent_type: explore}}
        - tool_use: {name: bash, input: {command: make all}}
    - reply: I did.
  'explore-*':
    - reply:
        - tool_use: {name: bash, input: {command: "sudo ls\\nls"}}
        - tool_use: {name: bash, input: {command: cat secret.txt}}
    - reply: I looked.
"""
SETTINGS = """\
permission:
  allow: ['Bash(make:*)']
  deny: ['Read(secret.txt)']
"""


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Command:
    made = Command(tmp_path_factory.mktemp("log"))
    settings = made.workspace.parent / "config" / "callboard" / "settings.yaml"
    settings.parent.mkdir(parents=True)
    settings.write_text(SETTINGS)
    (made.workspace / "a.txt").write_text("a")
    ran = made.run("run", "--model", made.scenario(TEAM), "Go")
    assert ran.out == "All is done.\n", ran.err
    return made


def decision_log(command: Command, *args: str) -> list[dict[str, Any]]:
    ran = command.run_inline("policy", "log", "--json", *args)
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def test_every_call_of_every_kind_of_agent_has_its_line(command: Command) -> None:
    found = {
        (one["kind"], one["tool"], one["about"]): (one["verdict"], one["by"].partition(" ")[0], one["runs"])
        for one in decision_log(command)
    }
    assert found[("lead", "read_file", "a.txt")] == ("allow", "R", True)
    assert found[("lead", "bash", "touch made.txt")] == ("ask", "E", False)
    assert found[("lead", "spawn_teammate", "alice")] == ("allow", "built-in", True)
    assert found[("lead", "read_file", "")] == ("deny", "schema", False)
    assert found[("teammate", "task", "look")] == ("allow", "built-in", True)
    assert found[("teammate", "bash", "make all")] == ("allow", "rule", True)
    assert found[("subagent", "bash", "sudo ls")] == ("deny", "S", False)
    assert found[("subagent", "bash", "cat secret.txt")] == ("deny", "rule", False)
    assert len(found) == len(decision_log(command)) == 8


def test_a_line_says_who_in_which_mode_and_how_a_question_was_answered(command: Command) -> None:
    asked = next(one for one in decision_log(command) if one["verdict"] == "ask")
    assert (asked["agent"], asked["agent_type"], asked["mode"]) == ("lead", "lead", "default")
    assert asked["request"].startswith("req_")
    assert asked["answer"]["status"] in ("expired", "rejected")
    assert asked["answer"]["at"] >= asked["at"]
    assert len(asked["digest"]) == 64
    assert {one["agent_type"] for one in decision_log(command) if one["kind"] == "subagent"} == {"explore"}


def test_one_agent_and_only_what_was_denied(command: Command) -> None:
    assert {one["agent"] for one in decision_log(command, "--agent", "alice")} == {"alice"}
    denied = [(one["kind"], one["about"]) for one in decision_log(command, "--denied")]
    assert sorted(denied) == [
        ("lead", ""),
        ("lead", "touch made.txt"),
        ("subagent", "cat secret.txt"),
        ("subagent", "sudo ls"),
    ]
    assert command.run_inline("policy", "log", "--agent", "alice", "--denied").out == "no decision fits\n"
    assert command.run_inline("policy", "log", "--agent", "bob").code == 2


def test_a_person_reads_a_table(command: Command) -> None:
    ran = command.run_inline("policy", "log")
    assert ran.out.splitlines()[0].split() == ["AT", "AGENT", "CALL", "VERDICT", "BY", "MODE", "ANSWER", "INPUT"]
    assert "bash touch made.txt" in ran.out


def test_it_can_be_read_while_the_session_runs(tmp_path: Path) -> None:
    command = Command(tmp_path)
    (command.workspace / "a.txt").write_text("a")
    steps = "agents:\n  lead:\n    - reply: [{tool_use: {name: bash, input: {command: cat a.txt}}}]\n"
    scenario = command.scenario(f"{steps}    - {{latency_ms: 60000, reply: Late.}}\n")
    running = command.start("run", "--model", scenario, "Go")
    try:
        assert running.stderr is not None
        for line in running.stderr:
            if "cat a.txt =>" in line:
                break
        assert [(one["tool"], one["verdict"]) for one in decision_log(command)] == [("bash", "allow")]
        assert running.poll() is None
    finally:
        running.kill()
        running.wait(180)
