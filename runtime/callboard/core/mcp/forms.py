"""What an MCP server asks a person in the middle of a call, and the words that answer it. Pure.

A form is a flat schema: its fields are texts, numbers, yes or no, or choices. The person's words are read as the value
of its one field, as `name=value ...`, or as a JSON object; what does not fit is told, and asked again. `decline`, or
nothing typed, is no; `cancel` ends it without an answer.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, cast

from callboard.words.mcp import AnsweredBack, Asked
from callboard.words.values import Json, Request

ELICIT = "elicit"
"""The entry of a request's payload that makes it such a question: {server, schema, url}."""
_KINDS = ("string", "number", "integer", "boolean", "array")
_LARGEST = 1e300
_NO, _CANCEL = frozenset({"", "decline", "/decline"}), frozenset({"cancel", "/cancel"})
_YES = frozenset({"y", "yes", "ok", "done", "accept", "true", "on", "1"})
_NOT = frozenset({"n", "no", "false", "off", "0"})


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a form."""

    name: str
    kind: str
    """`string`, `number`, `integer`, `boolean` or `array` (several of its options)."""
    about: str = ""
    options: tuple[str, ...] = ()
    """What may be chosen, as it is shown."""
    values: tuple[str, ...] = ()
    """What stands for each of them."""
    required: bool = False
    default: Any = None
    schema: Json | None = None


def payload_of(asked: Asked, call: str) -> Json:
    """The payload of the request. A form of one choice shows it as a question's options."""
    fields = fields_of(asked.schema)
    options = fields[0].options if len(fields) == 1 and fields[0].kind == "string" else ()
    about: Json = {"server": asked.server, "schema": asked.schema, "url": asked.url}
    return {"question": asked.message, "options": list(options), "call_id": call, ELICIT: about}


def asked_of(request: Request) -> Asked | None:
    """What a server asks by this request; None for any other one."""
    about = request.payload.get(ELICIT)
    if request.kind != "question" or not isinstance(about, Mapping):
        return None
    found = cast("Mapping[str, Any]", about)
    message = str(request.payload.get("question", ""))
    return Asked(str(found.get("server", "")), message, dict(found.get("schema") or {}), str(found.get("url") or ""))


def fields_of(schema: Json) -> tuple[Field, ...]:
    """The fields of a form, in its order. What of the schema cannot be read counts as not said."""
    properties, required = _map(schema.get("properties")), _list(schema.get("required"))
    return tuple(_field(name, _map(one), required=name in required) for name, one in properties.items())


def _field(name: str, schema: Json, *, required: bool) -> Field:
    kind = next((one for one in _KINDS if one == schema.get("type")), "string")
    inner = _map(schema.get("items")) if kind == "array" else schema
    titled = [_map(one) for one in _list(inner.get("oneOf")) or _list(inner.get("anyOf"))]
    values = [str(one) for one in _list(inner.get("enum"))] or [str(one.get("const")) for one in titled]
    named = _list(inner.get("enumNames")) or [one.get("title") or one.get("const") for one in titled]
    options = [str(one) for one in named] if len(named) == len(values) else values
    about = ": ".join(str(part) for part in (schema.get("title"), schema.get("description")) if part)
    return Field(name, kind, about, tuple(options), tuple(values), required, schema.get("default"), schema)


def _map(value: Any) -> Json:
    return cast("Json", value) if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def read(asked: Asked, text: str) -> AnsweredBack | str:
    """The person's words as an answer, or what is wrong with them."""
    words = text.strip()
    if words.lower() in _CANCEL:
        return AnsweredBack("cancel")
    fields = fields_of(asked.schema)
    if words.lower() in _NO:
        return AnsweredBack("decline")
    if asked.url or not fields:
        return AnsweredBack("accept" if words.lower() in _YES else "decline")
    found = _given(fields, words)
    if isinstance(found, str):
        return found
    content = {one.name: one.default for one in fields if one.default is not None} | found
    wrong = _missing(fields, content) or next((why for one in fields if (why := _unfit(one, content))), "")
    return wrong or AnsweredBack("accept", content)


def _unfit(field: Field, content: Json) -> str:
    """Why a value does not fit its field; one that was left out fits."""
    if field.name not in content:
        return ""
    value = content[field.name]
    fits = {
        "string": isinstance(value, str) and (not field.values or value in field.values),
        "number": _is_number(value),
        "integer": _is_number(value) and float(value).is_integer(),
        "boolean": isinstance(value, bool),
        "array": isinstance(value, list) and all(one in field.values for one in _list(value)),
    }
    if not fits[field.kind]:
        return f"{field.name}: {value!r} is no {field.kind} that fits"
    return _beyond(field, cast("float", value)) if field.kind in ("number", "integer") else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST


