"""Payloads of hooks: each event as JSON, with the names and fields of the compatible tools. Pure.

The input of a tool is converted to the compatible tool's fields, and back. Only changed fields are converted back:
unchanged ones return exactly as the model wrote them. Fields of events that only Callboard has use plain names.
`core/hooks/output.py` reads the answers.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from callboard.core.hooks.merge import Misfit, checked, names_of, plain_json
from callboard.types import hook_events as he
from callboard.types.hook_answers import FITTING, Answer, HookEvent, Rewrite
from callboard.types.records import Json, ToolCall

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


def told_to_handlers(event: HookEvent) -> bool:
    """Return True if handlers receive the event: they receive a failed call only as `PostToolUseFailure`."""
    return not (isinstance(event, he.PostToolUse) and event.result.is_error)


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
        case he.PreToolUse():
            return _call_json(event.call, event.by)
        case he.PermissionRequest():
            payload = _call_json(event.call, event.by)
            del payload["tool_use_id"]
            payload |= {"permission_rule": event.rule, "permission_reason": event.why}
            return payload | ({"permission_suggestions": list(event.suggestions)} if event.suggestions else {})
        case he.PostToolUse():
            payload = _call_json(event.call, event.by)
            response = _response_json(event.call, event.result, event.by)
            return payload | {"tool_response": response, "duration_ms": round(event.seconds * 1000)}
        case he.PostToolUseFailure():
            payload = _call_json(event.call, event.by) | {"error": event.error, "is_interrupt": event.interrupted}
            return payload | {"duration_ms": round(event.seconds * 1000)}
        case he.PostToolBatch():
            return {"tool_calls": [_done_json(call, event.by) for call in event.calls]}
        case _:
            return {}


def _of_agent(event: HookEvent) -> Json:
    match event:
        case he.UserPromptSubmit():
            return {"prompt": event.text}
        case he.Stop() | he.SubagentStop():
            payload: Json = {
                "stop_hook_active": event.blocks > 0,
                "last_assistant_message": event.text,
                "background_tasks": list(event.background),
                "session_crons": list(event.schedules),
            }
            of_subagent = {"agent_transcript_path": event.by.transcript} if isinstance(event, he.SubagentStop) else {}
            return payload | of_subagent
        case he.StopFailure():
            return {
                "error": event.error,
                "error_details": event.details,
                "last_assistant_message": event.details or event.error,
            }
        case he.TeammateIdle():
            return {
                "teammate_name": event.by.name,
                "team_name": event.by.session,
                "last_assistant_message": event.text,
            }
        case he.SubagentStart():
            return {"agent_id": event.by.name, "agent_type": event.by.agent_type}
        case he.EnvelopeDelivered():
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
        case he.TaskCreated() | he.TaskCompleted():
            mate = {"teammate_name": event.by.name} if event.by.kind == "teammate" else {}
            return mate | {
                "task_id": event.task,
                "task_subject": event.subject,
                "task_description": event.description,
                "team_name": event.by.session,
            }
        case he.PlanSubmitted():
            return {"plan": event.plan}
        case he.RequestAnswered():
            return {
                "request_id": event.id,
                "request_kind": event.kind,
                "status": event.status,
                "subject": event.subject,
                "answered_by": event.answered_by,
                "reason": event.reason,
            }
        case he.ScheduleFired():
            return {
                "schedule_id": event.schedule,
                "cron": event.cron,
                "prompt": event.prompt,
                "due_at": event.slot,
            }
        case he.BudgetReached():
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
        case he.SessionStart():
            return {"source": event.source, "model": event.model}
        case he.SessionEnd():
            return {"reason": event.reason}
        case he.Notification():
            payload: Json = {"message": event.message, "notification_type": event.notification_type}
            return payload | ({"title": event.title} if event.title else {})
        case he.PreCompact():
            return {"trigger": event.trigger, "custom_instructions": event.instructions}
        case he.PostCompact():
            return {"trigger": event.trigger, "compact_summary": event.summary}
        case he.WorktreeCreate():
            return {"name": event.name}
        case he.WorktreeRemove():
            return {"worktree_path": event.path}
        case he.CwdChanged():
            return {"old_cwd": event.old, "new_cwd": event.new}
        case _:
            return {}


def _call_json(call: ToolCall, by: he.Caller) -> Json:
    return {
        "tool_name": compatible_name(call.name),
        "tool_input": to_compatible(call.name, call.input, by.folder),
        "tool_use_id": call.use_id,
    }


def _done_json(done: he.CallDone, by: he.Caller) -> Json:
    """Return one call of a batch, with its result for the model."""
    return _call_json(done.call, by) | {"tool_response": _text(done.result.content)}


def _text(content: Sequence[Json]) -> str:
    return "\n".join(str(block["text"]) for block in content if block.get("type") == "text")


def _response_json(call: ToolCall, result: he.HookToolResult, by: he.Caller) -> Json:
    """Return the structured result; for commands and written files in the documented fields, always with the text."""
    text = _text(result.content)
    if call.name == "bash":
        return {"stdout": text, "stderr": "", "interrupted": False, "isImage": False} | result.data
    if call.name in ("write_file", "edit_file"):
        path = to_compatible(call.name, call.input, by.folder).get("file_path")
        return {"content": text, "filePath": path, "success": True} | result.data
    return {"content": text} | result.data


def in_our_fields(event: HookEvent, answers: tuple[Answer, ...]) -> tuple[Answer, ...]:
    """Return a handler's checked answers, with a rewritten input in Callboard's fields. Raises `Misfit` for an invalid
    one."""
    return tuple(_in_ours(event, answer) for answer in answers)


def _in_ours(event: HookEvent, answer: Answer) -> Answer:
    name = type(event).__name__
    if not isinstance(answer, FITTING[name]):
        raise Misfit(f"it answered {type(answer).__name__}, which {name} does not take")
    answer = checked(name, answer)
    if (
        isinstance(event, he.PreToolUse | he.PermissionRequest)
        and isinstance(answer, Rewrite)
        and answer.input is not None
    ):
        updated = from_compatible(event.call.name, event.call.input, answer.input, event.by.folder)
        return Rewrite(input=updated)
    return answer
