"""The rules of hooks: which tools a matcher means, what an answer is worth, and what all answers come to. Pure.

An answer that does not fit its event is a fault, and a fault of a hook that guards a tool call is a no, unless the
hook comes from a file in the compatible format (`fail_open`): there it is told to the person and nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar, cast

from callboard.core.toolset import ALL_TOOLS, COMPATIBLE
from callboard.words.hooks import (
    FITTING,
    AddContext,
    Allow,
    Answer,
    Ask,
    Deny,
    GoOn,
    Halt,
    HookEvent,
    MomentVerdict,
    PermissionRequest,
    PostToolUse,
    PostVerdict,
    PreToolUse,
    PreVerdict,
    PromptVerdict,
    Rewrite,
    StopVerdict,
    ToolResult,
)
from callboard.words.values import Json

Reasoned = TypeVar("Reasoned", Allow, Ask, Deny, Halt)

MOST_CHARACTERS = 10_000
"""Of one text of a hook."""

GUARDED = frozenset({"TaskCreated", "TaskCompleted", "PlanSubmitted", "ScheduleFired", "WorktreeCreate"})
"""Events, besides a call, that a fault stops which is not forgiven: what would be done can be done later."""

_LIST = re.compile(r"[A-Za-z0-9_\-,| ]*")
_NOT_JAVASCRIPT = re.compile(r"\(\?(?![:=!]|<[=!A-Za-z_$])|\\[AZGz]|[*+?}]\+")
_NOT_PYTHON = re.compile(r"\\[pPck]|\[\^?\]|\\u\{")


class Misfit(ValueError):
    """A matcher or an answer that cannot be followed; its text says why."""


@dataclass(frozen=True, slots=True)
class Matcher:
    """Which tools a hook is about: all, a list of names, or a regular expression that is searched for."""

    text: str
    names: frozenset[str] | None = None
    pattern: re.Pattern[str] | None = None
    excludes: bool = False
    """It has a negative look-around, so all names of a tool have to pass: `^(?!Bash$)` is not about `bash`."""

    def fits(self, names: Iterable[str]) -> bool:
        """Whether a tool with these names is meant, by any of them."""
        if self.names is not None:
            return not self.names.isdisjoint(names)
        if self.pattern is None:
            return True
        found = (self.pattern.search(name) is not None for name in names)
        return all(found) if self.excludes else any(found)


def read_matcher(text: str) -> Matcher:
    """The matcher as written. Raises `Misfit` for a regular expression that JavaScript and Python read apart."""
    if text in ("", "*"):
        return Matcher(text)
    if _LIST.fullmatch(text):
        names = frozenset(part.strip() for part in re.split(r"[|,]", text) if part.strip())
        if not names:
            raise Misfit(f"the matcher {text!r} names no tool: write the names, or leave it out for all tools")
        return Matcher(text, names)
    if odd := _NOT_JAVASCRIPT.search(text) or _NOT_PYTHON.search(text):
        raise Misfit(f"the matcher {text!r} has {odd.group()!r}, which not every reader understands alike")
    try:
        pattern = re.compile(re.sub(r"\(\?<(?![=!])", "(?P<", text), re.ASCII)
    except re.error as error:
        raise Misfit(f"the matcher {text!r} is no regular expression: {error}") from error
    return Matcher(text, pattern=pattern, excludes="(?!" in text or "(?<!" in text)


def names_of(tool: str) -> tuple[str, ...]:
    """All names of a tool, ours first: `task` is `Agent` and `Task` too."""
    return (tool, *(theirs for theirs, ours in COMPATIBLE.items() if tool in ours))


def never_fits(matcher: Matcher) -> bool:
    """Whether the matcher means no tool of ours, and no tool that an MCP server could bring."""
    if any(matcher.fits(names_of(tool)) for tool in ALL_TOOLS):
        return False
    if matcher.names is not None:
        return not any(re.fullmatch(r"mcp__.+?__.+", name) for name in matcher.names)
    return "mcp" not in matcher.text


def capped(text: str) -> str:
    """The text as it may be kept: at most `MOST_CHARACTERS`, the cut marked; no lone surrogates."""
    text = text.encode("utf-8", "replace").decode()
    if len(text) <= MOST_CHARACTERS:
        return text
    mark = f"\n[cut: this hook said {len(text):,} characters]"
    return text[: MOST_CHARACTERS - len(mark)] + mark


def plain_json(value: object) -> Any:
    """A copy of the value as plain JSON. Raises `Misfit` when it is none: NaN, lone surrogates, other objects."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode()
        return json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise Misfit(f"is no JSON: {error}") from error


