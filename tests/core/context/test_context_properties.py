"""Over random histories: the laws of the view hold after every edit, and folding from scratch gives the same bytes."""

from __future__ import annotations

import json
import os
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.context.context_histories import STEPS, Session, played, said

from callboard.core.context.cache.breakpoints import marks, with_marks
from callboard.core.context.pipeline import DEFAULT_PIPELINE, next_stage, react_stage
from callboard.core.context.stage_input import Situation
from callboard.core.context.view.conversation import render, size
from callboard.core.context.view.invariants import invariants
from callboard.core.context.view.transcript import Origin, load_transcript, transcript_lines
from callboard.types.records import compact

SOAK = int(os.environ.get("SOAK", "1"))


def check(session: Session) -> None:
    assert session.faults == []
    sent = session.view.messages[-1].role == "user"
    assert invariants(session.view.messages, sent=sent) == []
    assert render(session.past.messages, session.edits) == session.view.messages
    assert session.view.tokens == sum(message.tokens for message in session.view.messages)
    assert size(session.view) >= session.view.overhead + session.view.tokens
    lines = transcript_lines(session.view.messages, Origin())
    assert load_transcript(b"".join(lines)) == session.view.messages
    assert lines == [compact(json.loads(line)).encode() + b"\n" for line in lines]
    for message, wire in zip(session.view.messages, with_marks(session.view, marks(session.view)), strict=True):
        assert unmarked(json.loads(wire)) == json.loads(message.wire)


def unmarked(message: dict[str, Any]) -> dict[str, Any]:
    content = [{k: v for k, v in block.items() if k != "cache_control"} for block in message["content"]]
    return {**message, "content": content}


@given(STEPS)
@settings(max_examples=150, deadline=None)
def test_every_edit_of_every_stage_keeps_the_laws_and_replays_to_the_byte(steps: list[Any]) -> None:
    check(played(steps))


@given(STEPS, st.integers(200, 9_000), st.sampled_from(["works", "fails", "refused"]))
@settings(max_examples=80, deadline=None)
def test_the_pipeline_comes_to_an_end_and_leaves_no_law_broken(steps: list[Any], budget: int, mood: str) -> None:
    """Also when each summary fails, and when the service refuses whatever is sent."""
    session = played(steps)
    failed, asked = 0, 0
    tried: frozenset[tuple[str, int]] = frozenset()
    while asked < 60:
        situation = Situation(0.0, "/out", f"/t/{asked}.jsonl", tried, failed)
        ask = react_stage if mood == "refused" else partial(next_stage, DEFAULT_PIPELINE)
        found = ask(session.view, budget, situation)
        if found is None:
            break
        asked += 1
        if found.summary is None:
            assert found.edits
            session.edit(found.edits)
        elif mood == "works":
            before = session.view.revision
            session.do(found.summary, budget)
            if session.view.revision == before:
                tried |= {(found.stage, before)}
        else:
            failed += 1
            tried |= {(found.stage, session.view.revision)}
    assert asked < 60
    check(session)


@pytest.mark.soak
@given(STEPS)
@settings(max_examples=2_000 * SOAK, deadline=None)
def test_many_histories_keep_the_laws(steps: list[Any]) -> None:
    check(played(steps))


def test_the_sample_is_not_empty_every_stage_edits_something_in_it() -> None:
    work = ("work", 12_000, "word ", 2, None)
    steps = [work, ("end", 300, "word ", 1, None), *[(*work[:4], stage) for stage in STAGE_NAMES]]
    for stage in STAGE_NAMES:
        session = played([*steps[:2], work, work, work, (*work[:4], stage)])
        assert session.edits, stage
        check(session)


STAGE_NAMES = ("persist_large_results", "clear_old_results", "summarize_all", "react", "truncate_oldest")


def test_undoing_an_edit_is_leaving_it_out() -> None:
    session = Session().user(said("go")).step("x" * 9_000).step("y" * 9_000).step("z")
    session.run("clear_old_results", 100, keep=0)
    assert session.edits
    assert render(session.past.messages, []) == session.past.messages
    assert render(session.past.messages, session.edits) == session.view.messages
