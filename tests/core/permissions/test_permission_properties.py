"""Laws of the rules, whatever they are: denials only ever add, their order is nothing, and modes are an order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.adapters.shell.parser import BashParser
from callboard.adapters.shell.paths import PathJudge
from callboard.core.permissions.effects import CallFacts
from callboard.core.permissions.facts import find_facts
from callboard.core.permissions.grants import grants_of
from callboard.core.permissions.judge import judge_call
from callboard.core.permissions.modes import within
from callboard.core.permissions.rules import parse_rule
from callboard.core.permissions.values import AgentPolicy, HardRules, Mode, ProposedCall, Rule, Verdict

PARSER = BashParser()
STRICT = {"allow": 0, "ask": 1, "deny": 2}
MODES: tuple[Mode, ...] = get_args(Mode)
# fmt: off
COMMANDS = (
    "ls", "cat src/a.py", "cat .env", "cat /etc/passwd", "npm test", "npm test && git push", "git status",
    "git push -f", "rm -rf build", "rm -rf /", "sudo ls", "curl https://example.com", "echo x > src/a.py",
    "echo x > .git/config", "$X y", "X=1 make", "cd src && cat a.py", "find . -delete", "timeout 5 npm test",
    "env npm test", "grep -r x .", "(((", "make", "echo x > .callboard/settings.yaml",
)
RULES = (
    "Bash", "Bash(npm test)", "Bash(npm:*)", "Bash(git push:*)", "Bash(git * -f)", "Bash(cat *)", "Bash(* x)",
    "Bash(ls*)", "Bash(curl:*)", "Bash(rm:*)", "Bash(sudo:*)", "Bash(make)", "Bash(find:*)", "Read(src/**)",
    "Read(.env)", "Read(//etc/**)", "Edit(src/**)", "Edit", "Read", "Edit(.callboard/**)", "Cd(src)",
    "Cd(//opt)", "Write", "Write(src/**)", "*", "mcp__*", "mcp__db__*", "mcp__db", "custom", "Agent(explore)",
    "Task", "Bash(run_in_background:true)",
)
# fmt: on
OTHERS = (
    ProposedCall("read_file", {"path": "src/a.py"}, "read"),
    ProposedCall("read_file", {"path": ".env"}, "read"),
    ProposedCall("read_file", {"path": "/etc/hosts"}, "read"),
    ProposedCall("write_file", {"path": "src/a.py"}, "reconcile"),
    ProposedCall("write_file", {"path": ".callboard/settings.yaml"}, "reconcile"),
    ProposedCall("edit_file", {"path": ".mcp.json"}, "reconcile"),
    ProposedCall("grep", {"pattern": "x"}, "read"),
    ProposedCall("mcp__db__query", {}, "read"),
    ProposedCall("mcp__db__drop", {}, "unknown"),
    ProposedCall("custom", {}, "unknown"),
    ProposedCall("task", {"agent_type": "explore"}, "attach"),
    ProposedCall("schedule_cron", {}, "store", "teammate"),
    ProposedCall("remove_worktree", {"discard_changes": True}, "unknown"),
)
CALLS = (*(ProposedCall("bash", {"command": command}, "unknown") for command in COMMANDS), *OTHERS)


class World:
    """Each call's facts, looked up once: the laws are about rules."""

    def __init__(self, root: Path) -> None:
        (root / "src").mkdir()
        for name in ("src/a.py", ".env"):
            (root / name).write_text("x")
        judge = PathJudge(root, home=Path("/home/me"))
        start = CallFacts(root=judge.root, home=judge.home, git_quiet=True)
        self.facts = [find_facts(call, start, PARSER.parse, judge.look) for call in CALLS]

    def verdict(self, at: int, policy: AgentPolicy, level: int = 0) -> Verdict:
        return judge_call(CALLS[at], policy, replace(self.facts[at], sandbox=level))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("w"))


def _rules(texts: Sequence[str]) -> tuple[Rule, ...]:
    return tuple(parse_rule(text) for text in texts)


lists = st.lists(st.sampled_from(RULES), max_size=4).map(_rules)
policies = st.builds(AgentPolicy, mode=st.sampled_from(MODES), allow=lists, ask=lists, deny=lists)
calls = st.integers(0, len(CALLS) - 1)
levels = st.sampled_from((0, 2))
more = st.sampled_from(RULES).map(parse_rule)


