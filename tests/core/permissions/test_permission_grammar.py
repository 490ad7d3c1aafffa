"""What each form of rule names, what it never does, and what is told of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from callboard.adapters.shell.parser import BashParser
from callboard.adapters.shell.paths import MOST_MATCHES, PathJudge
from callboard.core.permissions.effects import CallFacts
from callboard.core.permissions.facts import find_facts
from callboard.core.permissions.gitignore import Anchors, names_path
from callboard.core.permissions.host_patterns import names_host
from callboard.core.permissions.judge import judge_call
from callboard.core.permissions.rule_check import Kind, allowed_tools, rule_note
from callboard.core.permissions.rules import parse_rule
from callboard.core.permissions.values import AgentPolicy, ProposedCall, Rule, Verdict

PARSER = BashParser()
HERE = Anchors("/w/p", "/h")


@pytest.mark.parametrize("loose", [True, False])
@pytest.mark.parametrize(
    ("pattern", "path", "named"),
    [
        ("x.py", "/w/p/x.py", True),
        ("x.py", "/w/p/a/b/x.py", True),
        ("x.py", "/w/p/x.pyc", False),
        ("x.py", "/w/x.py", False),
        ("/x.py", "/w/p/x.py", True),
        ("/x.py", "/w/p/a/x.py", False),
        ("./x.py", "/w/p/x.py", True),
        ("./x.py", "/w/p/a/x.py", False),
        ("../s/**", "/w/s/a", True),
        ("src", "/w/p/src/a/b", True),
        ("src/a/**", "/w/p/src/a/b/c", True),
        ("src/a/**", "/w/p/lib/src/a/b", False),
        ("src/**", "/w/p/src2/a", False),
        ("src/**/x", "/w/p/src/x", True),
        ("src/**/x", "/w/p/src/a/b/x", True),
        ("**/x", "/w/p/x", True),
        ("**/x/**", "/w/p/a/x/b", True),
        ("**", "/w/p/a/b", True),
        ("./**", "/w/p", True),
        ("a**b", "/w/p/axxb", True),
        ("a?c", "/w/p/abc", True),
        ("a?c", "/w/p/a/c", False),
        ("[ab].c", "/w/p/a.c", True),
        ("[!a].c", "/w/p/a.c", False),
        ("[a-c].c", "/w/p/b.c", True),
        (r"\*.c", "/w/p/*.c", True),
        (r"\*.c", "/w/p/a.c", False),
        ("..foo", "/w/p/..foo", True),
        ("//etc", "/etc/passwd", True),
        ("//etc/*", "/etc/passwd", True),
        ("//etc/*", "/w/p/etc/passwd", False),
        ("//**", "/etc/passwd", True),
        ("~/.ssh/**", "/h/.ssh/id", True),
        ("~/**", "/hx", False),
        ("x.py", "/w/p2/x.py", False),
    ],
)
def test_a_pattern_names_what_a_gitignore_would(pattern: str, path: str, named: bool, loose: bool) -> None:
    assert names_path(pattern, path, HERE, loose=loose) is named


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("src/**", "/w/p/lib/src/a"),
        ("src/*", "/w/p/src/a/b"),
        ("*.d", "/w/p/x.d/file"),
        ("app/[id]/page", "/w/p/app/[id]/page"),
        ("build/", "/w/p/lib/build/x"),
    ],
)
def test_a_deny_rule_names_more_than_an_allow_rule_of_the_same_words(pattern: str, path: str) -> None:
    assert names_path(pattern, path, HERE, loose=True)
    assert not names_path(pattern, path, HERE, loose=False)


def test_a_leading_slash_means_where_the_rule_is_written() -> None:
    settings = Anchors("/w/p", "/h", base="/h/.config/callboard")
    assert names_path("/notes/*", "/h/.config/callboard/notes/a", settings, loose=True)
    assert not names_path("/notes/*", "/w/p/notes/a", settings, loose=True)
    assert names_path("notes/a", "/w/p/notes/a", settings, loose=True)


def test_where_a_file_system_does_not_tell_case_a_deny_rule_does_not_either() -> None:
    blind = Anchors("/W/p", "/h", folds=True)
    assert names_path("Secret/\u00e9", "/w/P/sECRET/e\u0301", blind, loose=True)
    assert not names_path("Secret/**", "/W/p/sECRET/a", blind, loose=False)
    assert not names_path("Secret/**", "/w/p/sECRET/a", HERE, loose=True)


@pytest.mark.parametrize(
    ("pattern", "url", "named"),
    [
        ("example.com", "https://EXAMPLE.com/x", True),
        ("example.com", "https://example.com.", True),
        ("example.com", "https://a.example.com", False),
        ("example.com", "https://example.com.evil.org", False),
        ("example.com", "https://example.com@evil.org/", False),
        ("*.example.com", "https://a.b.example.com", True),
        ("*.example.com", "https://example.com", False),
        ("*", "https://any.org", True),
        ("api-*.example.com", "https://api-7.example.com", True),
        ("api-*.example.com", "https://api-7.x.example.com", False),
        ("b\u00fccher.de", "https://xn--bcher-kva.de/", True),
    ],
)
def test_hosts_are_compared_as_they_are_looked_up(pattern: str, url: str, named: bool) -> None:
    assert names_host(pattern, url, allow=True) is named
    assert names_host(pattern, url, allow=False) is named


@pytest.mark.parametrize("url", ["https://example.com\\@evil.org", "https://exa mple.com", "https://[::1", ""])
def test_an_address_that_readers_understand_differently_is_denied_and_not_allowed(url: str) -> None:
    assert not names_host("example.com", url, allow=True)
    assert names_host("other.org", url, allow=False)


@pytest.mark.parametrize(
    ("kind", "text", "status", "why"),
    [
        ("allow", "Bash(npm run *)", "honored", ""),
        ("allow", "Bash(* install)", "honored", ""),
        ("allow", "Bash", "honored", ""),
        ("allow", "Read(//etc/hosts)", "honored", ""),
        ("allow", "mcp__db__*", "honored", ""),
        ("allow", "Skill(deploy *)", "honored", ""),
        ("allow", "Cd(~/work/**)", "honored", ""),
        ("allow", "WebFetch(domain:*.example.com)", "honored", ""),
        ("deny", "*", "honored", ""),
        ("deny", "mcp__*", "honored", ""),
        ("deny", "Agent(model:opus)", "honored", ""),
        ("deny", "Bash(run_in_background:true)", "honored", ""),
        ("deny", "read_file(x)", "honored", ""),
        ("allow", "Bash(", "refused", "is not a rule"),
        ("deny", "no tool", "refused", "is not a rule"),
        ("allow", "*", "ignored", "only in deny and ask rules"),
        ("allow", "B*", "ignored", "only in deny and ask rules"),
        ("allow", "mcp__*", "ignored", "names its server in full"),
        ("allow", "mcp__d*__x", "ignored", "names its server in full"),
        ("allow", "Agent(model:opus)", "ignored", "only in deny and ask rules"),
        ("deny", "Write(src/**)", "ignored", "write Edit(src/**)"),
        ("allow", "MultiEdit(x)", "ignored", "write Edit(x)"),
        ("allow", "NotebookEdit(x.ipynb)", "ignored", "write Edit(x.ipynb)"),
        ("deny", "Glob(x)", "ignored", "write Read(x)"),
        ("deny", "LS(x)", "ignored", "write Read(x)"),
        ("deny", "NotebookRead(x.ipynb)", "ignored", "write Read(x.ipynb)"),
        ("deny", "edit_notebook(*.ipynb)", "honored", ""),
        ("allow", "KillShell", "honored", ""),
        ("deny", "Bash(command:rm)", "ignored", "cannot be about the input command"),
        ("deny", "WebFetch(url:x)", "ignored", "cannot be about the input url"),
        ("deny", "WebFetch(example.com)", "ignored", "write WebFetch(domain:host)"),
        ("deny", "Read(!keep)", "ignored", "negation is not supported"),
        ("deny", "Read($HOME/.ssh/**)", "ignored", "write ~/"),
        ("deny", "Read(/home/me/.ssh/**)", "ignored", "write //home/me/.ssh/**"),
        ("allow", "Edit(/Users/me/work/x.py)", "ignored", "write //Users/me/work/x.py"),
        ("allow", "Edit(/home/*.html)", "honored", ""),
        ("deny", "WebFetch(domain:https://example.com)", "ignored", "only the host"),
        ("deny", "WebFetch(domain:example.com/docs)", "ignored", "only the host"),
        ("deny", "WebFetch(domain:example.com:8080)", "ignored", "only the host"),
        ("deny", "WebFetch(domain:::1)", "honored", ""),
        ("deny", "WebFetch(https://example.com/*)", "ignored", "write WebFetch(domain:host)"),
        ("deny", "WebFetch(prompt:say *)", "honored", ""),
        ("deny", "mcp__db__", "ignored", "write mcp__db "),
        ("allow", "Bash(git:* push)", "ignored", "at the end of a rule only"),
        ("allow", "Bash(npm test && npm run x)", "ignored", "one simple command"),
        ("allow", "TodoWrite(x)", "ignored", "takes nothing in brackets"),
        ("deny", "Frobnicate", "ignored", "there is no tool Frobnicate"),
        ("deny", "PowerShell(Remove-Item *)", "ignored", "there is no tool PowerShell"),
    ],
)
def test_what_becomes_of_a_rule_is_told(kind: Kind, text: str, status: str, why: str) -> None:
    note = rule_note(text, kind)
    assert note.status == status
    assert why in note.why
    assert bool(note.why) == (status != "honored")


def test_a_tool_that_is_there_beside_the_built_in_ones_is_known() -> None:
    assert rule_note("probe", "allow").status == "ignored"
    assert rule_note("probe", "allow", ["probe"]).status == "honored"


def test_only_rules_on_whole_tools_take_them_away() -> None:
    tools = ("bash", "edit_file", "grep", "read_file", "write_file")
    assert allowed_tools(tools, ("Bash(rm:*)", "Edit(x)", "Bash(")) == tools
    assert allowed_tools(tools, ("Edit", "g*")) == ("bash", "read_file")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("w") / "ws"  # in a folder of its own: what lies beside it is judged too
    for name in ("src/x.py", "src/a/b.py", "lib/src/y.py", "docs/r.md"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")
    (root / "link.py").symlink_to("src/x.py")
    (root / "out").symlink_to("/etc")
    return root


def judged(root: Path, tool: str, given: dict[str, Any], **rules: str) -> Verdict:
    judge = PathJudge(root, home=Path("/home/me"))
    facts = CallFacts(root=judge.root, home=judge.home, git_quiet=True)
    call = ProposedCall(tool, given, "read" if tool in ("read_file", "grep", "glob") else "unknown")
    allow, ask, deny = ([parse_rule(rules[kind])] if kind in rules else [] for kind in ("allow", "ask", "deny"))
    policy = AgentPolicy(allow=tuple(allow), ask=tuple(ask), deny=tuple(deny))
    return judge_call(call, policy, find_facts(call, facts, PARSER.parse, judge.look))


@pytest.mark.parametrize(
    ("kind", "rule", "tool", "given", "decision"),
    [
        ("deny", "Read(src/**)", "read_file", {"path": "lib/src/y.py"}, "deny"),
        ("deny", "Read(src/**)", "read_file", {"path": "link.py"}, "deny"),
        ("deny", "Read(link.py)", "read_file", {"path": "link.py"}, "deny"),
        ("deny", "Read(src/**)", "edit_file", {"path": "src/x.py"}, "deny"),
        ("deny", "Read(src/**)", "glob", {"pattern": "*", "path": "src"}, "deny"),
        ("deny", "Edit(src/**)", "read_file", {"path": "src/x.py"}, "allow"),
        ("deny", "Write(src/**)", "write_file", {"path": "src/x.py"}, "ask"),
        ("deny", "Write", "write_file", {"path": "src/x.py"}, "deny"),
        ("deny", "Read(limit:5)", "read_file", {"path": "src/x.py", "limit": 5}, "deny"),
        ("deny", "Read(limit:5)", "read_file", {"path": "src/x.py"}, "allow"),
        ("allow", "Edit(src/**)", "write_file", {"path": "src/x.py"}, "allow"),
        ("allow", "Edit(src/**)", "write_file", {"path": "lib/src/y.py"}, "ask"),
        ("allow", "Edit(link.py)", "write_file", {"path": "link.py"}, "ask"),
        ("allow", "Edit(**)", "write_file", {"path": "link.py"}, "allow"),
        ("allow", "Read(out/**)", "read_file", {"path": "out/hosts"}, "ask"),
        ("allow", "Read(//etc/hosts)", "read_file", {"path": "/etc/hosts"}, "allow"),
        ("allow", "Write(src/**)", "write_file", {"path": "src/x.py"}, "ask"),
        ("deny", "Read(docs/**)", "bash", {"command": "grep -r x ."}, "deny"),
        ("deny", "Read(docs/**)", "bash", {"command": "grep -r x src"}, "allow"),
        ("deny", "Read(docs/**)", "bash", {"command": "ls docs"}, "deny"),
        ("deny", "Read(docs/**)", "bash", {"command": "cd docs && ls"}, "deny"),
        ("deny", "Bash(git * main)", "bash", {"command": "git -C x push origin main"}, "deny"),
        ("deny", "Bash(git * main)", "bash", {"command": "echo $X"}, "ask"),
        ("allow", "Bash(git * main)", "bash", {"command": "git push origin main"}, "allow"),
        ("allow", "Bash(git * main *)", "bash", {"command": "git push origin main"}, "allow"),
        ("allow", "Bash(watch *)", "bash", {"command": "watch make"}, "ask"),
        ("allow", "Bash(w* make)", "bash", {"command": "watch make"}, "ask"),
        ("allow", "Bash(watch make)", "bash", {"command": "watch make"}, "allow"),
        ("deny", "Cd(//opt/**)", "bash", {"command": "cd /opt && ls"}, "deny"),
        ("deny", "Cd(docs)", "bash", {"command": "cd src && cd ../docs && ls"}, "deny"),
        ("allow", "Cd(docs)", "bash", {"command": "cd docs && ls"}, "allow"),
        ("allow", "Cd(docs)", "bash", {"command": "cd src && ls"}, "ask"),
        ("allow", "Cd(docs)", "bash", {"command": "ls"}, "allow"),
        ("deny", "Agent(model:op*)", "task", {"agent_type": "explore", "model": "opus"}, "deny"),
        ("deny", "Agent(subagent_type:exp*)", "task", {"agent_type": "explore"}, "deny"),
        ("deny", "Agent(explore)", "spawn_teammate", {"agent_type": "explore"}, "deny"),
        ("deny", "Skill(deploy *)", "load_skill", {"name": "deploy"}, "deny"),
        ("deny", "Skill(deploy *)", "load_skill", {"name": "deploys"}, "ask"),
        ("allow", "WebFetch(domain:example.com)", "WebFetch", {"url": "https://example.com/a"}, "allow"),
        ("allow", "WebFetch(domain:example.com)", "WebFetch", {"url": "https://evil.org"}, "ask"),
        ("allow", "Edit(src/**)", "multi_edit", {"path": "src/x.py", "edits": []}, "allow"),
        ("allow", "Edit(src/**)", "edit_notebook", {"path": "src/x.ipynb"}, "allow"),
        ("allow", "Edit(src/**)", "edit_notebook", {"path": "y.ipynb"}, "ask"),
        ("allow", "MultiEdit", "multi_edit", {"path": "y.py", "edits": []}, "allow"),
        ("allow", "MultiEdit", "edit_file", {"path": "y.py"}, "ask"),
        ("deny", "Edit(*.ipynb)", "edit_notebook", {"path": "a/b.ipynb"}, "deny"),
        ("deny", "Read(docs/**)", "multi_edit", {"path": "docs/x", "edits": []}, "deny"),
        ("deny", "Read(docs/**)", "list_folder", {"path": "docs"}, "deny"),
        ("deny", "Read(docs/**)", "read_notebook", {"path": "docs/x.ipynb"}, "deny"),
        ("deny", "LS", "list_folder", {}, "deny"),
        ("ask", "Read(//opt/**)", "list_folder", {"path": "/opt"}, "ask"),
        ("allow", "Read(//opt/**)", "list_folder", {"path": "/opt"}, "allow"),
        ("allow", "mcp__*", "mcp__db__query", {}, "ask"),
        ("deny", "probe(depth:3)", "probe", {"depth": 3}, "deny"),
        ("deny", "probe(depth:3)", "probe", {"depth": [3]}, "ask"),
        ("deny", "probe(sure:true)", "probe", {"sure": True}, "deny"),
    ],
)
def test_each_form_of_rule_binds_what_it_names(
    kind: str, rule: str, tool: str, given: dict[str, Any], decision: str, root: Path
) -> None:
    assert judged(root, tool, given, **{kind: rule}).decision == decision


@pytest.mark.parametrize(
    ("tool", "given", "rule"),
    [
        ("read_file", {"path": "/proc/self/cwd/src/x.py"}, "O"),
        ("bash", {"command": "cat /proc/self/cwd/src/x.py"}, "O"),
        ("read_file", {"path": "src/x.py\u200b"}, "M"),
        ("write_file", {"path": "src/\u202eyp.x"}, "M"),
        ("glob", {"pattern": "{..,src}/*"}, "O"),
        ("glob", {"pattern": "../*"}, "O"),
    ],
)
def test_paths_that_lead_elsewhere_or_hide_something_ask(
    tool: str, given: dict[str, Any], rule: str, root: Path
) -> None:
    verdict = judged(root, tool, given)
    assert (verdict.decision, verdict.rule) == ("ask", rule)


def test_a_pattern_that_matches_too_much_outside_or_a_pipe_asks_and_is_not_refused(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    os.mkfifo(tmp_path / "pipe")
    verdict = judged(tmp_path / "ws", "glob", {"pattern": "../*"})
    assert (verdict.decision, verdict.rule) == ("ask", "M")
    (tmp_path / "pipe").unlink()
    for number in range(MOST_MATCHES + 1):
        (tmp_path / f"x{number}").touch()
    verdict = judged(tmp_path / "ws", "glob", {"pattern": "../*"})
    assert (verdict.decision, verdict.rule) == ("ask", "M")
    assert "too many" in verdict.why


def test_where_case_is_not_told_apart_the_runtimes_files_are_its_own_in_any_case(tmp_path: Path) -> None:
    call = ProposedCall("write_file", {"path": ".CallBoard/Settings.yaml"}, "reconcile")
    lost = ProposedCall("read_file", {"path": "sTATE/db"}, "read")
    for folds, decision in ((True, "deny"), (False, "ask")):
        judge = PathJudge(tmp_path, own=[tmp_path / "State"], home=Path("/home/me"), folds=folds)
        facts = CallFacts(root=judge.root, home=judge.home, folds=folds)
        assert judge_call(call, AgentPolicy(), find_facts(call, facts, PARSER.parse, judge.look)).decision == decision
        found = judge_call(lost, AgentPolicy(), find_facts(lost, facts, PARSER.parse, judge.look))
        assert (found.decision == "deny") is folds


def test_blanks_around_what_is_in_the_brackets_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a.py").touch()
    assert judged(tmp_path, "read_file", {"path": "src/a.py"}, deny="Read( src/** )").decision == "deny"
    assert parse_rule("Bash( )") == Rule("Bash", None, "Bash( )")
