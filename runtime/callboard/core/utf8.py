"""Text and JSON values that every record, file, and line of JSON can contain."""

from __future__ import annotations

import math
from typing import Any, cast


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
