"""File tools: reading inside is free, writing asks, secrets and protected files ask, the runtime's own are refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from callboard.adapters.shell.paths import PathJudge
from callboard.core.permissions.effects import CallFacts
from callboard.core.permissions.facts import find_facts
from callboard.core.permissions.judge import judge_call
from callboard.core.permissions.rules import parse_rule
from callboard.core.permissions.values import AgentPolicy, Mode, ProposedCall, UnparsedScript, Verdict


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "w"
    for folder in (
        root / "src",
        root / ".git/hooks",
        root / ".callboard",
        tmp_path / "w-other",
        tmp_path / "state",
        tmp_path / "results",
    ):
        folder.mkdir(parents=True)
    for file in (
        "src/a.py",
        ".env",
        ".env.example",
        "key.pem",
        "../w-other/x",
        "../state/db",
        "../results/r.txt",
        ".callboard/settings.yaml",
    ):
        (root / file).write_text("x")
    (root / "out").symlink_to(tmp_path / "w-other")
    (root / "in").symlink_to(root / "src")
    (root / "hidden").symlink_to(root / ".env")
    (root / "loop").symlink_to(root / "loop")
    os.mkfifo(root / "pipe")
    return root


def judged(root: Path, tool: str, policy: AgentPolicy | None = None, **arguments: object) -> Verdict:
    call = ProposedCall(tool, arguments, "read" if tool in ("read_file", "glob", "grep") else "reconcile")
    judge = PathJudge(root, readable=[root.parent / "results"], own=[root.parent / "state"], home=root.parent / "home")
    start = CallFacts(root=judge.root, home=judge.home)
    return judge_call(
        call, policy or AgentPolicy(), find_facts(call, start, lambda _: UnparsedScript("no shell"), judge.look)
    )


@pytest.mark.parametrize(
    ("path", "read", "write", "accept"),
    [
        ("src/a.py", "allow", "ask", "allow"),
        ("new.txt", "allow", "ask", "allow"),
        ("new/deep/file.txt", "allow", "ask", "allow"),
        ("~/x", "deny", "deny", "deny"),
        ("~root/x", "deny", "deny", "deny"),
        ("./~/x", "allow", "ask", "allow"),
        ("in/a.py", "allow", "ask", "allow"),
        ("src/../src/a.py", "allow", "ask", "allow"),
        (".env.example", "allow", "ask", "allow"),
        (".env", "ask", "ask", "ask"),
        ("src/../.env", "ask", "ask", "ask"),
        ("hidden", "ask", "ask", "ask"),
        ("key.pem", "ask", "ask", "ask"),
        (".git/hooks/pre-commit", "allow", "ask", "ask"),
        (".mcp.json", "allow", "ask", "ask"),
        (".vscode/tasks.json", "allow", "ask", "ask"),
        (".callboard/settings.yaml", "allow", "deny", "deny"),
        ("../w-other/x", "ask", "ask", "ask"),
        ("out/x", "ask", "ask", "ask"),
        ("out/../a", "ask", "ask", "ask"),
        ("/etc/passwd", "ask", "ask", "ask"),
        ("/etc/new", "ask", "ask", "ask"),
        ("../results/r.txt", "allow", "ask", "ask"),
        ("../state/db", "deny", "deny", "deny"),
        ("pipe", "deny", "deny", "deny"),
        ("loop", "deny", "deny", "deny"),
        ("/dev/zero", "deny", "deny", "deny"),
        ("a\0b", "deny", "deny", "deny"),
        ("a" * 5_000, "deny", "deny", "deny"),
        ("a" * 300, "deny", "deny", "deny"),
        (chr(0xDCFF), "deny", "deny", "deny"),
        ("", "deny", "deny", "deny"),
    ],
)
def test_where_a_path_leads_decides(root: Path, path: str, read: str, write: str, accept: str) -> None:
    assert judged(root, "read_file", path=path).decision == read
    assert judged(root, "write_file", path=path).decision == write
    assert judged(root, "edit_file", AgentPolicy(mode="acceptEdits"), path=path).decision == accept


def test_an_absolute_path_with_the_roots_name_as_prefix_is_outside(root: Path) -> None:
    assert judged(root, "read_file", path=f"{root}-other/x").decision == "ask"
    assert judged(root, "read_file", path=f"{root}/src/a.py").decision == "allow"


@pytest.mark.parametrize(
    ("pattern", "path", "decision"),
    [
        ("**/*.py", None, "allow"),
        ("*.py", "src", "allow"),
        ("../w-o*", None, "ask"),
        ("../*", None, "deny"),
        ("/etc/*", None, "ask"),
        ("*", "/etc", "ask"),
        ("src/../../w-other/*", None, "ask"),
        ("*\x00", None, "deny"),
        (5, None, "deny"),
        ("*", 5, "deny"),
        ("*", "../state", "deny"),
    ],
)
def test_searching_stays_inside(root: Path, pattern: object, path: object, decision: str) -> None:
    given = {"pattern": pattern} | ({} if path is None else {"path": path})
    assert judged(root, "glob", None, **given).decision == decision


@pytest.mark.parametrize(
    ("mode", "read", "write"),
    [
        ("plan", "allow", "deny"),
        ("dontAsk", "allow", "deny"),
        ("bypassPermissions", "allow", "allow"),
        ("default", "allow", "ask"),
    ],
)
def test_modes(root: Path, mode: Mode, read: str, write: str) -> None:
    assert judged(root, "read_file", AgentPolicy(mode=mode), path="src/a.py").decision == read
    assert judged(root, "write_file", AgentPolicy(mode=mode), path="src/a.py").decision == write


def test_path_rules_bind_file_tools(root: Path) -> None:
    allow = AgentPolicy(allow=(parse_rule("Edit(src/**)"), parse_rule("Read(.env)")))
    assert judged(root, "write_file", allow, path="src/a.py").decision == "allow"
    assert judged(root, "write_file", allow, path="x").decision == "ask"
    assert judged(root, "read_file", allow, path=".env").decision == "allow"
    assert judged(root, "write_file", AgentPolicy(allow=(parse_rule("Edit"),)), path=".git/hooks/x").decision == "ask"
    deny = AgentPolicy(allow=(parse_rule("Edit"),), deny=(parse_rule("Read(src/**)"), parse_rule("Edit(*.md)")))
    assert judged(root, "read_file", deny, path="src/a.py").decision == "deny"
    assert judged(root, "read_file", deny, path="in/a.py").decision == "deny"
    assert judged(root, "write_file", deny, path="src/a.py").decision == "deny"
    assert judged(root, "write_file", deny, path="x.md").decision == "deny"
    assert judged(root, "read_file", deny, path="x.md").decision == "allow"
    ask = AgentPolicy(ask=(parse_rule("Read(src/*)"),))
    assert judged(root, "read_file", ask, path="src/a.py").decision == "ask"


def test_an_allow_rule_must_name_the_link_and_where_it_leads(root: Path) -> None:
    policy = AgentPolicy(allow=(parse_rule("Read(/hidden)"),))
    assert judged(root, "read_file", policy, path="hidden").decision == "ask"
