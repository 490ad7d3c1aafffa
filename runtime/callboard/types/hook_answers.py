"""Answers of hooks, and the events that hooks receive. Frozen and never journalled; only the effects of an answer are.

A hook that is a Python callable gets one event and returns None or one answer:

    from callboard.types.hook_answers import Deny, PreToolUse, hook

    @hook("PreToolUse", matcher="bash")
    def no_push(event: PreToolUse) -> Deny | None:
        return Deny("pushes go through review") if "git push" in event.call.input["command"] else None

`FITTING` lists the answers that each event accepts. Any other answer is a fault of the hook.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, TypeVar

from callboard.types.hook_events import (
    BudgetReached,
    CallDone,
    Caller,
    CwdChanged,
    EndReason,
    EnvelopeDelivered,
    FailureKind,
    HookEvent,
    HookToolResult,
    Notification,
    PermissionRequest,
    PlanSubmitted,
    PostCompact,
    PostToolBatch,
    PostToolUse,
    PostToolUseFailure,
    PreCompact,
    PreToolUse,
    RequestAnswered,
    ScheduleFired,
    SessionEnd,
    SessionStart,
    Stop,
    StopFailure,
    SubagentStart,
    SubagentStop,
    TaskCompleted,
    TaskCreated,
    TeammateIdle,
    ToolResult,
    Trigger,
    UserPromptSubmit,
    WorktreeCreate,
    WorktreeRemove,
)
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json, StartSource

__all__ = [
    "FITTING",
    "MARKS",
    "SOURCES",
    "TOOL_EVENTS",
    "AddContext",
    "Allow",
    "Answer",
    "Ask",
    "BudgetReached",
    "CallDone",
    "Caller",
    "CwdChanged",
    "Deny",
    "EndReason",
    "EnvelopeDelivered",
    "FailureKind",
    "GoOn",
    "Halt",
    "HandlerResult",
    "HookEvent",
    "HookMark",
    "HookSource",
    "HookToolResult",
    "MomentVerdict",
    "Notification",
    "PermissionRequest",
    "PlanSubmitted",
    "PostCompact",
    "PostToolBatch",
    "PostToolUse",
    "PostToolUseFailure",
    "PostVerdict",
    "PreCompact",
    "PreToolUse",
    "PreVerdict",
    "PromptVerdict",
    "RequestAnswered",
    "Rewrite",
    "ScheduleFired",
    "SessionEnd",
    "SessionStart",
    "StartSource",
    "Stop",
    "StopFailure",
    "StopVerdict",
    "SubagentStart",
    "SubagentStop",
    "TaskCompleted",
    "TaskCreated",
    "TeammateIdle",
    "ToolResult",
    "Trigger",
    "UserPromptSubmit",
    "WorktreeCreate",
    "WorktreeRemove",
    "hook",
]

HookSource = Literal["builtin", "person", "workspace", "agent", "skill"]
"""Source of a hook. Hooks run in the order of the sources listed here."""

SOURCES: tuple[HookSource, ...] = ("builtin", "person", "workspace", "agent", "skill")

TOOL_EVENTS = frozenset({"PreToolUse", "PermissionRequest", "PostToolUse", "PostToolUseFailure"})
"""Events of one tool call. Their matcher applies to the tool."""


# Answers


@dataclass(frozen=True, slots=True)
class Allow:
    """Skip a question that only the permission mode requires. Overrides no rule."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the user, whatever the mode."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Deny:
    """Deny the event. The model reads the reason of a denied call, the user that of a denied prompt."""

    reason: str


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Replace the whole input of a call, or its result. Set exactly the field that the event has."""

    input: Json | None = None
    content: str | Sequence[Json] | None = None
    """New result: its text, or its blocks in the form of the API."""
    is_error: bool | None = None


@dataclass(frozen=True, slots=True)
class AddContext:
    """Add a text for the model to the prompt or the result, in a separate tag."""

    text: str


@dataclass(frozen=True, slots=True)
class GoOn:
    """Continue the turn. The reason is the instruction to the model."""

    reason: str


@dataclass(frozen=True, slots=True)
class Halt:
    """Stop the agent here. Overrides every other answer. The user reads the reason."""

    reason: str


Answer = Allow | Ask | Deny | Rewrite | AddContext | GoOn | Halt

FITTING: Mapping[str, tuple[type[Answer], ...]] = MappingProxyType(
    {
        "SessionStart": (AddContext,),
        "SessionEnd": (),
        "SubagentStart": (AddContext,),
        "Notification": (),
        "UserPromptSubmit": (Deny, AddContext, Halt),
        "EnvelopeDelivered": (AddContext,),
        "Stop": (GoOn, Halt),
        "SubagentStop": (GoOn, Halt),
        "TeammateIdle": (GoOn, Halt),
        "StopFailure": (),
        "PreToolUse": (Allow, Ask, Deny, Rewrite, AddContext, Halt),
        "PermissionRequest": (Allow, Deny, Rewrite, Halt),
        "PostToolUse": (Rewrite, AddContext, Halt),
        "PostToolUseFailure": (AddContext, Halt),
        "PostToolBatch": (Deny, AddContext, Halt),
        "TaskCreated": (Deny,),
        "TaskCompleted": (Deny, Halt),
        "PlanSubmitted": (Deny, Halt),
        "RequestAnswered": (),
        "ScheduleFired": (Deny,),
        "BudgetReached": (),
        "PreCompact": (Deny,),
        "PostCompact": (),
        "WorktreeCreate": (Deny,),
        "WorktreeRemove": (),
        "CwdChanged": (),
    }
)
"""Events and the answers that each accepts. None: the event only informs, and an answer has no effect."""


@dataclass(frozen=True, slots=True)
class HandlerResult:
    """Result of a handler that is not a Python callable. It may hold several answers, or none."""

    answers: tuple[Answer, ...] = ()
    """Answers of the handler. A `Rewrite` of an input has the fields of the compatible tool."""
    fault: str = ""
    """Reason why the handler failed: a crash, a time-out, invalid output. The hook's source decides whether a fault
    blocks anything.
    """
    notices: tuple[str, ...] = ()
    """Texts for the user, never for the model."""
    blocked: str = ""
    """Reason why the handler blocks by its exit code; empty if it does not."""
    skipped: bool = False
    """True if the handler did not run, because its condition does not match the call."""


# Verdicts: combined answers of all hooks of one event


@dataclass(frozen=True, slots=True)
class PreVerdict:
    """Combined answers to one tool call. A halt is also a denial."""

    decision: Literal["allow", "ask", "deny"] | None = None
    why: str = ""
    by: str = ""
    """Hook that decided, as `hook NAME (SOURCE)`."""
    input: Json | None = None
    """The whole new input in Callboard's fields, to be checked by the schema again; None: no hook rewrote it."""
    context: tuple[str, ...] = ()
    halt: str = ""
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PostVerdict:
    """Combined answers to one result. None: the result of the tool."""

    content: tuple[Json, ...] | None = None
    is_error: bool | None = None
    context: tuple[str, ...] = ()
    halt: str = ""
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptVerdict:
    """Combined answers to one prompt. `block` is the reason for rejecting it; empty if it is accepted."""

    block: str = ""
    context: tuple[str, ...] = ()
    halt: str = ""
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StopVerdict:
    """Combined answers to the end of a turn. `go_on` is the reason to continue; empty if the turn ends."""

    go_on: str = ""
    halt: str = ""
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MomentVerdict:
    """Combined answers to any other event. Their effect depends on the event (`FITTING`)."""

    block: str = ""
    """Reason why the event is denied (`Deny`), or why the agent continues (`GoOn`); empty if no hook objects."""
    by: str = ""
    """Hook that blocks, as `hook NAME (SOURCE)`."""
    context: tuple[str, ...] = ()
    halt: str = ""
    notices: tuple[str, ...] = ()


# Marking a function


@dataclass(frozen=True, slots=True)
class HookMark:
    """Mark that `hook` sets on a function, for `HookRegistry.include` to read."""

    event: str
    matcher: str = ""


MARKS = "callboard_hooks"
"""Name of the attribute that holds a function's hook marks."""

Function = TypeVar("Function", bound=Callable[..., object])


def hook(event: str, matcher: str = "") -> Callable[[Function], Function]:
    """Mark a function as a hook of this event. `HookRegistry.include(function)` registers it."""

    def mark(function: Function) -> Function:
        marks: tuple[HookMark, ...] = getattr(function, MARKS, ())
        setattr(function, MARKS, (*marks, HookMark(event, matcher)))
        return function

    return mark
