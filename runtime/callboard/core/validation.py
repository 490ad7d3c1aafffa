"""Faults of values that do not fit their types, in words for people: pydantic names types of Python. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

_LIST = "must be a list"
_OBJECT = "must be an object of names and values"
_WHOLE = "must be a whole number"
_NUMBER = "must be a number"
_SWITCH = "must be true or false"
_WORDS: Mapping[str, str] = {
    **dict.fromkeys(("list_type", "tuple_type", "set_type", "frozen_set_type", "iterable_type"), _LIST),
    **dict.fromkeys(("dict_type", "mapping_type", "model_type", "model_attributes_type", "dataclass_type"), _OBJECT),
    **dict.fromkeys(("int_type", "int_parsing", "int_parsing_size", "int_from_float"), _WHOLE),
    **dict.fromkeys(("float_type", "float_parsing"), _NUMBER),
    **dict.fromkeys(("bool_type", "bool_parsing"), _SWITCH),
    "string_type": "must be text",
    "missing": "is missing",
    "missing_argument": "is missing",
    "extra_forbidden": "is unknown",
}
"""Kind of a fault in pydantic -> words for it."""


def fault_words(kind: str, message: str) -> str:
    """Return what is wrong with a value, from the kind and the message of a fault in pydantic."""
    text = message.removeprefix("Value error, ").replace("Input should be ", "must be ", 1)
    return _WORDS.get(kind) or f"{text[:1].lower()}{text[1:]}"


def faults_of(error: ValidationError, where: str = "") -> list[str]:
    """Return the faults of a value, one line for each field. `where`: the name of the value."""
    lines: list[str] = []
    for fault in error.errors(include_url=False, include_input=False, include_context=False):
        place = ".".join(str(part) for part in ([where] if where else []) + list(fault["loc"]))
        words = fault_words(fault["type"], fault["msg"])
        lines.append(f"{place}: {words}" if place else words)
    return lines
