"""Rules of hooks: the tools that a matcher selects, the meaning of an answer, and the combination of all answers. Pure.

An answer that does not fit its event is a fault. A fault of a hook that guards a tool call counts as a denial, unless
the hook comes from a file in the compatible format (`fail_open`): then it is only reported to the user.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar, cast

from callboard.core.context.view.sendable import sendable
from callboard.core.tool_access import ALL_TOOLS, COMPATIBLE
from callboard.core.utf8 import storable
from callboard.types.hook_answers import (
    FITTING,
    AddContext,
    Allow,
    Answer,
    Ask,
    Deny,
    GoOn,
    Halt,
    HookEvent,
    HookToolResult,
    MomentVerdict,
    PermissionRequest,
    PostToolUse,
    PostVerdict,
    PreToolUse,
    PreVerdict,
    PromptVerdict,
    Rewrite,
    StopVerdict,
)
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json

Reasoned = TypeVar("Reasoned", Allow, Ask, Deny, Halt)

MOST_CHARACTERS = 10_000
"""Most characters of one text of a hook."""

GUARDED = frozenset({"TaskCreated", "TaskCompleted", "PlanSubmitted", "ScheduleFired", "WorktreeCreate"})
"""Events, besides a call, that a fault stops unless it is forgiven: the action can be repeated later."""

_LIST = late_pattern(r"[A-Za-z0-9_\-,| ]*")
_NOT_JAVASCRIPT = late_pattern(r"\(\?(?![:=!]|<[=!A-Za-z_$])|\\[AZGz]|[*+?}]\+")
_NOT_PYTHON = late_pattern(r"\\[pPck]|\[\^?\]|\\u\{")


class InvalidHook(ValueError):
    """Error that describes an invalid matcher or answer."""


@dataclass(frozen=True, slots=True)
class Matcher:
    """Tools that a hook applies to: all, a list of names, or a regular expression to search for."""

    text: str
    names: frozenset[str] | None = None
    pattern: re.Pattern[str] | None = None
    excludes: bool = False
    """True if it has a negative look-around, so that all names of a tool have to match: `^(?!Bash$)` does not match
    `bash`."""

    def fits(self, names: Iterable[str]) -> bool:
        """Return True if the matcher covers a tool with any of these names."""
        if self.names is not None:
            return not self.names.isdisjoint(names)
        if self.pattern is None:
            return True
        matches = (self.pattern.search(name) is not None for name in names)
        return all(matches) if self.excludes else any(matches)


def read_matcher(text: str) -> Matcher:
    """Parse a matcher.

    Raises `InvalidHook` for a regular expression that JavaScript and Python interpret differently.
    """
    if text in ("", "*"):
        return Matcher(text)
    if _LIST.fullmatch(text):
        names = frozenset(part.strip() for part in re.split(r"[|,]", text) if part.strip())
        if not names:
            raise InvalidHook(f"the matcher {text!r} names no tool: write the names, or leave it out for all tools")
        return Matcher(text, names)
    if odd := _NOT_JAVASCRIPT.search(text) or _NOT_PYTHON.search(text):
        raise InvalidHook(f"the matcher {text!r} has {odd.group()!r}, which other programs read differently")
    try:
        pattern = re.compile(re.sub(r"\(\?<(?![=!])", "(?P<", text), re.ASCII)
    except re.error as error:
        raise InvalidHook(f"the matcher {text!r} is not a regular expression: {error}") from error
    return Matcher(text, pattern=pattern, excludes="(?!" in text or "(?<!" in text)


def names_of(tool: str) -> tuple[str, ...]:
    """Return all names of a tool, Callboard's first: `task` is also `Agent` and `Task`."""
    return (tool, *(alias for alias, tools in COMPATIBLE.items() if tool in tools))


