"""The next call by the budgets: as it is, with less output, later, the last one, or none."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as hy
from tests.core.agent.agent_states import Life, facts, judged, settled, started
from tests.core.agent.decisions import prompted, step

from callboard.core.agent.rules.limits import (
    LAST_OUTPUT,
    LEAST_LAST_OUTPUT,
    LEAST_OUTPUT,
    REMINDER,
    RESULTS,
    CallAllowance,
    planned_call,
    worst_case,
)
from callboard.core.budgets.tree import Amount, BudgetNode
from callboard.core.context.view.conversation import size
from callboard.types import events as ev
from callboard.types import steps as st
from callboard.types.agent_spec import ModelLimits
from callboard.types.records import Budget, ToolCall, Usage

LIFE = prompted()
INPUT = size(LIFE.state.context.conversation)
ROOM = INPUT + REMINDER + LAST_OUTPUT
"""Tokens of the last call, if nothing comes before it."""
LATER = ROOM + RESULTS
"""The same behind a call, without the reply of that call."""
LEAST_ROOM = ROOM - LAST_OUTPUT + LEAST_LAST_OUTPUT


def session(spent: int = 0, reserved: int = 0, **budget: Any) -> tuple[BudgetNode, ...]:
    used, held = Amount(spent, spent / 1_000, 1), Amount(reserved, reserved / 1_000, 1 if reserved else 0)
    return (BudgetNode("session", budget=Budget(**budget), spent=used, reserved=held, in_flight=1 if reserved else 0),)


def test_the_worst_case_counts_all_input_at_the_dearer_price_and_all_output() -> None:
    limits = ModelLimits(price_input=3, price_write=3.75, price_read=0.3, price_output=15)
    assert worst_case(limits, 1_000_000, 100_000) == Amount(1_100_000, 3.75 + 1.5, 1)
    assert worst_case(limits.model_copy(update={"price_write": 1}), 1_000_000, 0).cost_usd == 3


@pytest.mark.parametrize(
    ("tokens", "output"),
    [
        (INPUT + 2 * 8_000 + LATER, 8_000),
        (INPUT + 2 * 8_000 + LATER - 1, 7_999),
        (INPUT + 2 * LEAST_OUTPUT + LATER, LEAST_OUTPUT),
        (INPUT + 2 * LEAST_OUTPUT + LATER - 1, None),
    ],
)
def test_a_call_asks_for_as_much_output_as_fits_beside_the_room_for_a_last_call(
    tokens: int, output: int | None
) -> None:
    planned = planned_call(LIFE.state, session(tokens=tokens), 100.0)
    if output is None:
        assert not isinstance(planned, CallAllowance)
        assert (planned.budget, planned.kind, planned.waits) == ("session", "tokens", False)
    else:
        assert planned == CallAllowance(output, worst_case(ModelLimits(), INPUT, output))


def test_where_no_budget_holds_nothing_is_held_back() -> None:
    assert planned_call(LIFE.state, (), 100.0) == CallAllowance(8_000)
    assert step(LIFE) == st.AskModel(1, 1, "one", 8_000)


def test_a_call_that_fits_but_for_those_in_flight_waits() -> None:
    tokens = INPUT + 2 * 8_000 + LATER
    assert step(LIFE, budgets=session(tokens=tokens, reserved=1)) == st.Wait(None, "budget")
    timed = session(tokens=tokens, reserved=1, seconds=400.0)
    assert step(LIFE, budgets=timed) == st.Wait(400.0, "budget"), "but not for ever"


def refused(life: Life = LIFE, **budget: Any) -> st.ReachBudget:
    found = step(life, budgets=session(**budget))
    assert isinstance(found, st.ReachBudget)
    return found


def reached(life: Life, asked: st.ReachBudget) -> Life:
    names = ("budget", "kind", "limit", "spent", "wanted", "winds_down")
    return life.on(ev.BudgetReached, **{name: getattr(asked, name) for name in names})


def test_what_does_not_fit_is_refused_and_a_last_call_is_made_that_says_so() -> None:
    budget = {"tokens": ROOM + 100}
    asked = refused(LIFE, **budget)
    assert asked.winds_down
    life = reached(LIFE, asked)
    assert isinstance(step(life, budgets=session(**budget)), st.Inject)
    life = life.on(ev.InjectionsDelivered, blocks=())
    last = step(life, budgets=session(**budget))
    assert isinstance(last, st.AskModel)
    assert (last.max_tokens, last.wind_down) == (LAST_OUTPUT, True)
    life = life.on(ev.ModelCalled, ordinal=1, attempt=1, model="one", max_tokens=1_000, wind_down=True).called("bash")
    skipped = step(life, budgets=session(**budget))
    assert isinstance(skipped, st.Skip)
    assert (skipped.calls, skipped.by) == (("c1",), "budget")
    life = life.on(ev.CallJudged, call="c1", verdict="deny", why=skipped.why).on(ev.ResultsMerged)
    ended = step(life, budgets=session(**budget))
    assert isinstance(ended, st.EndTurn)
    assert (ended.reason, ended.why) == ("limit", life.state.turn.winding_down if life.state.turn else "")


def test_mail_waits_while_a_turn_winds_down() -> None:
    life = reached(LIFE, refused(tokens=ROOM + 100)).on(ev.InjectionsDelivered, blocks=()).mailed("one more thing")
    assert isinstance(step(life, budgets=session(tokens=ROOM + 100)), st.AskModel)


def test_where_the_last_call_does_not_fit_either_the_turn_ends_at_once() -> None:
    asked = refused(tokens=LEAST_ROOM - 1)
    assert not asked.winds_down
    ended = step(reached(LIFE, asked), budgets=session(tokens=LEAST_ROOM - 1))
    assert isinstance(ended, st.EndTurn)
    assert ended.reason == "limit"


@pytest.mark.parametrize(("tokens", "output"), [(ROOM - 1, LAST_OUTPUT - 1), (LEAST_ROOM, LEAST_LAST_OUTPUT)])
def test_a_last_call_asks_for_less_output_where_no_more_fits(tokens: int, output: int) -> None:
    asked = refused(tokens=tokens)
    assert asked.winds_down
    life = reached(LIFE, asked)
    added = size(life.state.context.conversation) - INPUT
    planned = planned_call(life.state, session(tokens=tokens - REMINDER + added), 100.0)
    assert isinstance(planned, CallAllowance)
    assert (planned.max_tokens, planned.last) == (output, True)


@given(
    budget=hy.integers(3_000, 60_000),
    steps=hy.lists(hy.tuples(hy.integers(1, 8_000), hy.integers(0, 12_000)), min_size=12, max_size=12),
)
def test_a_last_call_fits_behind_every_call_whose_results_are_as_long_as_expected(
    budget: int, steps: list[tuple[int, int]]
) -> None:
    """`steps`: tokens of the reply and characters of the result."""
    life, spent, expected = LIFE, 0, RESULTS
    for reply, length in steps:
        planned = planned_call(life.state, session(tokens=budget, spent=spent), 100.0)
        if not isinstance(planned, CallAllowance):
            return
        prompt, output = size(life.state.context.conversation), min(reply, planned.max_tokens)
        life = answered(life, Usage(input_tokens=prompt, output_tokens=output), min(length, 2 * expected))
        spent += prompt + output
        hypothesis.assume(size(life.state.context.conversation) <= prompt + output + expected)
        asked = step(life, budgets=session(tokens=budget, spent=spent))
        assert not isinstance(asked, st.ReachBudget) or asked.winds_down, "room for a last call is left"
        expected = max(RESULTS, life.state.context.conversation.messages[-1].tokens)


def answered(life: Life, usage: Usage, length: int) -> Life:
    """One step more: a reply with a call, and a result of so many characters."""
    call = ToolCall(id="c1", use_id=f"u{life.state.model.ordinal}", name="bash", input={})
    block = {"type": "tool_use", "id": call.use_id, "name": call.name, "input": {}}
    life = started(judged(life.replied(block, stop="tool_use", calls=[call], usage=usage), "c1"), "c1")
    life = life.on(ev.ToolFinished, call="c1", content=({"type": "text", "text": "y" * length},))
    return settled(life, "c1").on(ev.ResultsMerged)


def test_there_is_one_last_call_for_each_budget_and_another_one_after_a_raise() -> None:
    life = reached(LIFE, refused(tokens=ROOM + 100)).on(ev.InjectionsDelivered, blocks=())
    life = life.on(ev.TurnEnded, turn="turn_0", reason="limit").prompted("again")
    more = ROOM + 200  # the second prompt is longer
    assert not refused(life, tokens=ROOM + 100).winds_down
    assert refused(life, tokens=more).winds_down


def test_a_new_agent_that_was_refused_does_not_end_its_callers_turn() -> None:
    life = LIFE.on(ev.BudgetReached, budget="session", kind="agents", limit=1, spent=1, wanted=1)
    assert life.state.turn is not None
    assert life.state.turn.winding_down == ""
    assert step(life) == st.AskModel(1, 1, "one", 8_000)


def test_a_time_budget_ends_a_turn_only_once_it_has_taken_its_mail() -> None:
    over = session(seconds=50.0)
    fresh = Life.begun().mailed("go").turned("env_1")
    assert isinstance(step(fresh, budgets=over), st.Deliver), (
        "else the same mail would begin the next turn, and the next"
    )
    asked = step(LIFE, budgets=over)
    assert asked == st.ReachBudget("session", "seconds", 50.0, 100.0, 0)
    ended = step(reached(LIFE, st.ReachBudget("session", "seconds", 50.0, 100.0, 0)), budgets=over)
    assert isinstance(ended, st.EndTurn)
    assert "the time budget of the session is used up: 50 s" in ended.why
    assert facts(budgets=over).budgets == over
