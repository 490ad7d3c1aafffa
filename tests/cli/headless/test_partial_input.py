"""Inputs of calls reach a client while they stream, under its field names."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from callboard.cli.headless.translated_events import PartialInput, TranslatedEvents

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('ab"\\{}[],:\n é', max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('ab"{,', max_size=3), inner, max_size=3),
    max_leaves=8,
)
INPUTS = st.dictionaries(st.sampled_from(["path", "content", "timeout_s", 'q"', "n"]), VALUES, max_size=5)


@given(INPUTS, st.integers(1, 9), st.sampled_from([None, 2]))
def test_an_input_in_pieces_equals_the_translated_whole(value: dict[str, Any], size: int, indent: int | None) -> None:
    text = json.dumps(value, indent=indent)
    parts = PartialInput({"path": "file_path", "timeout_s": "timeout"}, {"path": lambda path: ["/", path]})
    whole = "".join(parts.feed(text[at : at + size]) for at in range(0, len(text), size))
    names = {"path": "file_path", "timeout_s": "timeout"}
    assert json.loads(whole) == {
        names.get(name, name): ["/", field] if name == "path" else field for name, field in value.items()
    }


def test_a_client_reads_the_content_of_a_file_before_it_is_complete() -> None:
    events = TranslatedEvents("/work")
    block = {"type": "tool_use", "id": "t", "name": "write_file", "input": {}}
    (start,) = events.translate({"type": "content_block_start", "index": 0, "content_block": block})
    assert start["content_block"]["name"] == "Write"
    sent: list[str] = []
    for piece in ('{"path": "a/b', '.txt", "con', 'tent": "one', " two"):
        delta = {"type": "input_json_delta", "partial_json": piece}
        for event in events.translate({"type": "content_block_delta", "index": 0, "delta": delta}):
            sent.append(event["delta"]["partial_json"])
    assert "".join(sent) == '{"file_path":"/work/a/b.txt", "content": "one two'
