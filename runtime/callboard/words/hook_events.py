"""The moments of an agent's life at which hooks are asked: one frozen class each, its name is the event's.

They are never journalled: only what follows from an answer is. Which answer fits which event stands in
`callboard.words.hooks.FITTING`; when each is fired, how often after a crash, and what it may change: docs/hooks.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from callboard.words.context import Message
from callboard.words.specs import PermissionMode
from callboard.words.values import Json, ToolCall

Origin = Literal["person", "schedule"]
StartSource = Literal["startup", "resume", "clear", "compact"]
EndReason = Literal["clear", "prompt_input_exit", "other"]
NotificationType = Literal["permission_prompt", "idle_prompt", "agent_needs_input", "agent_completed"]
FailureKind = Literal[
    "rate_limit",
    "overloaded",
    "authentication_failed",
    "billing_error",
    "invalid_request",
    "model_not_found",
    "server_error",
    "max_output_tokens",
    "unknown",
]
Trigger = Literal["manual", "auto"]


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
    skills: tuple[str, ...] = ()
    """Those that it has loaded."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool returned, as the model would see it, and its structured form."""

    content: tuple[Json, ...]
    is_error: bool = False
    data: Json = field(default_factory=dict[str, Any])


# The session and its agents


@dataclass(frozen=True, slots=True)
class SessionStart:
    """A lead or a teammate begins, goes on in another process, or has had its conversation compacted."""

    source: StartSource = "startup"
    model: str = ""
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """This process hosts the session no longer."""

    reason: EndReason = "other"
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class SubagentStart:
    """A subagent (`by`) begins: it has not asked the model yet."""

    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class Notification:
    """Something waits for a person, or is over: what a desktop would show."""

    message: str
    notification_type: NotificationType
    title: str = ""
    by: Caller = Caller()


# Turns


@dataclass(frozen=True, slots=True)
class UserPromptSubmit:
    """A person or a schedule asks for something; nothing of it has reached the model."""

    text: str
    origin: Origin = "person"
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class EnvelopeDelivered:
    """Mail goes into the conversation of `by`: words of a person, a mate, a schedule, the runtime."""

    id: str
    type: str
    """`prompt`, `message`, `result`, `scheduled` ..., as in docs/bus.md."""
    sender: str
    text: str
    request_id: str = ""
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class Stop:
    """The model of a lead or a teammate has ended its turn. `view` is what it was sent last."""

    view: tuple[Message, ...] = ()
    text: str = ""
    """The last text of the model."""
    blocks: int = 0
    """How often in a row a hook has kept it going in this turn."""
    background: tuple[Json, ...] = ()
    """What of it still runs: `id`, `type` (`shell`, `teammate`, `subagent`), `status`, `description`, `command`."""
    schedules: tuple[Json, ...] = ()
    """What begins by itself: `id`, `schedule` (five fields), `recurring`, `prompt`."""
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class SubagentStop:
    """The model of a subagent has ended its turn; its text is what its parent will read."""

    view: tuple[Message, ...] = ()
    text: str = ""
    blocks: int = 0
    """How often in a row a hook has kept it going in this turn."""
    background: tuple[Json, ...] = ()
    """What of it still runs: `id`, `type` (`shell`, `teammate`, `subagent`), `status`, `description`, `command`."""
    schedules: tuple[Json, ...] = ()
    """What begins by itself: `id`, `schedule` (five fields), `recurring`, `prompt`."""
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class TeammateIdle:
    """A teammate (`by`) has ended its turn, `Stop` hooks included, and would rest."""

    text: str = ""
    """The last text of the model."""
    blocks: int = 0
    """How often in a row a hook has kept it going in this turn."""
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class StopFailure:
    """A turn ended since the model could not be asked, and nothing is left to try."""

    error: FailureKind
    details: str = ""
    by: Caller = Caller()


# Tool calls


