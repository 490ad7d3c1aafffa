"""Matchers, answers, and what all answers come to."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from tests.core.context.test_context_tokens import image, png

from callboard.core.hooks.merge import (
    MOST_CHARACTERS,
    HookOutcome,
    InvalidHook,
    cap_text,
    names_of,
    never_fits,
    post_verdict,
    pre_verdict,
    prompt_verdict,
    read_matcher,
    rewritten,
    stop_verdict,
    understood,
)
from callboard.core.hooks.payloads import compatible_name, from_compatible, to_compatible
from callboard.core.tool_access import ALL_TOOLS
from callboard.types.hook_answers import (
    FITTING,
    AddContext,
    Allow,
    Answer,
    Ask,
    Deny,
    GoOn,
    Halt,
    HookToolResult,
    PostToolUse,
    PreToolUse,
    Rewrite,
    Stop,
)
from callboard.types.records import ToolCall

CALL = ToolCall(id="c", use_id="u", name="bash", input={"command": "ls"})


@pytest.mark.parametrize(
    ("matcher", "tool", "fits"),
    [
        ("", "bash", True),
        ("*", "mcp__a__b", True),
        ("bash", "bash", True),
        ("Bash", "bash", True),
        ("Edit|Write", "edit_file", True),
        ("Edit, Write", "write_file", True),
        ("Edit|Write", "bash", False),
        ("Task", "task", True),
        ("Agent", "spawn_teammate", True),
        ("ba", "bash", False),
        ("mcp__memory", "mcp__memory__read", False),
        ("mcp__memory__read", "mcp__memory__read", True),
        ("mcp__memory__.*", "mcp__memory__read", True),
        ("mcp__memory__.*", "bash", False),
        ("Ba.", "bash", True),
        ("as.", "bash", True),
        ("^(?!Bash$)", "bash", False),
        ("^(?!bash$)", "bash", False),
        ("^(?!Bash$)", "read_file", True),
        ("(?<kind>Ba)sh$", "bash", True),
        ("^Notebook", "edit_file", False),
    ],
)
def test_a_matcher_means_the_same_in_both_worlds(matcher: str, tool: str, fits: bool) -> None:
    assert read_matcher(matcher).fits(names_of(tool)) is fits


@pytest.mark.parametrize("text", ["(", "a(?i)b", "(?P<n>a)", r"\Abash", "a*+", "(?>a)", r"\p{L}+", "[^]", " ", "|"])
def test_a_matcher_that_readers_understand_differently_is_refused(text: str) -> None:
    with pytest.raises(InvalidHook, match="matcher"):
        read_matcher(text)


@pytest.mark.parametrize(
    ("text", "never"),
    [
        ("", False),
        ("Edit|NotebookEdit", False),
        ("NotebookEdit", False),
        ("MultiEdit|LS|NotebookRead|BashOutput|KillShell", False),
        ("mcp__memory", True),
        ("mcp__a__b", False),
        ("^Notebook.*", False),
        ("^Frobnicate.*", True),
        ("mcp__.*", False),
        ("Bsah", True),
    ],
)
def test_a_matcher_that_can_never_match_is_known(text: str, never: bool) -> None:
    assert never_fits(read_matcher(text)) is never


@pytest.mark.parametrize("value", ["", "  ", 0, False, True, [], {"decision": "deny"}, object(), GoOn("x"), b"no"])
def test_any_other_value_from_a_guard_is_a_fault(value: object) -> None:
    with pytest.raises(InvalidHook, match="it returned"):
        understood("PreToolUse", value)


@pytest.mark.parametrize("event", ["PostToolUse", "UserPromptSubmit", "Stop"])
def test_a_text_denies_nowhere_but_before_a_tool(event: str) -> None:
    assert understood("PreToolUse", "not here") == (Deny("not here"),)
    with pytest.raises(InvalidHook):
        understood(event, "not here")


@pytest.mark.parametrize(
    ("event", "answer"),
    [
        ("PreToolUse", Rewrite()),
        ("PreToolUse", Rewrite(input={"a": 1}, content="x")),
        ("PreToolUse", Rewrite(input={"a": float("nan")})),
        ("PreToolUse", Rewrite(input={"a": "\ud800"})),
        ("PreToolUse", Rewrite(input={"a": object()})),
        ("PreToolUse", Rewrite(input=["a"])),
        ("PreToolUse", Deny(3)),
        ("PostToolUse", Rewrite()),
        ("PostToolUse", Rewrite(input={"a": 1})),
        ("PostToolUse", Rewrite(content=3)),
        ("PostToolUse", Rewrite(content=[{"type": "tool_use"}])),
        ("PostToolUse", Rewrite(content=[{"type": "text", "text": ""}])),
        ("PostToolUse", Rewrite(is_error=1)),
        ("Stop", GoOn(" ")),
        ("PreToolUse", AddContext(None)),
    ],
)
def test_an_answer_that_cannot_be_followed_is_a_fault(event: str, answer: Answer) -> None:
    with pytest.raises(InvalidHook):
        understood(event, answer)


def test_a_rewritten_input_is_a_copy_that_the_hook_no_longer_holds() -> None:
    mine = {"command": "ls", "list": [1]}
    (answer,) = understood("PreToolUse", Rewrite(mine))
    mine["list"].append(2)
    assert answer == Rewrite({"command": "ls", "list": [1]})


def test_a_long_text_is_cut_and_says_so() -> None:
    text = cap_text("x" * 50_000)
    assert len(text) == MOST_CHARACTERS
    assert text.endswith("[cut: this hook said 50,000 characters]")
    assert cap_text("a\ud800b").encode() == b"a?b"


ANSWERS = some.sampled_from(
    [Allow("yes"), Ask("hm"), Deny("no"), Rewrite({"command": "x"}), AddContext("c"), Halt("h")]
)
HEARD = some.lists(
    some.builds(
        HookOutcome,
        by=some.sampled_from(["hook a (person)", "hook b (workspace)"]),
        answers=some.lists(ANSWERS, max_size=2).map(tuple),
        fault=some.sampled_from(["", "", "it raised"]),
        fail_open=some.booleans(),
    ),
    max_size=5,
)


@settings(max_examples=150, deadline=None)
@given(HEARD)
def test_the_strongest_answer_wins_in_any_order(heard: list[HookOutcome]) -> None:
    kinds = {type(answer) for one in heard for answer in one.answers}
    failed = any(one.fault and not one.fail_open for one in heard)
    expected = (
        "deny" if failed or kinds & {Deny, Halt} else "ask" if Ask in kinds else "allow" if Allow in kinds else None
    )
    for order in (heard, heard[::-1]):
        verdict = pre_verdict(order, None)
        assert verdict.decision == expected
        assert bool(verdict.halt) == (Halt in kinds)
        assert bool(verdict.by) == (expected is not None)
        assert len(verdict.notices) == sum(bool(one.fault) for one in heard)


def test_a_forgiven_fault_is_told_to_the_person_and_changes_nothing() -> None:
    heard = [HookOutcome("hook a (workspace)", fault="exit code 1", fail_open=True)]
    assert pre_verdict(heard, None).decision is None
    assert pre_verdict(heard, None).notices == ("hook a (workspace) failed: exit code 1",)
    assert prompt_verdict(heard).context == ()
    assert post_verdict(heard, None).context == ()


def test_a_fault_after_the_tool_or_at_a_prompt_is_told_to_the_model() -> None:
    heard = [HookOutcome("hook a (person)", fault="KeyError: 'x'")]
    told = ("hook a (person) failed: KeyError: 'x'",)
    assert post_verdict(heard, None).context == told
    assert prompt_verdict(heard).context == told
    assert prompt_verdict(heard).block == ""
    assert stop_verdict(heard).go_on == ""
    assert stop_verdict(heard).notices == told


def test_stop_goes_on_for_all_reasons_unless_one_halts() -> None:
    heard = [HookOutcome("a", (GoOn("run the tests"),)), HookOutcome("b", (GoOn("update the log"),))]
    assert stop_verdict(heard).go_on == "run the tests\n\nupdate the log"
    halted = stop_verdict([*heard, HookOutcome("c", (Halt("enough"),))])
    assert (halted.go_on, halted.halt) == ("", "enough")


def test_a_prompt_is_blocked_by_a_denial_and_by_a_halt() -> None:
    assert prompt_verdict([HookOutcome("a", (Deny("no secrets"),))]).block == "no secrets"
    assert prompt_verdict([HookOutcome("a", (Deny(""),))]).block == "a gave no reason"
    assert prompt_verdict([HookOutcome("a", (Halt("stop"),))]).block == "stop"


def test_rewrites_follow_each_other() -> None:
    event = PreToolUse(CALL)
    assert rewritten(stop := Stop(), HookOutcome("a", (Rewrite(content="x"),))) is stop
    assert rewritten(event, HookOutcome("a", (AddContext("x"),))) is event
    after = rewritten(event, HookOutcome("a", (Rewrite({"command": "a"}), Rewrite({"command": "b"}))))
    assert after.call.input == {"command": "b"}
    assert event.call.input == {"command": "ls"}
    post = PostToolUse(CALL, HookToolResult(({"type": "text", "text": "old"},)))
    post = rewritten(post, HookOutcome("a", (Rewrite(content="new"),)))
    post = rewritten(post, HookOutcome("b", (Rewrite(is_error=True),)))
    assert post.result == HookToolResult(({"type": "text", "text": "new"},), is_error=True)


def test_an_empty_result_and_blocks_may_be_written() -> None:
    assert understood("PostToolUse", Rewrite(content="")) == (Rewrite(content=()),)
    assert understood("PostToolUse", Rewrite(is_error=False)) == (Rewrite(is_error=False),)
    picture = image(png(2, 2))
    assert understood("PostToolUse", Rewrite(content=[picture])) == (Rewrite(content=(picture,)),)
    assert understood("PreToolUse", None) == ()
    assert understood("Stop", GoOn("x")) == (GoOn("x"),)
    assert understood("PreToolUse", AddContext("x")) == (AddContext("x"),)


def test_an_event_takes_what_fits_it_and_nothing_else() -> None:
    for event, fitting in FITTING.items():
        for answer in (Halt("x"), AddContext("x"), GoOn("x"), Ask("x")):
            if isinstance(answer, fitting):
                assert understood(event, answer) == (answer,)
            else:
                with pytest.raises(InvalidHook, match=f"{event} takes None"):
                    understood(event, answer)


@pytest.mark.parametrize(
    ("tool", "ours", "theirs"),
    [
        ("bash", {"command": "ls", "timeout_s": 1.5}, {"command": "ls", "timeout": 1500.0}),
        ("read_file", {"path": "a/../b.py", "offset": 3}, {"file_path": "/w/b.py", "offset": 3}),
        ("write_file", {"path": "/x/y", "content": ""}, {"file_path": "/x/y", "content": ""}),
        (
            "edit_file",
            {"path": "a", "old_text": "1", "new_text": "2", "replace_all": True},
            {"file_path": "/w/a", "old_string": "1", "new_string": "2", "replace_all": True},
        ),
        ("task", {"prompt": "p", "agent_type": "explore"}, {"prompt": "p", "subagent_type": "explore"}),
        ("update_task", {"task_id": "t", "blocked_by": ["u"]}, {"taskId": "t", "addBlockedBy": ["u"]}),
        ("mcp__a__b", {"path": "x"}, {"path": "x"}),
    ],
)
def test_inputs_are_told_in_the_compatible_fields(
    tool: str, ours: dict[str, object], theirs: dict[str, object]
) -> None:
    assert to_compatible(tool, ours, "/w") == theirs


def test_only_what_a_hook_changed_is_translated_back() -> None:
    given_input = {"path": "./a.py", "old_text": "1", "new_text": "2"}
    told = to_compatible("edit_file", given_input, "/w") | {"new_string": "3"}
    assert from_compatible("edit_file", given_input, told, "/w") == {"path": "./a.py", "old_text": "1", "new_text": "3"}
    back = from_compatible("bash", {"command": "ls"}, {"command": "ls", "timeout": 2000}, "/w")
    assert back == {"command": "ls", "timeout_s": 2}


def test_a_question_is_told_as_the_list_of_the_compatible_tool() -> None:
    mine = {"question": "Which?", "options": ["a", "b"]}
    told = to_compatible("ask_person", mine, "/w")
    assert told["questions"][0]["options"] == [{"label": "a", "description": ""}, {"label": "b", "description": ""}]
    assert from_compatible("ask_person", mine, told, "/w") is mine
    told["questions"][0]["question"] = "Which one?"
    assert from_compatible("ask_person", mine, told, "/w") == {"question": "Which one?", "options": ["a", "b"]}
    assert from_compatible("ask_person", mine, {"questions": []}, "/w") == {"questions": []}


def test_the_file_tools_on_request_reach_hooks_in_the_compatible_fields() -> None:
    edits = [{"old_text": "a", "new_text": "b"}, {"old_text": "c", "new_text": "d", "replace_all": True}]
    ours = {"path": "x.py", "edits": edits}
    told = to_compatible("multi_edit", ours, "/w")
    assert told == {
        "file_path": "/w/x.py",
        "edits": [{"old_string": "a", "new_string": "b"}, {"old_string": "c", "new_string": "d", "replace_all": True}],
    }
    assert from_compatible("multi_edit", ours, told, "/w") == ours
    told["edits"][0]["new_string"] = "B"
    changed = from_compatible("multi_edit", ours, told, "/w")
    assert changed == {"path": "x.py", "edits": [{"old_text": "a", "new_text": "B"}, edits[1]]}
    notebook = {"path": "n.ipynb", "cell_id": "a", "new_source": "1"}
    assert to_compatible("edit_notebook", notebook, "/w")["notebook_path"] == "/w/n.ipynb"
    assert compatible_name("edit_notebook") == "NotebookEdit"
    assert to_compatible("bash_output", {"id": "bg_1"}, "/w") == {"bash_id": "bg_1"}
    assert to_compatible("task_output", {"id": "bg_1", "timeout_s": 2}, "/w") == {"task_id": "bg_1", "timeout": 2000}
    assert to_compatible("task_stop", {"id": "bg_1"}, "/w") == {"task_id": "bg_1"}
    assert compatible_name("task_stop") == "TaskStop"
    assert read_matcher("KillShell").fits(names_of("task_stop"))


VALUES = some.one_of(some.text(max_size=5), some.integers(0, 9), some.booleans(), some.none())
FIELD = some.sampled_from(
    ["path", "command", "timeout_s", "content", "name", "agent_type", "id", "task_id", "edits", "other"]
)


@settings(max_examples=150, deadline=None)
@given(
    some.sampled_from(sorted(ALL_TOOLS - {"ask_person"})),
    some.dictionaries(FIELD, VALUES).filter(lambda ours: not {"id", "task_id"} <= {*ours}),
)
def test_what_a_hook_leaves_alone_comes_back_as_it_was(tool: str, ours: dict[str, object]) -> None:
    told = json.loads(json.dumps(to_compatible(tool, ours, "/w")))
    assert from_compatible(tool, ours, told, "/w") == ours


def test_the_compatible_name_is_the_one_that_hooks_know() -> None:
    assert compatible_name("task") == "Agent"
    assert compatible_name("bash") == "Bash"
    assert compatible_name("compact") == "compact"
