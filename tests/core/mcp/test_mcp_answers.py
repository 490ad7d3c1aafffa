"""What servers send becomes what a request can carry: results, schemas, names, texts and limits."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.core.json_schema import input_problem, schema_for_model
from callboard.core.mcp.limits import McpLimits, limits_of, wait_before_start
from callboard.core.mcp.results import EMPTY, answer_of, blocks_of, cut, one_line, shorten_texts, whole_text
from callboard.core.mcp.tool_names import clashes_with, own_clashes, tool_name
from callboard.types.records import Json
from callboard.types.settings import McpSettings

PNG = base64.b64encode(
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (3).to_bytes(4, "big") + (2).to_bytes(4, "big") + b"\x08\x06\0\0\0"
).decode()

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def test_each_kind_of_content_is_shown_or_told() -> None:
    answer = answer_of(
        {
            "content": [
                {"type": "text", "text": "a\ud800b\0"},
                {"type": "text", "text": "  "},
                {"type": "image", "data": PNG, "mimeType": "image/jpeg"},
                {"type": "audio", "data": "A" * 400, "mimeType": "audio/wav"},
                {"type": "resource", "resource": {"uri": "file:///x", "mimeType": "text/plain", "text": "body"}},
                {"type": "resource", "resource": {"uri": "file:///y", "mimeType": "image/png", "blob": PNG}},
                {"type": "resource", "resource": {"uri": "file:///z", "blob": "AAAA"}},
                {"type": "resource_link", "uri": "file:///l", "name": "n", "description": "d"},
                {"type": "hologram"},
                5,
            ]
        }
    )
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
    assert [block if block["type"] == "image" else block["text"] for block in answer.blocks] == [
        "a\ufffdb\ufffd",
        image,
        "[Audio, audio/wav, about 300 bytes: not shown.]",
        "[Resource file:///x (text/plain)]\nbody",
        image,
        "[Resource file:///z, about 3 bytes that are no text: not shown.]",
        "[Link to the resource file:///l (n; d)]",
        "[A block of the kind 'hologram' is not shown.]",
        "[Left out: 5]",
    ]


@pytest.mark.parametrize(
    "data",
    [None, "", "not base64!", base64.b64encode(b"<svg/>").decode(), base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()],
)
def test_an_image_that_the_service_would_refuse_becomes_words(data: object) -> None:
    (block,) = blocks_of([{"type": "image", "data": data, "mimeType": "image/png"}])
    assert block["type"] == "text"
    assert "Image left out" in block["text"]


def test_structured_content_stands_in_for_texts_and_an_empty_answer_says_so() -> None:
    answer = answer_of({"content": [], "structuredContent": {"a": 1}, "isError": True})
    assert json.loads(answer.blocks[0]["text"]) == answer.structured == {"a": 1}
    assert answer.is_error
    cut = answer_of({"content": [], "structuredContent": {"a\ud83d": ["b\ud83d", float("nan")]}})
    assert json.loads(cut.blocks[0]["text"]) == cut.structured == {"a?": ["b?", None]}
    both = answer_of({"content": [{"type": "text", "text": "said"}], "structuredContent": {"a": 1}})
    assert whole_text(both.blocks) == "said"
    assert whole_text(answer_of({}).blocks) == EMPTY
    assert not answer_of({"content": "x", "isError": "true"}).is_error


def test_content_that_is_no_list_of_blocks_is_shown() -> None:
    assert whole_text(answer_of({"content": "as a text"}).blocks) == "as a text"
    assert whole_text(answer_of({"content": {"type": "text", "text": "as one block"}}).blocks) == "as one block"
    assert whole_text(answer_of({"content": ["one", {"type": "text", "text": 7}, None]}).blocks) == "one\n7"


def test_of_a_long_list_of_texts_nothing_is_left_out() -> None:
    texts = [{"type": "text", "text": str(number)} for number in range(1_000)]
    image = {"type": "image", "data": PNG, "mimeType": "image/png"}
    first, middle, last = answer_of({"content": [*texts, image, *texts]}).blocks
    assert first == last == {"type": "text", "text": "\n".join(map(str, range(1_000)))}
    assert middle["type"] == "image"


@given(st.dictionaries(st.sampled_from(["content", "structuredContent", "isError"]), JSON))
def test_any_answer_becomes_blocks_that_a_request_can_carry(result: Json) -> None:
    answer = answer_of(result)
    assert answer.blocks
    for block in answer.blocks:
        assert block["type"] in ("text", "image")
        if block["type"] == "text":
            assert block["text"].strip()
            block["text"].encode()


def test_a_long_result_keeps_its_two_ends_and_its_images() -> None:
    image: Json = {"type": "image", "source": {"data": ""}}
    first, second = shorten_texts([{"type": "text", "text": "a" * 500 + "z" * 500}, image], 100, "/whole")
    assert first["text"].startswith("a" * 50 + "\n[Result cut: 100 of 1,000 characters. Whole: /whole]\n")
    assert first["text"].endswith("z" * 50)
    assert second is image


def test_alternatives_at_the_root_are_flattened() -> None:
    branches = [
        {"properties": {"a": {"type": "string"}}, "required": ["a", "both"]},
        {"properties": {"b": {"type": "integer"}}, "required": ["b", "both"]},
    ]
    own: Json = {"properties": {"c": {}}, "required": ["c"], "$schema": "x", "$defs": {"d": {}}}
    for word, required in (("anyOf", ["both", "c"]), ("oneOf", ["both", "c"]), ("allOf", ["a", "b", "both", "c"])):
        schema, wrong = schema_for_model({**own, word: branches})
        assert not wrong
        assert schema["type"] == "object"
        assert set(schema["properties"]) == {"a", "b", "c"}
        assert schema["required"] == required
        assert word not in schema
        assert "$schema" not in schema
        assert schema["$defs"] == {"d": {}}


_CIRCLE: Json = {"properties": {"kind": {"const": "circle"}, "r": {"type": "number"}}, "required": ["kind", "r"]}
_SQUARE: Json = {"properties": {"kind": {"enum": ["square"]}, "w": {"type": "number"}}, "required": ["kind", "w"]}
_REFERENCES: Json = {
    "oneOf": [{"$ref": "#/$defs/circle"}, {"$ref": "#/$defs/square"}],
    "$defs": {"circle": _CIRCLE, "square": _SQUARE},
}


@pytest.mark.parametrize(
    "given_",
    [
        {"oneOf": [_CIRCLE, _SQUARE]},
        _REFERENCES,
        {"$ref": "#/definitions/shape~1any", "definitions": {"shape/any": {"anyOf": [_CIRCLE, _SQUARE]}}},
    ],
)
def test_a_union_of_kinds_keeps_each_kind(given_: Json) -> None:
    schema, wrong = schema_for_model(given_)
    assert not wrong
    assert set(schema["properties"]) == {"kind", "r", "w"}
    assert schema["properties"]["kind"] == {"anyOf": [{"const": "circle"}, {"enum": ["square"]}]}
    assert schema["required"] == ["kind"]
    assert not {"$ref", "oneOf", "anyOf"} & set(schema)
    assert not input_problem(schema, {"kind": "circle", "r": 1})


def test_a_reference_at_the_root_that_leads_nowhere_stays_and_one_to_itself_is_empty() -> None:
    assert schema_for_model({"$ref": "#/$defs/a"})[0]["$ref"] == "#/$defs/a"
    assert schema_for_model({"$ref": "#"})[0] == {"type": "object", "properties": {}}
    chain: Json = {str(number): {"allOf": [{"$ref": f"#/$defs/{number + 1}"}]} for number in range(1_200)}
    assert schema_for_model({"$ref": "#/$defs/0", "$defs": chain})[0]["properties"] == {}


def test_names_of_required_fields_in_another_form_are_ignored() -> None:
    schema, wrong = schema_for_model({"required": True, "anyOf": [{"properties": {"b": {}}, "required": "b"}, True]})
    assert not wrong
    assert schema == {"type": "object", "properties": {"b": {}}}


def _deep(levels: int) -> Json:
    found: Json = {"type": "string"}
    for _ in range(levels):
        found = {"type": "object", "properties": {"a": found}}
    return found


@pytest.mark.parametrize("schema", [None, 5, [], "x", {"x": "y" * 70_000}, _deep(100)])
def test_a_schema_that_is_none_takes_any_object_and_is_told(schema: object) -> None:
    found, wrong = schema_for_model(schema)
    assert found == {"type": "object"}
    assert wrong


@given(JSON, JSON)
def test_no_schema_and_no_argument_breaks_the_check(schema: object, given_: object) -> None:
    found, _ = schema_for_model(schema)
    assert found["type"] == "object"
    assert isinstance(input_problem(found, given_), str)
    json.dumps(found)


def test_what_a_schema_plainly_forbids_is_told_before_the_server_hears_of_it() -> None:
    schema, _ = schema_for_model({"properties": {"n": {"type": "integer"}, "any": True}, "required": ["n"]})
    assert "lacks the required field `n`" in input_problem(schema, {})
    assert "`n` must be integer" in input_problem(schema, {"n": "1"})
    assert not input_problem(schema, {"n": 1, "more": 2})


def test_names_are_what_a_model_may_call_and_clashes_are_told() -> None:
    assert tool_name("my server", "get.it") == "mcp__my_server__get_it"
    assert tool_name("plugin:p:s", "t") == "mcp__plugin_p_s__t"
    assert len(tool_name("s" * 60, "t" * 60)) == 64
    assert "`s__a.b`, `s__a_b`" in own_clashes("s", ["a.b", "a_b", "c"])
    assert own_clashes("s", ["a", "a"])
    assert not own_clashes("s", ["a", "b"])
    taken = {"one": ["mcp__one__a"], "two": ["mcp__x__a"]}
    assert clashes_with("three", ["mcp__x__a"], taken) == "mcp__x__a is a tool of the server two already"
    assert not clashes_with("two", ["mcp__x__a"], taken)


@given(st.text(max_size=40), st.text(max_size=40))
def test_every_name_is_one_that_the_service_takes(server: str, tool: str) -> None:
    name = tool_name(server, tool)
    assert len(name) <= 64
    assert name.isascii()
    assert all(one.isalnum() or one in "_-" for one in name)


def test_texts_are_cut_and_cleaned() -> None:
    assert len(cut("x" * 9_000)) <= 2_000
    assert "cut" in cut("x" * 9_000)
    assert cut("\x1b[31mred\ud800") == "\ufffd[31mred\ufffd"
    assert one_line(" a\n\tb ") == "a b"
    assert cut(None) == cut(5) == ""


def test_limits_come_from_the_environment_then_the_settings() -> None:
    told = {"MCP_TIMEOUT": "5000", "MCP_TOOL_TIMEOUT": "x", "MAX_MCP_OUTPUT_TOKENS": "10"}
    limits = limits_of(told, McpSettings(start=7, call=9, idle=11, result_tokens=100))
    assert limits == McpLimits(start=5.0, call=9.0, idle=11.0, shown=40)
    assert limits_of({}) == McpLimits()
    assert limits.call_of(3.0) == 3.0
    assert (limits.idle_of("stdio", 60.0), limits.idle_of("http", 1.0)) == (60.0, 11.0)
    assert McpLimits().idle_of("stdio", None) == 1_800
    assert [limits.shown_of(asked) for asked in (None, 5, 90, 900_000, True, "x")] == [40, 40, 90, 500_000, 40, 40]


def test_a_process_is_started_three_times_a_minute() -> None:
    starts: list[float] = []
    for at, pause in ((0, 0.0), (10, 1.0), (20, 2.0), (30, None), (59, None), (60.5, 2.0)):
        assert wait_before_start(starts, at) == pause
        if pause is not None:
            starts.append(at)
