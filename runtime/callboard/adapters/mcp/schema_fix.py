"""Repair of schemas of servers' tools: the service refuses a whole request for one invalid schema.

Parts that the metaschema of draft 2020-12 refuses are removed, and so are references that lead nowhere or to
themselves, and fields whose names the service does not accept. The rest of the schema and the tool remain; the tool's
server checks again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from jsonschema import Draft202012Validator

from callboard.core.mcp.schemas import for_model
from callboard.types.records import Json

ROUNDS = 8
"""Most times that a schema is checked again after a removal."""
_FIELD = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
"""Names of fields that the Messages API accepts; its refusal of a request quotes this pattern."""
_REFERENCES = ("$ref", "$dynamicRef")
Path = tuple[str | int, ...]


def sound(schema: object) -> tuple[Json, str]:
    """Return the schema in a form that any request can contain, and its mistakes; empty if there are none. Takes about
    a millisecond."""
    result, wrong = for_model(schema)
    if wrong:
        return result, wrong
    validator = Draft202012Validator(
        Draft202012Validator.META_SCHEMA, format_checker=Draft202012Validator.FORMAT_CHECKER
    )
    result = cast("Json", _copy(result))
    removed: list[str] = []
    for _ in range(ROUNDS):
        bad = {*_refused(validator, result), *_unusable(result)}
        if not bad:
            return result, _note(removed)
        if () in bad:
            break
        removed += [".".join(map(str, path)) for path in sorted(bad, key=str)]
        for path in sorted(
            bad, key=lambda address: (len(address), [str(part).rjust(9) for part in address]), reverse=True
        ):
            _take_out(result, path)
    return {"type": "object"}, "its schema is not a JSON schema"


def _note(removed: list[str]) -> str:
    if not removed:
        return ""
    suffix = f" and {len(removed) - 3} more" if len(removed) > 3 else ""
    return f"of its schema this is left out, as it is none or cannot be sent: {', '.join(removed[:3])}{suffix}"


def _refused(validator: Draft202012Validator, schema: Json) -> Iterator[Path]:
    for error in cast("Any", validator).iter_errors(schema):
        yield tuple(error.absolute_path)


def _unusable(schema: Json) -> Iterator[Path]:
    """Yield the places in a schema that the metaschema allows although they are unusable."""
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
    """Return True if a reference leads to a part of the schema, not only to a cycle of references."""
    seen: set[str] = set()
    while True:
        # A reference to itself would expand forever
        # (test_a_sound_schema_is_what_it_was_and_a_tree_may_refer_to_itself).
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
    """Return the target of a pointer (RFC 6901); None if the text is not a pointer, or leads out of the document."""
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
