"""`callboard -w`: the lead of a new session works in a git worktree, and the workspace stays as it is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.adapters.git.worktree_world import run_git
from tests.cli.commands.command import Command, CommandResult, command_in_repository

SCENARIO = """
agents:
  lead:
    - reply:
        - tool_use: {name: write_file, input: {path: new.txt, content: new}}
        - tool_use: {name: task, input: {agent_type: general, description: add, prompt: "Add a second file."}}
    - reply:
        - tool_use: {name: bash, input: {command: "pwd > where.txt"}}
    - reply: written
    - when: {contains: More}
      reply:
        - tool_use: {name: write_file, input: {path: later.txt, content: later}}
    - reply: more
  'general*':
    - reply:
        - tool_use: {name: write_file, input: {path: second.txt, content: new}}
    - reply: added
end: {reply: nothing more}
"""
FORK = """
agents:
  lead:
    - reply:
        - tool_use: {name: write_file, input: {path: later.txt, content: later}}
    - reply: more
"""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return command_in_repository(tmp_path)


def run(command: Command, *options: str) -> CommandResult:
    flags = ("--permission-mode", "bypassPermissions", "--model", command.scenario(SCENARIO))
    return command.run_inline("run", "Go.", *flags, *options)


def folder_of(command: Command, name: str) -> Path:
    rows = json.loads(command.run_inline("worktrees", "--json").out)
    return Path(next(row["folder"] for row in rows if row["name"] == name))


@pytest.mark.slow
def test_the_lead_and_its_subagents_write_in_the_worktree_alone(command: Command) -> None:
    ran = run(command, "-w", "feature")
    assert (ran.code, ran.out) == (0, "written\n"), ran.err
    folder = folder_of(command, "feature")
    assert (folder / "new.txt").read_text() == "new"
    assert (folder / "second.txt").read_text() == "new"
    assert (folder / "where.txt").read_text().strip() == str(folder)
    assert run_git(command.workspace, "status", "--porcelain") == ""
    assert "worktree feature: uncommitted files: 3" in ran.err
    merged = command.run_inline("worktrees", "merge", "feature")
    assert merged.code == 0, merged.err
    assert (command.workspace / "new.txt").read_text() == "new"


@pytest.mark.slow
def test_without_a_name_each_session_gets_a_new_worktree_and_with_one_the_existing(command: Command) -> None:
    for _ in range(2):
        assert run(command, "--worktree").code == 0
    assert run(command, "--worktree=lead").code == 0
    assert folder_of(command, "lead").is_dir()
    assert folder_of(command, "lead-2").is_dir()
    assert len(json.loads(command.run_inline("worktrees", "--json").out)) == 2


@pytest.mark.slow
def test_a_session_that_goes_on_stays_in_its_worktree(command: Command) -> None:
    assert run(command, "-w", "feature").code == 0
    refused = run(command, "-c", "-w", "other")
    assert refused.code == 2
    assert "--worktree begins a session" in refused.err
    flags = ("--permission-mode", "acceptEdits", "--model", command.scenario(SCENARIO))
    assert command.run_inline("run", "-c", *flags, "More.").code == 0
    assert (folder_of(command, "feature") / "later.txt").is_file()
    assert not (command.workspace / "later.txt").exists()


@pytest.mark.slow
def test_a_fork_goes_on_in_the_worktree_of_its_session(command: Command) -> None:
    assert run(command, "-w", "feature").code == 0
    flags = ("--permission-mode", "acceptEdits", "--model", command.scenario(FORK))
    forked = command.run_inline("run", "-c", "--fork-session", *flags, "More.")
    assert forked.code == 0, forked.err
    assert (folder_of(command, "feature") / "later.txt").is_file()
    assert run_git(command.workspace, "status", "--porcelain") == ""
    elsewhere = command.run_inline("run", "-c", "--fork-session", "-w", "other", *flags, "More.")
    assert elsewhere.code == 0, elsewhere.err
    assert (folder_of(command, "other") / "later.txt").is_file()
    shutil.rmtree(folder_of(command, "other"))
    run_git(command.workspace, "worktree", "prune")
    run_git(command.workspace, "branch", "-D", "wt/other")
    refused = command.run_inline("run", "-c", "--fork-session", *flags, "More.")
    assert refused.code == 2
    assert "the forked session works in a worktree: the worktree other is gone" in refused.err
    assert run_git(command.workspace, "status", "--porcelain") == ""


@pytest.mark.slow
def test_a_lead_whose_worktree_is_gone_does_nothing_in_the_workspace(command: Command) -> None:
    assert run(command, "-w", "feature").code == 0
    folder = folder_of(command, "feature")
    shutil.rmtree(folder)
    run_git(command.workspace, "worktree", "prune")
    run_git(command.workspace, "branch", "-D", "wt/feature")
    ran = run(command, "-c")
    assert ran.code != 0
    assert "the worktree feature is gone" in ran.err
    assert not (command.workspace / "new.txt").exists()


@pytest.mark.parametrize(
    ("name", "why"),
    [("a b", "is not a valid name of a worktree"), ("x..y", "git does not accept the branch wt/x..y")],
)
def test_a_name_that_cannot_be_a_branch_is_refused_before_the_session_begins(
    command: Command, name: str, why: str
) -> None:
    refused = run(command, "-w", name)
    assert refused.code == 2
    assert why in refused.err
    assert command.run_inline("sessions", "--json").out.strip() in ("", "[]")


def test_outside_a_repository_it_is_refused(tmp_path: Path) -> None:
    refused = run(Command(tmp_path), "-w", "feature")
    assert refused.code == 2
    assert "is not a git repository" in refused.err
