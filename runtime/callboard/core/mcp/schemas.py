"""The schemas of servers' tools: as the model service takes them, and how arguments are checked by them. Pure.

The service wants an object at the root and no alternatives there; a server may say anything. What we do not understand
of a schema is left to the server, which checks again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from callboard.core.schema import check_input
from callboard.words.values import Json

LARGEST = 60_000
"""Characters of a tool's schema as JSON. A larger one is not shown: it would fill the prompt of every call."""
DEEPEST = 40
_ALTERNATIVES = ("anyOf", "oneOf", "allOf")


def for_model(schema: object) -> tuple[Json, str]:
    """The schema as the service takes it, and what was wrong with it; empty: nothing.

    Alternatives at the root are flattened: all their properties, required what each of them requires (`allOf`: what any
    of them does). A schema that is none, or is too large, becomes one that takes any object.
    """
    if not isinstance(schema, Mapping):
        return {"type": "object"}, "its schema is no object"
    found = dict(cast("Mapping[str, Any]", schema))
    if why := _unusable(found):
        return {"type": "object"}, why
    for word in _ALTERNATIVES:
        branches = found.pop(word, None)
        if isinstance(branches, list):
            listed = [cast("Json", one) for one in cast("list[Any]", branches) if isinstance(one, dict)]
            _merge(found, listed, every=word)
    found["type"] = "object"
    if not isinstance(found.get("properties"), Mapping):
        found["properties"] = {}
    found.pop("$schema", None)
    required = found.pop("required", None)
    if isinstance(required, Sequence) and not isinstance(required, str):
        kept = [name for name in cast("Sequence[Any]", required) if isinstance(name, str)]
        found |= {"required": kept} if kept else {}
    return found, ""


def problem(schema: Json, given: object) -> str:
    """What is wrong with the arguments of a call, written for the model; empty: nothing that we can see."""
    try:
        return check_input(schema, given) or ""
    except (TypeError, AttributeError, KeyError, ValueError, RecursionError):
        return ""  # a schema that says things which we do not know: the server checks


def _unusable(schema: Mapping[str, Any]) -> str:
    try:
        if _depth(schema) > DEEPEST:
            return f"its schema is deeper than {DEEPEST} levels"
        size = len(json.dumps(schema))
    except (TypeError, ValueError, RecursionError):
        return "its schema is no JSON"
    return f"its schema has {size:,} characters, over {LARGEST:,}" if size > LARGEST else ""


def _depth(value: object, level: int = 0) -> int:
    if level > DEEPEST:
        return level
    inner: Sequence[object] = ()
    if isinstance(value, Mapping):
        inner = list(cast("Mapping[str, object]", value).values())
    elif isinstance(value, list):
        inner = cast("list[object]", value)
    return max((_depth(one, level + 1) for one in inner), default=level)


def _merge(into: dict[str, Any], branches: Sequence[Mapping[str, Any]], every: str) -> None:
    """Take the alternatives of the root into it. Its own properties win."""
    properties: dict[str, Any] = {}
    needed: list[set[str]] = []
    for branch in branches:
        theirs = branch.get("properties")
        properties |= dict(cast("Mapping[str, Any]", theirs)) if isinstance(theirs, Mapping) else {}
        required = branch.get("required")
        names = cast("Sequence[Any]", required) if isinstance(required, Sequence) else ()
        needed.append({name for name in names if isinstance(name, str)})
    own = into.get("properties")
    into["properties"] = properties | (dict(cast("Mapping[str, Any]", own)) if isinstance(own, Mapping) else {})
    if needed:
        empty: set[str] = set()
        more = empty.union(*needed) if every == "allOf" else needed[0].intersection(*needed)
        own_needs = cast("Sequence[Any]", into.get("required") or ())
        into["required"] = sorted({*(name for name in own_needs if isinstance(name, str)), *more})
