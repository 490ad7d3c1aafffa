"""What each event changes in an agent's account, and that a fold of the journal is all that a resume needs."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.agent.agent_states import Life

from callboard.core.budgets.tree import NOTHING, Amount
from callboard.types import events as ev
from callboard.types.messages import SummaryWanted
from callboard.types.records import Fault, Usage

HELD = Amount(9_000, 0.25, 1)
USED = Usage(input_tokens=10, cache_read_input_tokens=20, output_tokens=5, cost_usd=0.0625)


def calling(life: Life | None = None, **more: Any) -> Life:
    """A call is in flight, with something held back for it."""
    life = life or Life.begun().prompted("go")
    given: dict[str, Any] = {"ordinal": life.state.model.ordinal + 1, "attempt": 1, "model": "one", "max_tokens": 8_000}
    return life.on(ev.ModelCalled, reserved_tokens=9_000, reserved_usd=0.25, **{**given, **more})


def failed(life: Life, purpose: str = "turn", **fault: Any) -> Life:
    given: dict[str, Any] = {"ordinal": 1, "attempt": 1, "model": "one", "purpose": purpose}
    return life.on(ev.CallFailed, fault=Fault.model_validate(fault), **given)


def test_what_is_held_for_a_call_stands_in_the_account_until_the_call_is_over() -> None:
    life = calling()
    assert (life.state.budget.account.held, life.state.budget.account.spent) == (HELD, NOTHING)
    life = life.replied({"type": "text", "text": "hi"}, usage=USED)
    assert (life.state.budget.account.held, life.state.budget.account.spent) == (None, Amount(35, 0.0625, 1))


@pytest.mark.parametrize(
    ("fault", "used"),
    [
        ({"kind": "rate_limited"}, Amount(steps=1)),
        ({"kind": "connection"}, Amount(steps=1)),
        ({"kind": "silence", "may_bill": True}, HELD),
        ({"kind": "lost"}, HELD),
        ({"kind": "lost", "may_bill": True, "usage": USED}, Amount(35, 0.0625, 1)),
        ({"kind": "overloaded", "usage": USED}, Amount(35, 0.0625, 1)),
    ],
)
def test_a_call_without_a_reply_is_charged_as_told_or_as_held_where_it_may_be_billed(
    fault: dict[str, Any], used: Amount
) -> None:
    account = failed(calling(), **fault).state.budget.account
    assert (account.held, account.spent) == (None, used)


def test_a_reply_that_is_dropped_is_charged_and_one_that_is_interrupted_as_held() -> None:
    assert calling().on(ev.ReplyDropped, ordinal=1, why="cut", usage=USED).state.budget.account.spent == Amount(
        35, 0.0625, 1
    )
    assert calling().on(ev.ReplyInterrupted, ordinal=1, text="so far").state.budget.account.spent == HELD


def summarising(life: Life | None = None) -> Life:
    wanted = SummaryWanted(stage="summarize_all", trigger="auto", message=1, last=2)
    return (life or Life.begun().prompted("go")).on(ev.SummaryBegan, wanted=wanted, revision=0)


def edited(life: Life, usage: Usage) -> Life:
    return life.on(ev.ContextEdited, stage="summarize_all", revision=0, usage=usage)


def test_the_calls_of_a_summary_are_charged_once_each_whatever_is_told_when() -> None:
    life = calling(summarising(), purpose="summary")
    life = calling(life, purpose="summary", used=USED)
    assert (life.state.budget.account.held, life.state.budget.account.spent) == (HELD, Amount(35, 0.0625, 1))
    life = edited(life, USED.plus(USED))
    assert (life.state.budget.account.held, life.state.budget.account.spent) == (None, Amount(70, 0.125, 2))
    assert life.state.budget.account.summary == NOTHING


def test_a_summary_that_fails_is_charged_for_what_it_used_and_for_what_was_in_flight() -> None:
    life = calling(calling(summarising(), purpose="summary"), purpose="summary", used=USED)
    interrupted = life.on(ev.SummaryFailed, why="interrupted", usage=USED).state.budget.account
    assert (interrupted.held, interrupted.spent) == (None, Amount(35, 0.0625, 1).plus(HELD))
    bad_answer = life.on(ev.SummaryFailed, why="no summary", usage=USED.plus(USED)).state.budget.account
    assert bad_answer.spent == Amount(70, 0.125, 2)
    refused = failed(life, "summary", kind="overloaded").on(ev.SummaryFailed, why="overloaded", usage=USED)
    assert refused.state.budget.account.spent == Amount(35, 0.0625, 2)


def test_a_summary_whose_process_died_is_charged_as_held_and_made_again_from_nothing() -> None:
    life = calling(calling(summarising(), purpose="summary"), purpose="summary", used=USED).on(ev.AgentResumed, pid=2)
    assert (life.state.budget.account.held, life.state.budget.account.spent) == (None, Amount(35, 0.0625, 1).plus(HELD))
    life = edited(calling(life, purpose="summary"), USED)
    assert life.state.budget.account.spent == Amount(70, 0.125, 2).plus(HELD)


def test_the_call_of_a_turn_whose_process_died_is_charged_once() -> None:
    life = calling().on(ev.AgentResumed, pid=2)
    assert life.state.budget.account.held == HELD
    assert failed(life, kind="lost").state.budget.account.spent == HELD


def test_an_edit_that_is_no_summary_changes_nothing_and_neither_does_one_that_is_taken_back() -> None:
    life = calling()
    assert edited(life, USED).state.budget.account is life.state.budget.account
    life = calling(summarising(), purpose="summary")
    undone = life.on(ev.ContextEdited, stage="summarize_all", revision=0, undoes=(1,))
    assert undone.state.budget.account == life.state.budget.account


def test_what_a_turn_of_a_schedule_uses_is_kept_apart_for_the_schedule_and_for_the_fire() -> None:
    fire = "schedule:cron_1:2027-01-15T08:00:00Z"
    life = calling(Life.begun().mailed("go").turned(fire).delivered()).replied(usage=USED)
    assert life.state.budget.account.schedules == {"schedule:cron_1": Amount(35, 0.0625, 1)}
    assert life.state.budget.account.fire == Amount(35, 0.0625, 1)
    life = life.on(ev.TurnEnded, turn="turn_0", reason="end").prompted("and now for something else")
    assert life.state.budget.account.fire == NOTHING
    life = calling(life).replied(usage=USED)
    assert life.state.budget.account.schedules == {"schedule:cron_1": Amount(35, 0.0625, 1)}
    assert life.state.budget.account.spent == Amount(70, 0.125, 2)
