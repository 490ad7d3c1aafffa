"""Events and replies without a network: any split into chunks and lines, and any JSON in a call."""

from __future__ import annotations

import json
from itertools import chain, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.adapters.models.anthropic_wire import RecordedDeltas, block, call, end, event, request, start, text

from callboard.adapters.models.anthropic import reply as anthropic_sse
from callboard.adapters.models.anthropic.http import body_pieces
from callboard.adapters.models.anthropic.reply import (
    LARGEST_INPUT,
    BadEvent,
    EventReader,
    ReplyBuilder,
    strict_input,
    with_whole_characters,
)
from callboard.ports.model import Reply


def replied(stream: bytes, shown: RecordedDeltas | None = None) -> Reply:
    builder, reader = ReplyBuilder(shown or RecordedDeltas()), EventReader()
    builder.take(reader.feed(stream))
    assert builder.complete
    return builder.reply()


GOOD = (
    event("ping")
    + start(cache_creation_input_tokens=4)
    + block(
        0,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": "日本 → "},
        {"type": "thinking_delta", "thinking": "🙂"},
        {"type": "signature_delta", "signature": "c2ln/+="},
    )
    + text(1, "Grüße ", "aus 東京\r\n", "\u2028 end")
    + call(2, '{"path": "ü', '", "n": 1.5}')
    + end("tool_use")
)
WHOLE = replied(GOOD)


def test_thinking_and_its_signature_are_kept_word_for_word() -> None:
    assert WHOLE.blocks[0] == {"type": "thinking", "thinking": "日本 → 🙂", "signature": "c2ln/+="}
    assert WHOLE.blocks[1]["text"] == "Grüße aus 東京\r\n\u2028 end"
    assert WHOLE.blocks[2]["input"] == {"path": "ü", "n": 1.5}


@settings(max_examples=150, deadline=None)
@given(cuts=st.lists(st.integers(0, len(GOOD)), max_size=12), ending=st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_chunks_may_end_anywhere_and_lines_in_any_way(cuts: list[int], ending: bytes) -> None:
    data = GOOD.replace(b"\n", ending)
    places = [0, *sorted(cuts), len(data)]
    builder, reader = ReplyBuilder(RecordedDeltas()), EventReader()
    for begin, until in pairwise(places):
        builder.take(reader.feed(data[begin:until]))
    assert builder.complete, "a stream may end with \\r, and no more comes"
    assert builder.reply() == WHOLE


def test_every_single_byte_as_a_chunk() -> None:
    builder, reader = ReplyBuilder(RecordedDeltas()), EventReader()
    for at in range(len(GOOD)):
        builder.take(reader.feed(GOOD[at : at + 1]))
    assert builder.reply() == WHOLE


def test_data_over_several_lines_comments_and_other_fields() -> None:
    reader = EventReader()
    raw = b': hello\nid: 1\nevent: x\ndata: {"a":\ndata:1}\n\n\n\nevent: empty\n\ndata: {}\n'
    assert list(reader.feed(raw)) == [{"a": 1}]
    assert list(reader.feed(b"\n")) == [{}]


def test_a_line_that_ends_between_two_chunks_is_one_line() -> None:
    reader = EventReader()
    assert list(reader.feed(b'data: {"a":\r')) == []
    assert list(reader.feed(b"\ndata:1}\r\n\r")) == [{"a": 1}]
    assert list(reader.feed(b"\ndata:{}\r")) == []
    assert list(reader.feed(b"\r")) == [{}]


@pytest.mark.parametrize("data", [b"nope", b"[]", b"3", b"", b'{"a":1', b"\xff\xff", b"{" * 5])
def test_data_that_is_no_object_is_refused(data: bytes) -> None:
    with pytest.raises(BadEvent):
        list(EventReader().feed(b"data: " + data + b"\n\n"))


@pytest.mark.parametrize("chunk", [b"x" * 30, b"data: xxxxxxxxx\n"])
def test_an_event_without_end_is_refused_before_it_fills_the_memory(
    chunk: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(anthropic_sse, "MAX_EVENT", 100)
    reader = EventReader()
    with pytest.raises(BadEvent, match="more than 100 bytes"):
        list(chain.from_iterable(reader.feed(chunk) for _ in range(20)))


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        ('{"a": 1, "a": 2}', "'a' twice"),
        ('{"a": {"b": 1, "b": 1}}', "'b' twice"),
        ('{"a": 1', "not valid JSON"),
        ('{"a": 1} {"b": 2}', "not valid JSON"),
        ("[1]", "a list"),
        ('"x"', "a text"),
        ("null", "null"),
        ("5", "a number"),
        ("true", "a truth value"),
        ('{"a": NaN}', "NaN"),
        ('{"a": -Infinity}', "Infinity"),
        ('{"a": 1e999}', "out of range"),
        ('{"a": ' + "9" * 10_000 + "}", "a number of 10,000 digits"),
        ('{"a": ' + "[" * 100_000, "nested"),
    ],
)
def test_a_call_whose_input_is_no_clean_object_is_marked_and_its_input_is_empty(raw: str, why: str) -> None:
    reply = replied(start() + text(0, "  ") + text(1, "hm") + call(2, raw) + end("tool_use"))
    assert reply.blocks[1]["input"] == {}
    assert why in reply.bad_inputs[1], "counted in the reply as stored, without the empty text"


