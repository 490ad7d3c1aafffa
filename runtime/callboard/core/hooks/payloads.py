"""Payloads of hooks: each event as JSON, with the names and fields of the compatible tools. Pure.

The input of a tool is converted to the compatible tool's fields, and back. Only changed fields are converted back:
unchanged ones return exactly as the model wrote them. Fields of events that only Callboard has use plain names.
`core/hooks/output.py` reads the answers.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, cast

from callboard.core.hooks.merge import InvalidHook, check_answer, names_of, plain_json
from callboard.core.permissions.file_tools import FILE_TOOLS
from callboard.types import hook_events
from callboard.types.hook_answers import FITTING, Answer, HookEvent, Rewrite
from callboard.types.late_pattern import late_pattern
from callboard.types.records import Json, ToolCall

_FILE = MappingProxyType({"path": "file_path"})
_NOTEBOOK = MappingProxyType({"path": "notebook_path"})
_EDIT = MappingProxyType({"old_text": "old_string", "new_text": "new_string"})
_AGENT = MappingProxyType({"agent_type": "subagent_type"})
_TASK = MappingProxyType({"task_id": "taskId", "blocked_by": "addBlockedBy"})

FIELDS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "bash": MappingProxyType({"timeout_s": "timeout"}),
        "read_file": _FILE,
        "write_file": _FILE,
        "edit_file": MappingProxyType({**_FILE, **_EDIT}),
        "multi_edit": _FILE,
        "read_notebook": _NOTEBOOK,
        "edit_notebook": _NOTEBOOK,
        "bash_output": MappingProxyType({"id": "bash_id"}),
        "task_output": MappingProxyType({"id": "task_id", "timeout_s": "timeout"}),
        "task_stop": MappingProxyType({"id": "task_id"}),
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
    fields = {
        renamed.get(field, field): _value(renamed.get(field, ""), value, folder) for field, value in tool_input.items()
    }
    return fields | {"edits": _edits(fields["edits"], _EDIT)} if tool == "multi_edit" and "edits" in fields else fields


def _edits(value: Any, names: Mapping[str, str]) -> Any:
    """Return the edits of one file with renamed fields. An invalid list is left to the schema check."""
    if not isinstance(value, list):
        return value
    return [
        {names.get(name, name): field for name, field in cast("Json", edit).items()} if isinstance(edit, dict) else edit
        for edit in cast("list[object]", value)
    ]


def _questions(tool_input: Json) -> Json:
    """Return Callboard's single question as the list of the compatible tool."""
    options = [{"label": str(option), "description": ""} for option in tool_input.get("options") or ()]
    return {
        "questions": [
            {"question": tool_input.get("question", ""), "header": "", "options": options, "multiSelect": False}
        ]
    }


def _question(tool_input: Json, updated: Json) -> Json:
    """Return the single question from a hook's list. An invalid list is left to the schema check."""
    try:
        (question,) = updated["questions"]
        return tool_input | {
            "question": question["question"],
            "options": [option["label"] for option in question["options"]],
        }
    except (KeyError, TypeError, ValueError):
        return updated


def _value(field: str, value: Any, folder: str) -> Any:
    if field in ("file_path", "notebook_path") and isinstance(value, str):
        return posixpath.normpath(posixpath.join(folder, value))
    if field == "timeout" and isinstance(value, int | float) and not isinstance(value, bool):
        return value * 1000
    return value


def from_compatible(tool: str, tool_input: Json, updated: Json, folder: str) -> Json:
    """Return the input that a command hook requests, in Callboard's fields.

    `tool_input`: the input that it received, in the same fields.
    """
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
        elif tool == "multi_edit" and field == "edits":
            value = _edits(value, {theirs: own for own, theirs in _EDIT.items()})
        result[field] = value
    return result


def reaches_handlers(event: HookEvent) -> bool:
    """Return True if handlers receive the event: they receive a failed call only as `PostToolUseFailure`."""
    return not (isinstance(event, hook_events.PostToolUse) and event.result.is_error)


def event_json(event: HookEvent) -> Json:
    """Return the event as handlers read it: a copy with compatible names and fields."""
    by = event.by
    payload: Json = {
        "session_id": by.session,
        "transcript_path": by.main_transcript or by.transcript,
        "cwd": by.folder,
        "permission_mode": by.permission_mode,
        "hook_event_name": type(event).__name__,
    }
    if by.kind != "lead":
        payload |= {"agent_id": by.name, "agent_type": by.agent_type}
    elif by.agent_type:
        payload["agent_type"] = by.agent_type
    return plain_json(payload | (_of_call(event) or _of_agent(event) or _of_work(event) or _of_session(event)))


