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
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from callboard.words.context import Message
from callboard.words.specs import PermissionMode
from callboard.words.values import Json, ToolCall

HookSource = Literal["builtin", "person", "workspace", "agent", "skill"]
"""Where a hook comes from. They speak in this order."""

SOURCES: tuple[HookSource, ...] = ("builtin", "person", "workspace", "agent", "skill")

TOOL_EVENTS = frozenset({"PreToolUse", "PostToolUse"})
"""The events of a tool call: only these have a matcher."""


# Events


@dataclass(frozen=True, slots=True)
class Caller:
    """The agent that it is about, and where it works."""

    session: str = ""
    name: str = "lead"
    kind: Literal["lead", "teammate", "subagent"] = "lead"
    agent_type: str = ""
    permission_mode: PermissionMode = "default"
    folder: str = "/"
    """Where its tools run: absolute. A worktree's, when it has one."""
    transcript: str = ""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool returned, as the model would see it, and its structured form."""

    content: tuple[Json, ...]
    is_error: bool = False
    data: Json = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class UserPromptSubmit:
    """A person or a schedule asks for something; nothing of it has reached the model."""

    text: str
    origin: Literal["person", "schedule"] = "person"
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class PreToolUse:
    """A tool call passed its schema, and no rule has looked at it yet. `call.input` has our field names."""

    call: ToolCall
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class PostToolUse:
    """A tool has run, also when it failed. After a crash it is told again, with the same `call.id`."""

    call: ToolCall
    result: ToolResult
    seconds: float = 0.0
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class Stop:
    """The model has ended its turn. `view` is what it was sent last."""

    view: tuple[Message, ...] = ()
    text: str = ""
    """The last text of the model."""
    blocks: int = 0
    """How often in a row a hook has kept it going in this turn."""
    by: Caller = Caller()


HookEvent = UserPromptSubmit | PreToolUse | PostToolUse | Stop


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
        "UserPromptSubmit": (Deny, AddContext, Halt),
        "PreToolUse": (Allow, Ask, Deny, Rewrite, AddContext, Halt),
        "PostToolUse": (Rewrite, AddContext, Halt),
        "Stop": (GoOn, Halt),
    }
)
"""The events there are, and the answers that each takes."""


@dataclass(frozen=True, slots=True)
class HandlerResult:
    """What a handler that is no Python callable answered. Several answers are possible, and none."""

    answers: tuple[Answer, ...] = ()
    """A `Rewrite` of an input is in the compatible tool's fields."""
    fault: str = ""
    """Why it failed: a crash, a time-out, an output that is none. Its source says whether that stops anything."""
    notices: tuple[str, ...] = ()
    """For the person who looks on, never for the model."""


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
