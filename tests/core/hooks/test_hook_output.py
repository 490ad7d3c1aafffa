"""The contract of command hooks, row by row: exit code, text, JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from callboard.core.hooks.merge import InvalidHook
from callboard.core.hooks.output import output_meaning
from callboard.core.hooks.payloads import event_json, in_our_fields, reaches_handlers
from callboard.types.hook_answers import (
    AddContext,
    Allow,
    Ask,
    Caller,
    Deny,
    GoOn,
    Halt,
    HandlerResult,
    HookToolResult,
    PostToolUse,
    PreToolUse,
    Rewrite,
    Stop,
    SubagentStop,
    UserPromptSubmit,
)
from callboard.types.records import ToolCall

BLOCKING = [
    ("PreToolUse", Deny("why")),
    ("UserPromptSubmit", Deny("why")),
    ("PostToolUse", AddContext("why")),
    ("Stop", GoOn("why")),
    ("SubagentStop", GoOn("why")),
]
EVENTS = [event for event, _ in BLOCKING]


def said(event: str, code: int = 0, out: object = "", err: str = "") -> HandlerResult:
    text = out if isinstance(out, str) else json.dumps(out)
    return output_meaning({"hook_event_name": event}, code, text, err)


def specific(event: str = "PreToolUse", **fields: object) -> dict[str, Any]:
    return {"hookSpecificOutput": {"hookEventName": event, **fields}}


@pytest.mark.parametrize("event", EVENTS)
def test_silence_with_exit_code_0_means_nothing(event: str) -> None:
    assert said(event) == HandlerResult()
    assert said(event, 0, " \n{}\n") == HandlerResult()


@pytest.mark.parametrize(("event", "answer"), BLOCKING)
def test_exit_code_2_blocks_with_what_stands_on_stderr(event: str, answer: object) -> None:
    assert said(event, 2, "", "why\n").answers == (answer,)
    assert said(event, 2, "{broken", "why").answers == (answer,)
    assert said(event, 2, {"continue": "perhaps"}, "why").answers == (answer,)


def test_exit_code_2_blocks_even_when_the_json_allows() -> None:
    output = specific(permissionDecision="allow", updatedInput={"command": "x"})
    assert said("PreToolUse", 2, output, "no").answers == (Deny("no"),)
    assert said(
        "PreToolUse", 2, specific(permissionDecision="deny", permissionDecisionReason="json"), "err"
    ).answers == (Deny("json"),)
    assert said("Stop", 2, {"decision": "block", "reason": "json"}, "err").answers == (GoOn("json"),)
    assert said("PreToolUse", 2).answers == (Deny("it exited with 2 and said nothing"),)


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("code", [1, 127, -9])
def test_any_other_exit_code_without_json_is_a_fault(event: str, code: int) -> None:
    result = said(event, code, "text", "boom")
    assert result.answers == ()
    assert "boom" in result.fault
    assert str(abs(code)) in result.fault


@pytest.mark.parametrize("code", [0, 1, 127])
def test_json_decides_whatever_the_other_exit_code(code: int) -> None:
    output = specific(permissionDecision="deny", permissionDecisionReason="no")
    assert said("PreToolUse", code, output) == HandlerResult((Deny("no"),))


@pytest.mark.parametrize("out", ["hello\n", '["a"]', '"text"', "{broken", '{"a": NaN}'])
def test_what_is_no_json_object_is_text_and_only_a_prompt_takes_it(out: str) -> None:
    assert said("UserPromptSubmit", 0, out).answers == (AddContext(out.strip()),)
    assert said("PreToolUse", 0, out) == HandlerResult()
    assert said("Stop", 0, out) == HandlerResult()


def test_half_a_surrogate_pair_does_not_lose_a_decision() -> None:
    """As JavaScript prints for a text that it cut within an emoji."""
    out = specific(permissionDecision="deny", permissionDecisionReason="refused: rm \ud83d", updatedInput={"\ud83d": 1})
    assert "\\ud83d" in (text := json.dumps(out))
    assert said("PreToolUse", 0, text) == HandlerResult((Deny("refused: rm ?"),))


@pytest.mark.parametrize("before", ["", "  \n"])
@pytest.mark.parametrize("after", ["", "\na log line", "}"])
@pytest.mark.parametrize(
    "out",
    [
        '{"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "deny", "a": NaN}}',
        '{"decision": "block", "reason": "a\nb"}',
        '{"continue": false, "stopReason": "cut',
    ],
)
def test_a_decision_that_is_not_json_is_a_fault_and_not_silence(before: str, out: str, after: str) -> None:
    result = said("PreToolUse", 0, before + out + after)
    assert result.answers == ()
    assert "its output begins with a decision but is not JSON" in result.fault


@pytest.mark.parametrize(
    "output",
    [
        {"continue": "false"},
        {"decision": "maybe"},
        {"reason": 3},
        specific(permissionDecision="perhaps"),
        specific(updatedInput=[1]),
        specific("Stop", additionalContext="x"),
        {"hookSpecificOutput": {"permissionDecision": "allow"}},
    ],
)
def test_a_json_object_of_a_wrong_form_is_a_fault(output: object) -> None:
    assert said("PreToolUse", 0, output).fault
    assert not said("PreToolUse", 0, output).answers


def test_the_fault_of_a_form_is_in_words_for_people() -> None:
    assert said("PreToolUse", 0, {"reason": ["a"]}).fault == "in its output: reason: must be text"
    listed = specific(permissionDecision="allow", updatedInput=["a"])
    assert said("PreToolUse", 0, listed).fault == (
        "in its output: hookSpecificOutput.updatedInput: must be an object of names and values"
    )
    assert said("PreToolUse", 0, {"continue": 1}).fault == "in its output: continue: must be true or false"


@pytest.mark.parametrize(
    ("output", "answers"),
    [
        (specific(permissionDecision="allow"), (Allow(""),)),
        (specific(permissionDecision="ask", permissionDecisionReason="sure?"), (Ask("sure?"),)),
        (specific(permissionDecision="defer"), (Ask("deferred to a person"),)),
        (specific(permissionDecision="deny"), (Deny(""),)),
        ({"decision": "approve"}, (Allow(""),)),
        ({"decision": "block", "reason": "old style"}, (Deny("old style"),)),
        (specific(additionalContext="note"), (AddContext("note"),)),
        (specific(updatedInput={"command": "x"}), (Rewrite({"command": "x"}),)),
        (
            specific(updatedInput={"command": "x"}, permissionDecision="allow"),
            (Rewrite({"command": "x"}), Allow("")),
        ),
        ({"continue": False, "stopReason": "over"}, (Halt("over"),)),
        ({"suppressOutput": True, "terminalSequence": "x", "later": 1}, ()),
    ],
)
def test_json_before_a_tool(output: object, answers: tuple[object, ...]) -> None:
    assert said("PreToolUse", 0, output) == HandlerResult(answers)


@pytest.mark.parametrize(
    ("changed", "content"),
    [
        ("text", "text"),
        ({"stdout": "out", "stderr": "err", "interrupted": False}, "out\nerr"),
        ({"content": "c"}, "c"),
        ([{"type": "text", "text": "b"}], [{"type": "text", "text": "b"}]),
        ({"other": 1}, '{"other": 1}'),
        ([], "[]"),
    ],
)
def test_a_rewritten_result_is_read_out_of_the_tools_own_shape(changed: object, content: object) -> None:
    output = specific("PostToolUse", updatedToolOutput=changed)
    assert said("PostToolUse", 0, output).answers == (Rewrite(content=content),)
    output = specific("PostToolUse", updatedMCPToolOutput=changed)
    assert said("PostToolUse", 0, output).answers == (Rewrite(content=content),)


def test_json_of_the_other_events() -> None:
    block = {"decision": "block", "reason": "why", **specific("UserPromptSubmit", additionalContext="c")}
    assert said("UserPromptSubmit", 0, block).answers == (Deny("why"), AddContext("c"))
    assert said("PostToolUse", 0, {"decision": "block", "reason": "why"}).answers == (AddContext("why"),)
    assert said("Stop", 0, {"decision": "block", "reason": "why"}).answers == (GoOn("why"),)
    assert said("Stop", 0, specific("Stop", additionalContext="more")).answers == (GoOn("more"),)
    assert "reason" in said("Stop", 0, {"decision": "block"}).fault
    assert said("Stop", 0, {"systemMessage": "hello"}).notices == ("hello",)


@settings(max_examples=200, deadline=None)
@given(some.sampled_from(EVENTS), some.integers(-15, 255), some.text(max_size=40), some.text(max_size=10))
def test_no_output_whatever_raises(event: str, code: int, out: str, err: str) -> None:
    for text in (out, "{" + out, json.dumps({"hookSpecificOutput": out, "decision": err})):
        result = said(event, code, text, err)
        assert result.answers or code != 2


CALL = ToolCall(id="c", use_id="toolu_1", name="bash", input={"command": "ls", "timeout_s": 2})
MATE = Caller("ses", "alice", "teammate", "coder", "acceptEdits", "/w", "/t.jsonl")


def test_the_event_is_told_in_compatible_names() -> None:
    assert event_json(PreToolUse(CALL, MATE)) == {
        "session_id": "ses",
        "transcript_path": "/t.jsonl",
        "cwd": "/w",
        "permission_mode": "acceptEdits",
        "hook_event_name": "PreToolUse",
        "agent_id": "alice",
        "agent_type": "coder",
        "tool_name": "Bash",
        "tool_input": {"command": "ls", "timeout": 2000},
        "tool_use_id": "toolu_1",
    }
    result = HookToolResult(({"type": "text", "text": "a.py"},), data={"exit_code": 0})
    told = event_json(PostToolUse(CALL, result, 0.25, MATE))
    assert told["tool_response"]["stdout"] == "a.py"
    assert told["tool_response"]["exit_code"] == 0
    assert told["duration_ms"] == 250
    read = CALL.model_copy(update={"name": "read_file"})
    assert event_json(PostToolUse(read, result))["tool_response"] == {"content": "a.py", "exit_code": 0}
    assert event_json(UserPromptSubmit("hi"))["prompt"] == "hi"
    assert "agent_id" not in event_json(UserPromptSubmit("hi"))
    stop = event_json(Stop(text="done", blocks=1))
    assert (stop["stop_hook_active"], stop["last_assistant_message"]) == (True, "done")
    subagent = Caller(kind="subagent", name="s")
    assert event_json(SubagentStop(by=subagent))["agent_id"] == "s"


def test_handlers_hear_what_the_compatible_events_mean() -> None:
    failed = PostToolUse(CALL, HookToolResult((), is_error=True))
    assert not reaches_handlers(failed)
    assert reaches_handlers(PostToolUse(CALL, HookToolResult(())))
    assert reaches_handlers(PreToolUse(CALL))


def test_a_handlers_rewrite_comes_back_in_our_fields() -> None:
    answers = in_our_fields(PreToolUse(CALL), (Rewrite({"command": "ls -l", "timeout": 3000}), Ask("sure?")))
    assert answers == (Rewrite({"command": "ls -l", "timeout_s": 3}), Ask("sure?"))
    with pytest.raises(InvalidHook, match="GoOn"):
        in_our_fields(PreToolUse(CALL), (GoOn("x"),))