def never_fits(matcher: Matcher) -> bool:
    """Return True if the matcher matches no built-in tool and no possible tool of an MCP server."""
    if any(matcher.fits(names_of(tool)) for tool in ALL_TOOLS):
        return False
    if matcher.names is not None:
        return not any(re.fullmatch(r"mcp__.+?__.+", name) for name in matcher.names)
    return "mcp" not in matcher.text


def cap_text(text: str) -> str:
    """Return the text with at most `MOST_CHARACTERS`, a mark at the cut, and no lone surrogates."""
    text = storable(text)
    if len(text) <= MOST_CHARACTERS:
        return text
    mark = f"\n[cut: this hook said {len(text):,} characters]"
    return text[: MOST_CHARACTERS - len(mark)] + mark


def plain_json(value: object) -> Any:
    """Return a copy of the value as plain JSON.

    Raises `InvalidHook` for other values: NaN, lone surrogates, objects.
    """
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode()
        return json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidHook(f"is not JSON: {error}") from error


# Answers of one hook


@dataclass(frozen=True, slots=True)
class HookOutcome:
    """Outcome of one hook."""

    by: str
    """`hook NAME (SOURCE)`."""
    answers: tuple[Answer, ...] = ()
    fault: str = ""
    fail_open: bool = False
    notices: tuple[str, ...] = ()
    skipped: bool = False
    """True if the hook did not run, because its condition does not match."""


def understood(event: str, value: object) -> tuple[Answer, ...]:
    """Return the answers in the value of a callable.

    Raises `InvalidHook`, with the reason, for a value that is not an answer.
    """
    if value is None:
        return ()
    if event == "PreToolUse" and isinstance(value, str) and value.strip():
        value = Deny(value)
    if not isinstance(value, FITTING[event]):
        kinds = ", ".join(["None", *(kind.__name__ for kind in FITTING[event])])
        raise InvalidHook(f"it returned {_type_name(value)}; {event} takes {kinds}")
    return (check_answer(event, value),)


def _type_name(value: object) -> str:
    return repr(value)[:80] if value in ("", True, False) else type(value).__name__


def check_answer(event: str, answer: Answer) -> Answer:
    """Return the answer with its texts capped and its JSON copied. Raises `InvalidHook` for an invalid answer."""
    if isinstance(answer, Rewrite):
        return _checked_result(answer) if event == "PostToolUse" else _checked_input(answer)
    text = cast("object", answer.text if isinstance(answer, AddContext) else answer.reason)
    if not isinstance(text, str):
        raise InvalidHook(f"the text of its {type(answer).__name__} is {type(text).__name__}")
    if isinstance(answer, AddContext):
        return AddContext(cap_text(text))
    if not text.strip() and isinstance(answer, GoOn):
        raise InvalidHook("its GoOn has no reason: the model would not know what to do")
    return type(answer)(cap_text(text))


def _checked_input(answer: Rewrite) -> Rewrite:
    new_input = cast("object", answer.input)
    if not isinstance(new_input, dict) or answer.content is not None or answer.is_error is not None:
        raise InvalidHook("its Rewrite of a call has to have `input`, an object, and nothing else")
    try:
        return Rewrite(input=plain_json(cast("object", new_input)))
    except InvalidHook as error:
        raise InvalidHook(f"the input of its Rewrite {error}") from error


def _checked_result(answer: Rewrite) -> Rewrite:
    if answer.input is not None:
        raise InvalidHook("its Rewrite has `input`, and the call has run: rewrite `content`")
    if answer.is_error is not None and not isinstance(cast("object", answer.is_error), bool):
        raise InvalidHook("the `is_error` of its Rewrite is neither true nor false")
    if answer.content is None:
        if answer.is_error is None:
            raise InvalidHook("its Rewrite rewrites nothing")
        return answer
    return Rewrite(content=blocks_of(answer.content), is_error=answer.is_error)


