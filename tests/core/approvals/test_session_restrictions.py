"""Session rules that ask or deny: which calls they apply to, how they are stored, and what a client may change."""

from __future__ import annotations

import json

import pytest
from pydantic import ConfigDict

from callboard.core.approvals.session_rules import active_overrides, restrictions, settling_rules
from callboard.core.decoding import read_value
from callboard.core.permissions.claude_updates import RuleChange, client_changes
from callboard.types.agent_spec import PermissionRules
from callboard.types.errors import SessionUnreadable
from callboard.types.records import Request, SessionRule, Value

DENY = SessionRule(id="rule_1", rule="Bash(rm:*)", effect="deny")
ASK = SessionRule(id="rule_2", rule="WebFetch", effect="ask")


class OldSessionRule(Value):
    """The row as versions read it that knew only allow rules."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    id: str
    rule: str
    agent: str = ""
    revoked_at: float | None = None


def test_a_rule_that_denies_never_allows() -> None:
    assert active_overrides([DENY, ASK], "lead", 1, authority="person", now=1.0) == ()
    assert restrictions([DENY, ASK], "lead", 1, now=1.0) == PermissionRules(ask=("WebFetch",), deny=("Bash(rm:*)",))
    request = Request(id="req_1", kind="permission", asked_by="lead", incarnation=1, payload={"always": ["Bash(rm:*)"]})
    assert settling_rules(request, [DENY], 1.0) == ""


def test_a_restriction_ends_like_every_session_rule_and_may_have_one_agent() -> None:
    ended = [
        DENY.model_copy(update={"revoked_at": 1.0}),
        DENY.model_copy(update={"expires_at": 1.0}),
        DENY.model_copy(update={"agent": "alice"}),
        DENY.model_copy(update={"incarnation": 2}),
    ]
    assert restrictions(ended, "lead", 1, now=2.0) == PermissionRules()
    assert restrictions(ended, "alice", 1, now=2.0).deny == ("Bash(rm:*)",)


@pytest.mark.parametrize("rule", [DENY, ASK])
def test_an_older_version_refuses_a_session_with_a_restriction(rule: SessionRule) -> None:
    stored = rule.encode()
    with pytest.raises(
        SessionUnreadable, match="newer Callboard: the row of rule rule_1 has the field 'rule'"
    ) as error:
        read_value(OldSessionRule, stored, "s/ses_1/rule/rule_1")
    assert error.value.newer
    assert read_value(SessionRule, stored, "s/ses_1/rule/rule_1") == rule


def test_an_older_version_reads_an_allow_rule() -> None:
    allow = SessionRule(id="rule_1", rule="Bash(ls:*)")
    assert read_value(OldSessionRule, allow.encode(), "s/ses_1/rule/rule_1").rule == "Bash(ls:*)"


@pytest.mark.parametrize(
    "changed", [{"effect": "forbid"}, {"rule": {}}, {"rule": {"text": 1}}, {"effect": "allow"}, {"effect": None}]
)
def test_a_row_in_another_form_is_refused_and_allows_nothing(changed: dict[str, object]) -> None:
    data = {**json.loads(DENY.encode()), **changed}
    with pytest.raises(SessionUnreadable):
        read_value(SessionRule, json.dumps(data).encode(), "s/ses_1/rule/rule_1")


def update(kind: str, behavior: str = "deny", **more: object) -> dict[str, object]:
    rules = [{"toolName": "Bash", "ruleContent": "rm:*"}, {"toolName": "WebFetch"}]
    return {"type": kind, "behavior": behavior, "rules": rules, "destination": "session", **more}


@pytest.mark.parametrize("behavior", ["allow", "ask", "deny"])
@pytest.mark.parametrize(
    ("kind", "change"), [("addRules", "add"), ("replaceRules", "replace"), ("removeRules", "remove")]
)
def test_a_client_changes_rules_of_every_effect(kind: str, change: str, behavior: str) -> None:
    changes = client_changes([update(kind, behavior)])
    assert changes.rules == (RuleChange(change, behavior, ("Bash(rm:*)", "WebFetch")),)
    assert changes.ignored == ()
    assert bool(changes.allowed) == (behavior == "allow" and change != "remove")


def test_a_client_adds_and_removes_folders_and_is_told_what_is_ignored() -> None:
    changes = client_changes(
        [
            {"type": "addDirectories", "directories": ["/data/", "here"], "destination": "session"},
            {"type": "removeDirectories", "directories": ["/data"], "destination": "userSettings"},
            {"type": "setMode", "mode": "acceptEdits", "destination": "session"},
            update("addRules", "forbid"),
            update("addRules", rules=[{"toolName": 1}, {"toolName": "Bash", "ruleContent": "("}]),
        ]
    )
    assert [(change.kind, change.effect, change.rules) for change in changes.rules] == [
        ("add", "allow", ("Read(//data/**)",)),
        ("remove", "allow", ("Read(//data/**)",)),
        ("add", "deny", ("Bash(()",)),
    ]
    assert changes.mode == "acceptEdits"
    assert changes.ignored == (
        "the directory here: it is not absolute",
        "the destination userSettings: the change lasts as long as the session",
        "an update addRules forbid",
        "a rule without a toolName, or that cannot be read",
    )
