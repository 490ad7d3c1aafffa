"""When the conversation is compacted, by which stage, and when nothing is left to do."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.agent.agent_states import Life, settled
from tests.core.agent.decisions import failing, prompted, step

from callboard.types import events as ev
from callboard.types import steps as st
from callboard.types.messages import StateBlock


def long(tokens: int = 3_000, **spec: Any) -> Life:
    life = prompted(context_limit=tokens * 3 // 2, stuck_after=0, **spec)
    for _ in range(4):
        life = life.called("read_file")
        text = ({"type": "text", "text": "word " * tokens},)
        life = life.on(ev.CallJudged, call="c1", verdict="allow").on(ev.ToolStarted, call="c1", effect="read")
        life = settled(life.on(ev.ToolFinished, call="c1", content=text), "c1").on(ev.ResultsMerged)
    return life


def test_over_the_budget_the_next_stage_is_asked_before_the_model() -> None:
    life = long(pipeline=({"stage": "clear_old_results", "params": {"keep": 1}}, {"stage": "summarize_all"}))
    found = step(life)
    assert isinstance(found, st.EditView)
    assert (found.stage, found.trigger) == ("clear_old_results", "auto")
    life = life.on(ev.ContextEdited, stage=found.stage, revision=0, edits=found.edits)
    assert life.state.context.conversation.revision == 1


def test_a_stage_that_found_nothing_is_not_asked_again_for_the_same_view() -> None:
    life = long(pipeline=({"stage": "summarize_all"},))
    wanted = step(life)
    assert isinstance(wanted, st.SummarizeView)
    assert not wanted.begun
    tried = life.on(ev.ContextEdited, stage="summarize_all", revision=0)
    after = step(tried, known=StateBlock())
    assert not isinstance(after, st.SummarizeView)


def test_a_prompt_refused_as_too_long_is_compacted_whatever_the_thresholds_say() -> None:
    life = failing("too_long", long().asked())
    assert isinstance(step(life), st.React)
    life = life.on(ev.ReactAsked)
    found = step(life, known=StateBlock())
    assert isinstance(found, st.SummarizeView)
    assert found.wanted.trigger == "reactive"
    begun = life.on(ev.SummaryBegan, wanted=found.wanted, revision=0).on(ev.SummaryFailed, why="empty")
    without = step(begun, known=StateBlock())
    assert isinstance(without, st.EditView)


def test_a_short_history_that_is_refused_all_the_same_is_an_overflow() -> None:
    life = failing("too_long").on(ev.ReactAsked)
    found = step(life)
    assert isinstance(found, st.EndTurn)
    assert found.reason == "overflow"
    assert found.why.startswith("the conversation is too large, and nothing more can be cut from it: by our count ")
    assert found.why.endswith(" tokens that may be sent, but the service counts more")


@pytest.mark.parametrize("by", ["tool", "person"])
def test_a_compaction_asked_for_comes_before_the_model_is_asked(by: str) -> None:
    life = long().on(ev.CompactAsked, focus="the paths", by=by)
    found = step(life)
    assert isinstance(found, st.SummarizeView)
    assert (found.wanted.focus, found.wanted.trigger) == ("the paths", "manual")


def test_a_compaction_asked_for_is_made_as_the_pipeline_says() -> None:
    params = {"input": "tail", "place": "user", "prompt": "be brief", "max_tokens": 300}
    life = long(pipeline=({"stage": "summarize_all", "params": params},)).on(ev.CompactAsked)
    found = step(life)
    assert isinstance(found, st.SummarizeView)
    wanted = found.wanted
    assert (wanted.input, wanted.place, wanted.prompt, wanted.max_tokens) == ("tail", "user", "be brief", 300)


def test_compact_on_an_empty_history_says_that_there_is_nothing_and_is_over() -> None:
    life = Life.begun().on(ev.CompactAsked, by="person")
    assert step(life) == st.EditView("summarize_all", "manual", (), why="the conversation is empty")
    after = life.on(ev.ContextEdited, stage="summarize_all", trigger="manual", revision=0)
    assert step(after) == st.Wait(None, "idle")
