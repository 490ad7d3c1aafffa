"""Schemas of servers' tools: conversion for the model service, and validation of arguments. Pure.

The service requires an object at the root and no alternatives there; a server may declare anything. Unknown parts of a
schema are left to the server, which validates again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from callboard.core.json_schema import check_input
from callboard.types.records import Json

LARGEST = 60_000
"""Maximum characters of a tool's schema as JSON. A larger one is not shown: it would fill the prompt of every call."""
DEEPEST = 40
_ALTERNATIVES = ("anyOf", "oneOf", "allOf")


def for_model(schema: object) -> tuple[Json, str]:
    """Return the schema in the form that the service accepts, and the problem with the original; empty if there was
    none.

    Alternatives at the root are flattened: all their properties are included, and properties that each of them requires
    are required (`allOf`: properties that any of them requires). A schema that is invalid or too large is replaced with
    one that accepts any object.
    """
    if not isinstance(schema, Mapping):
        return {"type": "object"}, "its schema is not an object"
    result = dict(cast("Mapping[str, Any]", schema))
    if fault := _unusable(result):
        return {"type": "object"}, fault
    for word in _ALTERNATIVES:
        branches = result.pop(word, None)
        if isinstance(branches, list):
            listed = [cast("Json", branch) for branch in cast("list[Any]", branches) if isinstance(branch, dict)]
            _merge(result, listed, every=word)
    result["type"] = "object"
    if not isinstance(result.get("properties"), Mapping):
        result["properties"] = {}
    result.pop("$schema", None)
    required = result.pop("required", None)
    if isinstance(required, Sequence) and not isinstance(required, str):
        names = [name for name in cast("Sequence[Any]", required) if isinstance(name, str)]
        result |= {"required": names} if names else {}
    return result, ""


def problem(schema: Json, tool_input: object) -> str:
    """Return the error in the arguments of a call, written for the model; empty if none is found."""
    try:
        return check_input(schema, tool_input) or ""
    except (TypeError, AttributeError, KeyError, ValueError, RecursionError):
        return ""  # a schema that says things which we do not know: the server checks


def _unusable(schema: Mapping[str, Any]) -> str:
    try:
        if _depth(schema) > DEEPEST:
            return f"its schema is deeper than {DEEPEST} levels"
        size = len(json.dumps(schema))
    except (TypeError, ValueError, RecursionError):
        return "its schema is not JSON"
    return f"its schema has {size:,} characters, over {LARGEST:,}" if size > LARGEST else ""


def _depth(value: object, level: int = 0) -> int:
    if level > DEEPEST:
        return level
    inner: Sequence[object] = ()
    if isinstance(value, Mapping):
        inner = list(cast("Mapping[str, object]", value).values())
    elif isinstance(value, list):
        inner = cast("list[object]", value)
    return max((_depth(item, level + 1) for item in inner), default=level)


def _merge(into: dict[str, Any], branches: Sequence[Mapping[str, Any]], every: str) -> None:
    """Merge the alternatives of the root into it. Its own properties take precedence."""
    properties: dict[str, Any] = {}
    needed: list[set[str]] = []
    for branch in branches:
        branch_properties = branch.get("properties")
        properties |= (
            dict(cast("Mapping[str, Any]", branch_properties)) if isinstance(branch_properties, Mapping) else {}
        )
        required = branch.get("required")
        names = cast("Sequence[Any]", required) if isinstance(required, Sequence) else ()
        needed.append({name for name in names if isinstance(name, str)})
    own = into.get("properties")
    into["properties"] = properties | (dict(cast("Mapping[str, Any]", own)) if isinstance(own, Mapping) else {})
    if needed:
        empty: set[str] = set()
        needed_names = empty.union(*needed) if every == "allOf" else needed[0].intersection(*needed)
        own_needs = cast("Sequence[Any]", into.get("required") or ())
        into["required"] = sorted({*(name for name in own_needs if isinstance(name, str)), *needed_names})