@pytest.mark.parametrize("pieces", [(), ("",), ("", ""), ("{}",), ("", "{", "}")])
def test_an_empty_input_is_an_empty_object(pieces: tuple[str, ...]) -> None:
    reply = replied(start() + call(0, *pieces) + end("tool_use"))
    assert (reply.blocks[0]["input"], reply.bad_inputs) == ({}, {})


def test_an_input_that_came_whole_with_its_start_is_kept() -> None:
    opening = {"type": "tool_use", "id": "t", "name": "n", "input": {"a": 1}}
    assert replied(start() + block(0, opening) + end("tool_use")).blocks[0]["input"] == {"a": 1}


def test_a_block_of_an_unknown_kind_may_stream_in_deltas_of_known_kinds() -> None:
    stream = (
        start()
        + block(0, {"type": "note", "text": "a"}, {"type": "text_delta", "text": "b"})
        + block(
            1,
            {"type": "new_tool_use", "id": "new_1", "name": "x", "input": {}},
            {"type": "input_json_delta", "partial_json": '{"q": '},
            {"type": "input_json_delta", "partial_json": '"y"}'},
        )
        + block(2, {"type": "mark"}, {"type": "thinking_delta", "thinking": "c"})
        + text(3, "end")
        + end()
    )
    blocks = replied(stream).blocks
    assert blocks[:2] == (
        {"type": "note", "text": "ab"},
        {"type": "new_tool_use", "id": "new_1", "name": "x", "input": {"q": "y"}},
    )
    assert blocks[2:] == ({"type": "mark"}, {"type": "text", "text": "end"})


def test_unknown_blocks_and_deltas_are_kept_and_server_tools_are_put_together() -> None:
    server = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}}
    result: dict[str, Any] = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [{"url": "u"}]}
    hidden = {"type": "redacted_thinking", "data": "AAA="}
    stream = (
        start()
        + block(0, hidden)
        + block(1, server, {"type": "input_json_delta", "partial_json": '{"q": "x"}'})
        + block(2, result)
        + block(3, {"type": "compaction", "content": ""}, {"type": "compaction_delta", "content": "short"})
        + block(
            4,
            {"type": "text", "text": "", "citations": None},
            {"type": "text_delta", "text": "said"},
            {"type": "citations_delta", "citation": {"url": "u"}},
            {"type": "citations_delta", "citation": {"url": "v"}},
        )
        + end("pause_turn")
    )
    assert replied(stream).blocks == (
        hidden,
        server | {"input": {"q": "x"}},
        result,
        {"type": "compaction", "content": "short"},
        {"type": "text", "text": "said", "citations": [{"url": "u"}, {"url": "v"}]},
    )


def test_fields_that_a_gateway_adds_to_known_blocks_are_left_out() -> None:
    added = {"x_gateway": {"id": 7}}
    opened = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}, "caller": {"type": "direct"}}
    stream = (
        start()
        + block(0, {"type": "text", "text": "", "logprobs": [], **added}, {"type": "text_delta", "text": "said"})
        + block(1, opened | added, {"type": "input_json_delta", "partial_json": '{"q": 1}'})
        + block(2, {"type": "note", **added})
        + end("tool_use")
    )
    assert replied(stream).blocks == (
        {"type": "text", "text": "said"},
        opened | {"input": {"q": 1}},
        {"type": "note", **added},
    )


def test_a_reply_without_words_is_a_reply() -> None:
    assert replied(start() + end()).blocks == ()


def test_later_counts_replace_earlier_ones_and_missing_ones_leave() -> None:
    begun = start(input_tokens=5, cache_read_input_tokens=90, output_tokens=1)
    usage = replied(begun + text(0, "x") + end("end_turn", output_tokens=33, input_tokens=6)).usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (6, 90, 33)


