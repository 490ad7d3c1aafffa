"""When a schedule's budget is used up, and what a person's word makes of a paused one."""

from __future__ import annotations

import pytest

from callboard.core.budgets.tree import NOTHING, Amount, BudgetNode
from callboard.core.scheduling import budget_words, no_more_fires, pause_schedule, resume_schedule
from callboard.types.records import Budget
from callboard.types.schedules import Schedule

DAILY = Schedule(id="cron_a", cron="@daily", prompt="look", created_at=100.0)


def node(spent: Amount, held: Amount = NOTHING, **budget: float) -> BudgetNode:
    flying = int(held != NOTHING)
    name, limits = "schedule:cron_a", Budget.model_validate(budget)
    return BudgetNode(name, budget=limits, began_at=100.0, spent=spent, reserved=held, in_flight=flying)


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (node(Amount(10, 1.0, 2)), ""),
        (node(Amount(10, 1.0, 2), steps=3), ""),
        (node(Amount(10, 1.0, 3), steps=3), "the budget of model calls of schedule cron_a is used up: 3 of 3 made"),
        (node(Amount(99, 1.0, 3), tokens=100), ""),
        (node(Amount(100, 1.0, 3), tokens=100), "the token budget of schedule cron_a is used up: 100 of 100 spent"),
        (node(Amount(100, 0.99, 3), cost_usd=1.0), ""),
        (node(Amount(100, 1.0, 3), cost_usd=1.0), "the money budget of schedule cron_a is used up: $1.0000 of $1.0000"),
        (node(Amount(), seconds=50), ""),
        (node(Amount(), seconds=20), "the time budget of schedule cron_a is used up: 20 s since it began"),
        (node(Amount(), cost_usd=0), "the money budget of schedule cron_a is used up: $0.0000 of $0.0000"),
        (node(Amount(), Amount(90, 0.0, 1), tokens=90), ""),
    ],
)
def test_it_is_used_up_when_not_even_the_least_call_fits(there: BudgetNode, said: str) -> None:
    found = no_more_fires(there, now=120.0)
    assert found.startswith(said)
    assert bool(found) == bool(said)


def test_a_paused_one_keeps_all_but_its_state_and_says_why() -> None:
    now = pause_schedule(DAILY, "no money")
    assert (now.state, now.paused_why) == ("paused", "no money")
    assert now.model_copy(update={"state": "active", "paused_why": ""}) == DAILY


def test_a_resumed_one_takes_the_limits_that_are_named_and_leaves_the_rest() -> None:
    was = DAILY.model_copy(update={"budget": Budget(steps=3, tokens=9), "fire_budget": Budget(steps=1)})
    now = resume_schedule(pause_schedule(was, "no"), 500.0, Budget(steps=8, cost_usd=1.0), Budget())
    assert now.budget == Budget(steps=8, tokens=9, cost_usd=1.0)
    assert now.fire_budget == Budget(steps=1)
    assert (now.state, now.enabled, now.paused_why, now.last_slot) == ("active", True, "", 500.0)
    later = resume_schedule(was.model_copy(update={"last_slot": 700.0}), 500.0, Budget(), Budget())
    assert later.last_slot == 700.0, "a slot that was run does not run again"


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        (Budget(), ""),
        (Budget(steps=1), "1 call"),
        (Budget(cost_usd=0.0, tokens=12_345, steps=2, seconds=3_600), "$0.0000, 12,345 tokens, 2 calls, 3,600 s"),
    ],
)
def test_a_budget_in_words(budget: Budget, words: str) -> None:
    assert budget_words(budget) == words
