"""Text and JSON values that every record, file, and line of JSON can contain."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn, cast


def storable(text: str) -> str:
    """Return the text with `?` for each character that UTF-8 cannot encode: a byte of a file name, half of an emoji."""
    return text.encode("utf-8", "replace").decode()


def storable_json(value: object) -> Any:
    """Return the parsed JSON value with its names and texts storable, and null for each number that JSON lacks.

    Python parses and writes NaN, Infinity, and half of a surrogate pair; other programs refuse the whole line.
    """
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [storable_json(each) for each in cast("list[object]", value)]
    if isinstance(value, dict):
        return {storable_json(name): storable_json(each) for name, each in cast("dict[str, object]", value).items()}
    return value


def strict_json(text: str) -> Any:
    """Parse a JSON value, and make it storable.

    Raises `ValueError` for other text, also for NaN, Infinity, and a number that is out of range, which Python parses.
    Raises `RecursionError` for a value that is nested too deeply.
    """
    return storable_json(json.loads(text, parse_constant=_no_constant, parse_float=_finite))


def is_json(text: bytes) -> bool:
    """Return True for a whole JSON value."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"it contains {name}")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"the number {digits[:20]} is out of range")
    return number