def _of_call(event: HookEvent) -> Json:
    match event:
        case hook_events.PreToolUse():
            return _call_json(event.call, event.by)
        case hook_events.PermissionRequest():
            payload = _call_json(event.call, event.by)
            del payload["tool_use_id"]
            payload |= {"permission_rule": event.rule, "permission_reason": event.why}
            return payload | ({"permission_suggestions": list(event.suggestions)} if event.suggestions else {})
        case hook_events.PostToolUse():
            payload = _call_json(event.call, event.by)
            response = tool_response(event.call, event.result, event.by.folder)
            return payload | {"tool_response": response, "duration_ms": round(event.seconds * 1000)}
        case hook_events.PostToolUseFailure():
            payload = _call_json(event.call, event.by) | {"error": event.error, "is_interrupt": event.interrupted}
            return payload | {"duration_ms": round(event.seconds * 1000)}
        case hook_events.PostToolBatch():
            return {"tool_calls": [_done_json(call, event.by) for call in event.calls]}
        case _:
            return {}


def _of_agent(event: HookEvent) -> Json:
    match event:
        case hook_events.UserPromptSubmit():
            return {"prompt": event.text}
        case hook_events.Stop() | hook_events.SubagentStop():
            payload: Json = {
                "stop_hook_active": event.blocks > 0,
                "last_assistant_message": event.text,
                "background_tasks": list(event.background),
                "session_crons": list(event.schedules),
            }
            of_subagent = (
                {"agent_transcript_path": event.by.transcript} if isinstance(event, hook_events.SubagentStop) else {}
            )
            return payload | of_subagent
        case hook_events.StopFailure():
            return {
                "error": event.error,
                "error_details": event.details,
                "last_assistant_message": event.details or event.error,
            }
        case hook_events.TeammateIdle():
            return {
                "teammate_name": event.by.name,
                "team_name": event.by.session,
                "last_assistant_message": event.text,
            }
        case hook_events.SubagentStart():
            return {"agent_id": event.by.name, "agent_type": event.by.agent_type}
        case hook_events.EnvelopeDelivered():
            return {
                "envelope_id": event.id,
                "envelope_type": event.type,
                "sender": event.sender,
                "content": event.text,
                "request_id": event.request_id,
            }
        case _:
            return {}


def _of_work(event: HookEvent) -> Json:
    match event:
        case hook_events.TaskCreated() | hook_events.TaskCompleted():
            mate = {"teammate_name": event.by.name} if event.by.kind == "teammate" else {}
            return mate | {
                "task_id": event.task,
                "task_subject": event.subject,
                "task_description": event.description,
                "team_name": event.by.session,
            }
        case hook_events.PlanSubmitted():
            return {"plan": event.plan}
        case hook_events.RequestAnswered():
            return {
                "request_id": event.id,
                "request_kind": event.kind,
                "status": event.status,
                "subject": event.subject,
                "answered_by": event.answered_by,
                "reason": event.reason,
            }
        case hook_events.ScheduleFired():
            return {
                "schedule_id": event.schedule,
                "cron": event.cron,
                "prompt": event.prompt,
                "due_at": event.slot,
            }
        case hook_events.BudgetReached():
            return {
                "budget": event.budget,
                "kind": event.kind,
                "limit": event.limit,
                "spent": event.spent,
                "wanted": event.wanted,
                "winds_down": event.winds_down,
            }
        case _:
            return {}


def _of_session(event: HookEvent) -> Json:
    match event:
        case hook_events.SessionStart():
            return {"source": event.source, "model": event.model}
        case hook_events.SessionEnd():
            return {"reason": event.reason}
        case hook_events.Notification():
            payload: Json = {"message": event.message, "notification_type": event.notification_type}
            more = {"title": event.title, "request_id": event.request_id}
            return payload | {name: text for name, text in more.items() if text}
        case hook_events.PreCompact():
            return {"trigger": event.trigger, "custom_instructions": event.instructions}
        case hook_events.PostCompact():
            return {"trigger": event.trigger, "compact_summary": event.summary}
        case hook_events.WorktreeCreate():
            return {"name": event.name}
        case hook_events.WorktreeRemove():
            return {"worktree_path": event.path}
        case hook_events.CwdChanged():
            return {"old_cwd": event.old, "new_cwd": event.new}
        case _:
            return {}


def _call_json(call: ToolCall, by: hook_events.Caller) -> Json:
    return {
        "tool_name": compatible_name(call.name),
        "tool_input": to_compatible(call.name, call.input, by.folder),
        "tool_use_id": call.use_id,
    }


def _done_json(done: hook_events.CallDone, by: hook_events.Caller) -> Json:
    """Return one call of a batch, with its result for the model."""
    return _call_json(done.call, by) | {"tool_response": _text(done.result.content)}


def _text(content: Sequence[Json]) -> str:
    return "\n".join(str(block["text"]) for block in content if block.get("type") == "text")


def tool_response(call: ToolCall, result: hook_events.HookToolResult, folder: str) -> Json:
    """Return the structured result; for commands and written files in the documented fields, always with the text.

    `folder`: the absolute path to which relative paths of the call refer.
    """
    text = _text(result.content)
    if call.name == "bash":
        return {"stdout": text, "stderr": "", "interrupted": False, "isImage": False} | result.data
    if FILE_TOOLS.get(call.name) == "write":
        path = to_compatible(call.name, call.input, folder).get(FIELDS[call.name]["path"])
        return {"content": text, "filePath": path, "success": True} | result.data
    return {"content": text} | result.data