# One hook's answers


@dataclass(frozen=True, slots=True)
class Heard:
    """What one hook came to."""

    by: str
    """`hook NAME (SOURCE)`."""
    answers: tuple[Answer, ...] = ()
    fault: str = ""
    fail_open: bool = False
    notices: tuple[str, ...] = ()


def understood(event: str, value: object) -> tuple[Answer, ...]:
    """The answers that a callable's value stands for. Raises `Misfit`, saying why, for a value that is none."""
    if value is None:
        return ()
    if event == "PreToolUse" and isinstance(value, str) and value.strip():
        value = Deny(value)
    if not isinstance(value, FITTING[event]):
        kinds = ", ".join(["None", *(kind.__name__ for kind in FITTING[event])])
        raise Misfit(f"it returned {_shown(value)}; {event} takes {kinds}")
    return (checked(event, value),)


def _shown(value: object) -> str:
    return repr(value)[:80] if value in ("", True, False) else type(value).__name__


def checked(event: str, answer: Answer) -> Answer:
    """The answer with its texts capped and its JSON copied. Raises `Misfit` for one that cannot be followed."""
    if isinstance(answer, Rewrite):
        return _checked_result(answer) if event == "PostToolUse" else _checked_input(answer)
    text = cast("object", answer.text if isinstance(answer, AddContext) else answer.reason)
    if not isinstance(text, str):
        raise Misfit(f"the text of its {type(answer).__name__} is {type(text).__name__}")
    if isinstance(answer, AddContext):
        return AddContext(capped(text))
    if not text.strip() and isinstance(answer, GoOn):
        raise Misfit("its GoOn has no reason: the model would not know what to do")
    return type(answer)(capped(text))


def _checked_input(answer: Rewrite) -> Rewrite:
    given = cast("object", answer.input)
    if not isinstance(given, dict) or answer.content is not None or answer.is_error is not None:
        raise Misfit("its Rewrite of a call has to have `input`, an object, and nothing else")
    try:
        return Rewrite(input=plain_json(cast("object", given)))
    except Misfit as error:
        raise Misfit(f"the input of its Rewrite {error}") from error


def _checked_result(answer: Rewrite) -> Rewrite:
    if answer.input is not None:
        raise Misfit("its Rewrite has `input`, and the call has run: rewrite `content`")
    if answer.is_error is not None and not isinstance(cast("object", answer.is_error), bool):
        raise Misfit("the `is_error` of its Rewrite is neither true nor false")
    if answer.content is None:
        if answer.is_error is None:
            raise Misfit("its Rewrite rewrites nothing")
        return answer
    return Rewrite(content=blocks_of(answer.content), is_error=answer.is_error)


def blocks_of(content: object) -> tuple[Json, ...]:
    """A result's blocks, from a text or from text and image blocks. Raises `Misfit` for anything else."""
    if isinstance(content, str):
        text = content.encode("utf-8", "replace").decode()
        return ({"type": "text", "text": text},) if text else ()
    if not isinstance(content, list | tuple):
        raise Misfit("a result is a text or a list of blocks")
    blocks = cast("list[object]", plain_json(list(cast("Sequence[object]", content))))
    for block in blocks:
        fields = cast("Json", block) if isinstance(block, dict) else {}
        fits = (
            isinstance(fields.get("text"), str) and fields["text"]
            if fields.get("type") == "text"
            else fields.get("source")
        )
        if fields.get("type") not in ("text", "image") or not fits:
            raise Misfit("a result's block is a text that is not empty, or an image")
    return tuple(cast("list[Json]", blocks))


# All hooks of one event


def rewritten(event: HookEvent, heard: Heard) -> HookEvent:
    """The event as this hook rewrote it; the same object when it did not."""
    for answer in heard.answers:
        if not isinstance(answer, Rewrite):
            continue
        if isinstance(event, PreToolUse | PermissionRequest):
            event = replace(event, call=event.call.model_copy(update={"input": answer.input}))
        elif isinstance(event, PostToolUse):
            content = event.result.content if answer.content is None else blocks_of(answer.content)
            is_error = event.result.is_error if answer.is_error is None else answer.is_error
            event = replace(event, result=replace(event.result, content=content, is_error=is_error))
    return event


def pre_verdict(heard: Sequence[Heard], new_input: Json | None) -> PreVerdict:
    """deny > ask > allow, the first of the strongest kind. A halt, and a fault that is not forgiven, deny."""
    halt, halted_by = _halt(heard)
    decision, by, why = _strongest(heard)
    if halt and decision != "deny":
        decision, by, why = "deny", halted_by, halt
    return PreVerdict(decision, why, by, new_input, _texts(heard, AddContext), halt, _notices(heard))


