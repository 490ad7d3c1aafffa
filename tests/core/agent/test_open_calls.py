"""Open calls answer from their index what a search through all of them finds."""

from __future__ import annotations

from functools import partial
from typing import Any

from hypothesis import given
from hypothesis import strategies as hy
from pydantic import TypeAdapter

from callboard.core.agent.open_calls import CallState, OpenCalls
from callboard.core.frozen import replace
from callboard.types.records import ToolCall

STAGES = ("proposed", "asking", "allowed", "started", "finished", "settled")
CHANGES = hy.lists(
    hy.tuples(hy.integers(0, 11), hy.sampled_from(STAGES), hy.sampled_from([None, "req_1", "req_2"])), max_size=30
)


def reply(tools: list[str]) -> OpenCalls:
    calls = [ToolCall(id=f"c{number}", use_id=f"u{number}", name=tool, input={}) for number, tool in enumerate(tools)]
    return OpenCalls.of(map(CallState, calls))


def check(calls: OpenCalls) -> None:
    alone = tuple(calls)
    assert calls == alone
    assert calls == OpenCalls.of(alone)
    assert len(calls) == len(alone)
    assert calls.stages == {one.stage for one in alone}
    assert calls.names == {one.call.name for one in alone}
    assert list(calls.requests) == [one.request_id for one in alone if one.request_id]
    for stage in STAGES:
        assert list(calls.at(stage)) == [one for one in alone if one.stage == stage]
    for place, one in enumerate(alone):
        assert calls.find(one.call.id) is one
        assert calls[place] is one
    assert calls.find("another") is None


@given(hy.lists(hy.sampled_from(["task", "read_file", "bash"]), max_size=12), CHANGES)
def test_the_index_equals_a_search_after_every_change(tools: list[str], changes: list[tuple[int, Any, Any]]) -> None:
    calls = reply(tools)
    check(calls)
    for place, stage, request_id in changes:
        if place >= len(tools):
            continue
        before, was = calls, tuple(calls)
        calls = calls.with_change(f"c{place}", partial(replace, stage=stage, request_id=request_id))
        check(calls)
        assert (calls[place].stage, calls[place].request_id) == (stage, request_id)
        assert before == was
    assert calls.with_change("another", partial(replace, stage="settled")) is calls
    adapter = TypeAdapter(OpenCalls)
    restored = adapter.validate_json(adapter.dump_json(calls))
    assert restored == calls
    check(restored)
