"""Every event in the compatible form: what it tells, what its matcher means, what `if` lets through, what blocks it."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest

from callboard.core.hooks.matching import (
    MATCHED,
    call_of_event,
    fits_nothing,
    read_condition,
    rule_matches,
    subjects_of,
)
from callboard.core.hooks.merge import GUARDED, HookOutcome, moment_verdict, permission_verdict, read_matcher
from callboard.core.hooks.output import http_meaning, output_meaning
from callboard.core.hooks.payloads import event_json, in_our_fields
from callboard.core.permissions.values import UnparsedScript
from callboard.types import hook_answers as hk
from callboard.types.hook_events import HookEvent
from callboard.types.records import ToolCall

MATE = hk.Caller("ses", "alice", "teammate", "coder", "default", "/w", "/t.jsonl")
CALL = ToolCall(id="c", use_id="toolu_1", name="write_file", input={"path": "a", "content": "x"})
DONE = hk.HookToolResult(({"type": "text", "text": "ok"},))

TOLD: list[tuple[HookEvent, dict[str, Any], tuple[str, ...] | None]] = [
    (hk.SessionStart("resume", "m", MATE), {"source": "resume", "model": "m"}, ("resume",)),
    (hk.SessionEnd("other", MATE), {"reason": "other"}, ("other",)),
    (hk.SubagentStart(MATE), {}, ("coder",)),
    (hk.SubagentStop(text="t", by=MATE), {"agent_transcript_path": "/t.jsonl", "stop_hook_active": False}, ("coder",)),
    (
        hk.Notification("m", "idle_prompt", by=MATE),
        {"message": "m", "notification_type": "idle_prompt"},
        ("idle_prompt",),
    ),
    (hk.Notification("m", "idle_prompt", "T", MATE), {"title": "T"}, ("idle_prompt",)),
    (hk.EnvelopeDelivered("e", "message", "bob", "hi", "r", MATE), {"sender": "bob", "content": "hi"}, ("message",)),
    (hk.Stop(text="t", blocks=1, by=MATE), {"stop_hook_active": True, "last_assistant_message": "t"}, None),
    (hk.TeammateIdle("t", by=MATE), {"teammate_name": "alice", "team_name": "ses"}, None),
    (hk.StopFailure("overloaded", "529", MATE), {"error": "overloaded", "error_details": "529"}, ("overloaded",)),
    (hk.PermissionRequest(CALL, "E", "why", by=MATE), {"tool_name": "Write"}, ("write_file", "Write")),
    (
        hk.PostToolUseFailure(CALL, "no", True, 1.5, MATE),
        {"error": "no", "is_interrupt": True, "duration_ms": 1500},
        ("write_file", "Write"),
    ),
    (hk.PostToolBatch((hk.CallDone(CALL, DONE),), MATE), {}, None),
    (
        hk.TaskCreated("t1", "s", "d", MATE),
        {"task_id": "t1", "task_subject": "s", "task_description": "d", "teammate_name": "alice"},
        None,
    ),
    (hk.TaskCompleted("t1", "s", "d", by=MATE), {"task_id": "t1", "team_name": "ses"}, None),
    (hk.PlanSubmitted("p", MATE), {"plan": "p"}, None),
    (
        hk.RequestAnswered("r", "plan", "approved", "s", "person", "ok", MATE),
        {"request_id": "r", "status": "approved"},
        ("plan",),
    ),
    (
        hk.ScheduleFired("s1", "p", 5.0, "* * * * *", MATE),
        {"schedule_id": "s1", "cron": "* * * * *", "due_at": 5.0},
        None,
    ),
    (hk.BudgetReached("lead", "tokens", 10, 9, 2, by=MATE), {"kind": "tokens", "limit": 10, "wanted": 2}, ("tokens",)),
    (hk.PreCompact("manual", "keep x", MATE), {"trigger": "manual", "custom_instructions": "keep x"}, ("manual",)),
    (hk.PostCompact("auto", "s", MATE), {"trigger": "auto", "compact_summary": "s"}, ("auto",)),
    (hk.WorktreeCreate("w", MATE), {"name": "w"}, None),
    (hk.WorktreeRemove("/p", MATE), {"worktree_path": "/p"}, None),
    (hk.CwdChanged("/a", "/b", MATE), {"old_cwd": "/a", "new_cwd": "/b"}, None),
]


@pytest.mark.parametrize(("event", "fields", "subjects"), TOLD)
def test_each_event_is_told_in_the_documented_fields(
    event: HookEvent, fields: dict[str, Any], subjects: tuple[str, ...] | None
) -> None:
    told = event_json(event)
    assert told["hook_event_name"] == type(event).__name__
    assert (told["session_id"], told["cwd"], told["agent_id"], told["agent_type"]) == ("ses", "/w", "alice", "coder")
    assert {name: told[name] for name in fields} == fields
    assert subjects_of(event) == subjects
    assert (subjects is None) == (type(event).__name__ not in MATCHED)


def test_every_event_that_there_is_is_told() -> None:
    here = {type(event).__name__ for event, _, _ in TOLD} | {"UserPromptSubmit", "PreToolUse", "PostToolUse"}
    assert here == set(hk.FITTING) == {kind.__name__ for kind in get_args(HookEvent)}


def test_an_end_says_what_goes_on() -> None:
    shell = {"id": "b1", "type": "shell", "status": "running", "description": "make", "command": "make"}
    cron = {"id": "s1", "schedule": "0 9 * * *", "recurring": True, "prompt": "report"}
    for kind in (hk.Stop, hk.SubagentStop):
        told = event_json(kind(background=(shell,), schedules=(cron,)))
        assert (told["background_tasks"], told["session_crons"]) == ([shell], [cron])


def test_what_is_not_told_of_a_question_and_what_is_of_a_batch() -> None:
    assert "tool_use_id" not in event_json(hk.PermissionRequest(CALL, by=MATE))
    (done,) = event_json(hk.PostToolBatch((hk.CallDone(CALL, DONE),), MATE))["tool_calls"]
    assert done == {
        "tool_name": "Write",
        "tool_input": {"file_path": "/w/a", "content": "x"},
        "tool_use_id": "toolu_1",
        "tool_response": "ok",
    }
    assert "teammate_name" not in event_json(hk.TaskCreated("t", "s"))
    assert event_json(hk.UserPromptSubmit("x", by=hk.Caller(agent_type="lead")))["agent_type"] == "lead"


@pytest.mark.parametrize(
    ("event", "text", "nothing"),
    [
        ("SessionStart", "startup|resume", False),
        ("SessionStart", "fork", True),
        ("SessionStart", "^re", False),
        ("Notification", "permission_prompt", False),
        ("Notification", "auth_success", True),
        ("StopFailure", "rate_limits", True),
        ("PreCompact", "automatic", True),
        ("PreToolUse", "Bashh", True),
        ("PreToolUse", "Bash", False),
        ("SubagentStop", "whoever", False),
        ("Stop", "", False),
    ],
)
def test_a_matcher_that_fits_nothing_is_known(event: str, text: str, nothing: bool) -> None:
    assert fits_nothing(event, read_matcher(text)) is nothing


def said(event: str, code: int, out: object = "", err: str = "") -> hk.HandlerResult:
    text = out if isinstance(out, str) else json.dumps(out)
    return output_meaning({"hook_event_name": event}, code, text, err)


@pytest.mark.parametrize("event", sorted(hk.FITTING))
def test_exit_code_2_is_a_block_where_there_is_one_and_is_told_elsewhere(event: str) -> None:
    result = said(event, 2, "", "why")
    fitting = hk.FITTING[event]
    assert all(isinstance(answer, fitting) for answer in result.answers)
    if event == "PermissionRequest":
        assert (result.answers, "exit code 2" in result.fault) == ((), True)
    elif hk.GoOn in fitting or hk.Deny in fitting:
        assert result.answers == ((hk.GoOn if hk.GoOn in fitting else hk.Deny)("why"),)
        assert result.blocked == "why"
    elif event in ("PostToolUse", "PostToolUseFailure"):
        assert result.answers == (hk.AddContext("why"),)
    else:
        assert (result.answers, result.notices) == ((), ("why",))


@pytest.mark.parametrize("event", sorted(hk.FITTING))
def test_what_an_event_does_not_take_is_told_and_no_fault(event: str) -> None:
    specific = {"hookEventName": event, "additionalContext": "note"}
    result = said(event, 0, {"continue": False, "stopReason": "r", "hookSpecificOutput": specific})
    assert result.fault == ""
    assert (hk.Halt("r") in result.answers) == (hk.Halt in hk.FITTING[event])
    assert any("no effect" in text for text in result.notices) == (hk.Halt not in hk.FITTING[event])
    if hk.AddContext in hk.FITTING[event]:
        assert hk.AddContext("note") in result.answers


def test_a_beginning_takes_text_and_a_worktree_no_failure() -> None:
    assert said("SessionStart", 0, "branch main\n").answers == (hk.AddContext("branch main"),)
    assert said("SubagentStart", 0, "text").answers == ()
    assert said("WorktreeCreate", 1, "", "no room").answers == (hk.Deny("exit code 1: no room"),)
    assert said("WorktreeCreate", 0, "/some/path") == hk.HandlerResult()


def decided(**decision: object) -> hk.HandlerResult:
    return said(
        "PermissionRequest", 0, {"hookSpecificOutput": {"hookEventName": "PermissionRequest", "decision": decision}}
    )


def test_a_question_is_decided_by_its_own_object() -> None:
    assert decided(behavior="allow").answers == (hk.Allow(""),)
    updated = {"command": "x"}
    assert decided(behavior="allow", updatedInput=updated).answers == (hk.Rewrite(updated), hk.Allow(""))
    assert decided(behavior="deny", message="no").answers == (hk.Deny("no"),)
    assert decided(behavior="deny", interrupt=True).answers[1:] == (hk.Halt("a hook stopped it"),)
    assert "no effect" in decided(behavior="allow", updatedPermissions=[{"type": "addRules"}]).notices[0]
    assert said("PermissionRequest", 0, "{}") == hk.HandlerResult()
    assert "behavior" in decided(behavior="maybe").fault
    event = hk.PermissionRequest(CALL, by=MATE)
    assert in_our_fields(event, (hk.Rewrite({"file_path": "/w/b", "content": "y"}),)) == (
        hk.Rewrite({"path": "/w/b", "content": "y"}),
    )
    verdict = permission_verdict(
        [HookOutcome("hook a", fault="boom"), HookOutcome("hook b", (hk.Allow("fine"),))], None
    )
    assert (verdict.decision, verdict.by, verdict.notices) == ("allow", "hook b", ("hook a failed: boom",))


@pytest.mark.parametrize("event", sorted(hk.FITTING))
def test_a_fault_blocks_what_can_be_done_later_unless_it_is_forgiven(event: str) -> None:
    for fail_open in (False, True):
        verdict = moment_verdict(event, [HookOutcome("hook a", fault="boom", fail_open=fail_open)])
        assert verdict.block == ("hook a failed: boom" if event in GUARDED and not fail_open else "")
        assert verdict.notices == ("hook a failed: boom",)
        told_to_model = hk.AddContext in hk.FITTING[event] and not fail_open
        assert verdict.context == (("hook a failed: boom",) if told_to_model else ())


def test_moments_are_blocked_by_the_first_denial_or_by_all_reasons_to_go_on() -> None:
    first, second = HookOutcome("hook a", (hk.Deny(""),)), HookOutcome("hook b", (hk.Deny("b"),))
    verdict = moment_verdict("TaskCompleted", [first, second])
    assert (verdict.block, verdict.by) == ("hook a gave no reason", "hook a")
    going = [HookOutcome("hook a", (hk.GoOn("x"),)), HookOutcome("hook b", (hk.GoOn("y"),))]
    verdict = moment_verdict("TeammateIdle", going)
    assert (verdict.block, verdict.by) == ("x\n\ny", "hook a")
    halted = moment_verdict("TeammateIdle", [*going, HookOutcome("hook c", (hk.Halt("over"),))])
    assert (halted.block, halted.halt) == ("", "over")


def test_an_address_blocks_only_by_an_object_under_2xx() -> None:
    told = {"hook_event_name": "Stop"}
    assert http_meaning(told, 200, '{"decision": "block", "reason": "r"}').answers == (hk.GoOn("r"),)
    assert "status 404" in http_meaning(told, 404, '{"decision": "block", "reason": "r"}').fault
    assert "not a JSON object" in http_meaning(told, 200, "text").fault
    assert "continue" in http_meaning(told, 200, '{"continue": 1}').fault


@pytest.mark.parametrize(
    ("rule", "tool", "given", "meant"),
    [
        ("Edit(*.ts)", "Edit", {"file_path": "/w/src/a.ts"}, True),
        ("Edit(*.ts)", "Write", {"file_path": "/w/src/a.ts"}, True),
        ("Edit(*.ts)", "Edit", {"file_path": "/w/src/a.py"}, False),
        ("Edit(src/**)", "Edit", {"file_path": "/w/src/a.py"}, True),
        ("Edit(src/**)", "Edit", {"file_path": "/elsewhere/src/a.py"}, False),
        ("Edit(*.ts)", "Read", {"file_path": "/w/a.ts"}, False),
        ("Edit(*.ts)", "Edit", {"file_path": 3}, True),
        ("Write", "Write", {"file_path": "/w/x"}, True),
        ("Agent(explore)", "Agent", {"subagent_type": "explore", "prompt": ""}, True),
        ("Agent(explore)", "Agent", {"subagent_type": "plan", "prompt": ""}, False),
        ("mcp__github__*", "mcp__github__merge", {}, True),
        ("mcp__github__*", "Bash", {"command": "ls"}, False),
        ("Bash(git *)", "Bash", {"command": 3}, True),
    ],
)
def test_if_names_calls_as_permission_rules_do(rule: str, tool: str, given: dict[str, Any], meant: bool) -> None:
    call = call_of_event({"tool_name": tool, "tool_input": given, "cwd": "/w"})
    assert call is not None
    assert rule_matches(read_condition(rule), call, {}, root="/w", home="/home/p") is meant


def test_if_is_no_rule_and_no_call() -> None:
    assert call_of_event({"hook_event_name": "Stop"}) is None
    for text in ("", "Bash(git *", "*", "a b"):
        with pytest.raises(ValueError, match=r"rule|names no tool"):
            read_condition(text)
    call = call_of_event({"tool_name": "Bash", "tool_input": {"command": "((("}})
    assert call is not None
    assert rule_matches(
        read_condition("Bash(git *)"), call, {"(((": UnparsedScript("no script")}, root="/", home="/"
    ), "rather too often"
