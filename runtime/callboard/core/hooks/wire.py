"""What hooks in the compatible form are told: each event as JSON, with the names and fields of the compatible tools.

Fields of events that are only ours are told in plain words. Pure; `core/hooks/output.py` reads what they answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from callboard.core.hooks.names import compatible_name, from_compatible, to_compatible
from callboard.core.hooks.rules import Misfit, checked, plain_json
from callboard.words import hook_events as he
from callboard.words.hooks import FITTING, Answer, HookEvent, Rewrite
from callboard.words.values import Json, ToolCall


def told_to_handlers(event: HookEvent) -> bool:
    """Whether handlers hear of it: of a failed call only as `PostToolUseFailure`."""
    return not (isinstance(event, he.PostToolUse) and event.result.is_error)


def event_json(event: HookEvent) -> Json:
    """The event as handlers read it: compatible names and fields, a copy."""
    by = event.by
    told: Json = {
        "session_id": by.session,
        "transcript_path": by.transcript,
        "cwd": by.folder,
        "permission_mode": by.permission_mode,
        "hook_event_name": type(event).__name__,
    }
    if by.kind != "lead":
        told |= {"agent_id": by.name, "agent_type": by.agent_type}
    elif by.agent_type:
        told["agent_type"] = by.agent_type
    return plain_json(told | (_of_call(event) or _of_agent(event) or _of_work(event) or _of_session(event)))


def _of_call(event: HookEvent) -> Json:
    match event:
        case he.PreToolUse():
            return _call_json(event.call, event.by)
        case he.PermissionRequest():
            told = _call_json(event.call, event.by)
            del told["tool_use_id"]
            told |= {"permission_rule": event.rule, "permission_reason": event.why}
            return told | ({"permission_suggestions": list(event.suggestions)} if event.suggestions else {})
        case he.PostToolUse():
            told = _call_json(event.call, event.by)
            response = _response_json(event.call, event.result, event.by)
            return told | {"tool_response": response, "duration_ms": round(event.seconds * 1000)}
        case he.PostToolUseFailure():
            told = _call_json(event.call, event.by) | {"error": event.error, "is_interrupt": event.interrupted}
            return told | {"duration_ms": round(event.seconds * 1000)}
        case he.PostToolBatch():
            return {"tool_calls": [_done_json(one, event.by) for one in event.calls]}
        case _:
            return {}


def _of_agent(event: HookEvent) -> Json:
    match event:
        case he.UserPromptSubmit():
            return {"prompt": event.text}
        case he.Stop() | he.SubagentStop():
            told: Json = {
                "stop_hook_active": event.blocks > 0,
                "last_assistant_message": event.text,
                "background_tasks": list(event.background),
                "session_crons": list(event.schedules),
            }
            of_subagent = {"agent_transcript_path": event.by.transcript} if isinstance(event, he.SubagentStop) else {}
            return told | of_subagent
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
            told: Json = {"message": event.message, "notification_type": event.notification_type}
            return told | ({"title": event.title} if event.title else {})
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
    """One call of a batch: its result as the model sees it."""
    return _call_json(done.call, by) | {"tool_response": _text(done.result.content)}


def _text(content: Sequence[Json]) -> str:
    return "\n".join(str(block["text"]) for block in content if block.get("type") == "text")


def _response_json(call: ToolCall, result: he.ToolResult, by: he.Caller) -> Json:
    """The structured result; for commands and written files in the documented fields, never without the text."""
    text = _text(result.content)
    if call.name == "bash":
        return {"stdout": text, "stderr": "", "interrupted": False, "isImage": False} | result.data
    if call.name in ("write_file", "edit_file"):
        path = to_compatible(call.name, call.input, by.folder).get("file_path")
        return {"content": text, "filePath": path, "success": True} | result.data
    return {"content": text} | result.data


def in_our_fields(event: HookEvent, answers: tuple[Answer, ...]) -> tuple[Answer, ...]:
    """A handler's answers, checked, a rewritten input in our fields. Raises `Misfit` for one that does not fit."""
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
