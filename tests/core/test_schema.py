"""Inputs against schemas: what fits passes, and what does not is told so that a model can mend it."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as hy

from callboard.core.json_schema import check_input, schema_fault

OBJECT = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "minLength": 1},
        "lines": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["path"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({}, object()),
        ({"type": "string"}, ""),
        ({"type": "integer"}, 3),
        ({"type": "number"}, 3),
        ({"type": "number"}, 3.5),
        ({"type": "boolean"}, True),
        ({"type": "null"}, None),
        ({"type": "array"}, [1, "x"]),
        ({"type": "object"}, {"any": 1}),
        ({"type": ["string", "null"]}, None),
        ({"type": "no such type"}, 1),
        ({"enum": ["a", 1]}, 1),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, None),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, 3),
        ({"type": "array", "items": {"type": "integer"}}, [1, 2]),
        ({"type": "array", "items": [{"type": "integer"}]}, ["tuples are not checked here"]),
        (OBJECT, {"path": "a", "lines": 9}),
        ({"properties": {"a": {"type": "string"}}}, {"b": 1}),
        ({"properties": {"a": {"anyOf": [True, {"type": "null"}]}}}, {"a": 1}),
        ({"patternProperties": {"^x-": {"type": "string"}}, "additionalProperties": False}, {"x-a": "b"}),
    ],
)
def test_what_fits_passes(schema: dict[str, Any], value: Any) -> None:
    assert check_input(schema, value) is None


_NAMES = hy.sampled_from(["a", "b", "x-c"])
_VALUES: hy.SearchStrategy[Any] = hy.recursive(
    hy.none() | hy.booleans() | hy.integers(-2, 4) | hy.sampled_from(["", "a", "abc"]) | hy.just(1.5),
    lambda inner: hy.lists(inner, max_size=2) | hy.dictionaries(_NAMES, inner, max_size=2),
    max_leaves=5,
)
_SCHEMAS: hy.SearchStrategy[Any] = hy.recursive(
    hy.booleans()
    | hy.sampled_from(["string", "integer", "number", "object", "array"]).map(lambda kind: {"type": kind}),
    lambda inner: hy.fixed_dictionaries(
        {},
        optional={
            "properties": hy.dictionaries(_NAMES, inner, max_size=2),
            "patternProperties": hy.dictionaries(hy.just("^x-"), inner, max_size=1),
            "additionalProperties": inner,
            "required": hy.lists(_NAMES, max_size=1),
            "items": inner,
            "anyOf": hy.lists(inner, min_size=1, max_size=2),
            "oneOf": hy.lists(inner, min_size=1, max_size=2),
            "allOf": hy.lists(inner, min_size=1, max_size=2),
            "not": inner,
            "enum": hy.lists(_VALUES, min_size=1, max_size=2),
            "const": _VALUES,
            "minimum": hy.integers(-1, 2),
            "maximum": hy.integers(-1, 2),
            "minLength": hy.integers(0, 2),
        },
    ),
    max_leaves=6,
)


@given(_SCHEMAS, _VALUES)
def test_what_fits_a_schema_of_a_server_passes_whatever_keywords_it_has(schema: Any, value: Any) -> None:
    fault = check_input(schema, value)
    assert fault is None or not jsonschema.Draft202012Validator(schema).is_valid(value), fault


@pytest.mark.parametrize(
    ("schema", "value", "said"),
    [
        ({"type": "string"}, 3, "`input` must be string, not integer"),
        ({"type": "integer"}, True, "`input` must be integer, not boolean"),
        ({"type": "number"}, "3", "`input` must be number, not string"),
        ({"type": "integer"}, 3.5, "`input` must be integer, not number"),
        ({"type": ["string", "null"]}, [], "`input` must be string or null, not array"),
        ({"type": "string"}, None, "`input` must be string, not null"),
        ({"type": "string"}, object(), "`input` must be string, not object"),
        ({"type": "string"}, {1}, "`input` must be string, not set"),
        ({"properties": {"a": False}}, {"a": 1}, "`a` may not be given"),
        ({"type": "string", "minLength": 1}, "", "`input` must not be empty"),
        ({"type": "string", "minLength": 3}, "ab", "`input` must have at least 3 characters"),
        ({"enum": ["a", "b"]}, "c", "`input` must be one of 'a', 'b', not 'c'"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 3, "`input` must be string, not integer"),
        (OBJECT, {}, "input lacks the required field `path`"),
        ({"required": ["a", "b"]}, {}, "input lacks the required fields `a`, `b`"),
        (OBJECT, {"path": "a", "line": 1}, "`line` is no field of this tool; its fields are path, lines"),
        ({"additionalProperties": False}, {"a": 1}, "`a` is no field of this tool; its fields are (none)"),
        (OBJECT, {"path": ""}, "`path` must not be empty"),
        (OBJECT, {"path": "a", "lines": 0}, "`lines` must be at least 1"),
        (OBJECT, {"path": "a", "lines": 10}, "`lines` must be at most 9"),
        ({"items": {"type": "integer"}}, [1, "x"], "`input[1]` must be integer, not string"),
        ({"properties": {"a": {"properties": {"b": {"enum": [1]}}}}}, {"a": {"b": 2}}, "`a.b` must be one of 1, not 2"),
        ({"properties": {"a": {"items": OBJECT}}}, {"a": [{}]}, "a[0] lacks the required field `path`"),
    ],
)
def test_what_does_not_fit_is_told_by_its_field(schema: dict[str, Any], value: Any, said: str) -> None:
    assert check_input(schema, value) == said


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ({}, ""),
        (OBJECT, ""),
        (
            {"properties": {"any": True, "list": {"type": ["array", "null"], "items": {"anyOf": [{"type": "null"}]}}}},
            "",
        ),
        ({"type": 5}, "`type` of the schema must be one of string, integer,"),
        ({"properties": {"a": {"type": "strng"}}}, "`type` of `a` must be one of string, integer,"),
        ({"items": {"items": {"type": []}}}, "`type` of `items` of `items` of the schema must be"),
        ({"properties": []}, "`properties` of the schema must be an object"),
        ({"properties": {"a": 1}}, "`a` must be an object, not integer"),
        ({"required": "a"}, "`required` of the schema must be a list of names"),
        ({"enum": "a"}, "`enum` of the schema must be a list"),
        ({"minimum": "1"}, "`minimum` of the schema must be a number"),
        ({"anyOf": [{"type": "x"}]}, "`type` of `anyOf` of the schema must be"),
        ({"oneOf": {}}, "`oneOf` of the schema must be a list of schemas"),
    ],
)
def test_a_schema_that_cannot_be_used_is_told_with_its_place(schema: Any, fault: str) -> None:
    assert schema_fault(schema).startswith(fault)
    assert bool(schema_fault(schema)) is bool(fault)
    if not fault:
        check_input(schema, {"any": 1, "list": [None], "path": "x"})
