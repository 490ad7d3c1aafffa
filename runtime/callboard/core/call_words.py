"""Short description of a tool call for people: `complete_task task_7kcyqptsrgm3`. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from callboard.core.keys import count_words

_MAIN_FIELDS = (
    *("command", "pattern", "path", "subject", "description", "name", "to", "question", "task_id", "cron", "plan"),
    "id",
)


_PATHS = ("path", "file_path", "notebook_path")
"""Fields that hold a path."""


def relative_paths(tool_input: Mapping[str, Any], folder: str) -> Mapping[str, Any]:
    """Return the input with its paths below a folder written relative to it; the same object without such a path."""
    if not folder:
        return tool_input
    base = f"{folder.rstrip('/')}/"
    near = {
        name: text.removeprefix(base)
        for name in _PATHS
        if isinstance(text := tool_input.get(name), str) and text.startswith(base) and text != base
    }
    return {**tool_input, **near} if near else tool_input


def input_words(tool_input: Mapping[str, Any]) -> str:
    """Return the first line of the most informative field of a tool input.

    Without such a field: `key value, key value`, where lists and objects are shown by their counts.
    """
    for field in _MAIN_FIELDS:
        if field in tool_input and isinstance(text := tool_input[field], str) and text:
            return _first_line(text)
    return ", ".join(f"{key} {_value_words(value)}" for key, value in tool_input.items())


def _value_words(value: Any) -> str:
    match value:
        case str():
            return _first_line(value)
        case list():
            count = len(cast("list[Any]", value))
            return f"({count_words(count, 'item')})"
        case dict():
            return f"({count_words(len(cast('dict[str, Any]', value)), 'field')})"
        case _:
            return json.dumps(value, default=str)


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0].rstrip()
