"""`snip_middle`: the first and the last messages stay, no pair is cut, and the placeholder counts what stood there."""

from __future__ import annotations

import re

import pytest
from tests.core.context.context_histories import Session, said, text
from tests.core.context.context_stages import began, worked

from callboard.core.context.pipeline import check_pipeline
from callboard.core.context.summary.folding import text_of
from callboard.types.agent_spec import StageSpec
from callboard.types.messages import ViewMessage

SMALL = {"over": 9, "first": 3, "last": 4}


def stepped(steps: int, *, session: Session | None = None) -> Session:
    """A session of so many model steps: two messages each, after the first instruction."""
    session = session or began()
    for number in range(steps):
        session.step(f"{number} " * 200)
    return session


def texts(message: ViewMessage) -> list[str]:
    return [text_of(block) for block in message.blocks if text_of(block)]


def count(session: Session) -> int:
    marks = [
        int(found[1])
        for message in session.view.messages
        for one in texts(message)
        if (found := re.fullmatch(r"\[snipped (\d+) messages\]", one))
    ]
    assert len(marks) == 1, "one placeholder stands, however often was snipped"
    return marks[0]


def test_over_fifty_messages_the_first_three_and_the_last_forty_seven_stay() -> None:
    session = stepped(26)
    before = list(session.view.messages)
    assert len(before) == 53
    session.run("snip_middle", 10**6)
    # The 47th from the end is a result: its call stays with it.
    assert [one.id for one in session.view.messages] == [one.id for one in (*before[:3], *before[5:])]
    assert texts(session.view.messages[2]) == ["[snipped 2 messages]"]
    assert session.faults == []


@pytest.mark.parametrize("steps", [24, 25])
def test_with_fifty_messages_or_ends_that_meet_nothing_is_snipped(steps: int) -> None:
    session = stepped(steps)
    assert len(session.view.messages) in (49, 51)
    assert session.ask("snip_middle", 10**6) is None


def test_the_head_grows_right_over_results_and_the_tail_left_over_the_call() -> None:
    session = stepped(8)
    ids = [one.id for one in session.view.messages]
    session.run("snip_middle", 10**6, over=9, first=2, last=5)  # after a call; before a result
    assert [one.id for one in session.view.messages] == [*ids[:3], *ids[11:]]
    assert session.faults == []


def test_repeated_snips_leave_one_placeholder_that_counts_all_that_stood_there() -> None:
    session = stepped(26)
    for _number in range(4):
        session.run("snip_middle", 10**6)
        shown = len(session.view.messages)
        assert shown + count(session) == len(session.past.messages)
        stepped(3, session=session)
    assert len(session.edits) == 4
    assert session.faults == []


def test_the_placeholder_is_a_user_message_and_does_not_count() -> None:
    session = began().reply(text("I begin.")).user(said("note", "reminder")).reply(text("I go on."))
    for _number in range(6):
        session.user(said("x" * 200, "reminder")).reply(text("y" * 200))
    session.user(said("now", "inbox"))
    session.run("snip_middle", 10**6, over=9, first=4, last=6)
    roles = [one.role for one in session.view.messages]
    assert roles == ["user", "assistant"] * 2 + ["user"] + ["assistant", "user"] * 3
    assert texts(session.view.messages[4]) == ["[snipped 7 messages]"]
    # 11 stand, one of them the placeholder: 10 count.
    assert session.ask("snip_middle", 10**6, over=10, first=4, last=4) is None
    assert session.ask("snip_middle", 10**6, over=9, first=4, last=4) is not None
    assert session.faults == []


def test_what_was_joined_behind_a_placeholder_is_counted_when_it_goes() -> None:
    session = stepped(3).reply(text("Done.")).next_turn().user(said("<inbox>\nmore\n</inbox>", "inbox"))
    stepped(2, session=session).run("snip_middle", 10**6, over=5, first=3, last=5)
    # Head, mark and the mail of the second turn are one message now.
    assert texts(session.view.messages[2]) == ["[snipped 5 messages]", "<inbox>\nmore\n</inbox>"]
    session.reply(text("Done.")).next_turn().user(said("again", "inbox"))
    stepped(3, session=session).run("snip_middle", 10**6, over=5, first=3, last=4)
    # Five and the mail's, two steps, the reply, the next mail's and a step.
    assert count(session) == 5 + 1 + 4 + 1 + 1 + 2
    assert len(session.past.messages) == 9 + 4 + 2 + 6
    assert "more" not in str(session.view.messages)
    assert session.faults == []


def test_the_persons_words_in_the_cut_stay_verbatim_and_in_order() -> None:
    session = stepped(2).user(said("first wish")).reply(text("ok"))
    stepped(2, session=session.user(said("second wish"), said("a reminder", "reminder"))).run("snip_middle", 9, **SMALL)
    assert texts(session.view.messages[2]) == ["first wish", "second wish", "[snipped 4 messages]"]
    stepped(3, session=session.user(said("third wish"))).run("snip_middle", 9, **SMALL)
    words = ["first wish", "second wish", "third wish"]
    assert [one for message in session.view.messages for one in texts(message) if "wish" in one] == words
    assert count(session) == len(session.past.messages) - len(session.view.messages)
    assert session.faults == []


def test_the_persons_words_go_too_the_classic_way_but_no_pin_does() -> None:
    session = stepped(2).user(said("a wish"), said("your assignment", "inbox", pinned=True)).reply(text("ok"))
    stepped(4, session=session.user(said("x"))).run("snip_middle", 10**6, **SMALL, keep_person=False)
    assert texts(session.view.messages[2]) == ["your assignment", "[snipped 8 messages]"]
    assert session.faults == []


def test_what_this_turn_was_told_to_do_stays() -> None:
    session = stepped(3).reply(text("Done.")).next_turn().user(said("do that", "inbox"))
    stepped(6, session=session).run("snip_middle", 10**6, **SMALL)
    assert "do that" in texts(session.view.messages[2])


def test_an_earlier_summary_in_the_cut_stays_with_its_state() -> None:
    session = worked().run("summarize_all", 5_000)
    stepped(6, session=session).run("snip_middle", 10**6, over=5, first=0, last=4)
    shown = texts(session.view.messages[0])
    assert shown[0] == "go"
    assert shown[1].startswith("[Compacted]")
    assert shown[2].startswith("State (exact")
    assert shown[-1].startswith("[snipped ")
    assert session.faults == []


def test_nothing_is_snipped_that_would_not_make_the_view_smaller() -> None:
    session = began().reply(text("a")).user(said("b")).reply(text("c")).user(said("d")).reply(text("e")).user(said("f"))
    assert session.ask("snip_middle", 10**6, over=3, first=1, last=4) is None


def test_its_parameters_are_checked() -> None:
    good = {"over": 20, "first": 1, "last": 10, "keep_person": False}
    assert check_pipeline([StageSpec(stage="snip_middle", params=good)]) == []
    for name, wrong in (("keep_person", 1), ("keep_person", "no"), ("over", True), ("last", 2.5)):
        assert len(check_pipeline([StageSpec(stage="snip_middle", params={name: wrong})])) == 1, name
