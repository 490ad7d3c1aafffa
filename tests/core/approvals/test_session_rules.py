"""What "always" proposes, makes and holds for: the narrowest rules, made by a person, in their time alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters.shell.parser import BashParser
from callboard.adapters.shell.paths import PathJudge
from callboard.core.approvals.requests import AnswerRefusal, open_request
from callboard.core.approvals.session_rules import (
    AlwaysAllow,
    active_overrides,
    created_rules,
    end_state,
    offered_rules,
    settling_rules,
)
from callboard.core.permissions.claude_updates import rules_of, suggestions_of
from callboard.core.permissions.effects import CallFacts
from callboard.core.permissions.facts import find_facts
from callboard.core.permissions.judge import judge_call
from callboard.core.permissions.rules import parse_rule
from callboard.core.permissions.suggest_rules import MOST_RULES, propose, with_overrides
from callboard.core.permissions.values import AgentPolicy, AllowOverride, ProposedCall
from callboard.types.records import Cause, Request, SessionRule

CASES = Path(__file__).parents[1] / "permissions" / "permission_cases"
PARSER = BashParser()
NONE = AgentPolicy()


def commands(decision: str) -> list[str]:
    return [line for line in (CASES / f"{decision}.txt").read_text().split("\n") if line]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> PathJudge:
    root = tmp_path_factory.mktemp("case") / "workspace"
    (root / "src").mkdir(parents=True)
    (root / "src/a.py").write_text("print()\n")
    (root / "README.md").write_text("hello\n")
    (root / ".env").write_text("KEY=1\n")
    (root.parent / "state").mkdir()
    return PathJudge(root, own=[root.parent / "state"], home=Path("/home/me"))


def found(call: ProposedCall, paths: PathJudge) -> CallFacts:
    start = CallFacts(root=paths.root, home=paths.home, git_quiet=paths.git_quiet)
    return find_facts(call, start, PARSER.parse, paths.look)


def bash(command: str) -> ProposedCall:
    return ProposedCall("bash", {"command": command}, "unknown")


def with_rules(*texts: str, mode: str = "default") -> AgentPolicy:
    return AgentPolicy(mode, allow=tuple(parse_rule(text) for text in texts))


@pytest.mark.parametrize(
    ("command", "rules"),
    [
        ("npm test -- --watch", ("Bash(npm test:*)",)),
        ("npm run build --if-present", ("Bash(npm run build:*)",)),
        ("timeout 60 pytest -q tests", ("Bash(pytest:*)",)),
        ("make lint", ("Bash(make lint)",)),
        ("cd src && make test", ("Bash(make test)",)),
        ("npm run build && cargo test -p x | tail -3", ("Bash(npm run build:*)", "Bash(cargo test:*)")),
        ("git commit -m 'a b'", ("Bash(git commit:*)",)),
        ("mkdir -p src/new", ("Bash(mkdir -p src/new)",)),
        ("make a && make b && make c && make d && make e", tuple(f"Bash(make {x})" for x in "abcde")),
        ("make a && make b && make c && make d && make e && make f", ()),
        ("ls src", ()),
        ("rm -rf build", ()),
        ("sudo make", ()),
        ("git push --force", ()),
        ("git push origin main", ()),
        ("git -C .. commit -m x", ()),
        ("python3 x.py", ()),
        ("python3.11 -m pytest", ()),
        ("bash run.sh", ()),
        ("npx tsc", ()),
        ("env npm test", ()),
        ("FOO=1 npm test", ()),
        ("npm test $X", ()),
        ("npm test > out.txt", ()),
        ("ls $(npm test)", ()),
        ("npm test && rm x", ()),
        ("cat .env", ()),
        ("printenv", ()),
        ("curl http://localhost/", ()),
        ("find . -delete", ()),
        ("npm run 'a b'", ()),
        ("./tool *.py", ()),
    ],
)
def test_always_proposes_the_narrowest_rule_or_none(command: str, rules: tuple[str, ...], paths: PathJudge) -> None:
    assert propose(bash(command), NONE, found(bash(command), paths)) == rules


@pytest.mark.parametrize(
    ("tool", "path", "rules"),
    [
        ("edit_file", "src/a.py", ("Edit(/src/**)",)),
        ("write_file", "src/deep/new.py", ("Edit(/src/deep/**)",)),
        ("write_file", "new.py", ("Edit(/new.py)",)),
        ("read_file", "/etc/hostname", ("Read(//etc/hostname)",)),
        ("read_file", ".env", ()),
        ("write_file", "/etc/hosts", ()),
        ("write_file", ".git/config", ()),
        ("write_file", ".callboard/settings.yaml", ()),
        ("write_file", "src/[a].py", ()),
        ("read_file", "README.md", ()),
    ],
)
def test_always_proposes_the_folder_of_a_file(tool: str, path: str, rules: tuple[str, ...], paths: PathJudge) -> None:
    call = ProposedCall(tool, {"path": path}, "read" if tool == "read_file" else "reconcile")
    assert propose(call, NONE, found(call, paths)) == rules


def test_always_proposes_the_name_of_any_other_tool_and_nothing_where_a_person_has_to_answer() -> None:
    assert propose(ProposedCall("deploy", {}, "unknown"), NONE, CallFacts()) == ("deploy",)
    assert propose(ProposedCall("mcp__shop__buy", {}, "unknown"), NONE, CallFacts()) == ("mcp__shop__buy",)
    assert propose(ProposedCall("mcp__shop__buy", {}, "unknown"), NONE, CallFacts(person_only=True)) == ()


every_nth = pytest.mark.parametrize("nth", [5, pytest.param(1, marks=pytest.mark.soak)])
"""Of the commands of a table, every fifth; `make soak` takes them all."""


@pytest.mark.slow
@every_nth
def test_what_is_proposed_lifts_the_question_and_every_rule_of_it_is_needed(paths: PathJudge, nth: int) -> None:
    proposed = 0
    for command in commands("ask")[::nth]:
        call = bash(command)
        facts = found(call, paths)
        texts = propose(call, NONE, facts)
        proposed += bool(texts)
        assert len(texts) <= MOST_RULES
        assert not texts or judge_call(call, with_rules(*texts), facts).decision == "allow"
        for left_out in texts:
            others = [text for text in texts if text != left_out]
            assert judge_call(call, with_rules(*others), facts).decision != "allow", (command, left_out)
    assert proposed > 10


@pytest.mark.slow
@every_nth
def test_whatever_was_allowed_for_always_no_denied_command_runs_and_the_floor_still_asks(
    paths: PathJudge, nth: int
) -> None:
    calls = [bash(command) for command in commands("ask")[::nth]]
    every = {text for call in calls for text in propose(call, NONE, found(call, paths))}
    every |= {"Bash(npm test:*)", "Bash(git add:*)", "Bash(pytest:*)", "Edit(/src/**)"}
    policy = with_rules(*sorted(every))
    for command in commands("deny")[::nth]:
        assert judge_call(bash(command), policy, found(bash(command), paths)).decision != "allow", command
    for command in ("rm x", "chmod 777 x", "npm test; rm x", "npm test > /etc/x", "npm test $(rm x)", "echo x > .env"):
        assert judge_call(bash(command), policy, found(bash(command), paths)).decision == "ask", command


@pytest.mark.parametrize(
    "policy", [AgentPolicy(deny=(parse_rule("Bash(npm:*)"),)), AgentPolicy(ask=(parse_rule("Bash(npm *)"),))]
)
def test_a_session_rule_lifts_no_deny_rule_and_no_ask_rule(policy: AgentPolicy, paths: PathJudge) -> None:
    call = bash("npm test")
    facts = found(call, paths)
    verdict = judge_call(call, policy, facts)
    assert (
        with_overrides(
            call,
            policy,
            facts,
            verdict=verdict,
            overrides=[AllowOverride("Bash(npm test:*)", "x"), AllowOverride("Bash", "y")],
        )
        == verdict
    )
    assert propose(call, policy, facts) == ()


def test_a_verdict_names_the_session_rules_that_it_takes_and_no_others(paths: PathJudge) -> None:
    call = bash("npm test && make x")
    facts = found(call, paths)
    texts = ("Bash(make y)", "Bash(npm test:*)", "Edit(/src/**)", "Bash(make x)", "Bash(make:*)")
    overrides = [AllowOverride(text, f"session rule {text}") for text in texts]
    verdict = with_overrides(call, NONE, facts, verdict=judge_call(call, NONE, facts), overrides=overrides)
    assert verdict.decision == "allow"
    assert verdict.rule == "session rule Bash(npm test:*), session rule Bash(make x)"


def test_a_mode_that_asks_nobody_heeds_them_and_plan_mode_does_not(paths: PathJudge) -> None:
    call = bash("npm test")
    facts = found(call, paths)
    for mode, decision in (("dontAsk", "allow"), ("plan", "deny")):
        policy = with_rules(mode=mode)
        verdict = with_overrides(
            call,
            policy,
            facts,
            verdict=judge_call(call, policy, facts),
            overrides=[AllowOverride("Bash(npm test:*)", "x")],
        )
        assert verdict.decision == decision


# Making and holding


def permission(always: object = ("Bash(npm test:*)",), **changed: object) -> Request:
    fields = {"id": "req_1", "kind": "permission", "asked_by": "alice", "incarnation": 2, **changed}
    return open_request(Request(payload={"tool": "bash", "always": always}, **fields))


def rule(**changed: object) -> SessionRule:
    return SessionRule(**{"id": "rule_1", "rule": "Bash(npm test:*)", **changed})


def test_a_person_makes_what_the_question_named_and_nobody_else_makes_anything() -> None:
    rules = created_rules(permission(), AlwaysAllow(3_600, agent_only=True), "person", 100.0)
    assert not isinstance(rules, AnswerRefusal)
    assert [(one.rule, one.agent, one.incarnation, one.expires_at) for one in rules] == [
        ("Bash(npm test:*)", "alice", 2, 3_700.0)
    ]
    everyone = created_rules(permission(), AlwaysAllow(), "person", 100.0)
    assert not isinstance(everyone, AnswerRefusal)
    assert (everyone[0].agent, everyone[0].expires_at) == ("", None)
    for by in ("policy", "lead", "alice", "runtime"):
        assert isinstance(created_rules(permission(), AlwaysAllow(), by, 100.0), AnswerRefusal)


@pytest.mark.parametrize(
    "request_",
    [
        permission(()),
        permission(None),
        permission("Bash"),
        permission([1, "(("]),
        permission(person_only=True),
        permission(kind="plan"),
    ],
)
def test_what_the_question_did_not_offer_is_not_made(request_: Request) -> None:
    assert offered_rules(request_) == ()
    assert isinstance(created_rules(request_, AlwaysAllow(), "person", 100.0), AnswerRefusal)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_a_time_that_is_none_makes_nothing(seconds: float) -> None:
    assert isinstance(created_rules(permission(), AlwaysAllow(seconds), "person", 100.0), AnswerRefusal)


@pytest.mark.parametrize("authority", ["person", "lead", "teammate", "schedule", "tool"])
def test_a_turn_of_a_schedule_never_has_what_a_person_allowed_for_always(authority: Cause) -> None:
    held = active_overrides([rule()], "alice", 1, authority=authority, now=100.0)
    assert bool(held) is (authority in ("person", "lead", "teammate"))


@given(now=st.floats(0, 1_000), expires=st.none() | st.floats(0, 1_000), revoked=st.none() | st.floats(0, 1_000))
def test_a_rule_holds_until_its_time_and_never_after_it_was_taken_back(
    now: float, expires: float | None, revoked: float | None
) -> None:
    one = rule(expires_at=expires, revoked_at=revoked)
    stands = revoked is None and (expires is None or now < expires)
    assert (end_state(one, now) == "") is stands
    assert bool(active_overrides([one], "alice", 1, authority="person", now=now)) is stands


def test_a_rule_for_one_agent_is_for_that_life_of_it_alone() -> None:
    bound = rule(agent="alice", incarnation=2)
    lives = [("alice", 2), ("alice", 3), ("bob", 2), ("lead", 1)]
    assert [bool(active_overrides([bound], name, life, authority="person", now=1.0)) for name, life in lives] == [
        True,
        False,
        False,
        False,
    ]
    assert all(active_overrides([rule()], name, life, authority="person", now=1.0) for name, life in lives)
    assert active_overrides([rule(rule="((")], "alice", 1, authority="person", now=1.0) == ()


def test_what_waits_is_settled_by_rules_that_cover_all_of_it() -> None:
    both = permission(["Bash(npm test:*)", "Bash(make x)"])
    assert settling_rules(both, [rule()], 1.0) == ""
    assert settling_rules(both, [rule(), rule(id="rule_2", rule="Bash(make x)")], 1.0) == (
        "session rule Bash(npm test:*), session rule Bash(make x)"
    )
    assert settling_rules(permission(cause="schedule"), [rule()], 1.0) == ""
    assert settling_rules(permission(status="approved"), [rule()], 1.0) == ""
    assert settling_rules(replace_payload(permission()), [rule()], 1.0) == ""


def replace_payload(request: Request) -> Request:
    return request.model_copy(update={"payload": {"tool": "bash"}})


# The compatible format


def test_suggestions_and_updates_are_turned_into_each_other() -> None:
    rules = ("Bash(npm test:*)", "Edit(/src/**)", "mcp__shop__list")
    (update,) = suggestions_of(rules)
    assert update == {
        "type": "addRules",
        "rules": [
            {"toolName": "Bash", "ruleContent": "npm test:*"},
            {"toolName": "Edit", "ruleContent": "/src/**"},
            {"toolName": "mcp__shop__list"},
        ],
        "behavior": "allow",
        "destination": "session",
    }
    assert rules_of([update]) == (rules, ())
    assert suggestions_of(()) == ()


@pytest.mark.parametrize(
    "update",
    [
        {"type": "addRules", "rules": [{"toolName": "Bash"}], "behavior": "allow", "destination": "userSettings"},
        {"type": "addRules", "rules": [{"toolName": "Bash"}], "behavior": "deny", "destination": "session"},
        {"type": "addRules", "rules": [{"ruleContent": "x"}], "behavior": "allow", "destination": "session"},
        {"type": "addRules", "rules": [{"toolName": "(("}], "behavior": "allow", "destination": "session"},
        {"type": "setMode", "mode": "bypassPermissions", "destination": "session"},
        "text",
        None,
    ],
)
def test_an_update_that_is_not_taken_is_named(update: object) -> None:
    taken, left = rules_of([update])
    assert taken == ()
    assert left
    assert rules_of(update if isinstance(update, str) else None)[0] == ()


def test_the_policy_of_a_table_is_not_changed_by_asking(paths: PathJudge) -> None:
    policy = with_rules("Bash(make x)")
    call = bash("make x && make y")
    assert propose(call, policy, found(call, paths)) == ("Bash(make y)",)
    assert policy == replace(policy)
