"""JSON schemas of tools: check of an input, and conversion of a server's schema for the model service. Pure.

An input is checked against the part of JSON Schema that tool inputs use: types, required, enum, additionalProperties,
items, bounds of numbers and lengths. Unknown keywords are not checked here; the tool's own validation follows. The
message is written for the model that has to correct the input.

The model service requires an object at the root and no alternatives there; a server may declare anything. Unknown parts
of a server's schema are left to the server, which validates again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast
from urllib.parse import unquote

from callboard.types.records import Json

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list, tuple),
    "object": (dict,),
    "null": (type(None),),
}
_SCALARS: Mapping[type, str] = {str: "string", int: "integer", bool: "boolean"}
_UNBOUNDED = frozenset({"type", "description", "default", "title"})
"""Keywords of a schema that any value of the type fits."""
DEEPEST = 100
"""Maximum levels of a tool's input. Deeper input is never intended, and makes encoders and validators fail."""
TOO_DEEP = f"the input is nested too deeply: at most {DEEPEST} levels are allowed"
LARGEST_SCHEMA = 60_000
"""Maximum characters of a tool's schema as JSON. A larger one is not shown: it would fill the prompt of every call."""
DEEPEST_SCHEMA = 40
_MOST_REFERENCES = 100
"""Most definitions that are read for the properties at the root of a schema."""
_ALTERNATIVES = ("anyOf", "oneOf", "allOf")


