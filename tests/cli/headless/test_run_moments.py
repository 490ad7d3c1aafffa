"""Command hooks of a person's settings over a whole session: every event, in the compatible form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cli.commands.command import Command

SCENARIO = """
agents:
  lead:
    - reply:
        - tool_use: {name: create_task, input: {subject: Forbidden thing}}
    - when: {result_of: create_task}
      reply: [{tool_use: {name: read_file, input: {path: missing.txt}}}]
    - when: {result_of: read_file}
      reply: [{tool_use: {name: task, input: {description: look, prompt: look, agent_type: explore}}}]
    - when: {result_of: task}
      reply: [{tool_use: {name: spawn_teammate, input: {name: alice, role: worker, prompt: say hello}}}]
    - when: {result_of: spawn_teammate}
      reply: Waiting.
    - reply: Done.
  alice:
    - reply: Hello.
  "*":
    - reply: Seen.
"""
TOLD = [
    *("SessionStart", "SessionEnd", "SubagentStart", "SubagentStop", "TaskCreated", "PostToolUseFailure"),
    *("PostToolBatch", "TeammateIdle", "Stop", "EnvelopeDelivered", "Notification", "RequestAnswered"),
]


@pytest.fixture
def command(tmp_path: Path) -> Command:
    command = Command(tmp_path)
    log = {"type": "command", "command": f"printf '%s\\n' \"$(cat)\" >> {tmp_path}/log"}
    hooks: dict[str, Any] = {event: [{"hooks": [log]}] for event in TOLD}
    refuse = "grep -q Forbidden && { echo 'tasks need a ticket' >&2; exit 2; }; exit 0"
    hooks["TaskCreated"][0]["hooks"].append({"type": "command", "command": refuse})
    said = {"hookSpecificOutput": {"hookEventName": "SubagentStart", "additionalContext": "Be quick."}}
    hooks["SubagentStart"][0]["hooks"].append({"type": "command", "command": f"echo '{json.dumps(said)}'"})
    settings = tmp_path / "config" / "callboard" / "settings.yaml"
    settings.parent.mkdir(parents=True)
    settings.write_text(yaml.safe_dump({"hooks": hooks}))
    return command


@pytest.mark.slow
def test_commands_hear_of_every_moment_and_what_they_decide_holds(command: Command) -> None:
    ran = command.run_inline("run", "--output-format", "stream-json", "--model", command.scenario(SCENARIO), "Go.")
    assert ran.code == 0, ran.err
    text = (command.workspace.parent / "log").read_text()
    told: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines() if line]
    seen = {(one["hook_event_name"], one.get("agent_type", "lead")) for one in told}
    assert seen >= {
        ("SessionStart", "lead"),
        ("SessionStart", "teammate"),
        ("SubagentStart", "explore"),
        ("SubagentStop", "explore"),
        ("TeammateIdle", "teammate"),
        ("Stop", "lead"),
        ("Stop", "teammate"),
        ("PostToolBatch", "lead"),
        ("PostToolUseFailure", "lead"),
        ("EnvelopeDelivered", "lead"),
        ("Notification", "teammate"),
    }
    assert [one["hook_event_name"] for one in told if "reason" in one] == ["SessionEnd"]
    assert told[-1]["hook_event_name"] == "SessionEnd"
    assert [one["task_subject"] for one in told if one["hook_event_name"] == "TaskCreated"] == ["Forbidden thing"]
    assert {one["cwd"] for one in told} == {str(command.workspace)}
    assert {Path(one["transcript_path"]).suffix for one in told} == {".jsonl"}, "a file of the agent, not a folder"
    results = json.dumps(ran.messages)
    assert "tasks need a ticket" in results
    tasks = command.run_inline("tasks", "--json").messages[0]
    assert "Forbidden thing" not in json.dumps(tasks)
