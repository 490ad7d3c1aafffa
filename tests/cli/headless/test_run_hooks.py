"""Hooks in a whole session: one settings file guards every kind of agent, and front matter guards its own agent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.adapters.processes.cage import require_level
from tests.cli.commands.command import Command

AGENT = """\
---
name: scout
description: Looks.
tools: Read, Bash
hooks:
  PreToolUse:
    - matcher: Read
      hooks:
        - type: command
          command: echo agent $(cat | grep -o '"agent_type". "[a-z]*"') >> "$CLAUDE_PROJECT_DIR/log"
  Stop:
    - hooks:
        - type: command
          command: cat > "$CLAUDE_PROJECT_DIR/stopped"
---
Look.
"""
SKILL = """\
---
name: careful
description: Be careful.
hooks:
  PreToolUse:
    - matcher: Read
      hooks:
        - type: command
          command: echo 'read nothing here' | tee -a "$CLAUDE_PROJECT_DIR/refused" >&2; exit 2
---
Be careful.
"""
SCENARIO = """
agents:
  lead:
    - reply: [{tool_use: {name: read_file, input: {path: hello.txt}}}]
    - when: {result_of: read_file}
      reply: [{tool_use: {name: load_skill, input: {name: careful}}}]
    - when: {result_of: load_skill}
      reply: [{tool_use: {name: read_file, input: {path: hello.txt}}}]
    - when: {result_of: read_file}
      reply: [{tool_use: {name: task, input: {description: look, prompt: look, agent_type: scout}}}]
    - when: {result_of: task}
      reply: Done.
  "*":
    - reply: [{tool_use: {name: read_file, input: {path: hello.txt}}}]
    - when: {result_of: read_file}
      reply: Seen.
"""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    command = Command(tmp_path)
    ours = command.workspace
    (ours / "hello.txt").write_text("hello\n")
    for path, text in ((".claude/agents/scout.md", AGENT), (".claude/skills/careful/SKILL.md", SKILL)):
        (ours / path).parent.mkdir(parents=True)
        (ours / path).write_text(text)
    who = 'grep -q agent_id && who=scout || who=lead; echo $who >> "$CLAUDE_PROJECT_DIR/all"'
    log = {"type": "command", "command": who}
    hooks = {"PreToolUse": [{"matcher": "Read", "hooks": [log]}]}
    (ours / ".claude/settings.json").write_text(json.dumps({"hooks": hooks}))
    return command


@pytest.mark.slow
def test_settings_guard_all_and_front_matter_guards_its_own(command: Command) -> None:
    same = (command.workspace / ".claude/settings.json").read_text()  # the person has the same hook; it runs once
    (command.workspace.parent / ".claude").mkdir()
    (command.workspace.parent / ".claude/settings.json").write_text(same)
    ran = command.run_inline("run", "--trust", "--model", command.scenario(SCENARIO), "Go.")
    assert ran.out == "Done.\n", ran.err
    log = (command.workspace / "log").read_text()
    assert log == 'agent "agent_type": "scout"\n', "the lead's reads do not run it"
    assert (command.workspace / "all").read_text() == "lead\nlead\nscout\n"
    stopped = json.loads((command.workspace / "stopped").read_text())
    assert (stopped["hook_event_name"], stopped["agent_type"]) == ("SubagentStop", "scout")
    assert stopped["last_assistant_message"] == "Seen."
    refused = (command.workspace / "refused").read_text()
    assert refused == "read nothing here\n", "the lead's second read: it has loaded the skill, and the scout has not"


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_run_whose_prompt_a_hook_blocks_ends_with_the_reason(command: Command, output: str) -> None:
    guard = {"type": "command", "command": "echo 'not on a Sunday' >&2; exit 2"}
    (command.workspace.parent / ".claude").mkdir()
    (command.workspace.parent / ".claude/settings.json").write_text(
        json.dumps({"hooks": {"UserPromptSubmit": [{"hooks": [guard]}]}})
    )
    scenario = command.scenario("agents: {lead: [{reply: Done.}]}")
    ran = command.run_inline("run", "--model", scenario, "--output-format", output, "Go.")
    assert ran.code == 1
    assert "a hook blocked the prompt: not on a Sunday" in (ran.err if output == "text" else ran.out)


@pytest.mark.parametrize("output", ["text", "json"])
@pytest.mark.parametrize("event", ["PreToolUse", "PostToolUse", "PostToolBatch", "UserPromptSubmit"])
def test_a_run_that_a_hook_stops_ends_with_its_reason(command: Command, event: str, output: str) -> None:
    stop = {"continue": False, "stopReason": "budget review"}
    guard = {"type": "command", "command": f"echo '{json.dumps(stop)}'"}
    (command.workspace.parent / ".claude").mkdir()
    (command.workspace.parent / ".claude/settings.json").write_text(
        json.dumps({"hooks": {event: [{"hooks": [guard]}]}})
    )
    scenario = "agents: {lead: [{reply: [{tool_use: {name: read_file, input: {path: hello.txt}}}]}, {reply: Done.}]}"
    ran = command.run_inline("run", "--model", command.scenario(scenario), "--output-format", output, "Go.")
    what = "blocked the prompt" if event == "UserPromptSubmit" else "stopped the turn"
    assert ran.code == 1
    assert f"a hook {what}: budget review" in (ran.err if output == "text" else ran.out)
    if output == "json":
        result = json.loads(ran.out)
        assert (result["subtype"], result["terminal_reason"]) == ("error_during_execution", "hook_stopped")
        assert result["errors"] == [f"a hook {what}: budget review"]


def test_nothing_of_it_runs_in_a_folder_that_nobody_trusted(command: Command) -> None:
    scenario = "agents: {lead: [{reply: [{tool_use: {name: read_file, input: {path: hello.txt}}}]}, {reply: Done.}]}"
    ran = command.run_inline("run", "--model", command.scenario(scenario), "Go.")
    assert ran.out == "Done.\n", ran.err
    assert not (command.workspace / "all").exists()


def test_the_doctor_names_each_hook_and_the_guards_that_a_fault_opens(command: Command) -> None:
    command.run_inline("trust", "--yes")
    told = {one["field"]: one for one in json.loads(command.run_inline("doctor", "--compat", "--json").out)}
    opens, closed = told["hooks.PreToolUse[0].hooks[0]"], told["hooks.Stop[0].hooks[0]"]
    assert (opens["verdict"], "onFailure: block" in opens["why"]) == ("honored", True)
    assert (closed["verdict"], closed["why"]) == ("honored", "")


def test_a_hook_of_the_workspace_runs_in_the_sandbox_unless_its_entry_says_otherwise(command: Command) -> None:
    require_level(1)
    outside = command.workspace.parent / "outside"
    outside.mkdir()
    script = command.workspace.parent / "script.sh"  # a hook of the person could write outside
    script.write_text(f"echo x > {outside}/$1\n")
    line = f"bash {script} "
    hooks = [
        {"type": "command", "command": line + "inside"},
        {"type": "command", "command": line + "free", "sandbox": False},
    ]
    (command.workspace / ".claude").mkdir(exist_ok=True)
    (command.workspace / ".claude/settings.json").write_text(
        json.dumps({"hooks": {"SessionStart": [{"hooks": hooks}]}})
    )
    command.run_inline("run", "--trust", "--model", command.scenario("agents: {lead: [{reply: Done.}]}"), "hello")
    assert [one.name for one in outside.iterdir()] == ["free"]
