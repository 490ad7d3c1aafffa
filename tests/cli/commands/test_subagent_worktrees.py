"""Subagents with `isolation: worktree`, and skills with `background: true`, in a real repository."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.adapters.git.worktree_world import run_git
from tests.cli.commands.command import Command, command_in_repository

AGENT = """---
name: {name}
description: works alone
isolation: worktree
{more}---
Work.
"""
SKILL = """---
name: audit
description: audits the files
context: fork
background: true
agent: writer
---
write it: $ARGUMENTS
"""
SCENARIO = """
agents:
  lead:
    - when: {contains: its report}
      reply: FINISHED
    - when: {contains: do it}
      reply:
        - tool_use: {name: task, input: {description: work, prompt: write it, agent_type: writer}}
        - tool_use: {name: task, input: {description: look, prompt: look at it, agent_type: looker}}
    - when: {contains: use the skill}
      reply:
        - tool_use: {name: load_skill, input: {name: audit, arguments: all}}
    - otherwise: true
      reply: LAUNCHED
  "writer*":
    - when: {contains: write it}
      reply:
        - tool_use: {name: bash, input: {command: "echo new > new.txt"}}
    - otherwise: true
      reply: I wrote it.
  "looker*":
    - when: {contains: look at it}
      reply:
        - tool_use: {name: bash, input: {command: pwd}}
    - otherwise: true
      reply: I looked.
"""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    made = command_in_repository(tmp_path)
    agents = made.workspace / ".claude/agents"
    agents.mkdir(parents=True)
    (agents / "writer.md").write_text(AGENT.format(name="writer", more="background: true\n"))
    (agents / "looker.md").write_text(AGENT.format(name="looker", more=""))
    skill = made.workspace / ".claude/skills/audit"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text(SKILL)
    return made


def run(command: Command, prompt: str, *options: str, model: str = "") -> str:
    flags = ("--model", model or command.scenario(SCENARIO), "--permission-mode", "bypassPermissions", "--trust")
    ran = command.run_inline("-p", prompt, *flags, *options)
    assert (ran.code, ran.out) == (0, "FINISHED\n"), ran.err
    return ran.err


def test_isolated_subagents_have_worktrees_which_stay_only_with_work_in_them(command: Command) -> None:
    cassette = command.workspace.parent / "cassette"
    told = run(command, "do it", "--record", str(cassette))
    assert "bash pwd => " in told
    (row,) = json.loads(command.run_inline("worktrees", "--json").out)
    kept = Path(row["folder"])
    assert kept.name.startswith("writer-")
    assert (kept / "new.txt").exists()
    assert not (command.workspace / "new.txt").exists()
    assert f"/worktrees/{kept.name}" not in told.split("bash pwd => ")[1].split("\n")[0]
    branches = run_git(command.workspace, "branch", "--list", "wt/*").split()
    assert [branch for branch in branches if branch.startswith("wt/")] == [f"wt/{kept.name}"]
    assert f"worktree {kept.name}: uncommitted files: 1" in told
    run(command, "do it", model=f"cassette:{cassette}")


@pytest.mark.parametrize("prompt", [pytest.param("use the skill", marks=pytest.mark.slow), "/audit all"])
def test_nobody_waits_for_a_skill_in_the_background(command: Command, prompt: str) -> None:
    told = run(command, prompt)
    assert told.index("lead: LAUNCHED") < told.index("I wrote it.")
    assert "runtime -> lead [task notification] writer-" in told


def test_an_isolated_subagent_needs_a_repository(tmp_path: Path) -> None:
    made = Command(tmp_path)
    agents = made.workspace / ".claude/agents"
    agents.mkdir(parents=True)
    (agents / "looker.md").write_text(AGENT.format(name="looker", more=""))
    call = "tool_use: {name: task, input: {description: look, prompt: look at it, agent_type: looker}}"
    model = made.scenario(f"agents: {{lead: [{{reply: [{{{call}}}]}}, {{otherwise: true, reply: done}}]}}\n")
    ran = made.run_inline("-p", "go", "--model", model, "--trust")
    assert ran.code == 0
    assert "task look => " in ran.err
    assert "git" in ran.err.split("task look => ")[1].split("\n")[0]
