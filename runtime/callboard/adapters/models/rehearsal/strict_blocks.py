"""Shapes of the parts of a request: messages, their blocks, tools, the system prompt. Pure.

Each check yields mistakes with the API's texts, and assumes that earlier checks passed.
"""

from __future__ import annotations

import binascii
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeGuard, cast

from callboard.adapters.models.rehearsal.api import ApiError, invalid, is_signed
from callboard.types.late_pattern import late_pattern

Json = dict[str, object]
Check = Iterator[ApiError]

TOOL_NAME = late_pattern(r"[a-zA-Z0-9_-]{1,128}")
_CALL_ID = late_pattern(r"[a-zA-Z0-9_-]+")
_PROPERTY = late_pattern(r"[a-zA-Z0-9_.-]{1,64}")
_IMAGE_TYPES = frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"})
_SCHEMA_TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
_MAX_MESSAGES = 100_000

_Shape = tuple[Mapping[str, type], frozenset[str]]
_SHAPES: Mapping[str, _Shape] = MappingProxyType(
    {
        "text": ({"text": str}, frozenset({"cache_control", "citations"})),
        "image": ({"source": dict}, frozenset({"cache_control", "transformations"})),
        "document": ({"source": dict}, frozenset({"cache_control", "citations", "context", "title"})),
        "search_result": (
            {"source": str, "title": str, "content": list},
            frozenset({"cache_control", "citations"}),
        ),
        "thinking": ({"thinking": str, "signature": str}, frozenset()),
        "redacted_thinking": ({"data": str}, frozenset()),
        "tool_use": ({"id": str, "name": str, "input": dict}, frozenset({"cache_control", "caller"})),
        "tool_result": ({"tool_use_id": str}, frozenset({"cache_control", "content", "is_error"})),
        "server_tool_use": ({"id": str, "name": str, "input": dict}, frozenset({"cache_control", "caller"})),
        "web_search_tool_result": ({"tool_use_id": str}, frozenset({"cache_control", "caller", "content"})),
    }
)
"""Required and optional fields of each type of block."""

_HOMES: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "user": frozenset({"text", "image", "document", "search_result", "tool_result"}),
        "assistant": frozenset(
            {"text", "thinking", "redacted_thinking", "tool_use", "server_tool_use", "web_search_tool_result"}
        ),
        "system": frozenset({"text"}),
        "tool_result": frozenset({"text", "image", "document", "search_result"}),
    }
)
"""Permitted types of blocks in each place."""

_WORDS = {str: "a valid string", dict: "a valid dictionary", list: "a valid list"}


def is_int(value: object) -> TypeGuard[int]:
    """Return True if a JSON value is a whole number; `true` is not."""
    return isinstance(value, int) and not isinstance(value, bool)


def missing_fields(value: Json, needed: Iterable[str], prefix: str) -> Check:
    """Yield the missing fields."""
    for name in needed:
        if name not in value:
            yield invalid(f"{prefix}{name}: Field required")


def extra_fields(value: Json, allowed: frozenset[str], prefix: str) -> Check:
    """Yield the fields that the API does not define."""
    if value.keys() <= allowed:
        return
    for name in value:
        if name not in allowed:
            yield invalid(f"{prefix}{name}: Extra inputs are not permitted")


def cache_control(value: object, prefix: str) -> Check:
    """Check the shape of a cache mark."""
    if value is None:
        return
    place = f"{prefix}cache_control"
    if not isinstance(value, dict):
        yield invalid(f"{place}: Input should be an object")
        return
    mark = cast("Json", value)
    if mark.get("type") != "ephemeral":
        yield invalid(f"{place}: Input tag {mark.get('type')!r} does not match any of the expected tags: 'ephemeral'")
    yield from extra_fields(mark, frozenset({"type", "ttl"}), f"{place}.ephemeral.")
    if mark.get("ttl", "5m") not in ("5m", "1h"):
        yield invalid(f"{place}.ephemeral.ttl: Input should be '5m' or '1h'")


def system_shape(value: object) -> Check:
    """Check that the system prompt is a string or text blocks."""
    if value is None or isinstance(value, str):
        return
    if not isinstance(value, list):
        yield invalid("system: Input should be a valid list")
        return
    for position, block in enumerate(cast("list[object]", value)):
        yield from _block(block, f"system.{position}", "system", "system")


