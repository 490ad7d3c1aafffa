"""Records of version 1 load for ever and say the same; the page that lists them is the truth."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from tests.core.records_page import EVENTS, PAGE, PARTS, ROWS, page

from callboard.core.agent.apply import _RULES
from callboard.types.events import decode_event
from callboard.types.records import Value

GOLDEN = Path(__file__).parent / "golden" / "v1.jsonl"
LINES: list[dict[str, Any]] = [json.loads(line) for line in GOLDEN.read_text(encoding="utf-8").splitlines()]
KINDS: dict[str, type[Value]] = {kind.__name__: kind for kind in (*EVENTS, *ROWS, *PARTS)}


@pytest.mark.parametrize("line", LINES, ids=[line["kind"] for line in LINES])
def test_a_record_of_version_1_loads_and_says_the_same(line: dict[str, Any]) -> None:
    kind, data = KINDS[line["kind"]], line["data"]
    loaded = decode_event(json.dumps(data).encode()) if kind in EVENTS else kind.model_validate_json(json.dumps(data))
    assert type(loaded) is kind
    assert still_says(json.loads(loaded.encode()), data)


def still_says(now: Any, then: Any) -> bool:
    """Whether all that was stated then is stated now, at any depth; what a newer version adds does not count."""
    if isinstance(then, dict):
        return isinstance(now, dict) and all(name in now and still_says(now[name], then[name]) for name in then)
    if isinstance(then, list):
        return isinstance(now, list) and len(now) == len(then) and all(map(still_says, now, then))
    return now == then


def test_a_changed_word_at_any_depth_is_told() -> None:
    assert not still_says({"a": [{"b": 1}]}, {"a": [{"b": 2}]})
    assert not still_says({"a": []}, {"a": [1]})
    assert still_says({"a": [{"b": 1, "new": 2}]}, {"a": [{"b": 1}]})


def test_every_kind_of_record_has_a_golden_line_that_states_all_of_its_fields() -> None:
    for name, kind in KINDS.items():
        stated = [set(line["data"]) for line in LINES if line["kind"] == name]
        assert stated, f"{name} has no golden line: add one, and never change it"
        assert set(kind.model_fields) <= set.union(*stated), f"{name}: no golden line states its newest fields"


def test_every_word_that_a_field_may_hold_stands_in_a_golden_line() -> None:
    for name, kind in KINDS.items():
        for field, words in choices(kind):
            stated = {line["data"].get(field) for line in LINES if line["kind"] == name}
            assert words <= stated, f"{name}.{field}: no golden line has {words - stated}"


def choices(kind: type[Value]) -> Iterator[tuple[str, set[str]]]:
    for name, field in kind.model_fields.items():
        if get_origin(field.annotation) is Literal and name != "t":
            yield name, set(get_args(field.annotation))


def test_what_a_newer_version_wrote_beside_is_ignored() -> None:
    for line in LINES:
        data = {**line["data"], "of_a_later_version": [1]}
        KINDS[line["kind"]].model_validate_json(json.dumps(data))


def test_every_event_is_version_1_and_has_a_rule() -> None:
    assert {kind.model_fields["v"].default for kind in EVENTS} == {1}
    assert set(_RULES) == set(EVENTS)


@pytest.mark.parametrize("damaged", [b"", b"{}", b'{"t":"no_such_event","at":1}', b'{"t":"turn_ended"', b"\xff"])
def test_what_is_no_event_is_refused(damaged: bytes) -> None:
    with pytest.raises(ValueError, match="validation error"):
        decode_event(damaged)


@pytest.mark.slow
def test_the_page_of_records_is_what_the_classes_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python tests/core/records_page.py`"