def blocks_of(content: object) -> tuple[Json, ...]:
    """Return the blocks of a result from a text, or from text and image blocks.

    Raises `InvalidHook` for anything else.
    """
    if isinstance(content, str):
        text = storable(content)
        return ({"type": "text", "text": text},) if text.strip() else ()
    if not isinstance(content, list | tuple):
        raise InvalidHook("a result is a text or a list of blocks")
    blocks = cast("list[object]", plain_json(list(cast("Sequence[object]", content))))
    for block in blocks:
        fields = cast("Json", block) if isinstance(block, dict) else {}
        fits = (
            isinstance(fields.get("text"), str) and fields["text"].strip()
            if fields.get("type") == "text"
            else fields.get("source")
        )
        if fields.get("type") not in ("text", "image") or not fits:
            raise InvalidHook("a result's block is a text that is not empty, or an image")
    return sendable(cast("list[Json]", blocks))


# All hooks of one event


def rewritten(event: HookEvent, outcome: HookOutcome) -> HookEvent:
    """Return the event as rewritten by this hook, or the same object."""
    for answer in outcome.answers:
        if not isinstance(answer, Rewrite):
            continue
        if isinstance(event, PreToolUse | PermissionRequest):
            event = replace(event, call=event.call.model_copy(update={"input": answer.input}))
        elif isinstance(event, PostToolUse):
            content = event.result.content if answer.content is None else blocks_of(answer.content)
            is_error = event.result.is_error if answer.is_error is None else answer.is_error
            event = replace(event, result=replace(event.result, content=content, is_error=is_error))
    return event


def approving_input(outcome: HookOutcome, event: HookEvent, final: HookEvent) -> HookOutcome:
    """Return the outcome without its `Allow` if another hook changed the input that it approved.

    `event`: the event that the hook got. `final`: the event with the input that would run.
    """
    approved = rewritten(event, outcome)
    if not isinstance(final, PreToolUse | PermissionRequest) or not isinstance(approved, type(final)):
        return outcome
    others = tuple(answer for answer in outcome.answers if not isinstance(answer, Allow))
    if others == outcome.answers or approved.call.input == final.call.input:
        return outcome
    notice = "its approval does not count: another hook changed the input that it approved"
    return replace(outcome, answers=others, notices=(*outcome.notices, notice))


def pre_verdict(outcomes: Sequence[HookOutcome], new_input: Json | None) -> PreVerdict:
    """Combine answers: deny > ask > allow, the first of the strongest kind.

    A halt, and a fault that is not forgiven, deny.
    """
    halt, halted_by = _halt(outcomes)
    decision, by, reason = _strongest(outcomes)
    if halt and decision != "deny":
        decision = "deny"
        by = halted_by
        reason = halt
    return PreVerdict(decision, reason, by, new_input, _texts(outcomes, AddContext), halt, _notices(outcomes))


def permission_verdict(outcomes: Sequence[HookOutcome], new_input: Json | None) -> PreVerdict:
    """Combine answers in place of the user: deny > allow; a halt denies. A fault decides nothing: the user is asked."""
    return pre_verdict([replace(outcome, fail_open=True) for outcome in outcomes], new_input)


def _strongest(outcomes: Sequence[HookOutcome]) -> tuple[Literal["allow", "ask", "deny"] | None, str, str]:
    for outcome in outcomes:
        if outcome.fault and not outcome.fail_open:
            return "deny", outcome.by, f"it failed: {outcome.fault}"
        if (answer := _first(outcome, Deny)) is not None:
            return "deny", outcome.by, answer.reason or "it gave no reason"
    for outcome in outcomes:
        if (answer := _first(outcome, Ask)) is not None:
            return "ask", outcome.by, answer.reason
    for outcome in outcomes:
        if (answer := _first(outcome, Allow)) is not None:
            return "allow", outcome.by, answer.reason
    return None, "", ""


def _first(outcome: HookOutcome, kind: type[Reasoned]) -> Reasoned | None:
    return next((answer for answer in outcome.answers if isinstance(answer, kind)), None)


