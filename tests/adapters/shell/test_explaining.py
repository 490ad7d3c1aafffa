"""Explained calls are judged without running: the agent's folder, the sandbox level, and commands parsed again."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard.adapters.shell.policy_judge import Explainer
from callboard.core.permissions.call_input import EnteredCall, InputRules, InvalidCall, ToolTraits
from callboard.core.permissions.rules import parse_rule
from callboard.core.permissions.values import Mode

TOOLS = {"bash": ToolTraits("unknown"), "write_file": ToolTraits("reconcile"), "read_file": ToolTraits("read")}


def decision_on(workspace: Path, command: str, *, mode: Mode = "default", folder: str = "", level: int = 0) -> str:
    explainer = Explainer(workspace, (), TOOLS, level=lambda: level)
    return explainer.judge(EnteredCall("bash", {"command": command}, mode, folder=folder)).verdict.decision


def test_sandboxed_runs_unasked_at_level_2_only(tmp_path: Path) -> None:
    assert decision_on(tmp_path, "make", mode="sandboxed", level=2) == "allow"
    assert decision_on(tmp_path, "make", mode="sandboxed", level=1) == "ask"
    assert decision_on(tmp_path, "sudo make", mode="sandboxed", level=2) == "deny"


def test_the_level_is_found_out_only_where_it_decides(tmp_path: Path) -> None:
    asked: list[int] = []
    explainer = Explainer(tmp_path, (), TOOLS, level=lambda: asked.append(1) or 2)
    explainer.judge(EnteredCall("bash", {"command": "make"}))
    assert asked == []
    explainer.judge(EnteredCall("bash", {"command": "make"}, "sandboxed"))
    assert asked


def test_a_link_to_a_folder_outside_is_where_it_leads(tmp_path: Path) -> None:
    root = tmp_path / "workspace"
    (root / "sub").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (root / "link").symlink_to(tmp_path / "other")
    assert decision_on(root, "ls", folder="sub") == "allow"
    assert decision_on(root, "ls", folder="link") == "ask"
    assert decision_on(root, "ls ../../other", folder="sub") == "ask"
    assert decision_on(root, "ls ..", folder="sub") == "allow"


def test_git_of_a_repository_further_in_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "inner" / ".git").mkdir(parents=True)
    (tmp_path / "inner" / ".git" / "config").write_text("[core]\n\tfsmonitor = ./run\n")
    assert decision_on(tmp_path, "git status") == "allow"
    assert decision_on(tmp_path, "git status", folder="inner") == "ask"
    assert decision_on(tmp_path, "git status", folder="inner/deeper") == "ask"


def test_a_folder_that_can_be_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidCall, match="cwd"):
        decision_on(tmp_path, "ls", folder="\ud800")


def test_a_pattern_from_the_root_means_the_workspace_wherever_the_agent_works(tmp_path: Path) -> None:
    explainer = Explainer(tmp_path, (), TOOLS)
    rules = InputRules(allow=(parse_rule("Edit(/src/*.py)"),))
    given = {"path": "a.py", "content": ""}
    assert explainer.judge(EnteredCall("write_file", given, rules=rules, folder="src")).verdict.decision == "allow"
    assert explainer.judge(EnteredCall("write_file", given, rules=rules, folder="lib")).verdict.decision == "ask"
