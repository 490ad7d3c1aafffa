"""What sessions load from the person's `.claude`: no agent changes it in any mode; reading it is judged as before."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard.adapters.shell.parser import BashParser
from callboard.adapters.shell.paths import PathJudge
from callboard.core.permissions.effects import CallFacts
from callboard.core.permissions.facts import find_facts
from callboard.core.permissions.judge import judge_call
from callboard.core.permissions.values import AgentPolicy, Mode, ProposedCall, Verdict


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "other"))
    for folder in (
        "w",
        "notes",
        "dev/plugin/hooks",
        "home/.claude/agents",
        "home/.claude/skills/pdf",
        "home/.claude/projects",
    ):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("home/.claude/settings.json", "home/.claude/agents/a.md", "home/.claude/skills/pdf/SKILL.md"):
        (tmp_path / file).write_text("x")
    (tmp_path / "w/a.md").write_text("x")
    (tmp_path / "w/way").symlink_to(tmp_path / "home/.claude")
    return tmp_path / "w"


def judged(root: Path, tool: str, mode: Mode = "bypassPermissions", **given: object) -> Verdict:
    home = root.parent / "home"
    judge = PathJudge(root, readable=[home / ".claude/skills/pdf"], loaded=[root.parent / "dev/plugin"], home=home)
    call = ProposedCall(tool, given, {"bash": "unknown", "read_file": "read"}.get(tool, "reconcile"))
    start = CallFacts(root=judge.root, home=judge.home)
    return judge_call(call, AgentPolicy(mode), find_facts(call, start, BashParser().parse, judge.look))


LOADED = (
    "../home/.claude/agents/a.md",
    "../home/.claude/agents/deep/new.md",
    "../home/.claude/skills/pdf/SKILL.md",
    "../home/.claude/skills/pdf/.env",
    "../home/.claude/commands/new.md",
    "../home/.claude/plugins/p/plugin.json",
    "../home/.claude/settings.json",
    "../home/.claude/settings.local.json",
    "../home/.claude/hooks/guard.sh",
    "../home/.claude/rules/a.md",
    "../home/.claude/CLAUDE.md",
    "../home/.claude.json",
    "../other/agents/a.md",
    "../other/.claude.json",
    "way/agents/a.md",
    "../dev/plugin/hooks/guard.sh",
    "../dev/plugin/skills/new/SKILL.md",
    "../dev/plugin/.env",
)


@pytest.mark.parametrize("mode", ["default", "acceptEdits", "bypassPermissions"])
@pytest.mark.parametrize("path", LOADED)
def test_no_mode_lets_an_agent_change_what_later_sessions_load(root: Path, path: str, mode: Mode) -> None:
    for tool in ("write_file", "edit_file"):
        verdict = judged(root, tool, mode, path=path)
        assert (verdict.decision, verdict.rule) == ("deny", "K"), tool
        assert path.rpartition("/")[2] in verdict.why


@pytest.mark.parametrize(
    "command",
    [
        "cp a.md ~/.claude/agents/a.md",
        "cp a.md ~/.claude/agents/",
        "cp -r a.md ~/.claude",
        "mv a.md ../home/.claude/agents/a.md",
        "echo x > ~/.claude/settings.json",
        "echo x >> ~/.claude.json",
        "cd ../home/.claude && echo x > settings.json",
        "tee ~/.claude/CLAUDE.md < a.md",
        "rm ~/.claude/agents/a.md",
        "rm ~/.claude/agents/*",
        "rm -r ~/.claude",
        "mv ~/.claude ~/moved",
        "ln -s $PWD ~/.claude/commands",
        "mkdir -p ~/.claude/skills/new",
        "cp a.md ../dev/plugin/hooks/",
        "cp -r a.md ../dev/plugin",
        "echo x > ../dev/plugin/hooks/guard.sh",
        "rm -rf ../dev/plugin",
        "rm -r ../dev",
        "mv ../dev ../moved",
        "mv ../dev/plugin ../moved",
    ],
)
def test_commands_that_change_what_sessions_load_are_refused(root: Path, command: str) -> None:
    verdict = judged(root, "bash", command=command)
    assert (verdict.decision, verdict.rule) == ("deny", "K")


def test_reading_is_judged_as_anywhere_else(root: Path) -> None:
    assert judged(root, "read_file", "default", path="../home/.claude/skills/pdf/SKILL.md").decision == "allow"
    assert judged(root, "bash", "default", command="cat ~/.claude/skills/pdf/SKILL.md").decision == "allow"
    assert judged(root, "read_file", "default", path="../home/.claude/settings.json").decision == "ask"
    assert judged(root, "bash", "default", command="cat ~/.claude/agents/a.md").decision == "ask"
    assert judged(root, "bash", command="cp ~/.claude/agents/a.md b.md").decision == "allow"


def test_other_files_of_the_person_are_judged_as_before(root: Path) -> None:
    for path in ("../home/.claude/projects/log", "../home/notes.md", "../notes/a.md", "../dev/a.md"):
        assert judged(root, "write_file", "default", path=path).decision == "ask"
        assert judged(root, "write_file", path=path).decision == "allow"


def test_a_plugin_that_the_workspace_lies_in_closes_nothing(root: Path) -> None:
    judge = PathJudge(root, loaded=[root.parent, root], home=root.parent / "home")
    call = ProposedCall("write_file", {"path": "new.md"}, "reconcile")
    facts = find_facts(call, CallFacts(root=judge.root), BashParser().parse, judge.look)
    assert judge_call(call, AgentPolicy("acceptEdits"), facts).decision == "allow"