def in_our_fields(event: HookEvent, answers: tuple[Answer, ...]) -> tuple[Answer, ...]:
    """Return a handler's checked answers, with a rewritten input in Callboard's fields.

    Raises `InvalidHook` for an invalid one.
    """
    return tuple(_in_own_fields(event, answer) for answer in answers)


def _in_own_fields(event: HookEvent, answer: Answer) -> Answer:
    name = type(event).__name__
    if not isinstance(answer, FITTING[name]):
        raise InvalidHook(f"it answered {type(answer).__name__}, which {name} does not take")
    answer = check_answer(name, answer)
    if (
        isinstance(event, hook_events.PreToolUse | hook_events.PermissionRequest)
        and isinstance(answer, Rewrite)
        and answer.input is not None
    ):
        updated = from_compatible(event.call.name, event.call.input, answer.input, event.by.folder)
        return Rewrite(input=updated)
    return answer


_HUNK = late_pattern(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_NUMBERED = late_pattern(r"^ *\d+\t", re.MULTILINE)


def tool_use_result(call: ToolCall, result: hook_events.HookToolResult, folder: str) -> Json | str:
    """Return the structured result of a call; for an error, its text.

    `folder`: the absolute path to which relative paths of the call refer.
    """
    text = _text(result.content)
    if result.is_error:
        return f"Error: {text}"
    compatible = to_compatible(call.name, call.input, folder)
    match call.name:
        case "bash":
            background = {"backgroundTaskId": result.data["id"]} if "output" in result.data else {}
            background |= {"backgroundedByUser": True} if result.data.get("moved") else {}
            return {"stdout": text, "stderr": "", "interrupted": False, "isImage": False, **background}
        case "read_file":
            return _read(compatible, result)
        case "write_file":
            kind = "update" if result.data.get("before") else "create"
            content = str(compatible.get("content", ""))
            return {"type": kind, **_changed(compatible, text), "content": content}
        case "edit_file":
            strings = {"oldString": compatible.get("old_string", ""), "newString": compatible.get("new_string", "")}
            replaces = bool(compatible.get("replace_all"))
            return {**_changed(compatible, text), **strings, "userModified": False, "replaceAll": replaces}
        case "todo_write":
            return {"oldTodos": [], "newTodos": compatible.get("todos", [])}
        case "ask_person":
            questions = cast("list[Json]", compatible.get("questions") or [])
            return {"questions": questions, "answers": cast("Json", result.data.get("answers") or {})}
        case "task" if result.data.get("background"):
            about = {name: compatible.get(name, "") for name in ("description", "prompt")}
            names = {"agentId": result.data.get("agent", ""), "outputFile": result.data.get("output", "")}
            return {"status": "async_launched", "isAsync": True, **names, **about}
        case "task":
            return {
                "status": "completed",
                "agentId": result.data.get("agent", ""),
                "content": [{"type": "text", "text": text}],
                "prompt": compatible.get("prompt", ""),
            }
        case _:
            return tool_response(call, result, folder)


def _read(compatible: Json, result: hook_events.HookToolResult) -> Json:
    path = str(compatible.get("file_path", ""))
    image = next((block for block in result.content if block.get("type") == "image"), None)
    if image is not None:
        source = cast("Json", image.get("source") or {})
        data = str(source.get("data", ""))
        size = len(data) * 3 // 4 - data[-2:].count("=")
        return {"type": "image", "file": {"base64": data, "type": source.get("media_type", ""), "originalSize": size}}
    shown = int(result.data.get("lines") or 0)
    lines = _text(result.content).split("\n")[:shown]  # a note on the rest of the file may follow the lines
    file: Json = {
        "filePath": path,
        "content": _NUMBERED.sub("", "\n".join(lines)),
        "numLines": shown,
        "startLine": compatible.get("offset") or 1,
        "totalLines": result.data.get("total_lines", shown),
    }
    return {"type": "text", "file": file}


def _changed(compatible: Json, text: str) -> Json:
    return {"filePath": compatible.get("file_path", ""), "structuredPatch": list(hunks_in(text)), "originalFile": None}


def hunks_in(text: str) -> Sequence[Json]:
    """Return the hunks of a unified diff in a text; none without a diff."""
    hunks: list[Json] = []
    for line in text.split("\n"):
        if match := _HUNK.match(line):
            old, old_lines, new, new_lines = (int(part or 1) for part in match.groups())
            counts = {"oldStart": old, "oldLines": old_lines, "newStart": new, "newLines": new_lines}
            hunks.append({**counts, "lines": []})
        elif hunks and line[:1] in ("+", "-", " "):
            cast("list[str]", hunks[-1]["lines"]).append(line)
    return hunks
