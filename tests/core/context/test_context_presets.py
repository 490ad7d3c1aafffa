"""The presets: their numbers, exactly; and over random lives the laws of the view, and requests that are accepted."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.context.context_histories import Session, said, text
from tests.core.context.context_lives import HAPPENS, Life
from tests.core.context.context_stages import began, results, worked

from callboard.core.context.pipeline import PRESETS, StageCall, check_pipeline, next_stage
from callboard.core.context.stage_input import Situation
from callboard.core.context.stages.summarize import characters
from callboard.core.context.view.conversation import message_tokens, render
from callboard.types.messages import Edit, SummaryWanted

SOAK = int(os.environ.get("SOAK", "1"))
BUDGET = 160_000
"""Tokens of a large window: the thresholds of the classic presets come long before it."""


def asked(preset: str, session: Session, budget: int = BUDGET, **changed: Any) -> StageCall | None:
    given: dict[str, Any] = {"now": 0.0, "folder": "/out", "transcript": "/t/x.jsonl", **changed}
    return next_stage(PRESETS[preset], session.view, budget, Situation(**given))


def stage_of(preset: str, session: Session, budget: int = BUDGET) -> str:
    return getattr(asked(preset, session, budget), "stage", "")


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_is_a_pipeline_that_could_stand_in_settings(preset: str) -> None:
    assert check_pipeline(PRESETS[preset]) == []


@pytest.mark.parametrize(
    ("preset", "stages"),
    [
        ("progressive", "persist_large_results snip_middle clear_old_results summarize_all"),
        ("micro", "clear_old_results summarize_all"),
        ("regional", "persist_large_results summarize_regions summarize_all"),
    ],
)
def test_stages_stand_in_the_order_of_the_table(preset: str, stages: str) -> None:
    assert [one.stage for one in PRESETS[preset]] == stages.split()


# progressive


def test_progressive_summarises_over_fifty_thousand_characters_of_rendered_messages() -> None:
    def said_so_much(length: int) -> Session:
        session = began()
        for _number in range(9):
            session.reply(text("word " * 1_000)).user(said("go on", "reminder"))
        return session.reply(text("x" * length)).user(said("go on", "reminder"))

    fill = 50_000 - characters(said_so_much(1).view) + 1
    assert characters(said_so_much(fill).view) == 50_000
    assert stage_of("progressive", said_so_much(fill)) == ""
    assert stage_of("progressive", said_so_much(fill + 1)) == "summarize_all"


def test_chinese_characters_count_one_each() -> None:
    session = began().reply(text("好" * 100))
    assert characters(session.view) == sum(len(one.wire.decode()) for one in session.view.messages)
    assert 150 < characters(session.view) < 300


def test_progressive_keeps_the_newest_three_results_and_those_of_up_to_120_characters() -> None:
    session = began().step("a" * 120).step("b" * 121).step("c" * 200).step("d" * 200).step("e" * 200)
    found = asked("progressive", session)
    assert found is not None
    assert found.stage == "clear_old_results"
    mark = "[Earlier result compacted; run again if needed.]"
    assert results(session.edit(found.edits)) == ["a" * 120, mark, "c" * 200, "d" * 200, "e" * 200]
    assert session.faults == []


def test_progressive_counts_results_that_were_not_seen_among_its_three_and_clears_none_of_them() -> None:
    session = worked(3).step("y " * 200, calls=5)
    found = asked("progressive", session)
    assert found is not None
    session.edit(found.edits)
    assert [shown[:2] for shown in results(session)] == ["[E"] * 3 + ["y "] * 5


def test_progressive_snips_over_fifty_messages() -> None:
    session = began()
    for _number in range(25):
        session.step("ok")
    assert stage_of("progressive", session) == ""  # 51: the ends meet
    assert stage_of("progressive", session.step("ok")) == "snip_middle"


# micro


def test_micro_summarises_over_fifty_thousand_tokens_counted_as_characters_by_four() -> None:
    def said_so_much(length: int) -> Session:
        session = began()
        for _number in range(39):
            session.reply(text("word " * 1_000)).user(said("go on", "reminder"))
        return session.reply(text("x" * length)).user(said("go on", "reminder"))

    fill = 200_003 - characters(said_so_much(1).view) + 1
    assert characters(said_so_much(fill).view) // 4 == 50_000
    assert stage_of("micro", said_so_much(fill)) == ""
    assert stage_of("micro", said_so_much(fill + 1)) == "summarize_all"


def test_micro_keeps_the_newest_three_answered_results_every_file_read_and_up_to_100_characters() -> None:
    session = began().step("a" * 101, "grep").step("b" * 100).step("c" * 900, "read_file")
    for letter in "defg":
        session.step(letter * 200)
    found = asked("micro", session)
    assert found is not None
    shown = results(session.edit(found.edits))
    assert shown[:3] == ["[Previous: used grep]", "b" * 100, "c" * 900]
    # g is not answered yet: d, e and f are the newest three that are.
    assert [one[0] for one in shown[3:]] == list("defg")
    session.reply(text("ok")).user(said("go on"))
    found = asked("micro", session)
    assert found is not None
    assert results(session.edit(found.edits))[3] == "[Previous: used bash]"


def test_micro_neither_persists_nor_snips() -> None:
    session = began()
    for _number in range(40):
        session.step("ok")
    assert stage_of("micro", session.step("word " * 20_000)) == ""


# regional


class Wordy(Session):
    """Its summaries are as long as they may be."""

    def summarised(self, wanted: SummaryWanted, budget: int, words: str = "") -> list[Edit]:
        return super().summarised(wanted, budget, words or "word " * (wanted.max_tokens * 3 // 5))


class Paying(Life):
    """A life that holds each summary to what it takes away."""

    def _do(self, found: StageCall) -> None:
        view = self.session.view
        if found.summary is not None and message_tokens(view) <= self.budget:
            first, last = found.summary.message, found.summary.last
            covered = sum(one.tokens for one in view.messages if first <= one.id <= last)
            assert covered >= min(0.1 * self.budget, 19_500) - 1, (found.stage, covered, self.budget)
        super()._do(found)


@pytest.mark.slow
@given(happens=HAPPENS, budget=st.sampled_from([3_000, 12_000, 60_000, BUDGET]), repeated=st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_each_summary_of_regional_takes_a_tenth_of_the_budget_unless_the_view_is_over_it(
    happens: list[Any], budget: int, repeated: int
) -> None:
    Paying(PRESETS["regional"], budget, lambda number: True).lived(happens * repeated)


def test_regional_folds_its_own_summaries_before_they_leave_no_room_for_regions() -> None:
    session = Wordy().user(said("Do the work."))
    life = Paying(PRESETS["regional"], 40_000, lambda number: True, session)
    life.lived([("work", 12_000, "word ", 1)] * 150)
    assert life.stages.count("summarize_all") >= 1
    assert "truncate_oldest" not in life.stages
    read = 150 * 3_000
    assert len(life.stages) <= read / (0.1 * 40_000)


# All of them


@pytest.mark.parametrize("preset", PRESETS)
def test_a_large_result_that_was_not_seen_goes_to_a_file_before_any_summary(preset: str) -> None:
    session = began()
    for _number in range(40):
        session.reply(text("word " * 1_500)).user(said("go on", "reminder"))
    session.step("word " * 6_001).user(said("<system-reminder>\nx\n</system-reminder>", "reminder"))
    stages: list[str] = []
    while found := asked(preset, session, 70_000):
        stages.append(found.stage)
        if found.summary is not None:
            break
        session.edit(found.edits)
    assert stages[-1].startswith("summarize")
    assert "persist_large_results" in stages
    assert session.view.messages[-1].blocks[0].data["content"].startswith("<persisted-output>")


@pytest.mark.parametrize("preset", PRESETS)
def test_where_every_summary_fails_the_oldest_is_dropped_and_the_turn_goes_on(preset: str) -> None:
    life = Life(PRESETS[preset], 10_000, lambda number: False)
    life.lived([("cut", 6_000, "word ", 1), ("work", 6_000, "word ", 1), ("end", 1, "word ", 3)] * 20)
    assert "truncate_oldest" in life.stages
    assert life.session.view.tokens <= 10_000


@pytest.mark.parametrize("preset", PRESETS)
def test_no_words_of_the_person_are_missing_from_a_long_life(preset: str) -> None:
    life = Life(PRESETS[preset], 20_000, lambda number: True)
    for number in range(12):
        life.lived([("work", 12_000, "word ", 2), ("end", 1, f"wish {number} ", 2)])
    shown = str([one.wire for one in life.session.view.messages])
    assert all(f"wish {number} " in shown for number in range(12))


@pytest.mark.slow
def test_the_random_lives_are_no_empty_sample_every_stage_edits_in_them() -> None:
    seen: dict[str, set[str]] = {}
    for preset in PRESETS:
        session = Wordy().user(said("Do the work."))
        life = Life(PRESETS[preset], 30_000, lambda number: number % 3 != 0, session)
        life.lived([(kind, 12_000, "word ", 2) for kind in ("burst", "cut", "work", "end", "work", "cut") * 9])
        life.lived([("work", 120_000, "word ", 3), ("work", 120_000, "word ", 3)])
        seen[preset] = set(life.stages)
        assert {one.stage for one in PRESETS[preset]} - {"persist_large_results"} <= seen[preset], preset
    assert all(stages & {"persist_large_results", "persist_newest"} for stages in seen.values())


def keeps_the_laws(preset: str, happens: list[Any], budget: int, failures: set[int]) -> None:
    life = Life(PRESETS[preset], budget, lambda number: number not in failures).lived(happens)
    assert render(life.session.past.messages, life.session.edits) == life.session.view.messages


FAILURES = st.sets(st.integers(1, 12), max_size=6)


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("preset", PRESETS)
@given(happens=HAPPENS, budget=st.sampled_from([3_000, 12_000, 60_000, BUDGET]), failures=FAILURES)
@settings(max_examples=40, deadline=None)
def test_under_every_preset_each_edit_keeps_the_laws_and_each_request_is_accepted(
    preset: str, happens: list[Any], budget: int, failures: set[int]
) -> None:
    keeps_the_laws(preset, happens, budget, failures)


@pytest.mark.soak
@pytest.mark.parametrize("preset", PRESETS)
@given(happens=HAPPENS, budget=st.sampled_from([3_000, 12_000, 60_000, BUDGET]), failures=FAILURES)
@settings(max_examples=1_250 * SOAK, deadline=None)
def test_many_lives_under_every_preset(preset: str, happens: list[Any], budget: int, failures: set[int]) -> None:
    keeps_the_laws(preset, happens, budget, failures)