def _beyond(field: Field, value: float) -> str:
    low, high = (field.schema or {}).get("minimum"), (field.schema or {}).get("maximum")
    if isinstance(low, int | float) and value < low:
        return f"{field.name}: at least {low}, please"
    if isinstance(high, int | float) and value > high:
        return f"{field.name}: at most {high}, please"
    return ""


def _missing(fields: Sequence[Field], content: Json) -> str:
    names = [one.name for one in fields]
    if unknown := [name for name in content if name not in names]:
        return f"there is no field {unknown[0]}; there are: {', '.join(names)}"
    left = [one.name for one in fields if one.required and one.name not in content]
    return f"{left[0]} is missing" if left else ""


def _given(fields: Sequence[Field], words: str) -> Json | str:
    if words.startswith("{"):
        try:
            found = json.loads(words)
        except (ValueError, RecursionError) as error:
            return f"it is not JSON: {error}"
        return _typed(fields, cast("Json", found)) if isinstance(found, dict) else "it is not a JSON object"
    pairs = _pairs(words, {one.name for one in fields})
    if pairs is not None:
        return _typed(fields, cast("Json", pairs))
    if len(fields) == 1:
        return _typed(fields, {fields[0].name: words})
    names = " ".join(f"{one.name}=..." for one in fields)
    return f"write {names}, or a JSON object with these fields; or decline"


def _pairs(words: str, names: set[str]) -> dict[str, str] | None:
    """`name=value` for each word; None where it is not written so."""
    try:
        parts = [part.partition("=") for part in shlex.split(words)]
    except ValueError:
        return None
    if not parts or any(not middle or name not in names for name, middle, _ in parts):
        return None
    return {name: value for name, _, value in parts}


def _typed(fields: Sequence[Field], given: Json) -> Json | str:
    by_name = {one.name: one for one in fields}
    typed: Json = {}
    for name, value in given.items():
        field = by_name.get(name)
        if field is not None and isinstance(value, str):
            made = value_of(field, value)
            if isinstance(made, Wrong):
                return made.why
            typed[name] = made
        else:
            typed[name] = value
    return typed


@dataclass(frozen=True, slots=True)
class Wrong:
    """Why some words are no value of a field."""

    why: str


def value_of(field: Field, text: str) -> Any:
    """The value that words stand for in a field; `Wrong`, where they do not."""
    words = text.strip()
    if field.kind == "array":
        chosen = [_chosen(field, part) for part in words.split(",") if part.strip()]
        return next((one for one in chosen if isinstance(one, Wrong)), chosen)
    if field.values:
        return _chosen(field, words)
    if field.kind == "boolean":
        known = {**dict.fromkeys(_YES, True), **dict.fromkeys(_NOT, False)}
        return known.get(words.lower(), Wrong(f"{field.name}: yes or no, please"))
    if field.kind in ("integer", "number"):
        return _number(field, words)
    return _text(field, text)


def _chosen(field: Field, text: str) -> str | Wrong:
    words = text.strip()
    if words.isdecimal() and words not in field.values and 1 <= int(words) <= len(field.values):
        return field.values[int(words) - 1]
    for shown, value in zip(field.options, field.values, strict=True):
        if words.lower() in (shown.lower(), value.lower()):
            return value
    return Wrong(f"{field.name}: one of {', '.join(field.options)}, please, or its number")


def _number(field: Field, words: str) -> int | float | Wrong:
    try:
        return int(words) if field.kind == "integer" else float(words)
    except ValueError:
        return Wrong(f"{field.name}: {'a whole number' if field.kind == 'integer' else 'a number'}, please")


def _text(field: Field, text: str) -> str | Wrong:
    schema, wrong = field.schema or {}, ""
    most = schema.get("maxLength")
    if isinstance(most, int) and len(text) > most:
        wrong = f"at most {most} characters"
    match schema.get("format"):
        case "email" if text.count("@") != 1 or text.startswith("@") or text.endswith("@"):
            wrong = "an e-mail address"
        case "uri" if "://" not in text:
            wrong = "a URL, with its https://"
        case "date" if not _reads(date.fromisoformat, text):
            wrong = "a date as 2026-08-31"
        case "date-time" if not _reads(datetime.fromisoformat, text):
            wrong = "a time as 2026-08-31T12:00:00+02:00"
        case _:
            pass
    return Wrong(f"{field.name}: {wrong}, please") if wrong else text


def _reads(reader: Any, text: str) -> bool:
    try:
        reader(text)
    except ValueError:
        return False
    return True
