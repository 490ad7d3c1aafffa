"""Modes are an order of rights, a child and a scheduled turn stay within it, and `sandboxed` needs its sandbox."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import get_args

import pytest

from callboard.adapters.shell.parser import BashParser
from callboard.adapters.shell.paths import PathJudge
from callboard.core.permissions.effects import CallFacts
from callboard.core.permissions.facts import find_facts
from callboard.core.permissions.judge import judge_call
from callboard.core.permissions.modes import inherit_rules, of_turn, within
from callboard.core.permissions.rules import parse_rule
from callboard.core.permissions.values import AgentPolicy, EffectClass, Mode, ProposedCall, Verdict
from callboard.types.agent_spec import PermissionRules
from callboard.types.records import Cause

MODES: tuple[Mode, ...] = get_args(Mode)
PARSER = BashParser()
# fmt: off
WITHIN = """
parent              plan  dontAsk  default  acceptEdits  sandboxed  bypassPermissions
plan                plan  plan     plan     plan         plan       plan
dontAsk             plan  dontAsk  dontAsk  dontAsk      dontAsk    dontAsk
default             plan  dontAsk  default  default      default    default
acceptEdits         plan  dontAsk  default  acceptEdits  default    acceptEdits
sandboxed           plan  dontAsk  default  default      sandboxed  sandboxed
bypassPermissions   plan  dontAsk  default  acceptEdits  sandboxed  bypassPermissions
"""
# fmt: on
"""The mode of a child, by its parent's and that of its own type."""
_LINES = [line.split() for line in WITHIN.strip().splitlines()]
TABLE = {(line[0], own): mode for line in _LINES[1:] for own, mode in zip(_LINES[0][1:], line[1:], strict=True)}


def test_the_table_has_every_pair_of_modes() -> None:
    assert set(TABLE) == set(product(MODES, MODES))


@pytest.mark.parametrize(("parent", "own"), list(product(MODES, MODES)))
def test_a_child_has_no_more_than_its_parent_and_no_more_than_its_type(parent: Mode, own: Mode) -> None:
    assert within(parent, own) == TABLE[parent, own]
    assert within(parent, None) == parent


@pytest.mark.parametrize("own", MODES)
def test_a_scheduled_turn_has_neither_full_power_nor_none(own: Mode) -> None:
    assert of_turn(own, None, "schedule") == ("sandboxed" if own == "bypassPermissions" else own)
    for profile in MODES:
        assert of_turn(own, profile, "schedule") == within(own, profile)
    for authority in ("person", "lead", "teammate", "tool"):
        assert of_turn(own, "plan", authority) == own


def test_denials_and_asks_come_down_to_a_child_and_allowances_do_not() -> None:
    parent = PermissionRules(allow=("Bash(make)",), ask=("Bash(git push:*)",), deny=("Read(secret/**)",))
    own = PermissionRules(allow=("Bash(npm test)",), deny=("WebFetch", "Read(secret/**)"))
    assert inherit_rules(parent, own) == PermissionRules(
        allow=("Bash(npm test)",), ask=("Bash(git push:*)",), deny=("Read(secret/**)", "WebFetch")
    )


def judged(
    root: Path,
    tool: str,
    given: dict[str, object],
    policy: AgentPolicy,
    level: int = 0,
    *,
    effect: EffectClass = "unknown",
    cause: Cause = "person",
) -> Verdict:
    judge = PathJudge(root, home=Path("/home/me"))
    start = CallFacts(root=judge.root, home=judge.home, git_quiet=True, sandbox=level)
    call = ProposedCall(tool, given, effect, cause)
    return judge_call(call, policy, find_facts(call, start, PARSER.parse, judge.look))


def shell(root: Path, command: str, policy: AgentPolicy, level: int = 0) -> Verdict:
    return judged(root, "bash", {"command": command}, policy, level)


SANDBOXED = AgentPolicy("sandboxed")


@pytest.mark.parametrize(
    ("command", "decision"),
    [
        ("make", "allow"),
        ("python3 -c 'print(1)'", "allow"),
        ("npm test > out.txt", "allow"),
        ("truncate -s 0 src/a", "allow"),
        ("git commit -am x", "allow"),
        ("PATH=/x make", "allow"),
        ("chmod +x run.sh", "allow"),
        ("curl https://example.com", "ask"),
        ("make && curl https://example.com", "ask"),
        ("pip install x | tee log", "allow"),
        ("cat /etc/passwd", "ask"),
        ("cat .env", "ask"),
        ("python3 x.py > ../outside", "ask"),
        ("echo x > .git/hooks/pre-commit", "ask"),
        ("kill 1", "ask"),
        ("rm -r build", "ask"),
        ("$X", "ask"),
        ("eval $(cat x)", "ask"),
        ("make \u202e", "ask"),
        ("sudo make", "deny"),
        ("rm -rf /", "deny"),
        ("make; echo x > .callboard/settings.yaml", "deny"),
    ],
)
def test_what_stays_inside_a_sandbox_of_level_two_runs_unasked(command: str, decision: str, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("x")
    for level in (2, 3):
        assert shell(tmp_path, command, SANDBOXED, level).decision == decision
    for level in (0, 1):
        below, plain = shell(tmp_path, command, SANDBOXED, level), shell(tmp_path, command, AgentPolicy(), level)
        assert below.decision == plain.decision
        assert below.rule == plain.rule
    if decision == "allow":
        assert "level 1, and the mode sandboxed needs 2" in shell(tmp_path, command, SANDBOXED, 1).why


def test_in_a_sandbox_rules_hold_as_everywhere(tmp_path: Path) -> None:
    rules = AgentPolicy(
        "sandboxed",
        allow=(parse_rule("Bash(curl:*)"),),
        ask=(parse_rule("Bash(npm publish:*)"),),
        deny=(parse_rule("Bash(make:*)"),),
    )
    assert shell(tmp_path, "curl https://example.com", rules, 2).decision == "allow"
    assert shell(tmp_path, "npm publish", rules, 2).decision == "ask"
    assert shell(tmp_path, "nice make all", rules, 2).decision == "deny"
    assert shell(tmp_path, "npm test", rules, 2).decision == "allow"


def test_in_a_sandbox_files_of_the_workspace_are_written_and_no_other_tool_runs_unasked(tmp_path: Path) -> None:
    def of(path: str, level: int) -> str:
        return judged(tmp_path, "write_file", {"path": path, "content": ""}, SANDBOXED, level, effect="reconcile").rule

    assert of("src/a.py", 2) == "mode sandboxed"
    assert of("src/a.py", 1) == "E"
    assert of("../a.py", 2) == "O"
    assert of(".mcp.json", 2) == "H"
    assert of(".callboard/settings.yaml", 3) == "K"
    assert judged(tmp_path, "mcp__db__drop", {}, SANDBOXED, 3).rule == "F"
    assert judged(tmp_path, "custom", {}, SANDBOXED, 3).rule == "X"
    late = judged(tmp_path, "schedule_cron", {"cron": "@daily"}, SANDBOXED, 3, effect="store", cause="schedule")
    assert (late.decision, late.rule) == ("ask", "T")