def message_shapes(value: object) -> Check:
    """Check each message separately: role, content, blocks."""
    if not isinstance(value, list):
        yield invalid("messages: Input should be a valid list")
        return
    messages = cast("list[object]", value)
    if not messages:
        yield invalid("messages: at least one message is required")
    if len(messages) > _MAX_MESSAGES:
        yield invalid(f"messages: at most {_MAX_MESSAGES:,} messages are allowed")
    for number, message in enumerate(messages):
        yield from _message(message, number, last=number == len(messages) - 1)


def _message(value: object, number: int, *, last: bool) -> Check:
    place = f"messages.{number}"
    if not isinstance(value, dict):
        yield invalid(f"{place}: Input should be an object")
        return
    message = cast("Json", value)
    yield from missing_fields(message, ("role", "content"), f"{place}.")
    yield from extra_fields(message, frozenset({"role", "content"}), f"{place}.")
    role = message["role"]
    content = message["content"]
    if role not in ("user", "assistant", "system"):
        yield invalid(f"{place}.role: Input should be 'user' or 'assistant'")
        return
    if not isinstance(content, str | list):
        yield invalid(f"{place}.content: Input should be a valid list")
    elif not content:
        if not (last and role == "assistant"):
            yield invalid(
                f"{place}: all messages must have non-empty content except for the optional final assistant message"
            )
    elif isinstance(content, str):
        if not content.strip():
            yield invalid("messages: text content blocks must contain non-whitespace text")
    else:
        for position, block in enumerate(cast("list[object]", content)):
            yield from _block(block, f"{place}.content.{position}", cast("str", role), "messages")


def _block(value: object, place: str, home: str, section: str) -> Check:
    if not isinstance(value, dict):
        yield invalid(f"{place}: Input should be an object")
        return
    block = cast("Json", value)
    kind = block.get("type")
    if not isinstance(kind, str) or kind not in _SHAPES:
        tags = ", ".join(repr(name) for name in _SHAPES)
        yield invalid(f"{place}: Input tag {kind!r} found using 'type' does not match any of the expected tags: {tags}")
        return
    if kind not in _HOMES[home]:
        where = f"`{home}` messages" if home != "tool_result" else "`tool_result` content"
        yield invalid(f"{place}: `{kind}` blocks are not allowed in {where}")
    needed, optional = _SHAPES[kind]
    prefix = f"{place}.{kind}."
    yield from missing_fields(block, needed, prefix)
    if len(block) > len(needed) + 1:
        yield from extra_fields(block, frozenset({"type", *needed}) | optional, prefix)
        yield from cache_control(block.get("cache_control"), prefix)
    for name, expected in needed.items():
        if not isinstance(block[name], expected):
            yield invalid(f"{prefix}{name}: Input should be {_WORDS[expected]}")
    yield from _INSIDE[kind](block, place, section)


def _text(block: Json, place: str, section: str) -> Check:
    if block.get("citations"):
        yield invalid(f"{place}.text.citations: citations are made by the model, and not taken here")
    text = cast("str", block["text"])
    if text.strip():
        return
    if block.get("cache_control") is not None:
        yield invalid(f"{place}.text: cache_control cannot be set for empty text blocks")
    elif text:
        yield invalid(f"{section}: text content blocks must contain non-whitespace text")
    else:
        yield invalid(f"{section}: text content blocks must be non-empty")


def _image(block: Json, place: str, section: str) -> Check:
    source = cast("Json", block["source"])
    prefix = f"{place}.image.source."
    if source.get("type") == "base64":
        yield from missing_fields(source, ("media_type", "data"), f"{prefix}base64.")
        if str(source["media_type"]) not in _IMAGE_TYPES:
            names = ", ".join(map(repr, sorted(_IMAGE_TYPES)))
            yield invalid(f"{prefix}base64.media_type: Input should be {names}")
        yield from _base64(source["data"], f"{prefix}base64.data")
    else:
        yield from _other_source(source, prefix)


def _document(block: Json, place: str, section: str) -> Check:
    source = cast("Json", block["source"])
    prefix = f"{place}.document.source."
    kind = source.get("type")
    if kind == "base64":
        yield from missing_fields(source, ("media_type", "data"), f"{prefix}base64.")
        if source["media_type"] != "application/pdf":
            yield invalid(f"{prefix}base64.media_type: Input should be 'application/pdf'")
        yield from _base64(source["data"], f"{prefix}base64.data")
    elif kind == "text":
        yield from missing_fields(source, ("media_type", "data"), f"{prefix}text.")
        if source["media_type"] != "text/plain" or not isinstance(source["data"], str):
            yield invalid(f"{prefix}text.media_type: Input should be 'text/plain', with a string as data")
    elif kind == "content":
        yield from _contents(source.get("content"), f"{prefix}content", section)
    else:
        yield from _other_source(source, prefix)


