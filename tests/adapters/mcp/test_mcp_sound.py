"""Schemas of servers' tools are made valid for any request: they pass the metaschema that the service uses."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from callboard.adapters.mcp.tools import repaired_schema

REPAIRED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"a": {"type": "no such type", "description": "d"}}, {"a": {"description": "d"}}),
    ({"a": {"type": "string", "required": True}}, {"a": {"type": "string"}}),
    ({"a": {"type": "string", "pattern": "(((("}}, {"a": {"type": "string"}}),
    ({"a": {"enum": []}}, {"a": {}}),
    ({"a": {"$ref": "#/$defs/none"}}, {"a": {}}),
    ({"a": {"$ref": "https://example.org/x.json"}}, {"a": {}}),
    ({"a": {"type": "array", "items": 5}}, {"a": {"type": "array"}}),
    ({"a b": {"type": "string"}, "": {}, "c": {}}, {"c": {}}),
    ({"a": 5, "b": {"type": ["string", "null"]}}, {"b": {"type": ["string", "null"]}}),
    ({"a": {"minimum": "1", "type": "integer"}}, {"a": {"type": "integer"}}),
]


@pytest.mark.parametrize(("properties", "left"), REPAIRED)
def test_what_the_service_would_refuse_is_taken_out_and_the_rest_stays(
    properties: dict[str, Any], left: dict[str, Any]
) -> None:
    schema, wrong = repaired_schema({"type": "object", "properties": properties, "required": list(properties)})
    assert schema["properties"] == left
    assert schema["required"] == list(left)
    assert wrong


def test_a_sound_schema_is_what_it_was_and_a_tree_may_refer_to_itself() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}
    given_ = {"type": "object", "properties": {"root": {"$ref": "#/$defs/node"}}, "$defs": {"node": node}}
    assert repaired_schema(given_) == (given_, "")
    knot = {"type": "object", "properties": {"x": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/a"}}}
    schema, wrong = repaired_schema(knot)
    assert "$ref" not in schema["properties"]["x"]
    assert wrong
    assert given_["$defs"] == {"node": node}  # the server's own schema is unchanged


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["string", "object", "((", "#/$defs/a", "#", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "properties", "required", "items", "enum", "$ref", "$defs", "a", "pattern", "anyOf", "x y"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_whatever_a_server_calls_a_schema_a_request_can_carry_it(schema: object) -> None:
    found, _ = repaired_schema(schema)
    Draft202012Validator.check_schema(found)
    assert found["type"] == "object"
    assert all(re.fullmatch("[a-zA-Z0-9_.-]{1,64}", name) for name in found.get("properties", {}))
