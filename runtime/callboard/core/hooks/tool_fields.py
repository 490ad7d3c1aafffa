"""Conversion of a tool's input to the compatible tool's fields, and back. Pure.

Only changed fields are converted back: unchanged ones return exactly as the model wrote them.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from callboard.core.hooks.merge import names_of
from callboard.types.records import Json

_FILE = MappingProxyType({"path": "file_path"})
_AGENT = MappingProxyType({"agent_type": "subagent_type"})
_TASK = MappingProxyType({"task_id": "taskId", "blocked_by": "addBlockedBy"})

FIELDS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "bash": MappingProxyType({"timeout_s": "timeout"}),
        "read_file": _FILE,
        "write_file": _FILE,
        "edit_file": MappingProxyType({"path": "file_path", "old_text": "old_string", "new_text": "new_string"}),
        "task": _AGENT,
        "spawn_teammate": _AGENT,
        "load_skill": MappingProxyType({"name": "skill"}),
        "send_message": MappingProxyType({"content": "message"}),
        "create_task": _TASK,
        "update_task": _TASK,
        "get_task": _TASK,
        "cancel_cron": MappingProxyType({"job_id": "id"}),
    }
)
"""Callboard's tool -> its field -> the compatible field, if different."""


def compatible_name(tool: str) -> str:
    """Return the name of the tool for command hooks; its own name if it has no other."""
    return names_of(tool)[1] if len(names_of(tool)) > 1 else tool


def to_compatible(tool: str, tool_input: Json, folder: str) -> Json:
    """Return the input for command hooks: compatible fields, files as absolute paths, times in milliseconds."""
    if tool == "ask_person":
        return _questions(tool_input)
    renamed = FIELDS.get(tool, {})
    return {
        renamed.get(field, field): _value(renamed.get(field, ""), value, folder) for field, value in tool_input.items()
    }


def _questions(tool_input: Json) -> Json:
    """Return Callboard's single question as the list of the compatible tool."""
    options = [{"label": str(option), "description": ""} for option in tool_input.get("options") or ()]
    return {
        "questions": [
            {"question": tool_input.get("question", ""), "header": "", "options": options, "multiSelect": False}
        ]
    }


def _question(tool_input: Json, updated: Json) -> Json:
    """Return the single question from a hook's list. An invalid list is left for the schema to refuse."""
    try:
        (question,) = updated["questions"]
        return tool_input | {
            "question": question["question"],
            "options": [option["label"] for option in question["options"]],
        }
    except (KeyError, TypeError, ValueError):
        return updated


def _value(field: str, value: Any, folder: str) -> Any:
    if field == "file_path" and isinstance(value, str):
        return posixpath.normpath(posixpath.join(folder, value))
    if field == "timeout" and isinstance(value, int | float) and not isinstance(value, bool):
        return value * 1000
    return value


def from_compatible(tool: str, tool_input: Json, updated: Json, folder: str) -> Json:
    """Return the input that a command hook requests, in Callboard's fields. `tool_input`: the input that it received,
    in the same fields."""
    compatible = to_compatible(tool, tool_input, folder)
    if tool == "ask_person":
        return tool_input if updated == compatible else _question(tool_input, updated)
    fields = {compatible_field: field for field, compatible_field in FIELDS.get(tool, {}).items()}
    result: Json = {}
    for compatible_field, value in updated.items():
        field = compatible_field if compatible_field in tool_input else fields.get(compatible_field, compatible_field)
        if field in tool_input and compatible_field in compatible and compatible[compatible_field] == value:
            value = tool_input[field]
        elif compatible_field == "timeout" and field != compatible_field and isinstance(value, int | float):
            value = value / 1000
        result[field] = value
    return result
