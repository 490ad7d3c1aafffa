"""Repetition: what is noticed, at which step, and what is progress."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as draw
from tests.core.agent_states import Life, facts

from callboard.core.apply import apply, fold
from callboard.core.decide import decide
from callboard.core.snapshot import dump, load
from callboard.core.state import AgentState, ToolFacts
from callboard.core.stuck import PATIENCE, Outcome, Stuck, heard, left, noticed, replied, stepped, told
from callboard.words import events as ev
from callboard.words import steps as st
from callboard.words.context import Placed
from callboard.words.values import Json, ToolCall

SOAK = int(os.environ.get("SOAK", "1"))
SAID = (Placed(data={"type": "text", "text": "words"}, source="reminder"),)
Seen = tuple[str, str]
"""A call's input and its result."""


def outcome(text: str, result: str, *, tool: str = "bash", error: bool = False, id: str = "") -> Outcome:
    call = ToolCall(id=id, use_id="u", name=tool, input={"command": text})
    return Outcome(call, ({"type": "text", "text": result},), error)


def steps(*seen: Seen, after: int = 3, error: bool = False) -> Stuck:
    stuck = Stuck()
    for text, result in seen:
        stuck = stepped(stuck, [outcome(text, result, error=error)], after)
    return stuck


def replies(*texts: str) -> Stuck:
    stuck = Stuck()
    for text in texts:
        stuck = replied(stuck, ({"type": "text", "text": text},), calls=False)
    return stuck


def found(stuck: Stuck, after: int = 3) -> tuple[str, int] | None:
    notice = noticed(stuck, after)
    return None if notice is None else (notice.pattern, notice.count)


A, B, C = ("ls", "a b"), ("pwd", "/w"), ("id", "me")


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ([A, A], None),
        ([A, A, A], ("repeat", 3)),
        ([A, A, B, A], None),
        ([A, A, ("ls", "a b c"), ("ls", "a b c")], None),
        ([B, A, A, A], ("repeat", 3)),
        ([A, B, A, B, A], None),
        ([A, B, A, B, A, B], ("alternation", 3)),
        ([A, A, B, A, B, A, B], ("alternation", 3)),
        ([A, B, A, B, B, A], None),
        ([A, B, C, A, B, C, A, B, C], None),
        ([A, ("pwd", "1"), A, ("pwd", "2"), A, ("pwd", "3")], None),
    ],
)
def test_what_stands_in_a_row_is_counted_and_another_result_begins_anew(
    seen: list[Seen], expected: tuple[str, int] | None
) -> None:
    assert found(steps(*seen)) == expected


@pytest.mark.parametrize(("after", "least"), [(1, 2), (2, 2), (5, 5)])
def test_how_many_are_too_many_is_set(after: int, least: int) -> None:
    assert found(steps(*[A] * (least - 1)), after) is None
    assert found(steps(*[A] * least), after) == ("repeat", least)


def test_nought_is_never() -> None:
    assert found(steps(*[A] * 50), 0) is None


def test_parallel_calls_are_one_step_in_whatever_order() -> None:
    one, two = outcome("ls", "a"), outcome("pwd", "/w")
    stuck = Stuck()
    for both in ([one, two], [two, one], [one, one, two]):
        assert noticed(stuck, 3) is None
        stuck = stepped(stuck, both, 3)
    assert found(stuck) == ("repeat", 3)
    three = Stuck()
    three = stepped(three, [one, one, one], 3)
    assert found(three) is None, "three equal calls of one reply are one step"
    assert noticed(stuck, 3) is not None
    assert "and 2 more" in stuck.last_words


def test_the_order_of_an_inputs_fields_and_a_calls_own_id_make_no_difference() -> None:
    stuck = Stuck()
    for number, fields in enumerate([("a", "b"), ("b", "a"), ("a", "b")]):
        call = ToolCall(id=f"call_{number}", use_id="u", name="t", input=dict.fromkeys(fields, 1))
        cut = {"type": "text", "text": f"[whole output: /out/call_{number}.out]"}
        stuck = stepped(stuck, [Outcome(call, (cut,))], 3)
    assert found(stuck) == ("repeat", 3)


@pytest.mark.parametrize(
    ("errors", "kinds"),
    [
        (["no such file: /a/b.py", "no such file: /c", "no such file: d.txt", "no such file: ./e/f"], 1),
        (["line 3: `x` is no name", "line 44: `long one` is no name"], 1),
        (["failed at 0x7fff12 after 0.31s\nexit code 1", "failed at 0x7fff99 after 2s\nexit code 2"], 1),
        (["collected 3\nmore\n2 failed in 0.3s", "collected 4\nother\n1 failed in 11.2s"], 1),
        (["no such file: /a", "is a directory: /a"], 2),
        (["exit code 1", "exit code 1"], 0),
    ],
)
def test_errors_are_of_a_kind_whatever_names_and_numbers_stand_in_them(errors: list[str], kinds: int) -> None:
    shown = {stuck.failures for one in errors if (stuck := steps(("x", one), error=True)).failures}
    assert len(shown) == kinds


