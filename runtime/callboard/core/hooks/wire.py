"""What hooks in the compatible form are told, and what their output means: JSON in, text and an exit code out. Pure.

Exit code 2 blocks, whatever else was said. A JSON object decides, whatever the exit code. Text with exit code 0 is
context for a prompt and else nothing. Everything else is a fault: a wrong field, another exit code, no answer.
"""

from __future__ import annotations

from callboard.core.hooks.names import compatible_name, from_compatible, to_compatible
from callboard.core.hooks.rules import Misfit, checked, plain_json
from callboard.words.hooks import (
    FITTING,
    Answer,
    HookEvent,
    HookSource,
    PostToolUse,
    PreToolUse,
    Rewrite,
    Stop,
    UserPromptSubmit,
)
from callboard.words.values import Json


def told_to_handlers(event: HookEvent, source: HookSource) -> bool:
    """Whether handlers of that source hear of it: not of a failed call, and not of a subagent's end but its own."""
    if isinstance(event, PostToolUse):
        return not event.result.is_error
    return not isinstance(event, Stop) or event.by.kind != "subagent" or source == "agent"


def event_json(event: HookEvent) -> Json:
    """The event as handlers read it: compatible names and fields, a copy."""
    by = event.by
    told: Json = {
        "session_id": by.session,
        "transcript_path": by.transcript,
        "cwd": by.folder,
        "permission_mode": by.permission_mode,
        "hook_event_name": _wire_name(event),
    }
    if by.kind != "lead":
        told |= {"agent_id": by.name, "agent_type": by.agent_type}
    match event:
        case UserPromptSubmit():
            told["prompt"] = event.text
        case PreToolUse():
            told |= _call_json(event)
        case PostToolUse():
            told |= _call_json(event) | {
                "tool_response": _response_json(event),
                "duration_ms": round(event.seconds * 1000),
            }
        case _:
            told |= {"stop_hook_active": event.blocks > 0, "last_assistant_message": event.text}
    return plain_json(told)


def _wire_name(event: HookEvent) -> str:
    return "SubagentStop" if isinstance(event, Stop) and event.by.kind == "subagent" else type(event).__name__


def _call_json(event: PreToolUse | PostToolUse) -> Json:
    call = event.call
    return {
        "tool_name": compatible_name(call.name),
        "tool_input": to_compatible(call.name, call.input, event.by.folder),
        "tool_use_id": call.use_id,
    }


def _response_json(event: PostToolUse) -> Json:
    """The structured result; for a shell command in the documented fields, and never without the text."""
    text = "\n".join(str(block["text"]) for block in event.result.content if block.get("type") == "text")
    if event.call.name == "bash":
        return {"stdout": text, "stderr": "", "interrupted": False, "isImage": False} | event.result.data
    return {"content": text} | event.result.data


def in_our_fields(event: HookEvent, answers: tuple[Answer, ...]) -> tuple[Answer, ...]:
    """A handler's answers, checked, a rewritten input in our fields. Raises `Misfit` for one that does not fit."""
    return tuple(_in_ours(event, answer) for answer in answers)


def _in_ours(event: HookEvent, answer: Answer) -> Answer:
    name = type(event).__name__
    if not isinstance(answer, FITTING[name]):
        raise Misfit(f"it answered {type(answer).__name__}, which {name} does not take")
    answer = checked(name, answer)
    if isinstance(event, PreToolUse) and isinstance(answer, Rewrite) and answer.input is not None:
        updated = from_compatible(event.call.name, event.call.input, answer.input, event.by.folder)
        return Rewrite(input=updated)
    return answer
