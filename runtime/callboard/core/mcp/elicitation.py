"""Questions of an MCP server to a person during a call, and the parsing of the answers. Pure.

A form is a flat schema: its fields are texts, numbers, booleans, or choices. The person's text is read as the value of
its only field, as `name=value ...`, or as a JSON object. An invalid answer is explained, and asked for again.
`decline`, or an empty answer, means no; `cancel` ends it without an answer.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any, cast

from callboard.types.choices import unknown
from callboard.types.lazy_dataclass import dataclass
from callboard.types.mcp import Elicitation, ElicitationAnswer
from callboard.types.records import Json, Request

ELICIT = "elicit"
"""Field of a request's payload that marks such a question: {server, schema, url}."""
_KINDS = ("string", "number", "integer", "boolean", "array")
_LARGEST = 1e300
_NO = frozenset({"", "decline", "/decline"})
_CANCEL = frozenset({"cancel", "/cancel"})
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
    """Choices, as shown to the person."""
    values: tuple[str, ...] = ()
    """Values of the choices, in the same order."""
    required: bool = False
    default: Any = None
    schema: Json | None = None


def payload_of(elicitation: Elicitation, call: str) -> Json:
    """Return the payload of the request. A form with one choice shows it as a question's options."""
    fields = fields_of(elicitation.schema)
    options = fields[0].options if len(fields) == 1 and fields[0].kind == "string" else ()
    about: Json = {"server": elicitation.server, "schema": elicitation.schema, "url": elicitation.url}
    return {"question": elicitation.message, "options": list(options), "call_id": call, ELICIT: about}


def question_in(request: Request) -> Elicitation | None:
    """Return the server's question in this request; None for any other request."""
    about = request.payload.get(ELICIT)
    if request.kind != "question" or not isinstance(about, Mapping):
        return None
    fields = cast("Mapping[str, Any]", about)
    message = str(request.payload.get("question", ""))
    return Elicitation(
        str(fields.get("server", "")), message, dict(fields.get("schema") or {}), str(fields.get("url") or "")
    )


def fields_of(schema: Json) -> tuple[Field, ...]:
    """Return the fields of a form, in order. Unreadable parts of the schema are ignored."""
    properties = _map(schema.get("properties"))
    required = _list(schema.get("required"))
    return tuple(_field(name, _map(property_), required=name in required) for name, property_ in properties.items())


def _field(name: str, schema: Json, *, required: bool) -> Field:
    kind = next((kind for kind in _KINDS if kind == schema.get("type")), "string")
    inner = _map(schema.get("items")) if kind == "array" else schema
    titled = [_map(alternative) for alternative in _list(inner.get("oneOf")) or _list(inner.get("anyOf"))]
    values = [str(value) for value in _list(inner.get("enum"))] or [
        str(alternative.get("const")) for alternative in titled
    ]
    named = _list(inner.get("enumNames")) or [
        alternative.get("title") or alternative.get("const") for alternative in titled
    ]
    options = [str(label) for label in named] if len(named) == len(values) else values
    about = ": ".join(str(part) for part in (schema.get("title"), schema.get("description")) if part)
    return Field(name, kind, about, tuple(options), tuple(values), required, schema.get("default"), schema)


def _map(value: Any) -> Json:
    return cast("Json", value) if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def read(elicitation: Elicitation, text: str) -> ElicitationAnswer | str:
    """Return the person's text as an answer, or a description of the error in it."""
    answer = text.strip()
    if answer.lower() in _CANCEL:
        return ElicitationAnswer("cancel")
    fields = fields_of(elicitation.schema)
    if answer.lower() in _NO:
        return ElicitationAnswer("decline")
    if elicitation.url or not fields:
        return ElicitationAnswer("accept" if answer.lower() in _YES else "decline")
    values = _entered_fields(fields, answer)
    if isinstance(values, str):
        return values
    content = {field.name: field.default for field in fields if field.default is not None} | values
    wrong = _missing(fields, content) or next(
        (problem for field in fields if (problem := _value_fault(field, content))), ""
    )
    return wrong or ElicitationAnswer("accept", content)