def _adding(world: World, at: int, policy: AgentPolicy, level: int, rule: Rule) -> None:
    before = world.verdict(at, policy, level)
    denied = world.verdict(at, replace(policy, deny=(*policy.deny, rule)), level)
    asked = world.verdict(at, replace(policy, ask=(*policy.ask, rule)), level)
    assert STRICT[denied.decision] >= STRICT[before.decision]
    assert STRICT[asked.decision] >= STRICT[before.decision]
    if rule.tool != "Cd":  # the first of these is a list: what it does not name asks
        allowed = world.verdict(at, replace(policy, allow=(*policy.allow, rule)), level)
        assert STRICT[allowed.decision] <= STRICT[before.decision]
        held = before.rule in ("S", "K", "T", "F") or before.why in ("a deny rule matches", "an ask rule matches")
        overrides = before.rule == "F" and CALLS[at].name.startswith("mcp__db") and rule.tool.startswith("mcp__db")
        assert (
            not held or overrides or allowed == before
        )  # a rule that names a server lifts its question: decision 0020


@given(calls, policies, levels, more)
@settings(max_examples=150)
def test_a_deny_or_ask_rule_never_allows_more_and_an_allow_rule_never_lifts_what_holds(
    world: World, at: int, policy: AgentPolicy, level: int, rule: Rule
) -> None:
    _adding(world, at, policy, level, rule)


@pytest.mark.soak
@given(calls, policies, levels, more)
@settings(max_examples=20_000)
def test_no_rule_allows_more_by_denying_at_length(
    world: World, at: int, policy: AgentPolicy, level: int, rule: Rule
) -> None:
    _adding(world, at, policy, level, rule)


@given(calls, policies, st.randoms(use_true_random=False))
@settings(max_examples=80)
def test_the_order_of_rules_and_of_their_scopes_does_not_matter(
    world: World, at: int, policy: AgentPolicy, dice: Random
) -> None:
    def mixed(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
        return tuple(dice.sample(rules, len(rules)))

    other = replace(policy, allow=mixed(policy.allow), ask=mixed(policy.ask), deny=mixed(policy.deny))
    assert world.verdict(at, other).decision == world.verdict(at, policy).decision


@given(calls, policies, levels, st.sampled_from(MODES))
@settings(max_examples=120)
def test_a_narrower_mode_never_decides_more_freely(
    world: World, at: int, policy: AgentPolicy, level: int, parent: Mode
) -> None:
    """So a child, whose mode is within its parent's, can do nothing that its parent would be asked or refused for."""
    child = within(parent, policy.mode)
    verdicts = [world.verdict(at, replace(policy, mode=mode), level).decision for mode in (child, parent, policy.mode)]
    assert STRICT[verdicts[0]] >= max(STRICT[verdict] for verdict in verdicts[1:])


@given(calls, policies, levels)
@settings(max_examples=150)
def test_no_mode_lifts_what_holds_in_all_of_them(world: World, at: int, policy: AgentPolicy, level: int) -> None:
    plain = world.verdict(at, replace(policy, mode="default", allow=()), level)
    here = world.verdict(at, policy, level)
    if plain.rule in ("S", "K") or plain.why == "a deny rule matches":
        assert here == plain
    if plain.rule in ("F", "T") or plain.why == "an ask rule matches":
        assert here.decision != "allow"


@pytest.mark.parametrize("hard_rules", [HardRules(), HardRules(never=frozenset({"make"}), ask=frozenset({"ls"}))])
@pytest.mark.parametrize("mode", MODES)
def test_a_held_analysis_changes_no_verdict(world: World, mode: Mode, hard_rules: HardRules) -> None:
    allow, ask, deny = (_rules((text,)) for text in ("Bash(cat *)", "Bash(ls*)", "Bash(npm:*)"))
    policy = AgentPolicy(mode, allow, ask, deny, hard_rules=hard_rules)
    for call, facts in zip(CALLS, world.facts, strict=True):
        without = replace(facts, analysis=None)
        assert judge_call(call, policy, facts) == judge_call(call, policy, without), call
        assert grants_of(call, facts) == grants_of(call, without), call