@dataclass(frozen=True, slots=True)
class PreToolUse:
    """A tool call passed its schema, and no rule has looked at it yet. `call.input` has our field names."""

    call: ToolCall
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class PermissionRequest:
    """A person would be asked whether this call may run. Never told where only a person may answer."""

    call: ToolCall
    rule: str = ""
    """What asks: a rule's text, or `mode NAME`."""
    why: str = ""
    suggestions: tuple[Json, ...] = ()
    """What "always" would allow, as permission updates of the compatible format."""
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class PostToolUse:
    """A tool has run, also when it failed. After a crash it is told again, with the same `call.id`."""

    call: ToolCall
    result: ToolResult
    seconds: float = 0.0
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class PostToolUseFailure:
    """A tool has run and failed. After a crash it is told again, with the same `call.id`."""

    call: ToolCall
    error: str
    """The text of its result."""
    interrupted: bool = False
    seconds: float = 0.0
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class CallDone:
    """One call of a reply with its result, as the model will see it."""

    call: ToolCall
    result: ToolResult


@dataclass(frozen=True, slots=True)
class PostToolBatch:
    """All calls of a reply are settled, and the model has not read the results. Denied calls are among them."""

    calls: tuple[CallDone, ...]
    by: Caller = Caller()


# Tasks, plans, requests


@dataclass(frozen=True, slots=True)
class TaskCreated:
    """A tool would put this task on the board."""

    task: str
    """Its id."""
    subject: str
    description: str = ""
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class TaskCompleted:
    """A tool would complete this task; its check, where it has one, has passed."""

    task: str
    subject: str
    description: str = ""
    result: str = ""
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class PlanSubmitted:
    """A plan would be put to whoever may approve it."""

    plan: str
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class RequestAnswered:
    """A request that `by` waits for was answered, ran into its deadline, or was taken back."""

    id: str
    kind: str
    """`permission`, `plan`, `question`, `shutdown`."""
    status: str
    """`approved`, `rejected`, `answered`, `expired`, `withdrawn`."""
    subject: str = ""
    answered_by: str = ""
    reason: str = ""
    by: Caller = Caller()


# Schedules, budgets, context, folders


@dataclass(frozen=True, slots=True)
class ScheduleFired:
    """A schedule is due, and its prompt has been sent to nobody. `by` is who would get it."""

    schedule: str
    """Its id."""
    prompt: str
    slot: float
    """The moment that it was due, Unix seconds."""
    cron: str = ""
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class BudgetReached:
    """The next call of `by` does not fit a budget."""

    budget: str
    """Whose: the session's, an agent's, a schedule's name."""
    kind: str
    """`tokens`, `cost_usd`, `steps`, `seconds`, `agents`, `depth`."""
    limit: float
    spent: float
    wanted: float
    winds_down: bool = False
    """A last call is left, to say what is left to do."""
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class PreCompact:
    """The conversation would be summarised."""

    trigger: Trigger = "auto"
    instructions: str = ""
    """What a person wants kept."""
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class PostCompact:
    """The conversation was summarised."""

    trigger: Trigger = "auto"
    summary: str = ""
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class WorktreeCreate:
    """A worktree would be made for `by`."""

    name: str
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class WorktreeRemove:
    """A worktree is gone."""

    path: str
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class CwdChanged:
    """The tools of `by` run in another folder from now on. Both absolute."""

    old: str
    new: str
    by: Caller = Caller()


HookEvent = (
    SessionStart
    | SessionEnd
    | SubagentStart
    | Notification
    | UserPromptSubmit
    | EnvelopeDelivered
    | Stop
    | SubagentStop
    | TeammateIdle
    | StopFailure
    | PreToolUse
    | PermissionRequest
    | PostToolUse
    | PostToolUseFailure
    | PostToolBatch
    | TaskCreated
    | TaskCompleted
    | PlanSubmitted
    | RequestAnswered
    | ScheduleFired
    | BudgetReached
    | PreCompact
    | PostCompact
    | WorktreeCreate
    | WorktreeRemove
    | CwdChanged
)