def permission_verdict(heard: Sequence[Heard], new_input: Json | None) -> PreVerdict:
    """deny > allow, in place of the person; a halt denies. A fault decides nothing: the person is asked."""
    return pre_verdict([replace(one, fail_open=True) for one in heard], new_input)


def _strongest(heard: Sequence[Heard]) -> tuple[Literal["allow", "ask", "deny"] | None, str, str]:
    for one in heard:
        if one.fault and not one.fail_open:
            return "deny", one.by, f"it failed: {one.fault}"
        if (answer := _first(one, Deny)) is not None:
            return "deny", one.by, answer.reason or "it gave no reason"
    for one in heard:
        if (answer := _first(one, Ask)) is not None:
            return "ask", one.by, answer.reason
    for one in heard:
        if (answer := _first(one, Allow)) is not None:
            return "allow", one.by, answer.reason
    return None, "", ""


def _first(heard: Heard, kind: type[Reasoned]) -> Reasoned | None:
    return next((answer for answer in heard.answers if isinstance(answer, kind)), None)


def post_verdict(heard: Sequence[Heard], result: ToolResult | None) -> PostVerdict:
    """The result as rewritten last, all texts in order; a fault that is not forgiven is one of the texts."""
    content, is_error = (None, None) if result is None else (result.content, result.is_error)
    return PostVerdict(content, is_error, _told(heard), _halt(heard)[0], _notices(heard))


def prompt_verdict(heard: Sequence[Heard]) -> PromptVerdict:
    """Blocked when one denies or halts; a fault that is not forgiven is told to the model beside the prompt."""
    halt, _ = _halt(heard)
    denials = ((one.by, answer) for one in heard if (answer := _first(one, Deny)) is not None)
    block = next((answer.reason or f"{by} gave no reason" for by, answer in denials), halt)
    return PromptVerdict(block, _told(heard), halt, _notices(heard))


def stop_verdict(heard: Sequence[Heard]) -> StopVerdict:
    """It goes on for all the reasons given, unless one halts. A fault keeps nothing going: it is told to the person."""
    halt, _ = _halt(heard)
    reasons = _texts(heard, GoOn)
    return StopVerdict("" if halt else "\n\n".join(reasons), halt, _notices(heard))


def moment_verdict(event: str, heard: Sequence[Heard]) -> MomentVerdict:
    """Blocked by the first denial, or by all reasons to go on. What the event does not take has no effect."""
    halt, _ = _halt(heard)
    context = _told(heard) if AddContext in FITTING[event] else ()
    block, by = _objection(event, heard)
    if halt and GoOn in FITTING[event]:
        block, by = "", ""
    return MomentVerdict(block, by, context, halt, _notices(heard))


def _objection(event: str, heard: Sequence[Heard]) -> tuple[str, str]:
    """Why it may not be, or why it goes on, and the first hook that says so."""
    for one in heard:
        if one.fault and not one.fail_open and event in GUARDED:
            return f"{one.by} failed: {one.fault}", one.by
        if (answer := _first(one, Deny)) is not None:
            return answer.reason or f"{one.by} gave no reason", one.by
    going = [one for one in heard if any(isinstance(answer, GoOn) for answer in one.answers)]
    return ("\n\n".join(_texts(going, GoOn)), going[0].by) if going else ("", "")


def _halt(heard: Sequence[Heard]) -> tuple[str, str]:
    for one in heard:
        if (answer := _first(one, Halt)) is not None:
            return answer.reason or f"{one.by} stopped it", one.by
    return "", ""


def _texts(heard: Sequence[Heard], kind: type[AddContext | GoOn]) -> tuple[str, ...]:
    said = (answer for one in heard for answer in one.answers if isinstance(answer, kind))
    texts = (answer.text if isinstance(answer, AddContext) else answer.reason for answer in said)
    return tuple(text for text in texts if text.strip())


def _told(heard: Sequence[Heard]) -> tuple[str, ...]:
    """Texts for the model, faults that are not forgiven among them."""
    faults = (f"{one.by} failed: {one.fault}" for one in heard if one.fault and not one.fail_open)
    return (*_texts(heard, AddContext), *faults)


def _notices(heard: Sequence[Heard]) -> tuple[str, ...]:
    """Texts for the person: what hooks tell them, and every fault."""
    told = [f"{one.by}: {text}" for one in heard for text in one.notices]
    return (*told, *(f"{one.by} failed: {one.fault}" for one in heard if one.fault))
