"""What a hook is told, and what it may answer. Frozen, never journalled: only what follows from an answer is.

A hook that is a Python callable gets one event and returns None or one answer:

    from callboard.words.hooks import Deny, PreToolUse, hook

    @hook("PreToolUse", matcher="bash")
    def no_push(event: PreToolUse) -> Deny | None:
        return Deny("pushes go through review") if "git push" in event.call.input["command"] else None

Which answer fits which event stands in `FITTING`; any other answer is a fault of the hook.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeVar

from callboard.words.hook_events import (
    BudgetReached,
    CallDone,
    Caller,
    CwdChanged,
    EndReason,
    EnvelopeDelivered,
    FailureKind,
    HookEvent,
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
    StartSource,
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
from callboard.words.values import Json

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
"""Where a hook comes from. They speak in this order."""

SOURCES: tuple[HookSource, ...] = ("builtin", "person", "workspace", "agent", "skill")

TOOL_EVENTS = frozenset({"PreToolUse", "PermissionRequest", "PostToolUse", "PostToolUseFailure"})
"""The events of one tool call: their matcher is about the tool."""


# Answers


@dataclass(frozen=True, slots=True)
class Allow:
    """Do not ask where only the mode would ask. Lifts no rule."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask a person, whatever the mode."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Deny:
    """No. The model reads the reason of a denied call, the person that of a denied prompt."""

    reason: str


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Another input for a call (the whole input), or another result of one. Exactly what its event has."""

    input: Json | None = None
    content: str | Sequence[Json] | None = None
    """The result's new text, or its blocks in the API's form."""
    is_error: bool | None = None


@dataclass(frozen=True, slots=True)
class AddContext:
    """A text for the model, beside the prompt or the result, in a tag of its own."""

    text: str


@dataclass(frozen=True, slots=True)
class GoOn:
    """The turn is not over: the reason is what the model is told to do."""

    reason: str


@dataclass(frozen=True, slots=True)
class Halt:
    """Stop the agent here. Wins over every other answer. The person reads the reason."""

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
"""The events there are, and the answers that each takes. None: it informs, and nothing that is said has an effect."""


@dataclass(frozen=True, slots=True)
class HandlerResult:
    """What a handler that is no Python callable answered. Several answers are possible, and none."""

    answers: tuple[Answer, ...] = ()
    """A `Rewrite` of an input is in the compatible tool's fields."""
    fault: str = ""
    """Why it failed: a crash, a time-out, an output that is none. Its source says whether that stops anything."""
    notices: tuple[str, ...] = ()
    """For the person who looks on, never for the model."""
    blocked: str = ""
    """Why it blocks by its exit code; empty when it does not."""


# Verdicts: what all hooks of one event come to


@dataclass(frozen=True, slots=True)
class PreVerdict:
    """Over one tool call. A halt is a denial too."""

    decision: Literal["allow", "ask", "deny"] | None = None
    why: str = ""
    by: str = ""
    """The hook that decided, as `hook NAME (SOURCE)`."""
    input: Json | None = None
    """The whole new input, in our fields; None: nobody rewrote it. To be checked by the schema again."""
    context: tuple[str, ...] = ()
    halt: str = ""
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PostVerdict:
    """Over one result. None: as the tool returned it."""

    content: tuple[Json, ...] | None = None
    is_error: bool | None = None
    context: tuple[str, ...] = ()
    halt: str = ""
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptVerdict:
    """Over one prompt. `block` is why it goes no further; empty when it does."""

    block: str = ""
    context: tuple[str, ...] = ()
    halt: str = ""
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StopVerdict:
    """Over the end of a turn. `go_on` is why it goes on; empty when it ends."""

    go_on: str = ""
    halt: str = ""
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MomentVerdict:
    """Over any other event. What of it has an effect depends on the event (`FITTING`)."""

    block: str = ""
    """Why it may not be (`Deny`), or why it goes on (`GoOn`); empty when nobody objects."""
    by: str = ""
    """The hook that blocks, as `hook NAME (SOURCE)`."""
    context: tuple[str, ...] = ()
    halt: str = ""
    notices: tuple[str, ...] = ()


# Marking a function


@dataclass(frozen=True, slots=True)
class HookMark:
    """What `hook` wrote on a function: `HookRegistry.include` reads it."""

    event: str
    matcher: str = ""


MARKS = "callboard_hooks"
"""The attribute that holds a function's marks."""

Function = TypeVar("Function", bound=Callable[..., object])


def hook(event: str, matcher: str = "") -> Callable[[Function], Function]:
    """Mark a function as a hook of that event. Nothing is registered: `HookRegistry.include(function)` does that."""

    def mark(function: Function) -> Function:
        marks: tuple[HookMark, ...] = getattr(function, MARKS, ())
        setattr(function, MARKS, (*marks, HookMark(event, matcher)))
        return function

    return mark