def too_deep(value: object, most: int = DEEPEST) -> bool:
    """Return True if lists and objects are nested in more levels than `most`. Never recurses."""
    level: list[object] = [value]
    for _ in range(most + 1):
        level = [
            inner
            for container in level
            if isinstance(container, (dict, list))
            for inner in cast("Sequence[object]", container.values() if isinstance(container, dict) else container)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return False
    return True


def all_finite(value: object) -> bool:
    """Return False if the value, of JSON types, contains NaN or infinity, which JSON cannot express."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return False
    return True


def check_input(schema: Json | bool, value: Any, where: str = "input") -> str | None:
    """Return the error in the input, with the name of the field; None if it is valid."""
    if isinstance(schema, bool):  # any value fits `true`, and none fits `false`
        return None if schema else f"`{where}` may not be given"
    kind = _SCALARS.get(value.__class__)
    if kind is not None and schema.get("type") == kind and schema.keys() <= _UNBOUNDED:
        return None
    options: Sequence[Json | bool] = schema.get("anyOf") or schema.get("oneOf") or ()
    if options:
        problems = [check_input(option, value, where) for option in options]
        return None if None in problems else problems[0]
    return _type(schema, value, where) or _value(schema, value, where) or _inside(schema, value, where)


def _type(schema: Json, value: Any, where: str) -> str | None:
    declared = schema.get("type")
    if declared is None:
        return None
    names: list[str] = [declared] if isinstance(declared, str) else list(declared)
    for name in names:
        if isinstance(value, _TYPES.get(name, (object,))) and (not isinstance(value, bool) or "boolean" in names):
            return None
    return f"`{where}` must be {' or '.join(names)}, not {_kind(value)}"


def _value(schema: Json, value: Any, where: str) -> str | None:
    allowed: Sequence[Any] | None = schema.get("enum")
    if allowed is not None and value not in allowed:
        return f"`{where}` must be one of {', '.join(repr(option) for option in allowed)}, not {value!r}"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if "minimum" in schema and value < schema["minimum"]:
            return f"`{where}` must be at least {schema['minimum']}"
        if "maximum" in schema and value > schema["maximum"]:
            return f"`{where}` must be at most {schema['maximum']}"
    if isinstance(value, str) and len(value) < (fewest := int(schema.get("minLength", 0))):
        return f"`{where}` must {'not be empty' if fewest == 1 else f'have at least {fewest} characters'}"
    return None


def _inside(schema: Json, value: Any, where: str) -> str | None:
    if isinstance(value, Mapping):
        return _fields(schema, cast("Mapping[str, Any]", value), where)
    if isinstance(value, (list, tuple)) and isinstance(schema.get("items"), Mapping):
        for place, item in enumerate(cast("Sequence[Any]", value)):
            problem = check_input(schema["items"], item, f"{where}[{place}]")
            if problem:
                return problem
    return None


def _fields(schema: Json, fields: Mapping[str, Any], where: str) -> str | None:
    properties: Mapping[str, Json | bool] = schema.get("properties") or {}
    required: Sequence[str] = schema.get("required") or ()
    missing = [name for name in required if name not in fields]
    if missing:
        return f"{where} lacks the required field{'s' if len(missing) > 1 else ''} `{'`, `'.join(missing)}`"
    for name, value in fields.items():
        inner = properties.get(name)
        if inner is None:
            if schema.get("additionalProperties") is False and not schema.get("patternProperties"):
                return f"`{name}` is no field of this tool; its fields are {', '.join(properties) or '(none)'}"
            continue
        problem = check_input(inner, value, name if where == "input" else f"{where}.{name}")
        if problem:
            return problem
    return None


def schema_fault(schema: object, where: str = "the schema") -> str:
    """Return what is wrong with a schema, with the place; empty if `check_input` can use it."""
    if too_deep(schema, DEEPEST_SCHEMA):
        return f"{where} is nested too deeply: at most {DEEPEST_SCHEMA} levels are allowed"
    return _fault(schema, where)


def _fault(schema: object, where: str) -> str:
    if isinstance(schema, bool):
        return ""
    if not isinstance(schema, Mapping):
        return f"{where} must be an object, not {_kind(schema)}"
    keywords = cast("Mapping[str, Any]", schema)
    for word, fits, expected in _KEYWORDS:
        if word in keywords and not fits(keywords[word]):
            return f"`{word}` of {where} must be {expected}"
    properties: Mapping[str, Any] = keywords.get("properties") or {}
    inner = [(part, f"`{name}`") for name, part in properties.items()]
    inner += [(keywords["items"], f"`items` of {where}")] if isinstance(keywords.get("items"), Mapping) else []
    inner += [(part, f"`{word}` of {where}") for word in _ALTERNATIVES for part in keywords.get(word) or ()]
    return next((fault for part, name in inner if (fault := _fault(part, name))), "")


def _is_type(value: object) -> bool:
    names = cast("list[object]", value) if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in _TYPES for name in names)


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in cast("list[object]", value))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_KEYWORDS: tuple[tuple[str, Callable[[object], bool], str], ...] = (
    ("type", _is_type, f"one of {', '.join(_TYPES)}, or a list of these"),
    ("properties", lambda value: isinstance(value, Mapping), "an object"),
    ("required", _is_texts, "a list of names"),
    ("enum", lambda value: isinstance(value, list), "a list"),
    ("minimum", _is_number, "a number"),
    ("maximum", _is_number, "a number"),
    ("minLength", _is_number, "a number"),
    *((word, lambda value: isinstance(value, list) and value != [], "a list of schemas") for word in _ALTERNATIVES),
)
"""Keywords that `check_input` uses, and what their values must be."""


def _kind(value: Any) -> str:
    for name in ("boolean", "string", "integer", "number", "array", "object", "null"):
        if isinstance(value, _TYPES[name]):
            return name
    return type(value).__name__


def schema_for_model(schema: object) -> tuple[Json, str]:
    """Return the schema in the form that the service accepts, and the problem with the original.

    The problem is empty if there was none.

    References and alternatives at the root are flattened: all their properties are included, and properties that each
    of them requires are required (`allOf`: properties that any of them requires). A property that they declare in
    different ways keeps each way as an alternative of its own. A schema that is invalid or too large is replaced with
    one that accepts any object.
    """
    if not isinstance(schema, Mapping):
        return {"type": "object"}, "its schema is not an object"
    root = dict(cast("Mapping[str, Any]", schema))
    if fault := _unusable(root):
        return {"type": "object"}, fault
    result = _flattened(root, root, {})
    if fault := _unusable(result):
        return {"type": "object"}, fault
    result["type"] = "object"
    if not isinstance(result.get("properties"), Mapping):
        result["properties"] = {}
    result.pop("$schema", None)
    required = result.pop("required", None)
    names = _names(required)
    return result | ({"required": names} if names else {}), ""


def input_problem(schema: Json, tool_input: object) -> str:
    """Return the error in the arguments of a call, written for the model; empty if none is found."""
    try:
        return check_input(schema, tool_input) or ""
    except (TypeError, AttributeError, KeyError, ValueError, RecursionError):
        return ""  # the schema has parts that are unknown here: the server checks them


def _unusable(schema: Mapping[str, Any]) -> str:
    try:
        if _depth(schema) > DEEPEST_SCHEMA:
            return f"its schema is deeper than {DEEPEST_SCHEMA} levels"
        size = len(json.dumps(schema))
    except (TypeError, ValueError, RecursionError):
        return "its schema is not JSON"
    return f"its schema has {size:,} characters, over {LARGEST_SCHEMA:,}" if size > LARGEST_SCHEMA else ""


def _depth(value: object, level: int = 0) -> int:
    if level > DEEPEST_SCHEMA:
        return level
    inner: Sequence[object] = ()
    if isinstance(value, Mapping):
        inner = list(cast("Mapping[str, object]", value).values())
    elif isinstance(value, list):
        inner = cast("list[object]", value)
    return max((_depth(item, level + 1) for item in inner), default=level)


def reference_target(reference: object, root: Json) -> object:
    """Return the part of a schema that a JSON pointer names; None if there is none."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return None
    node: Any = root
    for step in unquote(reference).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        try:
            node = cast("Any", node[int(name)] if isinstance(node, list) else node[name])
        except (LookupError, TypeError, ValueError):
            return None
    return cast("object", node)


def _flattened(schema: Json, root: Json, known: dict[str, Json]) -> Json:
    """Return a schema without a reference and alternatives at its top.

    `known`: flattened definitions by their references, each read once. One that contains itself counts as empty there.
    """
    result = {word: part for word, part in schema.items() if word not in _ALTERNATIVES}
    reference = schema.get("$ref")
    target = reference_target(reference, root)
    if isinstance(reference, str) and isinstance(target, dict):
        if reference not in known and len(known) < _MOST_REFERENCES:
            known[reference] = {}
            known[reference] = _flattened(cast("Json", target), root, known)
        del result["$ref"]
        _merge(result, [known.get(reference, {})], every="allOf")
    for word in _ALTERNATIVES:
        branches = schema.get(word)
        if isinstance(branches, list):
            listed = cast("list[object]", branches)
            schemas: list[Json] = [cast("Json", branch) if isinstance(branch, dict) else {} for branch in listed]
            _merge(result, [_flattened(branch, root, known) for branch in schemas], every=word)
    return result


def _merge(into: dict[str, Any], branches: Sequence[Mapping[str, Any]], every: str) -> None:
    """Merge the alternatives of a schema into it. Its own properties take precedence."""
    declared: dict[str, list[Any]] = {}
    for branch in branches:
        for name, part in _properties(branch).items():
            parts = declared.setdefault(name, [])
            parts += [] if part in parts else [part]
    word = "allOf" if every == "allOf" else "anyOf"
    merged = {name: parts[0] if len(parts) == 1 else {word: parts} for name, parts in declared.items()}
    into["properties"] = merged | _properties(into)
    needed = [{*_names(branch.get("required"))} for branch in branches]
    if needed:
        empty: set[str] = set()
        needed_names = empty.union(*needed) if every == "allOf" else needed[0].intersection(*needed)
        into["required"] = sorted({*_names(into.get("required")), *needed_names})


def _properties(schema: Mapping[str, Any]) -> dict[str, Any]:
    declared = schema.get("properties")
    return dict(cast("Mapping[str, Any]", declared)) if isinstance(declared, Mapping) else {}


def _names(required: object) -> list[str]:
    """Return the names in a `required`; none for another form of it, such as `true` of an old draft."""
    listed = cast("list[object]", required) if isinstance(required, list) else []
    return [name for name in listed if isinstance(name, str)]
