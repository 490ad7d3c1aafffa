"""Random conversations: valid ones are accepted, those with one fault are rejected, and all get an answer."""

from __future__ import annotations

import copy
import string
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.adapters.models.rehearsal_requests import (
    PNG,
    RULES,
    Json,
    assistant,
    call,
    rejection_of,
    request,
    result,
    signed,
    text,
    user,
)

from callboard.adapters.models.rehearsal.api import redact
from callboard.adapters.models.rehearsal.strict import check_request
from callboard.adapters.models.rehearsal.tokens import survey

words = st.text(string.ascii_letters + " äé漢字", min_size=1, max_size=20).filter(str.strip)
inputs = st.dictionaries(st.sampled_from(["path", "n"]), st.one_of(words, st.integers()), max_size=2)


@st.composite
def exchanges(draw: st.DrawFn, with_calls: bool = False) -> list[Json]:
    """Return a valid conversation that ends with a user message. `with_calls`: it has at least one tool exchange."""
    number = iter(range(1, 1_000))
    messages = [user(draw(words))]
    for step in range(draw(st.integers(1 if with_calls else 0, 4))):
        calls = draw(st.lists(inputs, min_size=1 if with_calls and step == 0 else 0, max_size=3))
        said = [text(draw(words))] if not calls or draw(st.booleans()) else []
        blocks = [call(next(number), "read", **given) for given in calls]
        messages.append(assistant(*said, *blocks))
        answers: list[Json] = [{"type": "tool_result", "tool_use_id": b["id"], "content": draw(words)} for b in blocks]
        answers = draw(st.permutations(answers))
        more = [text(draw(words))] if not answers or draw(st.booleans()) else []
        messages.append(user(*answers, *more))
    return messages


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(exchanges())
def test_every_valid_conversation_is_taken(messages: list[Json]) -> None:
    assert check_request(request(*messages), RULES) is None


def _exchange(messages: list[Json]) -> tuple[Json, Json]:
    """Return the first assistant message with calls, and the user message after it."""
    at = next(
        n for n, m in enumerate(messages) if any(b["type"] == "tool_use" for b in m["content"] if isinstance(b, dict))
    )
    return messages[at], messages[at + 1]


def drop_result(messages: list[Json]) -> None:
    _, answer = _exchange(messages)
    answer["content"] = answer["content"][1:] or [text("x")]


def drop_call(messages: list[Json]) -> None:
    asked, _ = _exchange(messages)
    asked["content"] = [b for b in asked["content"] if b["type"] != "tool_use"] or [text("x")]


def text_before_results(messages: list[Json]) -> None:
    _exchange(messages)[1]["content"].insert(0, text("x"))


def double_result(messages: list[Json]) -> None:
    answer = _exchange(messages)[1]["content"]
    answer.insert(1, dict(answer[0]))


def double_call(messages: list[Json]) -> None:
    asked = _exchange(messages)[0]["content"]
    asked.append(dict(asked[-1]))


def empty_text(messages: list[Json]) -> None:
    _exchange(messages)[1]["content"].append(text(""))


def rename_result(messages: list[Json]) -> None:
    _exchange(messages)[1]["content"][0]["tool_use_id"] = "toolu_other"


def drop_answer(messages: list[Json]) -> None:
    messages.remove(_exchange(messages)[1])


def drop_first(messages: list[Json]) -> None:
    del messages[0]


def swap_roles(messages: list[Json]) -> None:
    for message in _exchange(messages):
        message["role"] = {"user": "assistant", "assistant": "user"}[message["role"]]


def empty_content(messages: list[Json]) -> None:
    messages[0]["content"] = []


def bad_tool_name(messages: list[Json]) -> None:
    next(b for b in _exchange(messages)[0]["content"] if b["type"] == "tool_use")["name"] = "read file"


def text_input(messages: list[Json]) -> None:
    next(b for b in _exchange(messages)[0]["content"] if b["type"] == "tool_use")["input"] = '{"path": "a"}'


def extra_field(messages: list[Json]) -> None:
    messages[-1]["id"] = "m1"


def end_with_assistant(messages: list[Json]) -> None:
    messages.append(assistant("and so "))


def unsigned_thinking(messages: list[Json]) -> None:
    _exchange(messages)[0]["content"].insert(0, {"type": "thinking", "thinking": "x", "signature": ""})


MUTATIONS: list[Callable[[list[Json]], None]] = [
    drop_result, drop_call, text_before_results, double_result, double_call, empty_text, rename_result, drop_answer,
    drop_first, swap_roles, empty_content, bad_tool_name, text_input, extra_field, end_with_assistant,
     unsigned_thinking,
]  # fmt: skip


@pytest.mark.slow(keep=5)
@pytest.mark.parametrize("mutation", MUTATIONS)
@settings(max_examples=15, deadline=None)
@given(messages=exchanges(with_calls=True))
def test_one_thing_broken_is_one_400(mutation: Callable[[list[Json]], None], messages: list[Json]) -> None:
    broken = copy.deepcopy(messages)
    mutation(broken)
    error = rejection_of(request(*broken))
    assert (error.status, error.type) == (400, "invalid_request_error")


# The check answers every input: an exception in it would look like a fault of the service.

json_values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-2, 9), st.floats(0, 2), st.sampled_from(["", "text", "ephemeral"])
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(
            st.sampled_from(["type", "text", "content", "cache_control", "name", "source"]), inner, max_size=3
        ),
    ),
    max_leaves=6,
)

FULL = request(
    user(text("a", cache_control={"type": "ephemeral", "ttl": "5m"})),
    assistant(signed("hm"), {"type": "redacted_thinking", "data": redact("rehearsal", "x")}, call(1, path="a")),
    user(
        result(1, [text("x"), {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}])
    ),
    {"role": "system", "content": [text("s")]},
    assistant("b"),
    user({"type": "document", "source": {"type": "content", "content": [text("x")]}, "title": "t"}),
    user({"type": "search_result", "source": "s", "title": "t", "content": [text("x")]}),
    system=[text("s")],
    thinking={"type": "adaptive", "display": "summarized"},
    tool_choice={"type": "auto"},
    metadata={"user_id": "u"},
    stop_sequences=["x"],
    output_config={"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
    cache_control={"type": "ephemeral"},
    tools=[
        {
            "name": "read",
            "description": "d",
            "input_schema": {"type": "object", "properties": {"a": {"type": "string"}}},
        }
    ],
)


def nodes(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value inside a JSON value."""
    inner = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    return [path] * bool(path) + [found for key, part in inner for found in nodes(part, (*path, key))]


@pytest.mark.slow(keep=6)
@pytest.mark.parametrize("path", nodes(FULL), ids=lambda path: ".".join(map(str, path)))
@settings(max_examples=8, deadline=None)
@given(replacement=json_values)
def test_a_request_with_any_part_replaced_or_gone_gets_an_answer(path: tuple[Any, ...], replacement: Any) -> None:
    for remove in (False, True):
        body = copy.deepcopy(FULL)
        holder: Any = body
        for key in path[:-1]:
            holder = holder[key]
        if remove:
            del holder[path[-1]]
        else:
            holder[path[-1]] = replacement
        error = check_request(body, RULES)
        assert error is None or error.status in (400, 404)
        if error is None:
            assert survey(body)


def test_the_full_request_is_a_valid_one() -> None:
    assert check_request(FULL, RULES) is None