def _other_source(source: Json, prefix: str) -> Check:
    kind = source.get("type")
    if kind == "url":
        if not str(source.get("url", "")).startswith(("https://", "http://")):
            yield invalid(f"{prefix}url.url: Only HTTP(S) URLs are supported")
    else:
        yield invalid(f"{prefix}type: Input tag {kind!r} does not match any of the expected tags: 'base64', 'url'")


def _base64(value: object, place: str) -> Check:
    if not isinstance(value, str) or not value:
        yield invalid(f"{place}: Input should be a non-empty base64 string")
        return
    try:
        binascii.a2b_base64(value, strict_mode=True)
    except (binascii.Error, ValueError):
        yield invalid(f"{place}: Invalid base64 data")


def _search_result(block: Json, place: str, section: str) -> Check:
    yield from _contents(block["content"], f"{place}.search_result.content", section)


def _nothing(block: Json, place: str, section: str) -> Check:
    yield from ()


def _tool_use(block: Json, place: str, section: str) -> Check:
    if not _CALL_ID.fullmatch(cast("str", block["id"])):
        yield invalid(f"{place}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'")
    if not TOOL_NAME.fullmatch(cast("str", block["name"])):
        yield invalid(f"{place}.tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'")


def _tool_result(block: Json, place: str, section: str) -> Check:
    if not _CALL_ID.fullmatch(cast("str", block["tool_use_id"])):
        yield invalid(f"{place}.tool_result.tool_use_id: String should match pattern '^[a-zA-Z0-9_-]+$'")
    failed = block.get("is_error", False)
    content = block.get("content", "")
    if not isinstance(failed, bool):
        yield invalid(f"{place}.tool_result.is_error: Input should be a valid boolean")
    elif failed and not content:
        yield invalid(f"{place}.tool_result: content cannot be empty if `is_error` is true")
    if not isinstance(content, str):
        yield from _contents(content, f"{place}.tool_result.content", section)
        if failed and any(part["type"] != "text" for part in cast("list[Json]", content)):
            yield invalid(f"{place}.tool_result: all content must be type `text` if `is_error` is true")


def _service_use(block: Json, place: str, section: str) -> Check:
    if not str(block["id"]).startswith("srvtoolu_"):
        yield invalid(f"{place}.server_tool_use.id: String should match pattern '^srvtoolu_[a-zA-Z0-9_]+$'")
    if block["name"] != "web_search":
        yield invalid(f"{place}.server_tool_use.name: Input should be 'web_search'")


def _search_results(block: Json, place: str, section: str) -> Check:
    """Check that results are returned as they came: their encrypted content belongs to title and address."""
    prefix = f"{place}.web_search_tool_result.content"
    content = block.get("content")
    if isinstance(content, dict):
        yield from missing_fields(cast("Json", content), ("type", "error_code"), f"{prefix}.")
        return
    if not isinstance(content, list):
        yield invalid(f"{prefix}: Input should be a valid list")
        return
    for position, item in enumerate(cast("list[Json]", content)):
        yield from missing_fields(item, ("type", "url", "title", "encrypted_content"), f"{prefix}.{position}.")
        if not is_signed("web_search", f"{item['url']}\n{item['title']}", str(item["encrypted_content"])):
            yield invalid(f"{prefix}.{position}: Invalid `encrypted_content` in `web_search_result` block")


def _contents(value: object, place: str, section: str) -> Check:
    if isinstance(value, str):
        return
    if not isinstance(value, list):
        yield invalid(f"{place}: Input should be a valid list")
        return
    for position, block in enumerate(cast("list[object]", value)):
        yield from _block(block, f"{place}.{position}", "tool_result", section)


_INSIDE = MappingProxyType(
    {
        "text": _text,
        "image": _image,
        "document": _document,
        "search_result": _search_result,
        "thinking": _nothing,
        "redacted_thinking": _nothing,
        "tool_use": _tool_use,
        "tool_result": _tool_result,
        "server_tool_use": _service_use,
        "web_search_tool_result": _search_results,
    }
)


