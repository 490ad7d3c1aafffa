"""What `decide` waits for lies ahead: a moment that has passed would be waited for again and again, without a pause."""

from __future__ import annotations

import pytest
from tests.core.agent.agent_states import Life
from tests.core.agent.decisions import prompted, step

from callboard.core.agent.decide import MODEL
from callboard.core.agent.rules.hooks import PROMPT_HOOKS
from callboard.core.budgets.tree import Amount, BudgetNode
from callboard.types import steps as st
from callboard.types.operations import Operation
from callboard.types.records import Budget

LATE = BudgetNode("session", budget=Budget(seconds=50), began_at=0.0)
"""Used up at 50; the facts are of 100."""


def test_a_turn_that_begins_after_its_budgets_time_waits_for_its_hooks_and_not_for_the_past() -> None:
    life = Life.begun().mailed("go").turned("env_1")
    assert step(life, running=frozenset({PROMPT_HOOKS}), budgets=(LATE,)) == st.Wait(None, "model")


@pytest.mark.parametrize("seconds", [0, 50, 99])
def test_no_wait_ends_in_the_past(seconds: float) -> None:
    budget = Budget(seconds=seconds, steps=3)
    node = BudgetNode("session", budget=budget, spent=Amount(steps=2), reserved=Amount(steps=1), in_flight=1)
    for life in (Life.begun(), Life.begun().mailed("go").turned("env_1"), prompted(), prompted().asked()):
        for running in (frozenset[Operation](), frozenset({PROMPT_HOOKS}), frozenset({MODEL})):
            found = step(life, running=running, budgets=(node,))
            assert not isinstance(found, st.Wait) or found.until is None or found.until > 100.0
