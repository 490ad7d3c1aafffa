"""Answers against schemas of users: all of JSON Schema counts, and nothing takes exponential time."""

from __future__ import annotations

import time
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from callboard.core.full_json_schema import answer_fault, answer_schema_fault

DRAFT_7 = "http://json-schema.org/draft-07/schema#"


class Part(BaseModel):
    number: str = Field(pattern="^[A-Z]{2}[0-9]+$")
    parts: list[Part] = []


class Product(BaseModel):
    part: Part
    spare: Part | None = None


class Sum(BaseModel):
    left: Sum | Difference | int
    kind: Literal["sum"]


class Difference(BaseModel):
    left: Sum | Difference | int
    kind: Literal["difference"]


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ({"part": {"number": "AB1", "parts": [{"number": "CD2"}]}, "spare": None}, ""),
        ({"part": {"number": "AB1"}, "spare": {"number": "CD2"}}, ""),
        ({"part": 1}, "`answer.part`: 1 is not of type 'object'"),
        ({"part": {}}, "`answer.part`: 'number' is a required property"),
        ({"part": {"number": "x"}}, "`answer.part.number`: 'x' does not match the pattern '^[A-Z]{2}[0-9]+$'"),
        ({"part": {"number": "AB1", "parts": [{"number": 2}]}}, "`answer.part.parts[0].number`: 2 is not of type"),
        ({"part": {"number": "AB1"}, "spare": {"number": "x"}}, "`answer.spare.number`: 'x' does not match"),
    ],
)
def test_nested_and_recursive_models_of_pydantic_are_checked(answer: Any, fault: str) -> None:
    schema = Product.model_json_schema()
    assert answer_schema_fault(schema) == ""
    found = answer_fault(schema, answer)
    assert found.startswith(fault)
    assert bool(found) is bool(fault)


@pytest.mark.parametrize(
    ("schema", "answer", "fault"),
    [
        ({"maxLength": 2}, "abc", "`answer`: 'abc' is too long"),
        ({"allOf": [{"required": ["a"]}]}, {}, "`answer`: 'a' is a required property"),
        ({"minItems": 2}, [1], "`answer`: [1] is too short"),
        ({"const": 1}, 2, "`answer`: 1 was expected"),
        ({"oneOf": [{"type": "integer"}, {"minimum": 3}]}, 5, "`answer`: it matches more than one of the alternatives"),
        ({"properties": {"a": {}}, "additionalProperties": False}, {"b": 1}, "`answer`: `b` is no field of the schema"),
        ({"additionalProperties": {"type": "string"}}, {"b": 1}, "`answer.b`: 1 is not of type 'string'"),
        ({"patternProperties": {"^n": {"type": "string"}}}, {"n": 1, "m": 1}, "`answer.n`: 1 is not of type"),
        ({"$schema": DRAFT_7, "items": [{"type": "string"}]}, [1], "`answer[0]`: 1 is not of type 'string'"),
        ({"$schema": "no draft", "$id": "http://localhost/x", "anyOf": [False]}, 1, "`answer`: "),
        ({}, [1], ""),
    ],
)
def test_every_keyword_counts(schema: dict[str, Any], answer: Any, fault: str) -> None:
    assert answer_schema_fault(schema) == ""
    found = answer_fault(schema, answer)
    assert found.startswith(fault)
    assert bool(found) is bool(fault)


def test_a_huge_value_does_not_fill_the_message_and_a_deep_one_does_not_fail() -> None:
    assert len(answer_fault({"type": "object"}, "x" * 100_000)) < 600
    deep: Any = []
    for _ in range(5_000):
        deep = [deep]
    assert answer_fault({"items": {"$ref": "#"}}, deep) == "it is nested too deeply"


def test_neither_a_pattern_nor_recursive_alternatives_take_exponential_time() -> None:
    begun = time.process_time()
    assert "does not match" in answer_fault({"pattern": "^(a+)+$"}, "a" * 10_000 + "b")
    answer: Any = 1
    for _ in range(40):
        answer = {"left": answer, "kind": "difference"}
    schema = Difference.model_json_schema()
    assert answer_fault(schema, answer) == ""
    innermost = answer
    while isinstance(innermost["left"], dict):
        innermost = innermost["left"]
    innermost["kind"] = "product"
    assert answer_fault(schema, answer).startswith("`answer.left.left.left")
    assert time.process_time() - begun < 5


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ({"type": "strng"}, "`type` of the schema must be one of"),
        ({"$ref": "#/$defs/Gone"}, "`$ref` '#/$defs/Gone' names nothing in the schema"),
        ({"items": {"$ref": "http://localhost/x"}}, "`$ref` 'http://localhost/x' names nothing in the schema"),
        ({"$ref": 3}, "`$ref` 3 names nothing"),
        (
            {"$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}]}}, "$ref": "#/$defs/A"},
            "a `$ref` of the schema leads back",
        ),
        ({"properties": {"a": {"$id": "x"}}}, "`$id` in a part of the schema is not supported"),
        ({"pattern": "(?=a)"}, "the pattern '(?=a)' cannot be checked: look-around"),
        ({"pattern": "("}, "the pattern '(' cannot be checked: unclosed group"),
        ({"pattern": 3}, "`pattern` of the schema must be a text"),
        ({"patternProperties": {"(": {}}}, "the pattern '(' cannot be checked"),
        ({"patternProperties": {"a": {}}, "unevaluatedProperties": False}, "`patternProperties` with"),
        ({"maxLength": "x"}, "`maxLength`: 'x' is not of type 'integer'"),
        ({"properties": {"$ref": {"type": "string"}, "pattern": {"enum": [{"$ref": 1}]}}}, ""),
    ],
)
def test_what_cannot_be_checked_is_refused(schema: Any, fault: str) -> None:
    found = answer_schema_fault(schema)
    assert found.startswith(fault)
    assert bool(found) is bool(fault)