def test_the_same_failure_with_any_input_is_noticed_two_steps_later_than_a_repetition() -> None:
    seen = [(f"cat /n/{n}", f"no such file: /n/{n}") for n in range(5)]
    assert found(steps(*seen[:4], error=True)) is None
    assert found(steps(*seen, error=True)) == ("errors", 5)
    assert found(steps(*seen)) is None, "they are no failures"


def test_a_success_or_another_failure_between_breaks_the_row() -> None:
    stuck = Stuck()
    for n in range(4):
        stuck = stepped(stuck, [outcome(str(n), f"no such file: /{n}", error=True)], 3)
    better = stepped(stuck, [outcome("x", "no such file: /x", error=True), outcome("y", "fine")], 3)
    assert found(better) is None
    assert better.failures == ()
    other = stepped(stuck, [outcome("x", "out of memory", error=True)], 3)
    assert found(other) is None
    assert found(stepped(stuck, [outcome("x", "no such file: /x", tool="cat", error=True)], 3)) is None


LONG = (
    "The tests pass and the change is finished. I have looked at the parser, the printer and the two callers, and all "
    "of them behave as they should. There is nothing else for me to do in this task, so I stop here."
)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Done.", "done!", True),
        ("Attempt 3 failed", "Attempt 14 failed", True),
        ("", "", True),
        (LONG, LONG.replace("parser", "lexer").replace("finished", "complete"), True),
        (
            LONG,
            LONG[: LONG.index("There")] + "Now I write the tests for what is not covered yet by the old ones.",
            False,
        ),
        (LONG, "Now I write the documentation, then a changelog entry, and after that the release notes.", False),
        ("Done.", "", False),
        ("完成了", "完成了!", True),
        ("完成了", "还没有开始做这个任务", False),
    ],
)
def test_nearly_the_same_words(one: str, other: str, same: bool) -> None:
    assert (replies(one, other).replies == 2) is same


def test_a_monologue_is_noticed_and_a_call_ends_it() -> None:
    assert found(replies("Done.", "Done!", "done")) == ("monologue", 3)
    assert found(replies("Done.", "Really done, all of it.", "Done.")) is None
    stuck = replied(replies("Done.", "Done."), (), calls=True)
    assert found(replied(stuck, ({"type": "text", "text": "Done."},), calls=False)) is None


def test_what_the_services_own_tools_do_is_part_of_a_reply_and_thinking_is_not() -> None:
    stuck = Stuck()
    for n in range(3):
        searching = {
            "type": "server_tool_use",
            "name": "web_search",
            "input": {"query": ["cats", "old ships", "go"][n]},
        }
        stuck = replied(stuck, (searching,), calls=False)
    assert found(stuck) is None
    for n in range(3):
        blocks: tuple[Json, ...] = ({"type": "thinking", "thinking": LONG[n * 50 :]}, {"type": "text", "text": "Hm."})
        stuck = replied(stuck, blocks, calls=False)
    assert found(stuck) == ("monologue", 3)


def test_mail_and_what_was_changed_begin_all_anew() -> None:
    stuck = steps(A, A)
    for changed in (heard(stuck), left(stuck, "file", "/a", "1"), told(stuck)):
        assert found(stepped(changed, [outcome(*A)], 3)) is None
        assert found(stepped(changed, [outcome(*A)], 1)) is None


def test_a_file_that_is_put_back_into_a_state_it_had_is_no_progress() -> None:
    stuck = Stuck()
    for n in range(9):
        stuck = left(stuck, "file", "/a", "AB"[n % 2])
        stuck = stepped(stuck, [outcome(f"write {n % 2}", "written")], 3)
        assert found(stuck) == (("alternation", 3) if n == 6 else None) or n > 6
    fresh = Stuck()
    for n in range(9):
        fresh = stepped(left(fresh, "file", "/a", str(n)), [outcome("write", "written")], 3)
    assert found(fresh) is None


