"""When the service is asked how long the request is, and when the estimate does."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.agent.agent_states import Life, settled
from tests.core.agent.decisions import HI, failing, prompted, step

from callboard.core.agent.rules.compaction import COUNT, WORTH, room, tokens_since_count
from callboard.core.context.view.conversation import message_tokens, size
from callboard.types import events as ev
from callboard.types import steps as st
from callboard.types.records import Json, ToolCall, Usage

LIMITS = {"one": {"window": 100_000, "max_output": 8_000}}


def read(tokens: int, **spec: Any) -> Life:
    """A life that has read a file of that many tokens; the service has counted what was before."""
    life = prompted(models=LIMITS, pipeline=({"stage": "summarize_all"},), **spec)
    call = ToolCall(id="c1", use_id="u1", name="read_file", input={})
    block: Json = {"type": "tool_use", "id": "u1", "name": "read_file", "input": {}}
    usage = Usage(input_tokens=size(life.state.context.conversation), output_tokens=20)
    life = life.asked().replied(block, stop="tool_use", calls=(call,), usage=usage)
    life = life.on(ev.CallJudged, call="c1", verdict="allow").on(ev.ToolStarted, call="c1", effect="read")
    text = ({"type": "text", "text": "word" * tokens},)
    return settled(life.on(ev.ToolFinished, call="c1", content=text), "c1").on(ev.ResultsMerged)


def test_near_the_limit_with_much_that_was_never_counted_the_service_is_asked() -> None:
    life = read(86_000)
    assert 0.9 * room(life.state) <= message_tokens(life.state.context.conversation) <= room(life.state)
    assert tokens_since_count(life.state.context.conversation) > 85_000
    assert step(life) == st.CountTokens(0)


def test_while_it_counts_the_model_is_not_asked_and_an_interrupt_ends_it() -> None:
    life = read(86_000)
    assert isinstance(step(life, running=frozenset({COUNT})), st.Wait)
    assert step(life.on(ev.Interrupted), running=frozenset({COUNT})) == st.Cancel((COUNT,))


def test_after_a_crash_in_the_middle_it_is_just_asked_again() -> None:
    life = read(86_000)
    assert step(life) == step(life) == st.CountTokens(0), "nothing is journalled before the answer"


def test_over_the_budget_by_the_estimate_it_is_asked_before_anything_is_compacted() -> None:
    life = read(120_000)
    assert isinstance(step(life), st.CountTokens)
    fits = life.on(ev.TokensCounted, revision=0, tokens=70_000)
    assert size(fits.state.context.conversation) == 70_000
    assert isinstance(step(fits), st.AskModel), "nothing is compacted that fits"
    after = fits.asked().replied(HI, usage=Usage(input_tokens=70_000, output_tokens=5))
    assert size(after.state.context.conversation) == 70_005, "nor at the next step"


def test_what_was_counted_is_not_asked_again() -> None:
    life = read(86_000).on(ev.TokensCounted, revision=0, tokens=97_000)
    assert tokens_since_count(life.state.context.conversation) == 0
    assert not isinstance(step(life), st.CountTokens)
    assert message_tokens(life.state.context.conversation) > room(life.state), (
        "it does not fit, whatever the estimate was"
    )


def test_a_service_that_cannot_is_not_asked_again_in_this_life() -> None:
    life = read(86_000).on(ev.TokensCounted, revision=0, tokens=None, why="HTTP 404")
    assert life.state.model.uncountable
    assert isinstance(step(life), st.AskModel), "the estimate serves"
    later = life.on(ev.TurnEnded, turn="turn_0", reason="end").prompted("more")
    assert not isinstance(step(later), st.CountTokens)


@pytest.mark.parametrize("tokens", [1_000, 60_000, 80_000])
def test_far_from_the_limit_it_is_not_asked(tokens: int) -> None:
    assert isinstance(step(read(tokens)), st.AskModel)


def test_a_small_part_is_not_worth_a_call() -> None:
    life = read(WORTH - 1_000, context_limit=WORTH)
    assert message_tokens(life.state.context.conversation) > 0.9 * room(life.state)
    assert not isinstance(step(life), st.CountTokens)


def test_a_prompt_that_was_refused_is_compacted_without_asking() -> None:
    life = failing("too_long", read(86_000).asked()).on(ev.ReactAsked)
    assert not isinstance(step(life), st.CountTokens)


def test_a_count_of_another_view_changes_nothing() -> None:
    life = read(86_000)
    assert life.on(ev.TokensCounted, revision=7, tokens=5).state.context.conversation == life.state.context.conversation


def test_where_a_limit_ends_the_turn_nothing_is_counted() -> None:
    assert step(read(86_000, limits={"steps": 1})) == st.EndTurn(
        "limit", "the limit of 1 model step in a turn is reached", "turn_steps"
    )