def test_halves_of_a_character_are_joined_and_a_lone_one_can_still_be_sent() -> None:
    raw = [
        f'{{"type":"content_block_delta","index":0,"delta":{{"type":"text_delta","text":"{half}"}}}}'
        for half in ("\\ud83d", "\\ude42 \\ud83d")
    ]
    stream = start() + event("content_block_start", index=0, content_block={"type": "text", "text": ""})
    stream += b"".join(f"data: {line}\n\n".encode() for line in raw)
    shown = RecordedDeltas()
    reply = replied(stream + event("content_block_stop", index=0) + end(), shown)
    assert reply.blocks[0]["text"] == "🙂 \ufffd"
    shown.of("text").encode()


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.sampled_from([0, 1, 20_000, 49_100, 49_151, 49_152, 60_000]), max_size=6),
    prompt=st.sampled_from([0, 1, 30_000, 49_000, 49_152]),
)
def test_the_body_is_one_json_object_however_large_its_parts_are(sizes: list[int], prompt: int) -> None:
    messages = [{"role": "user", "content": f"{number}" + "x" * size} for number, size in enumerate(sizes)]
    system = [{"type": "text", "text": "s" * prompt}]
    tools: list[dict[str, str]] = [{"name": "t", "description": "t" * (prompt // 2)}] if prompt else []
    asked = request(
        shared_system=json.dumps(system).encode(),
        tools=json.dumps(tools).encode(),
        messages=[json.dumps(message).encode() for message in messages],
    )
    pieces = body_pieces(asked)
    body = json.loads(b"".join(pieces))
    assert (body["system"], body.get("tools", []), body["messages"]) == (system, tools, messages)
    assert all(len(piece) < 150_000 for piece in pieces)
    assert all(len(piece) >= 48 * 1024 for piece in pieces[:-1]), "only the last piece is small"


@settings(max_examples=150)
@given(st.text(alphabet=st.characters(exclude_categories=()), max_size=20))
def test_whatever_text_comes_it_can_be_encoded_and_good_text_is_untouched(words: str) -> None:
    encoded = with_whole_characters(words).encode()
    assert encoded.decode() == words or any("\ud800" <= char <= "\udfff" for char in words)


@settings(max_examples=100)
@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=()), max_size=4),
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers(-(2**70), 2**70)
            | st.floats(allow_nan=False, allow_infinity=False)
            | st.text(st.characters(exclude_categories=()), max_size=6),
            lambda inner: st.lists(inner, max_size=3),
            max_leaves=5,
        ),
        max_size=4,
    )
)
def test_any_clean_input_comes_back_as_it_was_and_can_be_sent(value: dict[str, Any]) -> None:
    back = strict_input(json.dumps(value))
    json.dumps(back, ensure_ascii=False).encode()
    if all(ord(char) < 0xD800 for char in json.dumps(value, ensure_ascii=False)):
        assert back == value


def test_text_of_every_kind_is_shown_as_it_comes() -> None:
    shown = RecordedDeltas()
    replied(GOOD, shown)
    assert shown.of("thinking") == "日本 → 🙂"
    assert shown.of("text").startswith("Grüße")
    assert shown.of("tool") == 'bash{"path": "ü", "n": 1.5}'


def test_text_that_comes_together_is_shown_together_unless_each_event_is_shown() -> None:
    stream = start() + text(0, "Hel", "lo", "") + text(1, "!") + call(2, '{"a":', "1}") + call(3) + end("tool_use")
    together, apart = RecordedDeltas(), RecordedDeltas()
    for shown, events in ((together, False), (apart, True)):
        ReplyBuilder(shown, events=events).take(EventReader().feed(stream))
    pieces = [("text", "Hello!"), ("tool", "bash"), ("tool", '{"a":1}'), ("tool", "bash")]
    assert [(delta.kind, delta.text) for delta in together.deltas] == pieces
    assert [delta.names_tool for delta in together.deltas] == [False, True, False, True]
    by_event = [delta.text for delta in apart.deltas if delta.kind != "event"]
    assert by_event == ["Hel", "lo", "!", "bash", '{"a":', "1}", "bash"]


def test_the_input_of_a_call_is_taken_up_to_its_size_limit() -> None:
    frame = len(json.dumps({"text": ""}))
    most = json.dumps({"text": "x" * (LARGEST_INPUT - frame)})
    assert len(most) == LARGEST_INPUT
    assert len(strict_input(most)["text"]) == LARGEST_INPUT - frame
    with pytest.raises(ValueError, match="4,000,001 characters, and at most 4,000,000 are accepted"):
        strict_input(most + " ")
