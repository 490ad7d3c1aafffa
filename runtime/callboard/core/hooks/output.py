"""What the output of a command hook means: exit code, text and JSON, as the compatible format documents them. Pure.

Exit code 2 blocks, whatever else was said. A JSON object decides, whatever the exit code. Text with exit code 0 is
context for a prompt and else nothing. The rest is a fault: a wrong field, another exit code, a signal.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NoReturn, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from callboard.core.hooks.rules import Misfit, capped, plain_json
from callboard.words.hooks import AddContext, Allow, Answer, Ask, Deny, GoOn, Halt, HandlerResult, Rewrite
from callboard.words.values import Json

BLOCKS = 2
"""The exit code that blocks."""


class _Form(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", alias_generator=to_camel)


class _Specific(_Form):
    """`hookSpecificOutput`: the fields of the events that we have."""

    hook_event_name: str = ""
    permission_decision: Literal["allow", "deny", "ask", "defer"] | None = None
    permission_decision_reason: str | None = None
    updated_input: dict[str, Any] | None = None
    additional_context: str | None = None
    updated_tool_output: Any = None
    updated_mcp_tool_output: Any = Field(default=None, alias="updatedMCPToolOutput")


class _Output(_Form):
    """The whole object. What is not named here has no effect."""

    continue_: bool = Field(default=True, alias="continue")
    stop_reason: str | None = None
    system_message: str | None = None
    decision: Literal["approve", "block"] | None = None
    reason: str | None = None
    specific: _Specific | None = Field(default=None, alias="hookSpecificOutput")

    @property
    def more(self) -> _Specific:
        return self.specific or _Specific()


def output_meaning(told: Json, exit_code: int, stdout: str, stderr: str) -> HandlerResult:
    """What a command answered to the event JSON `told`. `exit_code` is -N after signal N. Never raises."""
    event = str(told["hook_event_name"])
    try:
        output = _read(event, stdout)
    except Misfit as error:
        if exit_code != BLOCKS:
            return HandlerResult(fault=capped(str(error)))
        output = None
    if exit_code == BLOCKS:
        return _result(event, output, blocked=stderr.strip() or "it exited with 2 and said nothing")
    if output is not None:
        return _result(event, output)
    if exit_code == 0:
        context = event == "UserPromptSubmit" and stdout.strip()
        return HandlerResult((AddContext(capped(stdout.strip())),) if context else ())
    how = f"exit code {exit_code}" if exit_code > 0 else f"ended by signal {-exit_code}"
    return HandlerResult(fault=capped(f"{how}: {stderr.strip() or 'it said nothing'}"))


def _read(event: str, stdout: str) -> _Output | None:
    """The JSON object that stands there, None for text. Raises `Misfit` for an object of a wrong form."""
    if not stdout.lstrip().startswith("{"):
        return None
    try:
        data = plain_json(json.loads(stdout, parse_constant=_no_constant))
    except (ValueError, RecursionError):
        return None
    try:
        output = _Output.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise Misfit(f"{'.'.join(map(str, first['loc']))} in its output: {first['msg']}") from error
    if output.specific is not None and output.specific.hook_event_name != event:
        raise Misfit(f"its hookSpecificOutput is for {output.specific.hook_event_name!r}, and this is {event}")
    return output


def _no_constant(name: str) -> NoReturn:
    raise Misfit(f"{name} is no JSON")


def _result(event: str, output: _Output | None, blocked: str = "") -> HandlerResult:
    """`blocked` is why it blocks by its exit code, if the output gives no better reason."""
    output = output or _Output()
    answers: list[Answer] = []
    if not output.continue_:
        answers.append(Halt(capped(output.stop_reason or "")))
    try:
        answers += _MEANING[event](output, blocked)
    except Misfit as error:
        return HandlerResult(tuple(answers), capped(str(error)))
    notices = (capped(output.system_message),) if output.system_message else ()
    return HandlerResult(tuple(answers), notices=notices)


def _context(output: _Output) -> list[Answer]:
    text = output.more.additional_context
    return [AddContext(capped(text))] if text else []


def _of_pre_tool_use(output: _Output, blocked: str) -> list[Answer]:
    more = output.more
    decision = more.permission_decision or {"approve": "allow", "block": "deny", None: None}[output.decision]
    reason = capped((more.permission_decision_reason if more.permission_decision else output.reason) or "")
    answers = _context(output)
    if decision == "deny" or blocked:
        return [Deny(reason if decision == "deny" and reason else capped(blocked)), *answers]
    if more.updated_input is not None:
        answers.append(Rewrite(input=more.updated_input))
    if decision == "defer":
        answers.append(Ask(reason or "put off for a person to decide"))
    elif decision is not None:
        answers.append(Ask(reason) if decision == "ask" else Allow(reason))
    return answers


def _block_reason(output: _Output, blocked: str) -> str | None:
    """Why it blocks, None when it does not."""
    if output.decision == "block":
        return capped(output.reason or blocked)
    return capped(blocked) if blocked else None


def _of_post_tool_use(output: _Output, blocked: str) -> list[Answer]:
    answers = _context(output)
    reason = _block_reason(output, blocked)
    if reason:
        answers.insert(0, AddContext(reason))
    for changed in (output.more.updated_tool_output, output.more.updated_mcp_tool_output):
        if changed is not None:
            answers.append(Rewrite(content=_content(changed)))
    return answers


def _content(changed: object) -> str | list[Json]:
    """A rewritten result as the model reads it: its text, out of the shape that the compatible tool gives it."""
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


def _of_user_prompt_submit(output: _Output, blocked: str) -> list[Answer]:
    reason = _block_reason(output, blocked)
    return _context(output) if reason is None else [Deny(reason), *_context(output)]


def _of_stop(output: _Output, blocked: str) -> list[Answer]:
    reason = _block_reason(output, blocked)
    if reason == "":
        raise Misfit("it blocks the end of the turn without a `reason`: the model would not know what to do")
    texts = (reason, capped(output.more.additional_context or ""))
    return [GoOn(text) for text in texts if text]


_MEANING: Mapping[str, Callable[[_Output, str], list[Answer]]] = MappingProxyType(
    {
        "PreToolUse": _of_pre_tool_use,
        "PostToolUse": _of_post_tool_use,
        "UserPromptSubmit": _of_user_prompt_submit,
        "Stop": _of_stop,
        "SubagentStop": _of_stop,
    }
)
