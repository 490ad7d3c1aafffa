"""Whatever legal thing happens, in whatever order: views stay valid, each step brings the agent on, and it ends."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as hy
from tests.core.agent.interpreter import Interpreter

from callboard.core.agent.apply import fold
from callboard.core.agent.snapshot import dump, load
from callboard.types import steps as st

DRAWS = hy.lists(hy.integers(0, 719), max_size=160)


def played(draws: list[int]) -> Interpreter:
    """A life as these draws tell it; when they run out, what is first comes."""
    left = iter(draws)
    one = Interpreter(lambda n: next(left, 0) % n)
    one.life = one.life.mailed("go", metadata={"assignment": True})
    one.run(len(draws) // 4)
    return one


def check(draws: list[int]) -> Interpreter:
    one = played(draws)
    state = one.life.state
    assert one.faults == []
    assert fold(one.life.events) == state
    half = len(one.life.events) // 2
    snapshot = load(dump(fold(one.life.events[:half])))
    assert fold(one.life.events[half:], snapshot) == state, "a snapshot anywhere is as good as all events before it"
    step = one._step()
    assert isinstance(step, (st.LifeDone, st.Wait))
    if isinstance(step, st.Wait):
        waits = state.work.gate.gate == "pending" or state.turn is None or any(c.stage == "asking" for c in state.calls)
        assert waits, f"it rests in the middle of a turn: {step}"
    return one


@given(DRAWS)
@settings(max_examples=100, deadline=None)
def test_whatever_happens_the_view_is_valid_and_the_life_comes_to_rest(draws: list[int]) -> None:
    check(draws)


@given(DRAWS)
@settings(max_examples=100, deadline=None)
def test_the_same_state_and_facts_are_the_same_step(draws: list[int]) -> None:
    first, second = played(draws), played(draws)
    assert first.life.events == second.life.events


@pytest.mark.soak
@given(DRAWS)
@settings(max_examples=20_000, deadline=None)
def test_very_many_lives_come_to_rest(draws: list[int]) -> None:
    check(draws)


def test_long_lives_from_seeds_come_to_rest_and_something_of_everything_is_in_them() -> None:
    seen: set[str] = set()
    for seed in range(60):
        draw = random.Random(seed)
        seen |= {event.t for event in check([draw.randrange(720) for _ in range(seed * 2)]).life.events}
    assert {"results_merged", "call_failed", "context_edited", "agent_stopped", "gate_set", "reply_interrupted"} <= seen
