"""Checks a tool's input against the JSON schema it declares: the part of JSON Schema that tool inputs use.

Types, required, enum, additionalProperties, items, bounds of numbers and lengths; keywords that it does not know are
not checked here, the tool's own validation stands behind. The answer is written for the model that has to mend it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from callboard.words.values import Json

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list, tuple),
    "object": (dict,),
    "null": (type(None),),
}


def check_input(schema: Json, given: Any, where: str = "input") -> str | None:
    """What is wrong with `given`, naming the field; None when it fits."""
    options = cast("Sequence[Json]", schema.get("anyOf") or schema.get("oneOf") or ())
    if options:
        problems = [check_input(option, given, where) for option in options]
        return None if None in problems else problems[0]
    return _type(schema, given, where) or _value(schema, given, where) or _inside(schema, given, where)


def _type(schema: Json, given: Any, where: str) -> str | None:
    wanted = schema.get("type")
    if wanted is None:
        return None
    names = cast("list[str]", [wanted] if isinstance(wanted, str) else list(wanted))
    for name in names:
        if isinstance(given, _TYPES.get(name, (object,))) and (not isinstance(given, bool) or "boolean" in names):
            return None
    return f"`{where}` must be {' or '.join(names)}, not {_kind(given)}"


def _value(schema: Json, given: Any, where: str) -> str | None:
    allowed = cast("Sequence[Any] | None", schema.get("enum"))
    if allowed is not None and given not in allowed:
        return f"`{where}` must be one of {', '.join(repr(one) for one in allowed)}, not {given!r}"
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        if "minimum" in schema and given < schema["minimum"]:
            return f"`{where}` must be at least {schema['minimum']}"
        if "maximum" in schema and given > schema["maximum"]:
            return f"`{where}` must be at most {schema['maximum']}"
    if isinstance(given, str) and len(given) < int(schema.get("minLength", 0)):
        return f"`{where}` must not be empty"
    return None


def _inside(schema: Json, given: Any, where: str) -> str | None:
    if isinstance(given, Mapping):
        return _fields(schema, cast("Mapping[str, Any]", given), where)
    if isinstance(given, (list, tuple)) and isinstance(schema.get("items"), Mapping):
        for place, item in enumerate(cast("Sequence[Any]", given)):
            problem = check_input(schema["items"], item, f"{where}[{place}]")
            if problem:
                return problem
    return None


def _fields(schema: Json, given: Mapping[str, Any], where: str) -> str | None:
    properties = cast("Mapping[str, Json]", schema.get("properties") or {})
    missing = [name for name in cast("Sequence[str]", schema.get("required") or ()) if name not in given]
    if missing:
        return f"{where} lacks the required field{'s' if len(missing) > 1 else ''} `{'`, `'.join(missing)}`"
    for name, value in given.items():
        inner = properties.get(name)
        if inner is None:
            if schema.get("additionalProperties") is False:
                return f"`{name}` is no field of this tool; its fields are {', '.join(properties) or '(none)'}"
            continue
        problem = check_input(inner, value, name if where == "input" else f"{where}.{name}")
        if problem:
            return problem
    return None


def _kind(given: Any) -> str:
    for name in ("boolean", "string", "integer", "number", "array", "object", "null"):
        if isinstance(given, _TYPES[name]):
            return name
    return type(given).__name__