def tool_shapes(value: object) -> Check:
    """Check the tool list: names, uniqueness, input schemas."""
    if value is None:
        return
    if not isinstance(value, list):
        yield invalid("tools: Input should be a valid list")
        return
    names: set[object] = set()
    for position, tool in enumerate(cast("list[object]", value)):
        if not isinstance(tool, dict):
            yield invalid(f"tools.{position}: Input should be an object")
            return
        yield from _tool(cast("Json", tool), position)
        name = cast("Json", tool)["name"]
        if name in names:
            yield invalid("tools: Tool names must be unique.")
        names.add(name)


_TOOL_FIELDS = frozenset(
    {
        "type",
        "name",
        "description",
        "input_schema",
        "cache_control",
        "strict",
        "input_examples",
        "eager_input_streaming",
    }
)


_SEARCH_FIELDS = frozenset(
    {"type", "name", "max_uses", "allowed_domains", "blocked_domains", "user_location", "cache_control"}
)


def _search_tool(tool: Json, position: int) -> Check:
    prefix = f"tools.{position}.web_search_20250305."
    yield from missing_fields(tool, ("name",), prefix)
    yield from extra_fields(tool, _SEARCH_FIELDS, prefix)
    if tool["name"] != "web_search":
        yield invalid(f"{prefix}name: Input should be 'web_search'")
    if tool.get("allowed_domains") and tool.get("blocked_domains"):
        yield invalid(f"{prefix}allowed_domains: Only one of `allowed_domains` or `blocked_domains` may be given")
    if not (is_int(tool.get("max_uses", 1)) and cast("int", tool.get("max_uses", 1)) > 0):
        yield invalid(f"{prefix}max_uses: Input should be greater than 0")
    yield from cache_control(tool.get("cache_control"), prefix)


def _tool(tool: Json, position: int) -> Check:
    if tool.get("type") == "web_search_20250305":
        yield from _search_tool(tool, position)
        return
    if tool.get("type") not in (None, "custom"):
        yield invalid(
            f"tools.{position}: Input tag {tool.get('type')!r} does not match any of the expected tags: 'custom', "
            "'web_search_20250305'"
        )
    prefix = f"tools.{position}.custom."
    yield from missing_fields(tool, ("name", "input_schema"), prefix)
    yield from extra_fields(tool, _TOOL_FIELDS, prefix)
    if not isinstance(tool["name"], str) or not TOOL_NAME.fullmatch(tool["name"]):
        yield invalid(f"{prefix}name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'")
    if not isinstance(tool.get("description", ""), str):
        yield invalid(f"{prefix}description: Input should be a valid string")
    yield from cache_control(tool.get("cache_control"), prefix)
    schema = tool["input_schema"]
    if not isinstance(schema, dict):
        yield invalid(f"{prefix}input_schema: Input should be an object")
        return
    yield from _input_schema(cast("Json", schema), f"{prefix}input_schema")


def _input_schema(schema: Json, place: str) -> Check:
    if "type" not in schema:
        yield invalid(f"{place}.type: Field required")
    elif schema["type"] != "object":
        yield invalid(f"{place}.type: Input should be 'object'")
    if schema.keys() & {"oneOf", "allOf", "anyOf"}:
        yield invalid(f"{place}: input_schema does not support oneOf, allOf, or anyOf at the top level")
    properties = schema.get("properties")
    if isinstance(properties, dict):
        for name in cast("Json", properties):
            if not _PROPERTY.fullmatch(name):
                yield invalid(f"{place}.properties: Property keys should match pattern '^[a-zA-Z0-9_.-]{{1,64}}$'")
    if not _is_schema(schema):
        problem = "JSON schema is invalid. It must match JSON Schema draft 2020-12"
        yield invalid(f"{place}: {problem} (https://json-schema.org/draft/2020-12).")


_INNER_SCHEMAS = ("items", "additionalProperties")


def _is_schema(value: Any) -> bool:
    """Return True if a value can be a JSON schema: the keywords that tools use have values of the right types."""
    if isinstance(value, bool):
        return True
    if not isinstance(value, dict):
        return False
    schema = cast("Json", value)
    kinds = schema.get("type", "object")
    listed = cast("list[object]", kinds) if isinstance(kinds, list) else [kinds]
    for kind in listed:
        if not isinstance(kind, str) or kind not in _SCHEMA_TYPES:
            return False
    if not isinstance(schema.get("required", []), list) or not isinstance(schema.get("enum", []), list):
        return False
    properties = schema.get("properties", {})
    if not isinstance(properties, dict):
        return False
    inner = [*cast("Json", properties).values(), *(schema[name] for name in _INNER_SCHEMAS if name in schema)]
    return all(map(_is_schema, inner))
