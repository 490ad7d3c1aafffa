"""The emulator accepts and rejects the same requests as the Messages API, with the API's statuses and messages."""

from __future__ import annotations

import pytest
from tests.adapters.models.rehearsal_requests import (
    OLD_API,
    PNG,
    RULES,
    TOOLS,
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

from callboard.adapters.models.rehearsal.api import CATALOGUE, redact
from callboard.adapters.models.rehearsal.strict import (
    CheckContext,
    calls_digest,
    check_headers,
    check_request,
    thinking_marks,
)


@pytest.mark.parametrize(
    "body",
    [
        request(),
        request(tools=...),
        request(user("a"), user("b"), assistant("c"), assistant("d"), user("e")),
        request(user("a"), assistant(text("b"), call(1), call(2)), user(result(2), result(1), text("and"))),
        request(user("a"), assistant(call(1)), user(result(1)), user("neighbours are one turn")),
        request(user("a"), assistant(call(1), call(2)), user(result(1)), user(result(2))),
        request(user("a"), assistant(call(1)), user(result(1, [text("x"), {"type": "image", "source": {
            "type": "base64", "media_type": "image/png", "data": PNG}}]))),
        request(user("a"), assistant(call(1)), user({"type": "tool_result", "tool_use_id": "toolu_1"})),
        request(user("a"), assistant(call(1)), user(result(1)), {"role": "system", "content": "now be brief"}),
        request(user("a"), {"role": "system", "content": [text("x")]}, assistant("b"), user("c")),
        request(user("a"), assistant(signed("hm"), call(1)), user(result(1)), thinking={"type": "adaptive"}),
        request(user("a"), assistant({"type": "redacted_thinking", "data": redact("rehearsal",
         "x")}, text("b")), user("c")),
        request(thinking={"type": "enabled", "budget_tokens": 1_024}),
        request(system=[text("x", cache_control={"type": "ephemeral", "ttl": "1h"})], stream=True),
        request(tool_choice={"type": "tool", "name": "bash"}, metadata={"user_id": "u"}, stop_sequences=["END"]),
        request(output_config={"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}}),
        request(user({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "d"}})),
    ],
)  # fmt: skip
def test_what_the_api_takes_is_taken(body: Json) -> None:
    assert check_request(body, RULES) is None


NESTED_SCHEMA = {"type": "object", "properties": {"a": {"type": "strin"}}}

REFUSALS: list[tuple[Json, str]] = [
    (request(messages=...), "messages: Field required"),
    (request(model=...), "model: Field required"),
    (request(max_tokens=...), "max_tokens: Field required"),
    (request(max_token=1), "max_token: Extra inputs are not permitted"),
    (request(context_management={}), "context_management: Extra inputs are not permitted"),
    (request(model=5), "model: Input should be a valid string"),
    (request(max_tokens="9"), "max_tokens: Input should be a valid integer"),
    (request(max_tokens=True), "max_tokens: Input should be a valid integer"),
    (request(max_tokens=-1), "max_tokens: Input should be greater"),
    (request(max_tokens=64_001), "max_tokens: 64001 > 64000, which is the maximum allowed number of output tokens"),
    (request(temperature=0.5), "temperature: Extra inputs are not permitted"),
    (request(stream="yes"), "stream: Input should be a valid boolean"),
    (request(stop_sequences="x"), "stop_sequences: Input should be a valid list"),
    (request(stop_sequences=[" "]), "stop_sequences: each stop sequence must contain non-whitespace"),
    (request(metadata={"user": "x"}), "metadata.user: Extra inputs are not permitted"),
    (request(output_config={"effort": "huge"}), "output_config.effort: Input should be"),
    (request(output_config={"format": {"type": "json"}}), "output_config.format"),
    (request(service_tier="gold"), "service_tier: Input should be"),
    (request(messages=[]), "messages: at least one message is required"),
    (request(messages="hello"), "messages: Input should be a valid list"),
    (request(assistant("a"), user("b")), 'messages: first message must use the "user" role'),
    (request({"role": "tool", "content": "x"}), "messages.0.role: Input should be 'user' or 'assistant'"),
    (request({"role": "user"}), "messages.0.content: Field required"),
    (request({"role": "user", "content": "x", "name": "n"}), "messages.0.name: Extra inputs are not permitted"),
    (request(user(" \n")), "messages: text content blocks must contain non-whitespace text"),
    (request({"role": "user", "content": ""}), "messages.0: all messages must have non-empty content"),
    (request({"role": "user", "content": []}), "messages.0: all messages must have non-empty content"),
    (request({"role": "user", "content": 7}), "messages.0.content: Input should be a valid list"),
    (request(user(text(""))), "messages: text content blocks must be non-empty"),
    (request(user(text("  "))), "messages: text content blocks must contain non-whitespace text"),
    (request(user(text("", cache_control={"type": "ephemeral"}))), "cache_control cannot be set for empty text blocks"),
    (request(user({"type": "txt", "text": "x"})), "messages.0.content.0: Input tag 'txt' found using 'type'"),
    (request(user({"type": "text"})), "messages.0.content.0.text.text: Field required"),
    (request(user({"type": "text", "text": 1})), "messages.0.content.0.text.text: Input should be a valid string"),
    (request(user(text("x", colour="red"))), "messages.0.content.0.text.colour: Extra inputs are not permitted"),
    (request(user(text("x", citations=[{"type": "char_location"}]))), "citations"),
    (request(user(call(1))), "messages.0.content.0: `tool_use` blocks are not allowed in `user` messages"),
    (request(user("a"), assistant(result(1)), user("b")), "`tool_result` blocks are not allowed in `assistant`"),
    (request(user("a"), assistant({"type": "image", "source": {}})), "`image` blocks are not allowed in `assistant`"),
    (request(user({"type": "image", "source": {"type": "base64", "media_type": "image/bmp", "data": PNG}})),
     "image.source.base64.media_type: Input should be"),
    (request(user({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "%%"}})),
     "Invalid base64 data"),
    (request(user({"type": "image", "source": {"type": "url", "url": "file:///x"}})), "Only HTTP(S) URLs"),
    (request(user({"type": "document", "source": {"type": "base64", "media_type": "x", "data": PNG}})),
     "Input should be 'application/pdf'"),
    (request(user("a"), assistant({**call(1), "input": "x"})), "tool_use.input: Input should be a valid dictionary"),
    (request(user("a"), assistant({**call(1), "id": "a b"})), "tool_use.id: String should match pattern"),
    (request(user("a"), assistant({**call(1), "name": "read file"})), "tool_use.name: String should match pattern"),
    (request(user("a"), assistant({**call(1), "cache_control": {"type": "forever"}})), "expected tags: 'ephemeral'"),
    (request(user("a"), assistant(call(1)), user(result(1, "", is_error=True))),
     "content cannot be empty if `is_error`"),
    (request(user("a"), assistant(call(1)), user(result(1, [
        text("x"), {"type": "image", "source": {"type": "url", "url": "https://a.example/"}}], is_error=True))),
     "messages.2.content.0.tool_result: all content must be type `text` if `is_error` is true"),
    (request(user("a"), assistant(call(1)), user(result(1, [text("")]))), "text content blocks must be non-empty"),
    (request(user("a"), assistant(call(1)), user(result(1, [result(2)]))), "not allowed in `tool_result` content"),
    (request(user("a"), assistant(call(1)), user(result(1, is_error="no"))),
     "is_error: Input should be a valid boolean"),
    (request(system=[text("")]), "system: text content blocks must be non-empty"),
    (request(system=5), "system: Input should be a valid list"),
    (request(tools=[{"name": "a b", "input_schema": {"type": "object"}}]), "tools.0.custom.name: String should match"),
    (request(tools=[{"name": "a" * 129, "input_schema": {"type": "object"}}]),
     "tools.0.custom.name: String should match"),
    (request(tools=[TOOLS[0], TOOLS[0]]), "tools: Tool names must be unique."),
    (request(tools=[{"name": "a"}]), "tools.0.custom.input_schema: Field required"),
    (request(tools=[{"name": "a", "input_schema": {}}]), "tools.0.custom.input_schema.type: Field required"),
    (request(tools=[{"name": "a", "input_schema": {"type": "array"}}]), "input_schema.type: Input should be 'object'"),
    (request(tools=[{"name": "a", "input_schema": {"type": "object", "anyOf": []}}]), "does not support oneOf"),
    (request(tools=[{"name": "a", "input_schema": NESTED_SCHEMA}]), "JSON schema is invalid"),
    (request(tools=[{"name": "a", "input_schema": {"type": "object", "properties": {"a b": {}}}}]), "Property keys"),
    (request(tools=[{"name": "a", "input_schema": {"type": "object"}, "extra": 1}]),
     "tools.0.custom.extra: Extra inputs"),
    (request(tools=[{"type": "bash_20250124", "name": "bash"}]), "does not match any of the expected tags: 'custom'"),
    (request(tools=..., tool_choice={"type": "auto"}), "tool_choice may only be specified while providing tools"),
    (request(tool_choice={"type": "tool", "name": "gone"}), "Tool 'gone' not found in provided tools"),
    (request(tool_choice={"type": "sometimes"}), "tool_choice: Input tag"),
    (request(thinking={"type": "enabled"}), "thinking.enabled.budget_tokens: Field required"),
    (request(thinking={"type": "enabled", "budget_tokens": 500}), "greater than or equal to 1024"),
    (request(thinking={"type": "enabled", "budget_tokens": 4_000}), "`max_tokens` must be greater than"),
    (request(thinking={"type": "adaptive", "budget_tokens": 2_000}), "thinking.adaptive.budget_tokens: Extra inputs"),
    (request(thinking={"type": "maybe"}), "thinking: Input tag"),
    (request(thinking={"type": "adaptive"}, tool_choice={"type": "any"}),
     "Thinking may not be enabled when tool_choice"),
    (request(model="claude-opus-5-5", thinking={"type": "enabled", "budget_tokens": 2_000}),
     '"thinking.type.enabled" is not supported for this model'),
    (request(user("a"), assistant("b ")), "final assistant content cannot end with trailing whitespace"),
    (request(user("a"), assistant("b")), "This model does not support assistant message prefill"),
    (request({"role": "system", "content": "x"}, user("a")), "use the top-level 'system' parameter"),
    (request(user("a"), {"role": "system", "content": "x"}, user("b")), "a system message must directly follow a user"),
    (request(user("a"), assistant("b"), {"role": "system", "content": "x"}), "a system message must directly follow"),
    (request(user("a"), assistant(call(1)), user(result(1)), tools=...), "must define tools"),
    (request(user("a"), assistant(call(1)), {"role": "system", "content": "x"}, user(result(1))), "a system message"),
    (request(user("a"), assistant({"type": "thinking", "thinking": "x", "signature": "bm8="}, text("b")), user("c")),
     "messages.1.content.0: Invalid `signature` in `thinking` block"),
    (request(user("a"), assistant({**signed("x"), "thinking": "y"}, text("b")), user("c")), "Invalid `signature`"),
    (request(user("a"), assistant(signed("x", "claude-opus-5-5"), text("b")), user("c")), "Invalid `signature`"),
    (request(user("a"), assistant({"type": "redacted_thinking", "data": "x"}, text("b")), user("c")), "Invalid `data`"),
    (request(user("a"), assistant(call(1)), user(result(1)), thinking={"type": "enabled", "budget_tokens": 1_024}),
     "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "words"), REFUSALS)
def test_what_the_api_refuses_is_refused_in_its_words(body: Json, words: str) -> None:
    error = rejection_of(body)
    assert (error.status, error.type) == (400, "invalid_request_error")
    assert words in error.message


PAIRS: list[tuple[list[Json], str]] = [
    ([user("a"), assistant(call(1)), user("b")],
     "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: toolu_1. "
     "Each `tool_use` block must have a corresponding `tool_result` block in the next message."),
    ([user("a"), assistant(call(1))], "messages.1: `tool_use` ids were found without"),
    ([user("a"), assistant(call(1), call(2)), user(result(1))], "immediately after: toolu_2. Each"),
    ([user("a"), assistant(call(1)), user(text("first"), result(1))], "messages.1: `tool_use` ids were found without"),
    ([user("a"), assistant(call(1)), user("first"), user(result(1))], "messages.1: `tool_use` ids were found without"),
    ([user("a"), assistant(call(1), call(2)), user(result(1), text("x"), result(2))], "immediately after: toolu_2."),
    ([user(result(1))],
     "messages.0.content.0: unexpected `tool_use_id` found in `tool_result` blocks: toolu_1. "
     "Each `tool_result` block must have a corresponding `tool_use` block in the previous message."),
    ([user("a"), assistant(call(1)), user(result(1), result(9))], "messages.2.content.1: unexpected `tool_use_id`"),
    ([user("a"), assistant(call(1)), user(result(1)), assistant("b"), user(result(1))],
     "messages.4.content.0: unexpected"),
    ([user("a"), assistant(call(1)), user(result(1), result(1))],
     "messages.2.content.1: each tool_use must have a single result. "
     "Found multiple `tool_result` blocks with id: toolu_1"),
    ([user("a"), assistant(call(1), call(1)), user(result(1))], "messages.1.content.1: `tool_use` ids must be unique"),
    ([user("a"), assistant(call(1)), user(result(1)), assistant(call(1)), user(result(1))],
     "messages.3.content.0: `tool_use` ids must be unique"),
]  # fmt: skip


@pytest.mark.parametrize(("messages", "words"), PAIRS)
def test_calls_and_results_that_do_not_pair_are_refused(messages: list[Json], words: str) -> None:
    assert words in rejection_of(request(*messages)).message


def test_five_cache_marks_are_one_too_many() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    blocks = [text(f"t{n}", **mark) for n in range(4)]
    assert check_request(request(user(*blocks)), RULES) is None
    error = rejection_of(request(user(*blocks), system=[text("s", **mark)]))
    assert error.message == "A maximum of 4 blocks with cache_control may be provided. Found 5."
    assert "Found 5" in rejection_of(request(user(*blocks), **mark)).message
    inner = request(user("a"), assistant(call(1)), user(result(1, [text("x", **mark)]), *blocks))
    assert "Found 5" in rejection_of(inner).message


def test_a_longer_lived_mark_never_follows_a_shorter_one() -> None:
    hour, minutes = {"type": "ephemeral", "ttl": "1h"}, {"type": "ephemeral"}
    good = request(user(text("b", cache_control=minutes)), system=[text("a", cache_control=hour)])
    assert check_request(good, RULES) is None
    bad = request(user(text("b", cache_control=hour)), system=[text("a", cache_control=minutes)])
    assert "must not come after a ttl='5m'" in rejection_of(bad).message


def test_an_unknown_model_is_not_found() -> None:
    error = rejection_of(request(model="gpt"))
    assert (error.status, error.type, error.message) == (404, "not_found_error", "model: gpt")


def test_an_older_model_takes_what_newer_ones_refuse_and_the_other_way_round() -> None:
    assert check_request(request(user("a"), assistant("So"), model="old", temperature=0.3, top_k=5), OLD_API) is None
    body = request(user("a"), {"role": "system", "content": "x"}, model="old")
    assert "role 'system' is not supported on this model" in rejection_of(body, OLD_API).message
    assert "temperature: range" in rejection_of(request(model="old", temperature=2), OLD_API).message
    newer = CheckContext(CATALOGUE, version="2023-06-01")
    assert "`temperature` is deprecated for this model" in rejection_of(request(temperature=1), newer).message


def test_a_paused_turn_is_sent_back_as_it_stands() -> None:
    body = request(user("a"), assistant("I went on so far"))
    assert check_request(body, CheckContext(CATALOGUE, paused=True)) is None


def test_thinking_comes_back_unchanged_while_its_tool_loop_lasts() -> None:
    blocks = [signed("why"), call(1, path="a")]
    rules = CheckContext(CATALOGUE, {calls_digest(blocks): frozenset({thinking_marks(blocks)})})
    renamed = {**blocks[1], "id": "call_of_ours"}
    answer = user({**result(1), "tool_use_id": "call_of_ours"})
    thinking = {"thinking": {"type": "adaptive"}}
    assert check_request(request(user("a"), assistant(blocks[0], renamed), answer, **thinking), rules) is None
    dropped = rejection_of(request(user("a"), assistant(renamed), answer, **thinking), rules)
    assert "blocks in the latest assistant message cannot be modified" in dropped.message
    swapped = rejection_of(request(user("a"), assistant(signed("other"), renamed), answer, **thinking), rules)
    assert "cannot be modified" in swapped.message
    ended = [user("a"), assistant(renamed), answer, assistant("done"), user("next")]
    assert check_request(request(*ended, **thinking), rules) is None


def test_headers_are_checked_as_the_api_does() -> None:
    good = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
    assert check_headers(good) is None
    assert check_headers({"authorization": "Bearer t", "anthropic-version": "2026-10-21"}) is None
    missing = check_headers({"anthropic-version": "2023-06-01"})
    assert missing is not None
    assert (missing.status, missing.type) == (401, "authentication_error")
    wrong = check_headers(good, frozenset({"other"}))
    assert wrong is not None
    assert wrong.message == "invalid x-api-key"
    unversioned = check_headers({"x-api-key": "k"})
    assert unversioned is not None
    assert unversioned.status == 400
    assert check_headers({**good, "anthropic-version": "2024-99-99"}) is not None


@pytest.mark.parametrize("body", [[], "x", None, 5])
def test_a_body_that_is_no_object_is_refused(body: object) -> None:
    assert rejection_of(body).status == 400
