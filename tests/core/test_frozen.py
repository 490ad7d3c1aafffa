"""Copies of frozen values."""

from __future__ import annotations

import dataclasses
import pickle

import pytest

from callboard.core.agent.state import AgentState
from callboard.core.frozen import replace
from callboard.core.rate_limits.limiter import waiter


def test_a_copy_equals_what_dataclasses_makes_and_leaves_the_original_alone() -> None:
    before = AgentState(seq=3)
    kept = pickle.dumps(before)
    assert replace(before, seq=4, calls=()) == dataclasses.replace(before, seq=4, calls=())
    assert pickle.dumps(before) == kept


def test_an_unknown_field_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="no field sqe"):
        replace(AgentState(), sqe=4)


def test_a_class_with_slots_is_copied_as_well() -> None:
    before = waiter(7, "lead", 1.0)
    after = replace(before, person=True)
    assert (after.number, after.person, before.person) == (7, True, False)
    with pytest.raises(TypeError, match="persno"):
        replace(before, persno=True)
