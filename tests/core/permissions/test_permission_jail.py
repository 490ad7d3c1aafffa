"""Commands really run by bash, in a jail of stubs: whatever starts had been judged, or the command was not allowed."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.core.permissions.permission_jail import FILES, Jail, jail_works
from tests.core.permissions.permission_mutants import every_case, mutant, table

from callboard.adapters.shell.parser import BashParser
from callboard.adapters.shell.paths import PathJudge
from callboard.core.permissions.effects import Analysis, CallFacts
from callboard.core.permissions.facts import find_facts
from callboard.core.permissions.judge import judge_call
from callboard.core.permissions.shell_effects import analyse
from callboard.core.permissions.values import AgentPolicy, HardRules, ProposedCall

PARSER = BashParser()
SURE = frozenset("EDONHGR")
"""Letters of what was fully understood, though it asks."""
needs_jail = pytest.mark.skipif(not jail_works(), reason="no jail: bubblewrap is missing or may not unshare here")


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> PathJudge:
    root = tmp_path_factory.mktemp("seen") / "workspace"
    (root / "src").mkdir(parents=True)
    for name in FILES:
        (root / name).write_text("x")
    return PathJudge(root, home=Path("/home/me"))


@pytest.fixture(scope="module")
def jail(tmp_path_factory: pytest.TempPathFactory) -> Jail:
    words = {word for case in every_case() for word in re.findall(r"[A-Za-z][\w.+-]*", case)}
    return Jail(tmp_path_factory.mktemp("jail"), (word for word in words if len(word) < 30))


def understood(command: str, judge: PathJudge) -> Analysis | None:
    """The analysis of a command that is allowed, or asks for what it plainly does; None for the others."""
    call = ProposedCall("bash", {"command": command}, "unknown")
    facts = find_facts(call, CallFacts(root=judge.root, home=judge.home, git_quiet=True), PARSER.parse, judge.look)
    verdict = judge_call(call, AgentPolicy(), facts)
    if verdict.decision == "deny" or (verdict.decision == "ask" and verdict.rule not in SURE):
        return None
    analysis = analyse(command, facts.scripts, facts.home, HardRules())
    letters = {getattr(effect, "letter", "R") for part in analysis.parts for effect in part.effects}
    return analysis if letters <= SURE else None


def judged_names(analysis: Analysis) -> set[str]:
    words = (view.words[0].text for part in analysis.parts for view in part.views if view.words)
    return {word.rpartition("/")[2] for word in words}


def sample(draw: random.Random, count: int, judge: PathJudge) -> list[tuple[str, set[str]]]:
    """Commands to run, each with the names it was judged by. One that may never end is none of them."""
    cases, chosen = [*table("allow"), *table("ask")], list[tuple[str, set[str]]]()
    while len(chosen) < count:
        command = draw.choice(cases) if draw.random() < 0.3 else mutant(draw, cases)
        if re.search(r"\b(?:while|until)\b", command):
            continue
        analysis = understood(command, judge)
        if analysis is not None:
            chosen.append((command, judged_names(analysis)))
    return chosen


def unjudged(jail: Jail, chosen: Sequence[tuple[str, set[str]]]) -> list[tuple[str, set[str]]]:
    started = jail.started([command for command, _ in chosen])
    assert sum(map(len, started)) > len(chosen) / 2, "hardly anything ran: the jail is broken"
    return [(c, ran - judged) for (c, judged), ran in zip(chosen, started, strict=True) if not ran <= judged]


@needs_jail
def test_whatever_bash_starts_had_been_judged(jail: Jail, judge: PathJudge) -> None:
    assert unjudged(jail, sample(random.Random(7), 200, judge)) == []


@needs_jail
def test_every_allowed_case_starts_what_it_was_judged_by(jail: Jail, judge: PathJudge) -> None:
    draw = random.Random(8)
    cases = [case for case in draw.sample(table("allow"), 150) if not re.search(r"\bwhile\b", case)]
    chosen = [(case, judged_names(found)) for case in cases if (found := understood(case, judge))]
    assert len(chosen) > 100
    assert unjudged(jail, chosen) == []


@needs_jail
def test_the_jail_finds_what_a_shell_starts(jail: Jail) -> None:
    commands = [
        "ls; rm x",
        "sh -c 'rm x'",
        "echo $(cat x)",
        "./x.sh",
        "env nice rm x",
        "sh -c '[[ x || ./evil.sh ]]'",
        ":",
    ]
    ran = [{"ls", "rm"}, {"sh", "rm"}, {"cat"}, {"x.sh"}, {"env", "nice", "rm"}, {"sh", "evil.sh"}, set[str]()]
    assert jail.started(commands) == ran


@needs_jail
@pytest.mark.soak
def test_whatever_bash_starts_had_been_judged_soak(jail: Jail, judge: PathJudge, soak: int) -> None:
    for seed in range(10 * soak):
        assert unjudged(jail, sample(random.Random(1_000 + seed), 200, judge)) == []