def _value_fault(field: Field, content: Json) -> str:
    """Return the reason why a value is invalid for its field; empty if it is valid or missing."""
    if field.name not in content:
        return ""
    value = content[field.name]
    fits = {
        "string": isinstance(value, str) and (not field.values or value in field.values),
        "number": _is_number(value),
        "integer": _is_number(value) and float(value).is_integer(),
        "boolean": isinstance(value, bool),
        "array": isinstance(value, list) and all(item in field.values for item in _list(value)),
    }
    if not fits[field.kind]:
        return f"{field.name}: {value!r} is not a valid {field.kind}"
    return _range_fault(field, cast("float", value)) if field.kind in ("number", "integer") else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST


def _range_fault(field: Field, value: float) -> str:
    low = (field.schema or {}).get("minimum")
    high = (field.schema or {}).get("maximum")
    if isinstance(low, int | float) and value < low:
        return f"{field.name}: at least {low}, please"
    if isinstance(high, int | float) and value > high:
        return f"{field.name}: at most {high}, please"
    return ""


def _missing(fields: Sequence[Field], content: Json) -> str:
    names = [field.name for field in fields]
    if extra := [name for name in content if name not in names]:
        return unknown("field", extra[0], names)
    missing = [field.name for field in fields if field.required and field.name not in content]
    return f"{missing[0]} is missing" if missing else ""


def _entered_fields(fields: Sequence[Field], text: str) -> Json | str:
    if text.startswith("{"):
        try:
            parsed = json.loads(text)
        except (ValueError, RecursionError) as error:
            return f"it is not JSON: {error}"
        return _typed(fields, cast("Json", parsed)) if isinstance(parsed, dict) else "it is not a JSON object"
    pairs = _pairs(text, {field.name for field in fields})
    if pairs is not None:
        return _typed(fields, cast("Json", pairs))
    if len(fields) == 1:
        return _typed(fields, {fields[0].name: text})
    names = " ".join(f"{field.name}=..." for field in fields)
    return f"write {names}, or a JSON object with these fields; or decline"


def _pairs(text: str, names: set[str]) -> dict[str, str] | None:
    """Return the pairs of a text of the form `name=value ...`; None if it has another form."""
    try:
        parts = [part.partition("=") for part in shlex.split(text)]
    except ValueError:
        return None
    if not parts or any(not middle or name not in names for name, middle, _ in parts):
        return None
    return {name: value for name, _, value in parts}


def _typed(fields: Sequence[Field], values: Json) -> Json | str:
    by_name = {field.name: field for field in fields}
    typed: Json = {}
    for name, value in values.items():
        field = by_name.get(name)
        if field is not None and isinstance(value, str):
            made = value_of(field, value)
            if isinstance(made, InvalidValue):
                return made.why
            typed[name] = made
        else:
            typed[name] = value
    return typed


@dataclass(frozen=True, slots=True)
class InvalidValue:
    """Reason why a text is not a value of a field."""

    why: str


def value_of(field: Field, text: str) -> Any:
    """Convert a text to the value of a field, or to `InvalidValue`."""
    stripped = text.strip()
    if field.kind == "array":
        chosen = [_chosen(field, part) for part in stripped.split(",") if part.strip()]
        return next((item for item in chosen if isinstance(item, InvalidValue)), chosen)
    if field.values:
        return _chosen(field, stripped)
    if field.kind == "boolean":
        booleans = {**dict.fromkeys(_YES, True), **dict.fromkeys(_NOT, False)}
        return booleans.get(stripped.lower(), InvalidValue(f"{field.name}: yes or no, please"))
    if field.kind in ("integer", "number"):
        return _number(field, stripped)
    return _text(field, text)


def _chosen(field: Field, text: str) -> str | InvalidValue:
    answer = text.strip()
    if answer.isdecimal() and answer not in field.values and 1 <= int(answer) <= len(field.values):
        return field.values[int(answer) - 1]
    for option, value in zip(field.options, field.values, strict=True):
        if answer.lower() in (option.lower(), value.lower()):
            return value
    return InvalidValue(f"{field.name}: one of {', '.join(field.options)}, please, or its number")


def _number(field: Field, text: str) -> int | float | InvalidValue:
    try:
        return int(text) if field.kind == "integer" else float(text)
    except ValueError:
        return InvalidValue(f"{field.name}: {'a whole number' if field.kind == 'integer' else 'a number'}, please")


def _text(field: Field, text: str) -> str | InvalidValue:
    schema = field.schema or {}
    wrong = ""
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
    return InvalidValue(f"{field.name}: {wrong}, please") if wrong else text


def _reads(reader: Any, text: str) -> bool:
    try:
        reader(text)
    except ValueError:
        return False
    return True
