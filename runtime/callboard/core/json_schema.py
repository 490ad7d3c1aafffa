"""Check of a tool's input against its JSON schema: the part of JSON Schema that tool inputs use.

Types, required, enum, additionalProperties, items, bounds of numbers and lengths. Unknown keywords are not checked
here; the tool's own validation follows. The message is written for the model that has to correct the input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

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


DEEPEST = 100
"""Maximum levels of a tool's input. Deeper input is never intended, and makes encoders and validators fail."""
TOO_DEEP = f"the input is nested too deeply: at most {DEEPEST} levels are taken"


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


def check_input(schema: Json, value: Any, where: str = "input") -> str | None:
    """Return the error in the input, with the name of the field; None if it is valid."""
    options = cast("Sequence[Json]", schema.get("anyOf") or schema.get("oneOf") or ())
    if options:
        problems = [check_input(option, value, where) for option in options]
        return None if None in problems else problems[0]
    return _type(schema, value, where) or _value(schema, value, where) or _inside(schema, value, where)


def _type(schema: Json, value: Any, where: str) -> str | None:
    declared = schema.get("type")
    if declared is None:
        return None
    names = cast("list[str]", [declared] if isinstance(declared, str) else list(declared))
    for name in names:
        if isinstance(value, _TYPES.get(name, (object,))) and (not isinstance(value, bool) or "boolean" in names):
            return None
    return f"`{where}` must be {' or '.join(names)}, not {_kind(value)}"


def _value(schema: Json, value: Any, where: str) -> str | None:
    allowed = cast("Sequence[Any] | None", schema.get("enum"))
    if allowed is not None and value not in allowed:
        return f"`{where}` must be one of {', '.join(repr(option) for option in allowed)}, not {value!r}"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if "minimum" in schema and value < schema["minimum"]:
            return f"`{where}` must be at least {schema['minimum']}"
        if "maximum" in schema and value > schema["maximum"]:
            return f"`{where}` must be at most {schema['maximum']}"
    if isinstance(value, str) and len(value) < int(schema.get("minLength", 0)):
        return f"`{where}` must not be empty"
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
    properties = cast("Mapping[str, Json]", schema.get("properties") or {})
    missing = [name for name in cast("Sequence[str]", schema.get("required") or ()) if name not in fields]
    if missing:
        return f"{where} lacks the required field{'s' if len(missing) > 1 else ''} `{'`, `'.join(missing)}`"
    for name, value in fields.items():
        inner = properties.get(name)
        if inner is None:
            if schema.get("additionalProperties") is False:
                return f"`{name}` is no field of this tool; its fields are {', '.join(properties) or '(none)'}"
            continue
        problem = check_input(inner, value, name if where == "input" else f"{where}.{name}")
        if problem:
            return problem
    return None


def _kind(value: Any) -> str:
    for name in ("boolean", "string", "integer", "number", "array", "object", "null"):
        if isinstance(value, _TYPES[name]):
            return name
    return type(value).__name__
