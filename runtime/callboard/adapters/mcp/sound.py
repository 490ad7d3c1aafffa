"""Schemas of servers' tools made sound: the service refuses a whole request for one schema that is none.

What the metaschema of draft 2020-12 refuses is taken out where it stands, and so are references that lead nowhere or to
themselves, and fields whose names the service does not take. The rest of the schema stays, and so does the tool; its
server checks again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from jsonschema import Draft202012Validator

from callboard.core.mcp.schemas import for_model
from callboard.words.values import Json

ROUNDS = 8
"""Times that a schema is looked at again after something was taken out."""
_FIELD = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
"""The names of fields that the Messages API takes; it refuses the request with this pattern in its words."""
_REFERENCES = ("$ref", "$dynamicRef")
Path = tuple[str | int, ...]


def sound(schema: object) -> tuple[Json, str]:
    """The schema as any request can carry it, and what was wrong with it; empty: nothing. Takes about a millisecond."""
    found, wrong = for_model(schema)
    if wrong:
        return found, wrong
    validator = Draft202012Validator(
        Draft202012Validator.META_SCHEMA, format_checker=Draft202012Validator.FORMAT_CHECKER
    )
    found = cast("Json", _copy(found))
    told: list[str] = []
    for _ in range(ROUNDS):
        bad = {*_refused(validator, found), *_unusable(found)}
        if not bad:
            return found, _words(told)
        if () in bad:
            break
        told += [".".join(map(str, path)) for path in sorted(bad, key=str)]
        for path in sorted(bad, key=lambda one: (len(one), [str(part).rjust(9) for part in one]), reverse=True):
            _take_out(found, path)
    return {"type": "object"}, "its schema is no JSON schema"


def _words(told: list[str]) -> str:
    if not told:
        return ""
    more = f" and {len(told) - 3} more" if len(told) > 3 else ""
    return f"of its schema this is left out, as it is none or cannot be sent: {', '.join(told[:3])}{more}"


def _refused(validator: Draft202012Validator, schema: Json) -> Iterator[Path]:
    for error in cast("Any", validator).iter_errors(schema):
        yield tuple(error.absolute_path)


def _unusable(schema: Json) -> Iterator[Path]:
    """What the metaschema lets pass and nobody can use."""
    for path, node in _walk(schema, ()):
        fields = node.get("properties")
        if isinstance(fields, dict):
            names = cast("dict[str, object]", fields)
            yield from ((*path, "properties", name) for name in names if not _FIELD.fullmatch(name))
        if node.get("enum") == []:
            yield (*path, "enum")
        for word in _REFERENCES:
            if isinstance(node.get(word), str) and not _leads_somewhere(schema, node[word]):
                yield (*path, word)


def _walk(value: object, path: Path) -> Iterator[tuple[Path, Json]]:
    if isinstance(value, dict):
        node = cast("Json", value)
        yield path, node
        for name, inner in node.items():
            yield from _walk(inner, (*path, name))
    elif isinstance(value, list):
        for number, inner in enumerate(cast("list[object]", value)):
            yield from _walk(inner, (*path, number))


def _leads_somewhere(schema: Json, reference: str) -> bool:
    """Whether it points into the schema, and not round in a circle of nothing but references."""
    seen: set[str] = set()
    while True:
        if reference in seen:
            return False
        seen.add(reference)
        target = _target(schema, reference)
        if isinstance(target, bool):
            return True
        if not isinstance(target, Mapping):
            return False
        after = cast("Mapping[str, Any]", target).get("$ref")
        if not isinstance(after, str):
            return True
        reference = after


def _target(schema: Json, reference: str) -> object:
    """What a pointer (RFC 6901) points to; None for what is none, or leads out of the document."""
    if reference == "#":
        return {"type": "object"}
    if not reference.startswith("#/"):
        return None
    value: object = schema
    for part in reference[2:].split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = cast("dict[str, object]", value).get(name)
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(cast("list[object]", value)):
            value = cast("list[object]", value)[int(name)]
        else:
            return None
    return value


def _take_out(schema: Json, path: Path) -> None:
    value: Any = schema
    for part in path[:-1]:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return  # it went with what it stood in
    try:
        del value[path[-1]]
    except (KeyError, IndexError, TypeError):
        return
    required = schema.get("required") if path[:-1] == ("properties",) else None
    if isinstance(required, list) and path[-1] in required:
        cast("list[Any]", required).remove(path[-1])


def _copy(value: object) -> object:
    if isinstance(value, dict):
        return {name: _copy(inner) for name, inner in cast("Json", value).items()}
    if isinstance(value, list):
        return [_copy(inner) for inner in cast("list[object]", value)]
    return value
