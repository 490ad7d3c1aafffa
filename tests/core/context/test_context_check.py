"""What no compaction may lose: it is found missing when it is, and put back by the same edit."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.context.context_histories import STEPS, Session, played, said, text

from callboard.core.context.summary.folding import note, tail_start
from callboard.core.context.summary.request import find_missing, required_content, restore_missing
from callboard.core.context.view.conversation import apply_edits
from callboard.core.context.view.invariants import edit_faults, invariants, pins
from callboard.core.context.view.messages import is_result
from callboard.types.messages import Edit, StateBlock

SOAK = int(os.environ.get("SOAK", "1"))
KNOWN = StateBlock(
    todos=("[pending] ship it", "[in_progress] test it", "[completed] think of it"),
    tasks=("task_a [in_progress] mine (lead)", "task_b [pending] nobody's"),
    plan="approved: 1. look\n2. leap",
    requests=("req_a (question) which?",),
    background=("bg_a: make test (running)",),
    files_read=("a.py",),
)
HELD = ("task_a",)
NAMES = (
    "todo: ship it",
    "todo: test it",
    "task: task_a",
    "plan: approved",
    "request: req_a",
    "background: bg_a",
)


def bare(session: Session, mark: str = "[gone]", kind: Any = "dropped") -> list[Edit]:
    """A fold that loses everything, pins included."""
    messages = session.view.messages
    upto = max(1, tail_start(messages))
    return [Edit(kind=kind, message=messages[0].id, last=messages[upto - 1].id, blocks=(note(mark),))]


def worked() -> Session:
    session = Session().user(said("the first instruction"))
    for number in range(4):
        session.step(f"{number}" * 4_000)
    return session


def view_text(session: Session) -> str:
    return "\n".join(str(block.data) for message in session.view.messages for block in message.blocks)


def test_what_a_fold_would_lose_is_put_back_by_the_same_edit_and_named() -> None:
    session = worked()
    edits, names = restore_missing(session.view, bare(session), KNOWN, HELD)
    assert names == ("the first instruction or the assignment", *NAMES)
    session.edit(edits)
    assert session.faults == []
    assert find_missing(session.view, required_content(session.view, KNOWN, HELD)) == ()
    shown = view_text(session)
    assert "[completed] think of it" not in shown
    assert "task_b" not in shown
    assert "a.py" not in shown
    assert [block.data["text"] for block in pins(session.view.messages)] == ["the first instruction"]


def test_what_stands_is_not_said_twice() -> None:
    session = worked()
    session.edit(restore_missing(session.view, bare(session), KNOWN, HELD)[0])
    session.step("x" * 4_000).step("y" * 4_000)
    again = restore_missing(session.view, [], KNOWN, HELD)
    assert again == ((), ())


@pytest.mark.parametrize(
    ("words", "left"),
    [
        ("bg_a is started", "background: bg_a"),
        ("I must  ship\nit now", "todo: ship it"),
        ("the question is req_a", "request: req_a"),
        ("task_a is mine", "task: task_a"),
        ("1. look 2. leap\nYour plan is approved by person.", "plan: approved"),
    ],
)
def test_what_is_told_elsewhere_in_the_view_is_not_missing(words: str, left: str) -> None:
    session = worked().reply(text(words)).user(said("go on"))
    gone = find_missing(session.view, required_content(session.view, KNOWN, HELD))
    assert [one.name for one in gone] == [name for name in NAMES if name != left]


def test_the_plan_of_another_status_does_not_count() -> None:
    session = worked().reply(text("1. look 2. leap\nYour plan is rejected by person.")).user(said("go on"))
    gone = find_missing(session.view, required_content(session.view, KNOWN, HELD))
    assert "plan: approved" in [one.name for one in gone]


def test_a_cleared_result_that_alone_told_of_a_running_command_still_tells_of_it() -> None:
    session = worked().step("[Background task bg_a started] " + "z" * 4_000).step("last")
    number, block = next(
        (message.id, place)
        for message in session.view.messages
        for place, block in enumerate(message.blocks)
        if is_result(block) and "bg_a" in str(block.data)
    )
    mark = "[Previous: used bash. Result cleared; ask again only if you need it. Full output: /out/x.txt]"
    first = session.view.messages[2].id
    clears = [
        Edit(kind="cleared", message=first, last=first, block=0, text=mark),
        Edit(kind="cleared", message=number, last=number, block=block, text=mark),
    ]
    known = StateBlock(background=KNOWN.background)
    edits, names = restore_missing(session.view, clears, known)
    assert names == ("background: bg_a",)
    assert edits[0] == clears[0]
    assert edits[1].text == f"Still so: bg_a: make test (running)\n{mark}"
    persisted = [clears[1].model_copy(update={"kind": "persisted", "text": "<persisted-output>\nx"})]
    (edit,), _ = restore_missing(session.view, persisted, known)
    assert edit.text.startswith("<persisted-output>\n")
    assert edit.text.endswith("Still so: bg_a: make test (running)")


def test_a_request_of_another_that_waits_in_the_mailbox_is_not_missing_one_that_was_delivered_is() -> None:
    known = StateBlock(requests=("req_b (plan of alice, you may answer) the roof",))
    session = worked()
    _, names = restore_missing(session.view, bare(session), known)
    assert "request: req_b" not in names
    told = Session().user(said("go"), said("alice asks: req_b", "inbox"))
    for number in range(4):
        told.step(f"{number}" * 4_000)
    edits, names = restore_missing(told.next_turn().view, bare(told), known)
    assert "request: req_b" in names
    assert "req_b" in str(edits)


def test_the_count_of_a_snip_stays_the_last_block() -> None:
    session = worked()
    (edit,), _ = restore_missing(session.view, bare(session, "[snipped 7 messages]", "snipped"), KNOWN, HELD)
    assert edit.blocks[-1].data["text"] == "[snipped 7 messages]"


def test_an_edit_that_would_have_to_say_more_than_it_saves_is_not_made() -> None:
    session = Session().user(said("go")).step("x" * 100).step("y")
    edits, names = restore_missing(session.view, bare(session), KNOWN, HELD)
    assert edits == ()
    assert names


def test_what_nobody_has_answered_is_put_back_too() -> None:
    session = worked().reply(text("done")).user(said("NEW words"), said("mail", "inbox"))
    messages = session.view.messages
    whole = [Edit(kind="dropped", message=messages[0].id, last=messages[-1].id, blocks=(note("[gone]"),))]
    edits, names = restore_missing(session.view, whole, StateBlock())
    assert names[1:] == ("unread: person", "unread: inbox")
    after = apply_edits(session.view, edits)
    assert {"NEW words", "mail"} <= {str(block.data.get("text")) for block in after.messages[0].blocks}


LOSSES = st.sampled_from(["everything", "state", "half", "pins"])


@given(STEPS, LOSSES, st.integers(0, 3))
@settings(max_examples=80, deadline=None)
def test_whatever_an_edit_loses_stands_again_or_the_edit_is_not_made(steps: Any, loss: str, rest: int) -> None:
    loses(steps, loss, rest)


@pytest.mark.soak
@given(STEPS, LOSSES, st.integers(0, 3))
@settings(max_examples=2_000 * SOAK, deadline=None)
def test_many_losses_are_mended(steps: Any, loss: str, rest: int) -> None:
    loses(steps, loss, rest)


def loses(steps: Any, loss: str, rest: int) -> bool:
    """Whether an edit that loses this was made all the same; what it lost stands again then."""
    session = played(steps)
    if session.view.messages[-1].role != "user":
        session.user(said("go on"))
    before = session.view
    if not tail_start(before.messages):
        return False  # all of it is unanswered
    (edit,) = bare(session)
    covered = [block for message in before.messages if message.id <= edit.last for block in message.blocks]
    stays = {
        "everything": [],
        "state": [block for block in covered if any(block is pin for pin in pins(before.messages))],
        "half": covered[:rest],
        "pins": [block for block in covered if block.source == "compactor"][:rest],
    }[loss]
    texts = [note(str(block.data["text"])) for block in stays if block.data.get("type") == "text"]
    edits, _ = restore_missing(before, [edit.model_copy(update={"blocks": (*texts, note("[gone]"))})], KNOWN, HELD)
    if not edits:
        return False
    after = apply_edits(before, edits)
    assert find_missing(after, required_content(before, KNOWN, HELD)) == ()
    assert edit_faults(before, after) == []
    assert invariants(after.messages) == []
    return True


def test_the_sample_is_not_empty_losses_are_mended_in_it() -> None:
    work = ("work", 12_000, "word ", 2, None)
    assert all(loses([work, work, work], loss, 2) for loss in ("everything", "state", "half", "pins"))