def test_who_watches_what_is_under_way_is_passed_over_for_a_long_time_but_not_for_ever() -> None:
    stuck, looks = Stuck(), 0
    while noticed(stuck, 3) is None:
        stuck, looks = stepped(stuck, [outcome(*A)], 3, waits=True), looks + 1
    assert looks == 3 * PATIENCE + 3
    assert found(steps(A, A, A)) == ("repeat", 3)
    between = stepped(stepped(steps(A, A), [outcome("list", "tasks")], 3, waits=True), [outcome(*A)], 3)
    assert found(between) == ("repeat", 3), "a look between two repetitions is no progress"


def expected(seen: Sequence[int], after: int) -> int | None:
    """The first step at which the newest ones are a repetition or an alternation, by looking at all of them."""
    for end in range(1, len(seen) + 1):
        row, swing = list(seen[max(0, end - after) : end]), list(seen[max(0, end - 2 * after) : end])
        if len(row) == after and len(set(row)) == 1:
            return end
        if len(swing) == 2 * after and len(set(swing[::2])) == len(set(swing[1::2])) == 1 and len(set(swing)) == 2:
            return end
    return None


def first(seen: Sequence[int], after: int) -> int | None:
    stuck = Stuck()
    for place, what in enumerate(seen, 1):
        stuck = stepped(stuck, [outcome(f"call {what}", "result")], after)
        if noticed(stuck, after):
            return place
    return None


@settings(max_examples=300 * SOAK)
@given(draw.lists(draw.integers(0, 2), max_size=40), draw.integers(2, 5))
@example([0, 1, 1, 0, 1, 0, 1, 0], 3)
def test_a_pattern_is_noticed_at_its_very_step_and_nothing_else_is(seen: list[int], after: int) -> None:
    assert first(seen, after) == expected(seen, after)


@settings(max_examples=100 * SOAK)
@given(draw.lists(draw.integers(0, 50), unique=True, max_size=40))
def test_what_does_not_repeat_itself_is_never_noticed(seen: list[int]) -> None:
    assert first(seen, 2) is None


# As the rules of an agent's life


def merged(life: Life, text: str, result: str, *, waits: bool = False, error: bool = False) -> Life:
    """A reply with one call, and its result."""
    at = life.state.ordinal + 1
    call = ToolCall(id=f"c{at}", use_id=f"u{at}", name="bash", input={"command": text})
    block = {"type": "tool_use", "id": call.use_id, "name": "bash", "input": call.input}
    life = life.replied(block, stop="tool_use", calls=[call]).on(ev.CallJudged, call=call.id, verdict="allow")
    life = life.on(ev.ToolStarted, call=call.id, effect="read")
    life = life.on(ev.ToolFinished, call=call.id, content=({"type": "text", "text": result},), is_error=error)
    return life.on(ev.ToolSettled, call=call.id).on(ev.ResultsMerged, waits=waits)


def step(life: Life, **more: Any) -> st.Step:
    return decide(life.state, facts(**more))


def followed(life: Life) -> Life:
    """What the step says is noted."""
    found = step(life)
    assert isinstance(found, st.NoticeStuck)
    fields: Json = {"pattern": found.pattern, "count": found.count, "what": found.what, "action": found.action}
    return life.on(ev.StuckNoticed, **fields)


def test_it_is_told_once_with_what_it_repeats_and_then_stopped() -> None:
    life = Life.begun().prompted("go")
    for _ in range(2):
        life = merged(life, "pytest", "2 failed")
        assert isinstance(step(life), st.AskModel)
    life = followed(merged(life, "pytest", "2 failed"))
    assert isinstance(step(life), st.Inject)
    assert "pytest" in life.state.injections[-1].text
    life = life.on(ev.InjectionsDelivered, blocks=SAID)
    for _ in range(2):
        assert isinstance(step(life), st.AskModel)
        life = merged(life, "pytest", "2 failed")
    found = step(merged(life, "pytest", "2 failed"))
    assert found == st.NoticeStuck("repeat", 3, 'bash {"command": "pytest"}, with the same result', "stop")


def test_each_turn_has_its_own_nudge_and_mail_is_progress() -> None:
    life = Life.begun().prompted("go")
    for _ in range(3):
        life = merged(life, "ls", "a")
    mailed = life.mailed("hello", type="message").delivered("env_2")
    assert isinstance(step(mailed), st.AskModel)
    ended = followed(life).on(ev.InjectionsDelivered, blocks=SAID).on(ev.TurnEnded, turn="t", reason="end", text="")
    again = ended.prompted("again")
    for _ in range(3):
        again = merged(again, "ls", "a")
    found = step(again)
    assert isinstance(found, st.NoticeStuck)
    assert found.action == "nudge"


def changed(life: Life, n: int) -> Life:
    return life.on(ev.FileSeen, path="/a", digest=str(n), changed=True)


