"""What a person types in answer to a question of an MCP server."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.core.mcp.elicitation import fields_of, payload_of, question_in, read
from callboard.types.mcp import Elicitation, ElicitationAnswer
from callboard.types.records import Json, Request


def form(*required: str, **properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": list(required)}


NAME: Json = {"type": "string", "maxLength": 8}
AGE: Json = {"type": "integer", "minimum": 0, "maximum": 120}
SURE: Json = {"type": "boolean"}
COLOUR: Json = {"type": "string", "enum": ["r", "g"], "enumNames": ["red", "green"]}
SIZE: Json = {"type": "string", "oneOf": [{"const": "s", "title": "small"}, {"const": "l", "title": "large"}]}
SOME: Json = {"type": "array", "items": {"type": "string", "enum": ["a", "b", "c"]}}


def asks(schema: Json, url: str = "") -> Elicitation:
    return Elicitation("shop", "Well?", schema, url)


@pytest.mark.parametrize(
    ("schema", "typed", "content"),
    [
        (form("name", name=NAME), "Ada", {"name": "Ada"}),
        (form("name", name=NAME), "name=Ada", {"name": "Ada"}),
        (form("age", age=AGE), "42", {"age": 42}),
        (form("share", share={"type": "number"}), "0.5", {"share": 0.5}),
        (form("sure", sure=SURE), "no", {"sure": False}),
        (form("sure", sure=SURE), "Y", {"sure": True}),
        (form("colour", colour=COLOUR), "2", {"colour": "g"}),
        (form("colour", colour=COLOUR), "Red", {"colour": "r"}),
        (form("size", size=SIZE), "large", {"size": "l"}),
        (form("some", some=SOME), "a, 3", {"some": ["a", "c"]}),
        (form("name", "age", name=NAME, age=AGE), 'age=7 name="A B"', {"age": 7, "name": "A B"}),
        (form("name", "age", name=NAME, age=AGE), '{"name": "x", "age": "7"}', {"name": "x", "age": 7}),
        (form("name", name=NAME, sure={**SURE, "default": True}), "name=x", {"name": "x", "sure": True}),
    ],
)
def test_words_are_read_as_the_values_of_a_form(schema: Json, typed: str, content: Json) -> None:
    assert read(asks(schema), typed) == ElicitationAnswer("accept", content)


@pytest.mark.parametrize(
    ("schema", "typed", "why"),
    [
        (form("age", age=AGE), "old", "age: a whole number"),
        (form("age", age=AGE), "121", "at most 120"),
        (form("name", name=NAME), "much too long", "at most 8 characters"),
        (form("colour", colour=COLOUR), "blue", "one of red, green"),
        (form("name", "age", name=NAME, age=AGE), "name=x", "age is missing"),
        (form("name", "age", name=NAME, age=AGE), "Ada, 7", "write name=... age=..."),
        (form("name", name=NAME), '{"name": "x", "more": 1}', "unknown field 'more'"),
        (form("name", name=NAME), "{nope", "it is not JSON"),
        (form("mail", mail={"type": "string", "format": "email"}), "ada", "an e-mail address"),
        (form("day", day={"type": "string", "format": "date"}), "soon", "a date as"),
    ],
)
def test_words_that_do_not_fit_are_told(schema: Json, typed: str, why: str) -> None:
    said = read(asks(schema), typed)
    assert isinstance(said, str)
    assert why in said


@pytest.mark.parametrize("schema", [form("name", name=NAME), form("a", "b", a=NAME, b=NAME), {}])
def test_nothing_typed_and_decline_are_no_and_cancel_ends_it(schema: Json) -> None:
    for words in ("", "  ", "decline", "/decline", "DECLINE"):
        assert read(asks(schema), words) == ElicitationAnswer("decline")
    assert read(asks(schema), "cancel") == ElicitationAnswer("cancel")


def test_a_url_is_visited_or_not() -> None:
    there = asks({}, "https://shop.example/login")
    assert read(there, "y") == read(there, "done") == ElicitationAnswer("accept")
    assert read(there, "no") == read(there, "what?") == ElicitationAnswer("decline")


def test_the_question_comes_back_out_of_its_request() -> None:
    asked = asks(form("colour", colour=COLOUR), "")
    request = Request(id="req_1", kind="question", asked_by="lead", payload=payload_of(asked, "call_1"))
    assert question_in(request) == asked
    assert request.payload["options"] == ["red", "green"]
    assert question_in(request.model_copy(update={"payload": {"question": "x", "options": []}})) is None


LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=8)
WILD = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner))


@given(
    st.dictionaries(st.sampled_from(["type", "enum", "oneOf", "items", "default", "format", "title"]), WILD), st.text()
)
def test_no_schema_of_a_server_and_no_words_of_a_person_raise(schema: Any, typed: str) -> None:
    asked = asks({"type": "object", "properties": {"x": schema, "y": {"type": "string"}}, "required": ["x"]})
    fields_of(asked.schema)
    payload_of(asked, "c")
    assert isinstance(read(asked, typed), ElicitationAnswer | str)
