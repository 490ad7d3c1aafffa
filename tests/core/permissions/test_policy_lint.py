"""What lint says of rules and matchers, and that it never says too much: what it calls covered is covered."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.core.hooks.matching import lint_matcher, matcher_notes
from callboard.core.permissions import gitignore, rules
from callboard.core.permissions.effects import ScriptPart, View
from callboard.core.permissions.lint import LintFinding, WrittenRule, lint_rules, sample_of
from callboard.core.permissions.rule_check import Kind
from callboard.core.permissions.values import Arg


def said(*texts: str) -> list[tuple[str, str]]:
    """What is said of rules written as `kind RULE` or `kind@scope RULE`: each one's number and code."""
    written: list[WrittenRule] = []
    for number, text in enumerate(texts):
        kind, _, rule = text.partition(" ")
        name, _, scope = kind.partition("@")
        kinds: dict[str, Kind] = {"allow": "allow", "ask": "ask", "deny": "deny"}
        written.append(WrittenRule(rule, kinds[name], str(number), scope))
    return [(one.place, one.code) for one in lint_rules(written)]


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        ("deny Bash(git push:*)", "allow Bash(git push origin main)", "shadowed"),
        ("deny Bash", "allow Bash(ls:*)", "shadowed"),
        ("deny *", "ask Read", "shadowed"),
        ("ask Bash(git:*)", "allow Bash(git push:*)", "shadowed"),
        ("deny Bash(curl *)", "ask Bash(curl -s:*)", "shadowed"),
        ("deny Read(secret/**)", "allow Read(secret/a.txt)", "shadowed"),
        ("deny Read(*.pem)", "allow Read(keys/a.pem)", "shadowed"),
        ("deny Edit(~/work/**)", "ask Edit(~/work/x/*.py)", "shadowed"),
        ("deny mcp__memory", "allow mcp__memory__read", "shadowed"),
        ("deny mcp__*", "ask mcp__memory__get_*", "shadowed"),
        ("allow Bash(npm run:*)", "allow Bash(npm run build)", "double"),
        ("allow Bash(npm test)", "allow Bash(npm test)", "double"),
        ("allow Bash(git*)", "allow Bash(git push *)", "double"),
        ("allow Edit(/src/**)", "allow Edit(/src/a/*.py)", "double"),
        ("allow Bash(make:*)", "allow@explore Bash(make all)", "double"),
        ("deny task", "deny Agent(explore)", ""),
    ],
)
def test_what_another_rule_leaves_nothing_to_is_told(first: str, second: str, code: str) -> None:
    assert said(first, second) == ([("1", code)] if code else [])
    if code == "shadowed" or "npm run" in first:
        assert said(second, first) == [("0", code)]


@pytest.mark.parametrize(
    "pair",
    [
        ("allow Bash(git push:*)", "allow Bash(git pull:*)"),
        ("allow Bash(git push)", "allow Bash(git push:*)x"),
        ("allow Bash(git:*)", "deny Bash(git push:*)"),
        ("allow Bash(git:*)", "allow Bash(gitk)"),
        ("allow Edit(/src/*.py)", "allow Edit(/src/a/b.py)"),
        ("allow Read(/src/**)", "allow Read(/srcs/a)"),
        ("deny Read(a.txt)", "allow Read(b/**)"),
        ("allow@explore Bash(make:*)", "allow Bash(make all)"),
        ("allow@explore Bash(make:*)", "allow@worker Bash(make:*)"),
        ("allow Bash(* install)", "allow Bash(npm:*)"),
        ("deny Read(secret/**)", "allow Edit(secret/a)"),
        ("deny WebFetch(domain:a.org)", "allow WebFetch(domain:b.org)"),
    ],
)
def test_rules_that_each_have_a_say_are_left_alone(pair: tuple[str, str]) -> None:
    assert [code for _, code in said(*pair) if code in ("shadowed", "double")] == []


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("allow Foo", "no tool Foo"),
        ("allow B*", "only in deny and ask rules"),
        ("allow Write(x)", "Edit(x)"),
        ("deny Glob(src/**)", "Read(src/**)"),
        ("allow Bash(git:* push)", "at the end"),
        ("deny Bash(a && b)", "one simple command"),
        ("allow mcp__*__read", "server"),
        ("allow ((", "not a rule"),
    ],
)
def test_what_is_never_consulted_is_told_with_the_reason(rule: str, words: str) -> None:
    kind, _, text = rule.partition(" ")
    kinds: dict[str, Kind] = {"allow": "allow", "deny": "deny"}
    (found,) = lint_rules([WrittenRule(text, kinds[kind], "here")])
    assert isinstance(found, LintFinding)
    assert words in found.why


WORDS = st.sampled_from(["git", "push", "gi", "x", "-v"])
COMMANDS = st.lists(WORDS, min_size=1, max_size=4)


def _command(words: list[str], end: str) -> str:
    return " ".join(words) + end


def _path(head: str, parts: list[str]) -> str:
    return head + "/".join(parts)