def post_verdict(outcomes: Sequence[HookOutcome], result: HookToolResult | None) -> PostVerdict:
    """Combine answers: the last rewritten result, and all texts in order.

    A fault that is not forgiven is one of the texts.
    """
    content, is_error = (None, None) if result is None else (result.content, result.is_error)
    return PostVerdict(content, is_error, _model_texts(outcomes), _halt(outcomes)[0], _notices(outcomes))


def prompt_verdict(outcomes: Sequence[HookOutcome]) -> PromptVerdict:
    """Combine answers: any denial or halt blocks; a fault that is not forgiven is added to the prompt for the model."""
    halt, _ = _halt(outcomes)
    denials = ((outcome.by, answer) for outcome in outcomes if (answer := _first(outcome, Deny)) is not None)
    block = next((answer.reason or f"{by} gave no reason" for by, answer in denials), halt)
    return PromptVerdict(block, _model_texts(outcomes), halt, _notices(outcomes))


def stop_verdict(outcomes: Sequence[HookOutcome]) -> StopVerdict:
    """Combine answers: the turn continues for all the given reasons, unless one halts.

    A fault is only reported to the user.
    """
    halt, _ = _halt(outcomes)
    reasons = _texts(outcomes, GoOn)
    return StopVerdict("" if halt else "\n\n".join(reasons), halt, _notices(outcomes))


def moment_verdict(event: str, outcomes: Sequence[HookOutcome]) -> MomentVerdict:
    """Combine answers: the first denial blocks, or all reasons to continue.

    Answers that the event does not accept have no effect.
    """
    halt, _ = _halt(outcomes)
    context = _model_texts(outcomes) if AddContext in FITTING[event] else ()
    block, by = _objection(event, outcomes)
    if halt and GoOn in FITTING[event]:
        block = ""
        by = ""
    return MomentVerdict(block, by, context, halt, _notices(outcomes))


def _objection(event: str, outcomes: Sequence[HookOutcome]) -> tuple[str, str]:
    """Return the reason why the event is denied or the agent continues, and the first hook with that reason."""
    for outcome in outcomes:
        if outcome.fault and not outcome.fail_open and event in GUARDED:
            return f"{outcome.by} failed: {outcome.fault}", outcome.by
        if (answer := _first(outcome, Deny)) is not None:
            return answer.reason or f"{outcome.by} gave no reason", outcome.by
    going = [outcome for outcome in outcomes if any(isinstance(answer, GoOn) for answer in outcome.answers)]
    return ("\n\n".join(_texts(going, GoOn)), going[0].by) if going else ("", "")


def _halt(outcomes: Sequence[HookOutcome]) -> tuple[str, str]:
    for outcome in outcomes:
        if (answer := _first(outcome, Halt)) is not None:
            return answer.reason or f"{outcome.by} stopped it", outcome.by
    return "", ""


def _texts(outcomes: Sequence[HookOutcome], kind: type[AddContext | GoOn]) -> tuple[str, ...]:
    answers = (answer for outcome in outcomes for answer in outcome.answers if isinstance(answer, kind))
    texts = (answer.text if isinstance(answer, AddContext) else answer.reason for answer in answers)
    return tuple(text for text in texts if text.strip())


def _model_texts(outcomes: Sequence[HookOutcome]) -> tuple[str, ...]:
    """Return the texts for the model, including faults that are not forgiven."""
    faults = (
        f"{outcome.by} failed: {outcome.fault}" for outcome in outcomes if outcome.fault and not outcome.fail_open
    )
    return (*_texts(outcomes, AddContext), *faults)


def _notices(outcomes: Sequence[HookOutcome]) -> tuple[str, ...]:
    """Return the texts for the user: notices of hooks, and every fault."""
    notices = [f"{outcome.by}: {text}" for outcome in outcomes for text in outcome.notices]
    return (*notices, *(f"{outcome.by} failed: {outcome.fault}" for outcome in outcomes if outcome.fault))
