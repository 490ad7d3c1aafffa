"""A tool's input in the compatible tool's fields, and back. Pure.

What a hook leaves as it was told comes back exactly as the model wrote it: only changed fields are translated.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from callboard.core.hooks.rules import names_of
from callboard.words.values import Json

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
"""Our tool -> our field -> theirs, where they differ."""


def compatible_name(tool: str) -> str:
    """The name by which command hooks know the tool; its own when it has no other."""
    return names_of(tool)[1] if len(names_of(tool)) > 1 else tool


def to_compatible(tool: str, given: Json, folder: str) -> Json:
    """The input as command hooks get it: their fields, files as absolute paths, times in milliseconds."""
    if tool == "ask_person":
        return _asked(given)
    renamed = FIELDS.get(tool, {})
    return {renamed.get(field, field): _value(renamed.get(field, ""), value, folder) for field, value in given.items()}


def _asked(given: Json) -> Json:
    """Our one question as the list that the compatible tool takes."""
    options = [{"label": str(option), "description": ""} for option in given.get("options") or ()]
    return {
        "questions": [{"question": given.get("question", ""), "header": "", "options": options, "multiSelect": False}]
    }


def _question(given: Json, updated: Json) -> Json:
    """Our one question, out of what a hook made of the list. What is no such list is left to the schema to refuse."""
    try:
        (asked,) = updated["questions"]
        return given | {"question": asked["question"], "options": [option["label"] for option in asked["options"]]}
    except (KeyError, TypeError, ValueError):
        return updated


def _value(field: str, value: Any, folder: str) -> Any:
    if field == "file_path" and isinstance(value, str):
        return posixpath.normpath(posixpath.join(folder, value))
    if field == "timeout" and isinstance(value, int | float) and not isinstance(value, bool):
        return value * 1000
    return value


def from_compatible(tool: str, given: Json, updated: Json, folder: str) -> Json:
    """The input that a command hook asks for, in our fields. `given` is what it was told about, in ours."""
    told = to_compatible(tool, given, folder)
    if tool == "ask_person":
        return given if updated == told else _question(given, updated)
    ours = {theirs: field for field, theirs in FIELDS.get(tool, {}).items()}
    result: Json = {}
    for theirs, value in updated.items():
        field = theirs if theirs in given else ours.get(theirs, theirs)
        if field in given and theirs in told and told[theirs] == value:
            value = given[field]
        elif theirs == "timeout" and field != theirs and isinstance(value, int | float):
            value = value / 1000
        result[field] = value
    return result