def held(life: Life, n: int) -> Life:
    return life.on(ev.TaskHeld, task=f"task_{n}")


def answered(life: Life, n: int) -> Life:
    return life.on(ev.AnswerTaken, request_id=f"req_{n}", kind="question", status="answered")


def refused(life: Life, n: int) -> Life:
    return life.on(ev.AnswerTaken, request_id=f"req_{n}", kind="permission", status="rejected")


def read(life: Life, n: int) -> Life:
    return life.on(ev.FileSeen, path="/a", digest=str(n))


@pytest.mark.parametrize(
    ("between", "progress"), [(changed, True), (held, True), (answered, True), (refused, False), (read, False)]
)
def test_what_counts_as_progress(between: Callable[[Life, int], Life], progress: bool) -> None:
    life = Life.begun().prompted("go")
    for n in range(3):
        life = merged(between(life, n), "ls", "a")
    assert isinstance(step(life), st.AskModel if progress else st.NoticeStuck)


def test_it_is_left_alone_where_it_is_switched_off_or_winds_down() -> None:
    off, last = Life.begun(stuck_after=0).prompted("go"), Life.begun().prompted("go")
    for _ in range(9):
        off = merged(off, "ls", "a")
    assert isinstance(step(off), st.AskModel)
    assert off.state.turn is not None
    assert off.state.turn.stuck == Stuck()
    for _ in range(3):
        last = merged(last, "ls", "a")
    reached: Json = {"budget": "session", "kind": "tokens", "limit": 1, "spent": 1, "wanted": 1, "winds_down": True}
    assert not isinstance(step(last.on(ev.BudgetReached, **reached)), st.NoticeStuck)


def test_a_turn_that_ends_by_itself_is_no_monologue() -> None:
    life = Life.begun().prompted("go")
    for _ in range(3):
        life = life.said("All is done.").on(ev.StopHookRan, go_on="")
    assert step(life) == st.EndTurn("end")
    for _ in range(3):
        life = life.said("All is done.").on(ev.StopHookRan, go_on="look again").on(ev.InjectionsDelivered, blocks=SAID)
    assert isinstance(step(life), st.NoticeStuck)


@pytest.mark.parametrize("others", [True, False])
@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("watches", [True, False])
def test_watching_is_waiting_only_while_something_is_under_way(others: bool, running: bool, watches: bool) -> None:
    life = Life.begun().prompted("go")
    if running:
        about: Json = {"id": "bg_1", "command": "make", "pid": 1, "started": 1.0, "output": "/o"}
        life = life.on(ev.BackgroundStarted, **about)
    at = life.state.ordinal + 1
    call = ToolCall(id="c1", use_id=f"u{at}", name="list_tasks", input={})
    life = life.replied({"type": "tool_use", "id": call.use_id, "name": "x", "input": {}}, calls=[call])
    life = life.on(ev.CallJudged, call="c1", verdict="deny").on(ev.ToolSettled, call="c1")
    tools = {"list_tasks": ToolFacts("shared", watches=watches)}
    found = step(life, tools=tools, others_at_work=others, running=frozenset({"bg:bg_1"}))
    assert found == st.Merge(waits=watches and (others or running))


@settings(max_examples=60 * SOAK, deadline=None)
@given(draw.lists(draw.sampled_from(["a", "b", "mail", "say", "file", "wait", "err"]), max_size=24), draw.data())
def test_a_resume_at_any_point_gives_the_same(happenings: list[str], data: draw.DataObject) -> None:
    life = lived(happenings)
    cut = data.draw(draw.integers(0, len(life.events)))
    resumed = load(dump(fold(life.events[:cut])))
    assert resumed is not None
    for event in life.events[cut:]:
        resumed = apply(resumed, event)
    assert turn_of(resumed) == turn_of(life.state)
    assert decide(resumed, facts()) == decide(life.state, facts())


def turn_of(state: AgentState) -> Stuck:
    assert state.turn is not None
    return state.turn.stuck


def lived(happenings: Sequence[str]) -> Life:
    life = Life.begun().prompted("go")
    for n, what in enumerate(happenings):
        match what:
            case "mail":
                life = life.mailed("more", type="message").delivered()
            case "say":
                life = life.said("It is done.").on(ev.StopHookRan, go_on="no").on(ev.InjectionsDelivered, blocks=SAID)
            case "file":
                life = changed(life, n % 3)
            case "err":
                life = merged(life, str(n), f"no such file: /{n}", error=True)
            case _:
                life = merged(life, what, "result", waits=what == "wait")
        if isinstance(step(life), st.NoticeStuck):
            life = followed(life).on(ev.InjectionsDelivered, blocks=SAID)
    return life
