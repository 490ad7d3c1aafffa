"""Repetition: what is noticed, at which step, and what is progress."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as draw

from callboard.core.agent.stuck_detector import (
    MAIL_PER_RESULT,
    PATIENCE,
    CallOutcome,
    Stuck,
    after_change,
    after_news,
    after_nudge,
    after_reply,
    after_step,
    find_pattern,
)
from callboard.types.records import Json, ToolCall

SOAK = int(os.environ.get("SOAK", "1"))
Seen = tuple[str, str]
"""A call's input and its result."""


def outcome(text: str, result: str, *, tool: str = "bash", error: bool = False, id: str = "") -> CallOutcome:
    call = ToolCall(id=id, use_id="u", name=tool, input={"command": text})
    return CallOutcome(call, ({"type": "text", "text": result},), error)


def steps(*seen: Seen, after: int = 3, error: bool = False) -> Stuck:
    stuck = Stuck()
    for text, result in seen:
        stuck = after_step(stuck, [outcome(text, result, error=error)], after)
    return stuck


def replies(*texts: str) -> Stuck:
    stuck = Stuck()
    for text in texts:
        stuck = after_reply(stuck, ({"type": "text", "text": text},), calls=False)
    return stuck


def found(stuck: Stuck, after: int = 3) -> tuple[str, int] | None:
    notice = find_pattern(stuck, after)
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
        assert find_pattern(stuck, 3) is None
        stuck = after_step(stuck, both, 3)
    assert found(stuck) == ("repeat", 3)
    three = Stuck()
    three = after_step(three, [one, one, one], 3)
    assert found(three) is None, "three equal calls of one reply are one step"
    assert find_pattern(stuck, 3) is not None
    assert "and 2 more" in stuck.last_words


def test_the_order_of_an_inputs_fields_and_a_calls_own_id_make_no_difference() -> None:
    stuck = Stuck()
    for number, fields in enumerate([("a", "b"), ("b", "a"), ("a", "b")]):
        call = ToolCall(id=f"call_{number}", use_id="u", name="t", input=dict.fromkeys(fields, 1))
        cut = {"type": "text", "text": f"[whole output: /out/call_{number}.out]"}
        stuck = after_step(stuck, [CallOutcome(call, (cut,))], 3)
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
        stuck = after_step(stuck, [outcome(str(n), f"no such file: /{n}", error=True)], 3)
    better = after_step(stuck, [outcome("x", "no such file: /x", error=True), outcome("y", "fine")], 3)
    assert found(better) is None
    assert better.failures == ()
    other = after_step(stuck, [outcome("x", "out of memory", error=True)], 3)
    assert found(other) is None
    assert found(after_step(stuck, [outcome("x", "no such file: /x", tool="cat", error=True)], 3)) is None


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
    stuck = after_reply(replies("Done.", "Done."), (), calls=True)
    assert found(after_reply(stuck, ({"type": "text", "text": "Done."},), calls=False)) is None


def test_what_the_services_own_tools_do_is_part_of_a_reply_and_thinking_is_not() -> None:
    stuck = Stuck()
    for n in range(3):
        searching = {
            "type": "server_tool_use",
            "name": "web_search",
            "input": {"query": ["cats", "old ships", "go"][n]},
        }
        stuck = after_reply(stuck, (searching,), calls=False)
    assert found(stuck) is None
    for n in range(3):
        blocks: tuple[Json, ...] = ({"type": "thinking", "thinking": LONG[n * 50 :]}, {"type": "text", "text": "Hm."})
        stuck = after_reply(stuck, blocks, calls=False)
    assert found(stuck) == ("monologue", 3)


def test_mail_and_what_was_changed_begin_all_anew() -> None:
    stuck = steps(A, A)
    for changed in (after_news(stuck), after_change(stuck, "file", "/a", "1"), after_nudge(stuck)):
        assert found(after_step(changed, [outcome(*A)], 3)) is None
        assert found(after_step(changed, [outcome(*A)], 1)) is None


def test_a_file_that_is_put_back_into_a_state_it_had_is_no_progress() -> None:
    stuck = Stuck()
    for n in range(9):
        stuck = after_change(stuck, "file", "/a", "AB"[n % 2])
        stuck = after_step(stuck, [outcome(f"write {n % 2}", "written")], 3)
        assert found(stuck) == (("alternation", 3) if n == 6 else None) or n > 6
    fresh = Stuck()
    for n in range(9):
        fresh = after_step(after_change(fresh, "file", "/a", str(n)), [outcome("write", "written")], 3)
    assert found(fresh) is None


