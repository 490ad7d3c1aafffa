"""The judge of calls that nobody makes: the agent's folder, the sandbox level, what is parsed again."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard.adapters.shell.policy_judge import Explainer
from callboard.core.permissions.call_input import GivenCall, GivenRules, Misread, ToolTraits
from callboard.core.permissions.rules import parse_rule
from callboard.core.permissions.values import Mode

KNOWN = {"bash": ToolTraits("unknown"), "write_file": ToolTraits("reconcile"), "read_file": ToolTraits("read")}


def decided(workspace: Path, command: str, *, mode: Mode = "default", folder: str = "", level: int = 0) -> str:
    explainer = Explainer(workspace, (), KNOWN, level=lambda: level)
    return explainer.judge(GivenCall("bash", {"command": command}, mode, folder=folder)).verdict.decision


def test_sandboxed_runs_unasked_at_level_2_only(tmp_path: Path) -> None:
    assert decided(tmp_path, "make", mode="sandboxed", level=2) == "allow"
    assert decided(tmp_path, "make", mode="sandboxed", level=1) == "ask"
    assert decided(tmp_path, "sudo make", mode="sandboxed", level=2) == "deny"


def test_the_level_is_found_out_only_where_it_decides(tmp_path: Path) -> None:
    asked: list[int] = []
    explainer = Explainer(tmp_path, (), KNOWN, level=lambda: asked.append(1) or 2)
    explainer.judge(GivenCall("bash", {"command": "make"}))
    assert asked == []
    explainer.judge(GivenCall("bash", {"command": "make"}, "sandboxed"))
    assert asked


def test_a_link_to_a_folder_outside_is_where_it_leads(tmp_path: Path) -> None:
    root = tmp_path / "workspace"
    (root / "sub").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (root / "link").symlink_to(tmp_path / "other")
    assert decided(root, "ls", folder="sub") == "allow"
    assert decided(root, "ls", folder="link") == "ask"
    assert decided(root, "ls ../../other", folder="sub") == "ask"
    assert decided(root, "ls ..", folder="sub") == "allow"


def test_git_of_a_repository_further_in_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "inner" / ".git").mkdir(parents=True)
    (tmp_path / "inner" / ".git" / "config").write_text("[core]\n\tfsmonitor = ./run\n")
    assert decided(tmp_path, "git status") == "allow"
    assert decided(tmp_path, "git status", folder="inner") == "ask"
    assert decided(tmp_path, "git status", folder="inner/deeper") == "ask"


def test_a_folder_that_can_be_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(Misread, match="cwd"):
        decided(tmp_path, "ls", folder="\ud800")


def test_a_pattern_from_the_root_means_the_workspace_wherever_the_agent_works(tmp_path: Path) -> None:
    explainer = Explainer(tmp_path, (), KNOWN)
    rules = GivenRules(allow=(parse_rule("Edit(/src/*.py)"),))
    given = {"path": "a.py", "content": ""}
    assert explainer.judge(GivenCall("write_file", given, rules=rules, folder="src")).verdict.decision == "allow"
    assert explainer.judge(GivenCall("write_file", given, rules=rules, folder="lib")).verdict.decision == "ask"
