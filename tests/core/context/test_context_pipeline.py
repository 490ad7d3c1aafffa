"""Which stage is asked: cheap before dear, none twice, and never the whole window."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.context.context_histories import Session, said, text
from tests.core.context.context_stages import began, worked

from callboard.core.context.pipeline import StageCall, check_pipeline, manual_summary, next_stage, react_stage
from callboard.core.context.stage_input import Situation, budget_of
from callboard.core.context.stages.results import persisted_texts
from callboard.core.context.view.conversation import message_tokens
from callboard.types.agent_spec import ModelLimits, StageSpec
from callboard.types.messages import StateBlock

THREE = [StageSpec(stage=name) for name in ("persist_large_results", "clear_old_results", "summarize_all")]
HERE = Situation(now=0.0, folder="/out", transcript="/t/lead-7.jsonl")


def asked(session: Session, budget: int, **changed: Any) -> StageCall | None:
    given: dict[str, Any] = {"now": 0.0, "folder": "/out", "transcript": "/t/lead-7.jsonl", **changed}
    return next_stage(THREE, session.view, budget, Situation(**given))


def test_under_its_thresholds_no_stage_is_asked() -> None:
    assert asked(worked(), 100_000) is None
    assert asked(Session(), 0) is None


def test_cheap_comes_before_dear() -> None:
    huge = worked(5).step("x " * 150_000)
    assert getattr(asked(huge, 200_000), "stage", "") == "persist_large_results"
    assert getattr(asked(worked(), 5_000), "stage", "") == "clear_old_results"
    few = worked(4)
    found = asked(few, 3_000)
    assert found is not None
    assert (found.stage, found.transcript, found.edits) == ("summarize_all", True, ())


def test_large_results_are_persisted_before_a_summary_whatever_the_trigger() -> None:
    found = asked(worked(3, 20_000).step("x " * 15_500), 12_000)
    assert found is not None
    assert (found.stage, found.prepares, len(found.edits)) == ("persist_large_results", True, 1)


def test_over_the_budget_with_nothing_left_to_do_the_newest_goes_to_a_file_and_then_the_model_is_asked() -> None:
    session = began().step("x " * 14_500)
    found = asked(session, 5_000)
    assert found is not None
    assert (found.stage, len(found.edits)) == ("persist_newest", 1)
    assert asked(session.edit(found.edits), 5_000) is None
    assert session.faults == []


def test_a_stage_tried_at_this_revision_is_not_asked_again() -> None:
    session = worked()
    found = asked(session, 5_000, tried=frozenset({("clear_old_results", 0)}))
    assert found is not None
    assert found.stage == "summarize_all"
    assert (
        getattr(asked(session, 5_000, tried=frozenset({("clear_old_results", 1)})), "stage", "") == "clear_old_results"
    )


@pytest.mark.parametrize(
    "changed", [{"tried": frozenset({("clear_old_results", 0), ("summarize_all", 0)})}, {"summaries_failed": 3}]
)
def test_after_failed_summaries_the_oldest_is_dropped_and_then_nothing_is_left_to_do(changed: Any) -> None:
    session = worked(4)
    found = asked(session, 3_000, **changed)
    assert found is not None
    assert (found.stage, found.transcript, len(found.edits)) == ("truncate_oldest", True, 1)
    assert "/t/lead-7.jsonl" in str(found.edits)
    session.edit(found.edits)
    assert message_tokens(session.view) <= 3_000
    assert asked(session, 3_000, summaries_failed=3) is None


def test_after_a_refusal_large_results_go_first_then_the_summary_then_whatever_can() -> None:
    session = worked(4).step("x " * 15_500)
    first = react_stage(session.view, 10**6, HERE)
    assert first is not None
    assert (first.stage, first.prepares) == ("persist_large_results", True)
    second = react_stage(session.edit(first.edits).view, 10**6, HERE)
    assert second is not None
    assert second.summary is not None
    failed = frozenset({("react", session.view.revision)})
    without = react_stage(session.view, 10**6, Situation(0.0, "/out", "/t/x.jsonl", failed, 1))
    assert without is not None
    assert (without.stage, without.prepares, without.summary) == ("clear_old_results", False, None)
    assert session.edit(without.edits).faults == []


def test_after_a_refusal_and_a_failed_summary_more_than_one_stage_may_be_needed() -> None:
    session = began()
    for number in range(16):
        session.reply(text("words " * 300)).user(said(f"answer {number} " * 200, "inbox")).next_turn()
    session.step("x " * 15_500).step("y " * 15_500)
    state = StateBlock(todos=("[pending] win",))
    found = react_stage(session.view, 10**6, Situation(0.0, "/out", "/t/x.jsonl", frozenset(), 3, state))
    assert found is not None
    assert [edit.kind for edit in found.edits] == ["persisted", "cleared"]
    last = session.edit(found.edits).view.messages[-1].id
    assert persisted_texts(session.past, found.edits) == {f"/out/toolu_{last - 2}_0.txt": "y " * 15_500}
    found = react_stage(session.view, 10**6, Situation(0.0, "/out", "/t/x.jsonl", frozenset(), 3, state))
    assert found is not None
    assert (found.stage, found.transcript) == ("truncate_oldest", True)
    assert "[pending] win" in str(found.edits)
    assert session.edit(found.edits).faults == []


def test_a_giant_newest_message_is_shrunk_when_it_can_be() -> None:
    session = began().step("x " * 75_000)
    found = react_stage(session.view, 10**6, HERE)
    assert found is not None
    assert (found.stage, found.prepares) == ("persist_large_results", False)
    assert react_stage(session.edit(found.edits).view, 10**6, HERE) is None
    assert react_stage(began().view, 10**6, HERE) is None


def test_a_person_may_ask_for_a_summary_at_any_size() -> None:
    assert manual_summary(Session().view, "") is None
    assert manual_summary(began().view, "") is None
    session = began().step("x").reply(text("done"))
    found = manual_summary(session.view, "the tests")
    assert found is not None
    assert (found.trigger, found.focus, found.message, found.last) == ("manual", "the tests", 1, 4)
    paused = manual_summary(session.view, "", in_turn=True)
    assert paused is not None
    assert paused.last == 3


@pytest.mark.parametrize(
    ("window", "output", "overhead", "limit", "budget"),
    [
        (200_000, 8_000, 12_000, None, 180_000),
        (200_000, 8_000, 12_000, 40_000, 40_000),
        (200_000, 8_000, 12_000, 400_000, 180_000),
        (10_000, 8_000, 12_000, None, 0),
        (10_000, 8_000, 12_000, 40_000, 0),
    ],
)
def test_the_budget_is_never_the_whole_window(
    window: int, output: int, overhead: int, limit: int | None, budget: int
) -> None:
    assert budget_of(ModelLimits(window=window), output, overhead, limit) == budget


@pytest.mark.parametrize(
    ("stage", "params", "problem"),
    [
        ("snip", {}, "unknown stage 'snip': choose "),
        ("react", {}, "stands behind every pipeline"),
        ("clear_old_results", {"kep": 3}, "kep: `clear_old_results` has no such parameter; it has keep,"),
        ("persist_large_results", {"folder": "/etc"}, "no such parameter"),
        ("clear_old_results", {"keep": -1}, "must be a number, 0 or more, not -1"),
        ("clear_old_results", {"keep": True}, "must be a number"),
        ("clear_old_results", {"keep": 1.5}, "must be a whole number, not 1.5"),
        ("clear_old_results", {"unit": "days"}, "must be one of results, turns, not 'days'"),
        ("clear_old_results", {"mark": " "}, "must be a text"),
        ("clear_old_results", {"preserve_tools": "read_file"}, "must be a list of names"),
        ("summarize_all", {"over": "much"}, "must be a number"),
    ],
)
def test_a_pipeline_that_makes_no_sense_is_refused_by_name(stage: str, params: dict[str, Any], problem: str) -> None:
    problems = check_pipeline([StageSpec(stage="summarize_all"), StageSpec(stage=stage, params=params)])
    assert len(problems) == 1
    assert problems[0].startswith("pipeline[1]")
    assert problem in problems[0]


def test_what_is_shipped_and_what_can_be_set_is_accepted() -> None:
    assert check_pipeline(THREE) == []
    params = {"keep": 2, "over": 1, "preserve_tools": ["read_file"], "unit": "turns", "mark": "[used NAME]"}
    assert check_pipeline([StageSpec(stage="clear_old_results", params=params)]) == []