def test_who_watches_what_is_under_way_is_passed_over_for_a_long_time_but_not_for_ever() -> None:
    stuck, looks = Stuck(), 0
    while find_pattern(stuck, 3) is None:
        stuck, looks = after_step(stuck, [outcome(*A)], 3, waits=True), looks + 1
    assert looks == 3 * PATIENCE + 3
    assert found(steps(A, A, A)) == ("repeat", 3)
    between = after_step(after_step(steps(A, A), [outcome("list", "tasks")], 3, waits=True), [outcome(*A)], 3)
    assert found(between) == ("repeat", 3), "a look between two repetitions is no progress"


def sends(count: int, *others: CallOutcome, number: int = 0) -> list[CallOutcome]:
    """A step of `count` messages, each with other words, and other calls."""
    return [*(outcome(f"news {number}.{n}", "sent", tool="send_message") for n in range(count)), *others]


def steps_until_mail(step: Callable[[int], list[CallOutcome]], most: int = 200) -> int | None:
    stuck = Stuck()
    for number in range(most):
        stuck = after_step(stuck, step(number), 3)
        if (notice := find_pattern(stuck, 3)) and notice.pattern == "mail":
            return number + 1
    return None


@pytest.mark.parametrize(
    ("command", "result", "error"),
    [
        ("true", "", False),
        ("date", "12:{n}", False),
        (": {n}", "", False),
        ("cat {n}", "no such file: {n}", True),
        ("echo {n}", "{n}", False),
    ],
)
def test_a_trivial_call_beside_messages_does_not_begin_their_count_anew(command: str, result: str, error: bool) -> None:
    def step(n: int) -> list[CallOutcome]:
        return sends(20, outcome(command.format(n=n), result.format(n=n), error=error), number=n)

    found_at = steps_until_mail(step)
    assert found_at is not None
    assert found_at <= 7


def test_a_trivial_step_between_messages_does_not_begin_their_count_anew() -> None:
    assert steps_until_mail(lambda n: sends(0, outcome("true", "")) if n % 2 else sends(20, number=n)) == 11


def test_a_busy_sender_whose_work_brings_something_new_is_not_stopped() -> None:
    assert steps_until_mail(lambda n: sends(MAIL_PER_RESULT, outcome(f"cat {n}", f"text {n}"), number=n)) is None
    stuck = Stuck()
    for number in range(60):  # each time something is changed, many may be told of it
        stuck = after_step(
            after_change(stuck, "file", "/a", str(number)), sends(30, outcome("edit", "edited"), number=number), 3
        )
        assert find_pattern(stuck, 3) is None


def test_results_seen_once_pay_for_no_more_messages_after_mail_or_the_nudge() -> None:
    read = [outcome(f"cat {n}", f"text {n}") for n in range(10)]
    for after in (after_news, after_nudge):
        stuck = after(after_step(Stuck(), read, 3))
        stuck = after_step(stuck, sends(99), 3)
        stuck = after_step(stuck, [*sends(1, number=1), *read], 3)
        assert found(stuck) == ("mail", 100)


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
        stuck = after_step(stuck, [outcome(f"call {what}", "result")], after)
        if find_pattern(stuck, after):
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


def test_a_repeated_call_is_named_by_its_tool_and_its_subject() -> None:
    stuck = Stuck()
    call = ToolCall(id="c", use_id="u", name="complete_task", input={"task_id": "task_a", "files": ["a.py", "b.py"]})
    odd = ToolCall(
        id="d", use_id="v", name="mcp__shop__order", input={"items": ["a", "b"], "gift": True, "to_whom": {}}
    )
    for _ in range(3):
        stuck = after_step(stuck, [CallOutcome(call, ({"type": "text", "text": "no"},))], 3)
    notice = find_pattern(stuck, 3)
    assert notice is not None
    assert notice.what == "complete_task task_a, with the same result"
    stuck = after_step(Stuck(), [CallOutcome(odd, ({"type": "text", "text": "no"},))], 3)
    assert stuck.last_words == "mcp__shop__order items (2 items), gift true, to_whom (0 fields)"
