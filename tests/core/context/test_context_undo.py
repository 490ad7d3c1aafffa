"""Edits taken back: over random histories, edits and undos, the view is what history and standing edits render to."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.context.context_histories import STEPS, Session, played, png, said, text

from callboard.core.context.cache.breakpoints import marks, with_marks
from callboard.core.context.stage_input import Situation
from callboard.core.context.stages.last_resort import drop_old_images
from callboard.core.context.view.conversation import render
from callboard.core.context.view.invariants import invariants
from callboard.core.context.view.messages import Messages
from callboard.core.context.view.tokens import MOST
from callboard.core.context.view.undo import remaining_edits, take_back
from callboard.types.events import ContextEdited, decode_event
from callboard.types.messages import Edit, Placed

SOAK = int(os.environ.get("SOAK", "1"))
ROOM = 10_000_000


@dataclass
class Journalled(Session):
    """A session whose edits stand in a journal, as events that were written and read."""

    journal: list[tuple[int, ContextEdited]] = field(default_factory=list[tuple[int, ContextEdited]])

    def edit(self, edits: Sequence[Edit]) -> Session:
        return super().edit(self.kept(edits))

    def kept(self, edits: Sequence[Edit], undoes: tuple[int, ...] = ()) -> Sequence[Edit]:
        event = ContextEdited(at=1.0, stage="x", revision=self.view.revision, edits=tuple(edits), undoes=undoes)
        read = decode_event(event.encode())
        assert isinstance(read, ContextEdited)
        self.journal.append((10 + len(self.journal), read))
        return read.edits

    def undo(self, *wanted: int, budget: int = ROOM) -> str:
        """Take edits back; what was said against it."""
        found = take_back(self.view, self.past.messages, self.journal, positions=wanted, budget=budget, images=MOST)
        if isinstance(found, str):
            self.kept((), wanted)
            return found
        faults = len(self.faults)
        super().edit(self.kept([found], wanted))
        self.faults[faults:] = [one for one in self.faults[faults:] if one not in BY_RIGHT]
        return ""

    def rendered(self) -> Messages:
        return render(self.past.messages, remaining_edits(self.journal))


BY_RIGHT = ("the view is larger", "words that the model did not say", "the newest user message is not whole")
"""What `edit_faults` must call a fault where it is not told that the edit is an undo; `take_back` tells it."""


def begun() -> Journalled:
    session = Journalled()
    session.user(said("Do the work."))
    return session


def same(session: Journalled) -> None:
    """No law is broken, and the view and its request are what they are from scratch, to the byte."""
    assert session.faults == []
    rendered = session.rendered()
    assert session.view.messages == rendered
    scratch = replace(session.view, messages=Messages.of(tuple(rendered)))
    now, then = (b",".join(with_marks(view, marks(view))) for view in (session.view, scratch))
    assert now == then
    assert b",".join(session.view.messages.pieces()) == b",".join(message.wire for message in rendered)
    assert invariants(session.view.messages, sent=session.past.messages[-1].role == "user") == []


UNDOS = st.lists(st.lists(st.integers(0, 30), max_size=2), max_size=14)


def lived(steps: Sequence[Any], undos: Sequence[Sequence[int]]) -> tuple[Journalled, int]:
    """A session of these steps, with undos after them, some of what is no edit; and how many were done."""
    session, done = begun(), 0
    for number, one in enumerate(steps):
        played([one], session, number)
        wanted = tuple(10 + n % (len(session.journal) + 1) for n in undos[number]) if number < len(undos) else ()
        if wanted:
            done += session.undo(*wanted) == ""
            same(session)
    return session, done


@given(STEPS, UNDOS)
@settings(max_examples=150, deadline=None)
def test_after_edits_and_undos_the_view_is_what_history_and_standing_edits_render_to(
    steps: list[Any], undos: list[list[int]]
) -> None:
    same(lived(steps, undos)[0])


@pytest.mark.soak
@given(STEPS, UNDOS)
@settings(max_examples=2_000 * SOAK, deadline=None)
def test_many_histories_with_undos(steps: list[Any], undos: list[list[int]]) -> None:
    same(lived(steps, undos)[0])


WORK = ("work", 12_000, "word ", 2, None)
STAGES = ("persist_large_results", "clear_old_results", "summarize_all", "react", "truncate_oldest")


@pytest.mark.parametrize("stage", STAGES)
def test_the_edit_of_each_stage_is_undone_at_once_and_later_and_the_undo_is_undone(stage: str) -> None:
    for later in (0, 3):
        session, _ = lived([WORK, ("say", 300, "word ", 1, None), WORK, WORK, WORK, WORK, (*WORK[:4], stage)], [])
        assert len(session.journal) == 1, stage
        reduced = session.view.tokens
        played([WORK] * later, session, 7)
        assert session.undo(10) == ""
        same(session)
        assert session.view.messages == session.past.messages
        assert session.undo(11) == ""
        same(session)
        assert later or session.view.tokens == reduced
        assert session.undo(12) == ""
        assert session.view.messages == session.past.messages


def summarised_twice() -> Journalled:
    session = begun()
    for _ in range(2):
        session.step("x" * 4_000).step("y" * 4_000).step("z")
        session.run("summarize_all", 500, at_least=0.0)
    assert len(session.journal) == 2
    return session


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ((), "no edit is named"),
        ((9,), "#9 is no edit"),
        ((10, 99), "#99 is no edit"),
        ((10,), "would change nothing: later edits contain"),
    ],
)
def test_what_cannot_be_taken_back_is_refused_with_the_reason(wanted: tuple[int, ...], why: str) -> None:
    session = summarised_twice()
    before = session.view
    assert why in session.undo(*wanted)
    assert session.view is before
    same(session)


def test_an_edit_is_taken_back_once_and_a_refused_undo_is_no_edit() -> None:
    session = summarised_twice()
    assert session.undo(11) == ""
    assert session.undo(11) == "#11 was undone already"
    assert session.undo(13) == "#13 is no edit"
    assert session.undo(10) == ""
    assert session.view.messages == session.past.messages
    same(session)


def test_two_edits_are_taken_back_together() -> None:
    session = summarised_twice()
    assert session.undo(10, 11) == ""
    assert session.view.messages == session.past.messages


def test_an_undo_that_does_not_fit_is_refused_with_both_numbers() -> None:
    session = begun()
    session.step("x" * 40_000).step("y").step("z").run("clear_old_results", 100, keep=1)
    needed = session.past.tokens
    assert session.undo(10, budget=needed - 1) == (
        f"it does not fit: the messages would be {needed:,} tokens, and there is room for {needed - 1:,}"
    )
    assert session.undo(10, budget=needed) == ""


def test_only_the_smallest_range_that_differs_is_restored() -> None:
    session = begun()
    for content in ("a", "b" * 4_000, "c", "d" * 4_000, "e", "f"):
        session.step(content)
    session.run("clear_old_results", 100, keep=1)
    assert session.undo(10) == ""
    (edit,) = session.journal[-1][1].edits
    results = [message for message in session.past.messages if message.tokens > 500]
    assert (edit.message, edit.last) == (results[0].id, results[-1].id)
    assert [one.id for one in edit.messages] == list(range(edit.message, edit.last + 1))


def test_what_was_dropped_without_a_trace_comes_back_beside_its_neighbour() -> None:
    session = begun()
    session.step("a").step("b").step("c")
    session.edit([Edit(kind="dropped", message=2, last=3)])
    assert len(session.view.messages) == len(session.past.messages) - 2
    assert session.undo(10) == ""
    same(session)
    assert session.undo(11) == ""
    same(session)
    assert len(session.view.messages) == len(session.past.messages) - 2


def test_words_that_come_in_while_an_edit_stands_stay_after_its_undo() -> None:
    session = begun()
    session.step("x" * 4_000).reply(text("Done."))
    session.run("summarize_all", 10)
    session.next_turn().user(said("And now?")).user(said("Quickly."))
    assert session.undo(10) == ""
    same(session)
    assert [block.data["text"] for block in session.view.messages[-1].blocks] == ["And now?", "Quickly."]


def test_every_block_keeps_its_source_pin_place_and_time() -> None:
    session = begun()
    session.user(said("role", "inbox", pinned=True)).step("x" * 4_000).user(said("later", "reminder")).step("y")
    session.run("summarize_all", 10, at_least=0.0)
    assert session.undo(10) == ""
    assert tuple(session.view.messages) == tuple(session.past.messages)
    assert len({block.at for block in session.view.messages[2].blocks}) == 2
    restored = session.journal[-1][1].edits[0].messages
    assert (restored[0].at, restored[0].times, restored[-1].times) == (1.0, (1.0, 2.0), (4.0, 5.0))


def test_an_undo_that_would_break_a_law_is_refused() -> None:
    """The history is not the one that the view grew from: nothing of ours brings that about, so it is made here."""
    session = begun()
    session.step("x" * 4_000).step("y" * 4_000).step("z").run("summarize_all", 10, at_least=0.0)
    history = [message for message in session.past.messages if message.id != 3]
    found = take_back(session.view, history, session.journal, positions=(10,), budget=ROOM, images=MOST)
    assert isinstance(found, str)
    assert "could not be sent: a call without its result: toolu_1_0" in found


def test_an_undo_that_a_later_edit_of_a_block_would_not_fit_is_refused() -> None:
    session = Journalled()
    session.user(said("build it"), said("and the colour is blue")).reply(text("reply " * 500)).next_turn()
    first, reply = session.view.messages
    session.edit([Edit(kind="summarised", message=first.id, last=reply.id, blocks=(said("a summary", "compactor"),))])
    session.user(said("look at this")).reply(text("seen")).next_turn()
    session.edit([Edit(kind="cleared", message=first.id, last=first.id, block=1, text="[gone]")])
    assert session.undo(10) == "#11 changed a block of the message that #10 made: undo #11 as well"
    assert session.undo(10, 11) == ""
    assert [block.data["text"] for block in session.view.messages[0].blocks] == ["build it", "and the colour is blue"]


def test_an_undo_that_would_bring_back_more_images_than_a_request_may_have_is_refused() -> None:
    session = Journalled()
    picture = Placed(data=png(10, 10), source="person")
    for _ in range(3):
        session.user(said("look"), *[picture] * 40).reply(text("seen")).next_turn()
    session.user(said("and this"), picture)
    dropped = drop_old_images(session.view, ROOM, Situation(now=0.0, folder="/out"), {})
    assert dropped
    session.edit(dropped)
    assert session.view.messages.images <= MOST
    assert session.undo(10) == "it does not fit: there would be 121 images, and a request may have 100"
