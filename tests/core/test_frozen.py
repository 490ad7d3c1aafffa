"""Copies of frozen values."""

from __future__ import annotations

import dataclasses
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as hy
from pydantic import BaseModel

from callboard.core.agent.state import AgentState
from callboard.core.frozen import finished, replace
from callboard.core.rate_limits.limiter import waiting_call
from callboard.types.records import AgentRow


def test_a_copy_equals_what_dataclasses_makes_and_leaves_the_original_alone() -> None:
    before = AgentState(seq=3)
    kept = pickle.dumps(before)
    assert replace(before, seq=4, calls=()) == dataclasses.replace(before, seq=4, calls=())
    assert pickle.dumps(before) == kept


def test_an_unknown_field_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="no field sqe"):
        replace(AgentState(), sqe=4)


def test_a_value_that_was_just_made_is_changed_itself_and_the_value_before_never() -> None:
    before = AgentState(seq=3)
    kept = pickle.dumps(before)
    made = replace(before, calls=())
    assert finished(made, before, seq=4) is made
    assert made == dataclasses.replace(before, seq=4, calls=())
    assert finished(before, before, seq=4) == dataclasses.replace(before, seq=4)
    assert pickle.dumps(before) == kept
    for value in (made, before):
        with pytest.raises(TypeError, match="no field sqe"):
            finished(value, before, sqe=4)


def test_a_class_with_slots_is_copied_as_well() -> None:
    before = waiting_call(7, "lead", 1.0)
    after = replace(before, person=True)
    assert (after.number, after.person, before.person) == (7, True, False)
    with pytest.raises(TypeError, match="persno"):
        replace(before, persno=True)


@given(hy.dictionaries(hy.sampled_from(["name", "role", "parent", "spec"]), hy.text(max_size=3)))
def test_a_copy_of_a_durable_value_equals_that_of_pydantic_and_leaves_the_original_alone(
    changes: dict[str, str],
) -> None:
    before = AgentRow(name="a", kind="subagent", spec="", created_at=1.0, since=1.0)
    kept = pickle.dumps(before)
    copied, pydantics = before.model_copy(update=changes), BaseModel.model_copy(before, update=changes)
    assert copied == pydantics
    assert copied.encode() == pydantics.encode()
    assert hash(copied) == hash(pydantics)
    assert pickle.loads(pickle.dumps(copied)) == copied
    assert copied.model_fields_set >= pydantics.model_fields_set
    assert pickle.dumps(before) == kept