SPECIFIERS = st.builds(
    _command,
    st.lists(st.sampled_from(["git", "push", "gi", "x", "*"]), min_size=1, max_size=3),
    st.sampled_from(["", ":*", " *", "*"]),
)


@settings(max_examples=80)
@given(SPECIFIERS, SPECIFIERS, st.lists(COMMANDS, min_size=1, max_size=30), st.sampled_from(["allow", "deny"]))
def test_a_covered_rule_of_commands_matches_nothing_that_the_other_does_not(
    wide: str, narrow: str, commands: list[list[str]], kind: Kind
) -> None:
    texts = (f"Bash({wide})", f"Bash({narrow})")
    told = lint_rules([WrittenRule(text, kind, str(at)) for at, text in enumerate(texts)])
    if not any(one.place == "1" and one.code == "double" for one in told):
        return
    for words in commands:
        part = ScriptPart((), (View(tuple(map(Arg, words)), for_allow=True),))
        match = [_matches(text, part, kind) for text in texts]
        assert match[0] or not match[1], words


def _matches(text: str, part: ScriptPart, kind: Kind) -> bool:
    rule = rules.parse_rule(text)
    return rules.covers(rule, part) if kind == "allow" else rules.hits(rule, part) == "yes"


NAMES = st.sampled_from(["a", "b.py", "*", "**", "*.py", "a?"])
PATTERNS = st.builds(
    _path, st.sampled_from(["", "/", "//", "~/", "./"]), st.lists(NAMES, min_size=1, max_size=3)
).filter(lambda text: text != "*")  # `Edit(*)` is `Edit`
PATHS = st.builds(
    _path,
    st.sampled_from(["/-/folder/", "/-/home/", "/"]),
    st.lists(st.sampled_from(["a", "b.py", "ab", "c"]), min_size=1, max_size=4),
)


@settings(max_examples=80)
@given(PATTERNS, PATTERNS, st.lists(PATHS, min_size=1, max_size=30), st.sampled_from(["allow", "deny"]))
def test_a_covered_rule_of_paths_names_nothing_that_the_other_does_not(
    wide: str, narrow: str, paths: list[str], kind: Kind
) -> None:
    told = lint_rules([WrittenRule(f"Edit({text})", kind, str(at)) for at, text in enumerate((wide, narrow))])
    if not any(one.place == "1" and one.code == "double" for one in told):
        return
    anchors = gitignore.Anchors("/-/folder", "/-/home")
    for path in paths:
        named = [gitignore.names_path(text, path, anchors, loose=kind == "deny") for text in (wide, narrow)]
        assert named[0] or not named[1], path


@pytest.mark.parametrize(
    ("rule", "shown"),
    [
        ("Bash(git push:*)", "git push"),
        ("Bash(make all)", "make all"),
        ("Bash(* install)", ""),
        ("Bash", ""),
        ("Edit(/src/**/*.py)", "Edit src/x/x.py"),
        ("Read(//etc/hosts)", "Read /etc/hosts"),
        ("Read(~/x)", ""),
        ("Write(x)", ""),
    ],
)
def test_the_plainest_call_that_a_rule_names(rule: str, shown: str) -> None:
    sample = sample_of(WrittenRule(rule, "allow", ""))
    assert (sample.shown if sample else "") == shown


@pytest.mark.parametrize(
    "matcher",
    [
        "",
        "*",
        "Bash",
        "Edit|Write",
        "bash, read_file",
        "mcp__a__b",
        "mcp__a__.*",
        "^(Bash|Edit)$",
        r"mcp__a\.b__.*",
        "^(?!Bash$)",
    ],
)
def test_matchers_that_say_what_they_mean_are_left_alone(matcher: str) -> None:
    assert list(lint_matcher("PreToolUse", matcher)) == []


@pytest.mark.parametrize(
    ("matcher", "words"),
    [
        ("mcp__memory", "mcp__memory__.*"),
        ("Edti", "did you mean Edit"),
        ("Bash*", "write Bash.*"),
        ("mcp__a__*", "write mcp__a__.*"),
        ("mcp__a.b__x", "any character"),
        ("^Bash|Edit$", "one alternative only"),
        ("(?!Bash)", "excludes nothing"),
        ("^(?!Task)", "TaskCreate"),
        ("Zorg.+", "never run"),
        ("(", "not a regular expression"),
    ],
)
def test_matchers_that_mean_something_else_are_told(matcher: str, words: str) -> None:
    assert any(words in one for one in lint_matcher("PreToolUse", matcher))


def test_a_matcher_where_there_is_none_and_one_that_names_no_moment() -> None:
    assert list(lint_matcher("Stop", "x")) == ["Stop has no matcher: its hooks run each time"]
    assert list(lint_matcher("SessionStart", "startup|never")) == ["'never' is not a value of SessionStart"]
    assert list(lint_matcher("Stop", "")) == list(lint_matcher("PreCompact", "auto")) == []


def test_an_exclusion_is_noted_and_is_no_fault() -> None:
    assert "every other tool" in next(matcher_notes("PreToolUse", "^(?!Bash$)"))
    assert list(matcher_notes("PreToolUse", "Bash")) == []
