"""`callboard worktrees`: a person lists, merges, and removes a real session's worktrees; its replay needs no git."""

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
        - tool_use: {name: spawn_teammate, input: {name: alice, role: writer, prompt: write it, worktree: parser}}
    - reply: waiting
    - reply: all done
  alice:
    - reply:
        - tool_use: {name: write_file, input: {path: new.txt, content: new}}
    - reply:
        - tool_use: {name: report, input: {status: done, result: written}}
"""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return command_in_repository(tmp_path)


def run_once(command: Command, *more: str) -> CommandResult:
    ran = command.run_inline(
        "run", "--permission-mode", "acceptEdits", *more, "--model", command.scenario(SCENARIO), "Go."
    )
    assert ran.code == 0, ran.err
    return ran


@pytest.mark.slow
def test_a_person_lists_merges_and_removes_what_a_session_left(command: Command) -> None:
    assert command.run_inline("worktrees").out == "no worktrees\n"
    run_once(command)
    (line,) = json.loads(command.run_inline("worktrees", "--json").out)
    folder = Path(line.pop("folder"))
    session = line.pop("session")
    assert line.pop("bytes") > 10
    assert line == {
        "name": "parser",
        "branch": "wt/parser",
        "owner": "alice",
        "tasks": [],
        "state": "ready",
        "ahead": 0,
        "behind": 0,
        "dirty": 1,
        "check": "",
    }
    assert session
    assert (folder / "new.txt").read_text() == "new"
    listed = command.run_inline("worktrees").out
    assert "parser" in listed
    assert "alice" in listed
    refused = command.run_inline("worktrees", "remove", "parser")
    assert (refused.code, "untracked: new.txt" in refused.err) == (2, True)
    outside = command.workspace.parent / "outside"
    failed = command.run_inline("worktrees", "merge", "parser", "--test", f"echo x > {outside}; echo alas; false")
    assert (failed.code, "alas" in failed.err) == (2, True)
    assert not outside.exists()  # the test runs in the sandbox of agents' commands
    assert not (command.workspace / "new.txt").exists()
    merged = command.run_inline("worktrees", "merge", "parser", "--test", "test -f new.txt")
    assert merged.code == 0, merged.err
    assert "new.txt" in merged.out
    assert (command.workspace / "new.txt").read_text() == "new"
    removed = command.run_inline("worktrees", "remove", "parser")
    assert removed.code == 0, removed.err
    assert not folder.exists()
    assert "no worktrees" in command.run_inline("worktrees").out
    assert run_git(command.workspace, "branch", "--format=%(refname:short)").split() == ["main"]


@pytest.mark.slow
def test_a_person_lets_go_what_stands_nowhere_else_and_keeps_the_commits(command: Command) -> None:
    run_once(command)
    removed = command.run_inline("worktrees", "remove", "parser", "--discard")
    assert removed.code == 0, removed.err
    assert "was in it: untracked: new.txt" in removed.out


@pytest.mark.slow
@pytest.mark.parametrize("act", [("merge", "parser"), ("remove", "parser", "--discard")])
def test_a_tool_may_look_and_no_more(command: Command, act: tuple[str, ...]) -> None:
    run_once(command)
    refused = command.run_inline("worktrees", *act, CALLBOARD_TOOL="1")
    assert (refused.code, "for a person" in refused.err) == (2, True)
    assert command.run_inline("worktrees", CALLBOARD_TOOL="1").code == 0


@pytest.mark.slow
def test_a_recorded_run_in_a_worktree_is_replayed_without_making_one(command: Command) -> None:
    tape = command.workspace.parent / "tape.jsonl"
    run_once(command, "--record", str(tape))
    shutil.rmtree(command.workspace / ".git")
    replayed = command.run_inline("run", "--permission-mode", "acceptEdits", "--model", f"cassette:{tape}", "Go.")
    assert replayed.code == 0, replayed.err
    assert replayed.out == "all done\n"
