"""A state as bytes and back; what another version wrote, or what is damaged, is passed over."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.core.agent.agent_states import Life, done

from callboard.core.agent import snapshot
from callboard.core.agent.apply import fold
from callboard.core.agent.snapshot import EVERY, PER_VIEW, dump, is_due, load, positions, shape
from callboard.core.agent.state import AgentState
from callboard.core.frozen import replace
from callboard.types import events as ev


def worked() -> Life:
    life = done(Life.begun(plan_required=True).prompted("go").called("bash", "read_file"), "c1", "c2")
    return life.on(ev.ResultsMerged).called("bash").mailed("more").on(ev.FileSeen, path="a", digest="1", changed=True)


def test_a_state_comes_back_as_it_was_and_can_be_folded_on() -> None:
    life = worked()
    found = load(dump(life.state))
    assert found == life.state
    more = Life(life.state, life.events).on(ev.Interrupted)
    assert fold(more.events[-1:], found) == more.state


def test_the_positions_of_a_snapshot_can_be_read_in_any_version() -> None:
    state = worked().state
    assert state.inbox.position > 0
    assert positions(dump(state)) == (state.seq, state.inbox.position)
    assert positions(b"0123456789abcdef\n" + b'{"seq":7,"position":3}') == (7, 3), "the flat shape of earlier versions"
    for data in (b"", b"x\n[]", b"x\n{}", b'x\n{"seq":7}', b'x\n{"seq":7,"position":null}', dump(state)[:-9]):
        assert positions(data) is None


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("seed", ["1", "2"])
def test_the_shape_is_the_same_in_every_process(seed: str) -> None:
    code = "from callboard.core.agent.snapshot import shape; print(shape())"
    env = {**os.environ, "PYTHONHASHSEED": seed}
    told = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == shape()


def test_the_shape_does_not_depend_on_what_was_used_before() -> None:
    """A model that is complete stands in a schema otherwise than one that is not."""
    use = "from callboard.types.records import Usage, Envelope; Usage(); Envelope.model_rebuild()"
    code = f"{use}; from callboard.core.agent.snapshot import shape; print(shape())"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == shape()


def test_each_model_in_a_state_is_completed_before_the_shape_is_taken() -> None:
    assert set(models_in(snapshot._adapter().core_schema)) == set(snapshot.MODELS)


def models_in(schema: object) -> Iterator[type]:
    if isinstance(schema, dict):
        if schema.get("type") == "model":
            yield schema["cls"]
        for inner in schema.values():
            yield from models_in(inner)
    elif isinstance(schema, list | tuple):
        for inner in schema:
            yield from models_in(inner)


@pytest.mark.parametrize("field", [("calls", tuple[bytes, ...]), ("late_comer", int)])
def test_a_state_with_another_field_has_another_shape(field: tuple[str, type], monkeypatch: pytest.MonkeyPatch) -> None:
    before = shape()
    added = (*field, dataclasses.field(default=()))
    other = dataclasses.make_dataclass("AgentState", [added], bases=(AgentState,), frozen=True)
    other.__module__ = AgentState.__module__
    other.__doc__ = AgentState.__doc__
    monkeypatch.setattr(snapshot, "AgentState", other)
    monkeypatch.setattr(snapshot, "_adapter", snapshot._adapter.__wrapped__)
    assert shape.__wrapped__() != before


@pytest.mark.parametrize("what", ["another shape", "cut short", "not even text", "nothing", "a wrong type"])
def test_what_this_version_did_not_write_is_passed_over(what: str) -> None:
    whole = dump(worked().state)
    shape, _, body = whole.partition(b"\n")
    damaged = {
        "another shape": b"0123456789abcdef\n" + body,
        "cut short": whole[:-9],
        "not even text": b"\xff\xfe",
        "nothing": b"",
        "a wrong type": shape + b'\n{"seq": "many"}',
    }[what]
    assert load(damaged) is None


def test_a_larger_view_is_written_less_often_and_each_crossing_writes_one() -> None:
    small, large = worked().state, worked().prompted("w " * 3 * PER_VIEW).state
    assert large.context.conversation.tokens // PER_VIEW == 1
    assert written(small) == [EVERY, 2 * EVERY, 3 * EVERY, 4 * EVERY]
    assert written(large) == [2 * EVERY, 4 * EVERY]


def written(state: AgentState) -> list[int]:
    return [seq for seq in range(1, 4 * EVERY + 1) if is_due(seq - 1, replace(state, seq=seq))]
