"""Meaning of a handler's output: exit code, text and JSON, or status and body, as in the compatible format.

Exit code 2 blocks, whatever the output. A JSON object decides, whatever the exit code. Text with exit code 0 is context
for a prompt or a start, and otherwise ignored. Anything else is a fault: an unknown field value, another exit code, a
signal, an HTTP status other than 2xx. The effect of a block depends on the event (`FITTING`). Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NoReturn, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from callboard.core.hooks.merge import InvalidHook, cap_text
from callboard.core.utf8 import storable_json
from callboard.core.validation import faults_of
from callboard.types.hook_answers import (
    FITTING,
    AddContext,
    Allow,
    Answer,
    Ask,
    Deny,
    GoOn,
    Halt,
    HandlerResult,
    Rewrite,
)
from callboard.types.late_pattern import late_pattern
from callboard.types.records import Json

_DECISION = late_pattern(r'"(?:permissionDecision|decision|continue|hookSpecificOutput)"\s*:')
BLOCKS = 2
"""The exit code that blocks."""

TEXT_IS_CONTEXT = frozenset({"UserPromptSubmit", "SessionStart"})
"""Events for which plain text on stdout is added for the model."""
TOLD_TO_MODEL = frozenset({"PostToolUse", "PostToolUseFailure"})
"""Events that nothing can block: the reason of a block is added for the model."""


class _Form(BaseModel):
    model_config = ConfigDict(defer_build=True, strict=True, extra="ignore", alias_generator=to_camel)


class _Decision(_Form):
    """`hookSpecificOutput.decision` of a `PermissionRequest`."""

    behavior: Literal["allow", "deny"]
    updated_input: dict[str, Any] | None = None
    updated_permissions: list[Any] | None = None
    message: str | None = None
    interrupt: bool = False


class _Specific(_Form):
    """`hookSpecificOutput`: the fields of the supported events."""

    hook_event_name: str = ""
    permission_decision: Literal["allow", "deny", "ask", "defer"] | None = None
    permission_decision_reason: str | None = None
    updated_input: dict[str, Any] | None = None
    additional_context: str | None = None
    updated_tool_output: Any = None
    updated_mcp_tool_output: Any = Field(default=None, alias="updatedMCPToolOutput")
    decision: _Decision | None = None


class _Output(_Form):
    """Whole JSON object. Unknown fields have no effect."""

    continue_: bool = Field(default=True, alias="continue")
    stop_reason: str | None = None
    system_message: str | None = None
    decision: Literal["approve", "block"] | None = None
    reason: str | None = None
    specific: _Specific | None = Field(default=None, alias="hookSpecificOutput")

    @property
    def specific_fields(self) -> _Specific:
        return self.specific or _Specific()


def output_meaning(payload: Json, exit_code: int, stdout: str, stderr: str) -> HandlerResult:
    """Return the answers in the output of a command. `exit_code` is -N after signal N. Never raises."""
    event = str(payload["hook_event_name"])
    try:
        output = _read(event, stdout)
    except InvalidHook as error:
        if exit_code != BLOCKS:
            return HandlerResult(fault=cap_text(str(error)))
        output = None
    block_reason = stderr.strip() or "it exited with 2 and said nothing"
    if exit_code == BLOCKS and event != "PermissionRequest":
        result = _result(event, output, blocked=block_reason)
        message = stderr.strip() or stdout.strip() or block_reason
        return HandlerResult(result.answers, result.fault, result.notices, cap_text(message))
    if output is not None:
        return _result(event, output)
    if exit_code == 0:
        context = event in TEXT_IS_CONTEXT and stdout.strip()
        return HandlerResult((AddContext(cap_text(stdout.strip())),) if context else ())
    message = stderr.strip() or "it said nothing"
    how = f"exit code {exit_code}" if exit_code > 0 else f"ended by signal {-exit_code}"
    if event == "WorktreeCreate":
        return HandlerResult((Deny(cap_text(f"{how}: {message}")),))
    return HandlerResult(fault=cap_text(f"{how}: {message}"))


def defers(payload: Json, stdout: str) -> bool:
    """Return True if the output of a hook defers the call to a later process. Never raises."""
    event = str(payload["hook_event_name"])
    try:
        output = _read(event, stdout)
    except InvalidHook:
        return False
    return event == "PreToolUse" and output is not None and output.specific_fields.permission_decision == "defer"


def http_meaning(payload: Json, status: int, body: str) -> HandlerResult:
    """Return the answers of an HTTP endpoint. It blocks only by a JSON object with a 2xx status. Never raises."""
    if not 200 <= status < 300:
        return HandlerResult(fault=f"it answered with status {status}")
    if not body.strip():
        return HandlerResult()
    event = str(payload["hook_event_name"])
    try:
        output = _read(event, body)
    except InvalidHook as error:
        return HandlerResult(fault=cap_text(str(error)))
    return HandlerResult(fault="its answer is not a JSON object") if output is None else _result(event, output)


def _read(event: str, stdout: str) -> _Output | None:
    """Parse a JSON object; None for text.

    Raises `InvalidHook` for an object of a wrong form, and for text that begins as an object with a decision, so that a
    decision that cannot be read is not lost.
    """
    if not stdout.lstrip().startswith("{"):
        return None
    try:
        data = storable_json(json.loads(stdout, parse_constant=_no_constant))
    except (ValueError, RecursionError) as error:
        if _DECISION.search(stdout):
            raise InvalidHook(f"its output begins with a decision but is not JSON: {error}") from error
        return None
    try:
        output = _Output.model_validate(data)
    except ValidationError as error:
        raise InvalidHook(f"in its output: {faults_of(error)[0]}") from error
    if output.specific is not None and output.specific.hook_event_name != event:
        raise InvalidHook(f"its hookSpecificOutput is for {output.specific.hook_event_name!r}, and this is {event}")
    return output


def _no_constant(name: str) -> NoReturn:
    raise InvalidHook(f"{name} is not JSON")


def _result(event: str, output: _Output | None, blocked: str = "") -> HandlerResult:
    """Return the result. `blocked`: the reason of a block by exit code, used if the output has no better one."""
    output = output or _Output()
    answers: list[Answer] = []
    notices = [cap_text(output.system_message)] if output.system_message else []
    fitting = FITTING.get(event, ())
    if not output.continue_ and Halt in fitting:
        answers.append(Halt(cap_text(output.stop_reason or "")))
    elif not output.continue_:
        notices.append(f"`continue: false` has no effect at {event}")
    try:
        possible = _MEANING.get(event, _of_any(event))(output, blocked)
    except InvalidHook as error:
        return HandlerResult(tuple(answers), cap_text(str(error)), tuple(notices))
    for answer in possible:
        if isinstance(answer, fitting):
            answers.append(answer)
        elif text := answer.text if isinstance(answer, AddContext) else getattr(answer, "reason", ""):
            notices.append(text)
    if output.specific_fields.decision is not None and output.specific_fields.decision.updated_permissions:
        notices.append("`updatedPermissions` has no effect here: write a rule into the settings")
    return HandlerResult(tuple(answers), notices=tuple(notices))


def _context(output: _Output) -> list[Answer]:
    text = output.specific_fields.additional_context
    return [AddContext(cap_text(text))] if text else []


def _of_pre_tool_use(output: _Output, blocked: str) -> list[Answer]:
    specific = output.specific_fields
    decision = specific.permission_decision or {"approve": "allow", "block": "deny", None: None}[output.decision]
    reason = cap_text((specific.permission_decision_reason if specific.permission_decision else output.reason) or "")
    answers = _context(output)
    if decision == "deny" or blocked:
        return [Deny(reason if decision == "deny" and reason else cap_text(blocked)), *answers]
    if specific.updated_input is not None:
        answers.append(Rewrite(input=specific.updated_input))
    if decision == "defer":
        answers.append(Ask(reason or "deferred to a person"))
    elif decision is not None:
        answers.append(Ask(reason) if decision == "ask" else Allow(reason))
    return answers


def _of_permission_request(output: _Output, blocked: str) -> list[Answer]:
    """Return the answers. The exit code decides nothing: `blocked` is always empty."""
    decision = output.specific_fields.decision
    if decision is None:
        return []
    message = cap_text(decision.message or "")
    if decision.behavior == "deny":
        denied = Deny(message or "a hook denied it in place of the person")
        return [denied, Halt(message or "a hook stopped it")] if decision.interrupt else [denied]
    rewrite = [] if decision.updated_input is None else [Rewrite(input=decision.updated_input)]
    return [*rewrite, Allow(message)]


def _block_reason(output: _Output, blocked: str) -> str | None:
    """Return the reason for a block; None if the hook does not block."""
    if output.decision == "block":
        return cap_text(output.reason or blocked)
    return cap_text(blocked) if blocked else None


def _of_post_tool_use(output: _Output, blocked: str) -> list[Answer]:
    answers = _context(output)
    reason = _block_reason(output, blocked)
    if reason:
        answers.insert(0, AddContext(reason))
    for changed in (output.specific_fields.updated_tool_output, output.specific_fields.updated_mcp_tool_output):
        if changed is not None:
            answers.append(Rewrite(content=_content(changed)))
    return answers


def _content(changed: object) -> str | list[Json]:
    """Return a rewritten result in the form for the model: its text, from the form of the compatible tool."""
    if isinstance(changed, str):
        return changed
    if isinstance(changed, dict):
        fields = cast("Json", changed)
        if isinstance(fields.get("stdout"), str):
            return "\n".join(
                part for part in (fields["stdout"], fields.get("stderr")) if isinstance(part, str) and part
            )
        if isinstance(fields.get("content"), str):
            return str(fields["content"])
    if isinstance(changed, list):
        items = cast("list[object]", changed)
        blocks = [cast("Json", item) for item in items if isinstance(item, dict)]
        if items and len(blocks) == len(items) and all(block.get("type") == "text" for block in blocks):
            return blocks
    return json.dumps(changed, ensure_ascii=False)


def _of_stop(output: _Output, blocked: str) -> list[Answer]:
    reason = _block_reason(output, blocked)
    if reason == "":
        raise InvalidHook("it blocks the end of the turn without a `reason`: the model would not know what to do")
    texts = (reason, cap_text(output.specific_fields.additional_context or ""))
    return [GoOn(text) for text in texts if text]


def _of_any(event: str) -> Callable[[_Output, str], list[Answer]]:
    """Return the reader for an event without specific fields.

    A block denies, or is reported if nothing can be denied.
    """

    def read_answers(output: _Output, blocked: str) -> list[Answer]:
        reason = _block_reason(output, blocked)
        if reason is None:
            return _context(output)
        objection = AddContext(reason) if event in TOLD_TO_MODEL else Deny(reason)
        return [objection, *_context(output)]

    return read_answers


_MEANING: Mapping[str, Callable[[_Output, str], list[Answer]]] = MappingProxyType(
    {
        "PreToolUse": _of_pre_tool_use,
        "PermissionRequest": _of_permission_request,
        "PostToolUse": _of_post_tool_use,
        "Stop": _of_stop,
        "SubagentStop": _of_stop,
        "TeammateIdle": _of_stop,
    }
)
