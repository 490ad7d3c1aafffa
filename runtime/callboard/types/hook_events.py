"""Events that hooks receive: one frozen class for each. The name of the class is the name of the event.

Events are never journalled; only the effects of an answer are. `callboard.types.hook_answers.FITTING` lists the answers
that each event accepts. docs/hooks.md says when each event fires, how often after a crash, and what an answer may
change.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, Literal

from callboard.types.lazy_dataclass import dataclass
from callboard.types.messages import ViewMessage
from callboard.types.records import Json, PermissionMode, StartSource, ToolCall

Origin = Literal["person", "schedule"]
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
    """Agent of the event, and the folder in which it works."""

    session: str = ""
    name: str = "lead"
    kind: Literal["lead", "teammate", "subagent"] = "lead"
    agent_type: str = ""
    permission_mode: PermissionMode = "default"
    folder: str = "/"
    """Absolute path of the folder in which the agent's tools run: its worktree, if it has one."""
    transcript: str = ""
    """Path of the agent's own transcript."""
    main_transcript: str = ""
    """Transcript of the lead or teammate that a subagent works for; empty if the agent is not a subagent."""
    skills: tuple[str, ...] = ()
    """Names of the skills that the agent has loaded."""


@dataclass(frozen=True, slots=True)
class HookToolResult:
    """Result of a tool as the model would see it, and its structured form."""

    content: tuple[Json, ...]
    is_error: bool = False
    data: Json = field(default_factory=dict[str, Any])


ToolResult = HookToolResult
"""Former name of `HookToolResult`."""


# The session and its agents


@dataclass(frozen=True, slots=True)
class SessionStart:
    """A lead or a teammate starts, continues in another process, or had its conversation compacted."""

    source: StartSource = "startup"
    model: str = ""
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class SessionEnd:
    """This process no longer hosts the session."""

    reason: EndReason = "other"
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class SubagentStart:
    """A subagent (`by`) starts. It has not called the model yet."""

    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class Notification:
    """Something waits for the user, or has ended: the content of a desktop notification."""

    message: str
    notification_type: NotificationType
    title: str = ""
    by: Caller = Caller()
    request_id: str = ""
    """Request that waits; empty: none does."""


# Turns


@dataclass(frozen=True, slots=True)
class UserPromptSubmit:
    """The user or a schedule sends a prompt. The model has not seen any of it."""

    text: str
    origin: Origin = "person"
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class EnvelopeDelivered:
    """An envelope enters the conversation of `by`: from the user, a teammate, a schedule, or the runtime."""

    id: str
    type: str
    """`prompt`, `message`, `result`, `scheduled` ..., as in docs/bus.md."""
    sender: str
    text: str
    request_id: str = ""
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class Stop:
    """The model of a lead or a teammate ended its turn. `view` is the last request."""

    view: tuple[ViewMessage, ...] = ()
    text: str = ""
    """Last text of the model."""
    blocks: int = 0
    """Number of times in a row that a hook has kept the agent going in this turn."""
    background: tuple[Json, ...] = ()
    """Work of the agent that still runs: `id`, `type` (`shell`, `teammate`, `subagent`), `status`, `description`,
    `command`.
    """
    schedules: tuple[Json, ...] = ()
    """Schedules of the session: `id`, `schedule` (five fields), `recurring`, `prompt`."""
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class SubagentStop:
    """The model of a subagent ended its turn. Its text is the result for the parent."""

    view: tuple[ViewMessage, ...] = ()
    text: str = ""
    blocks: int = 0
    """Number of times in a row that a hook has kept the subagent going in this turn."""
    background: tuple[Json, ...] = ()
    """Work of the subagent that still runs: `id`, `type` (`shell`, `teammate`, `subagent`), `status`, `description`,
    `command`.
    """
    schedules: tuple[Json, ...] = ()
    """Schedules of the session: `id`, `schedule` (five fields), `recurring`, `prompt`."""
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class TeammateIdle:
    """A teammate (`by`) ended its turn, after the `Stop` hooks, and would become idle."""

    text: str = ""
    """Last text of the model."""
    blocks: int = 0
    """Number of times in a row that a hook has kept the teammate going in this turn."""
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class StopFailure:
    """A turn ended because the model could not be called, and no alternative is left."""

    error: FailureKind
    details: str = ""
    by: Caller = Caller()


# Tool calls


@dataclass(frozen=True, slots=True)
class PreToolUse:
    """A tool call passed its schema check. Rules apply after the hooks. `call.input` has Callboard's field names."""

    call: ToolCall
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class PermissionRequest:
    """The user would be asked whether this call may run. Not fired if only the user may answer."""

    call: ToolCall
    rule: str = ""
    """Rule that requires the question: its text, or `mode NAME`."""
    why: str = ""
    suggestions: tuple[Json, ...] = ()
    """Permission updates that "always" would apply, in the compatible format."""
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class PostToolUse:
    """A tool ran, successfully or not. After a crash the event may fire again with the same `call.id`."""

    call: ToolCall
    result: HookToolResult
    seconds: float = 0.0
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class PostToolUseFailure:
    """A tool ran and failed. After a crash the event may fire again with the same `call.id`."""

    call: ToolCall
    error: str
    """Text of the result."""
    interrupted: bool = False
    seconds: float = 0.0
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class CallDone:
    """One call of a reply with its result, as the model will see it."""

    call: ToolCall
    result: HookToolResult


@dataclass(frozen=True, slots=True)
class PostToolBatch:
    """All calls of a reply are settled, including denied calls. The model has not read the results yet."""

    calls: tuple[CallDone, ...]
    by: Caller = Caller()


# Tasks, plans, requests


@dataclass(frozen=True, slots=True)
class TaskCreated:
    """A tool would add this task to the board."""

    task: str
    """Id of the task."""
    subject: str
    description: str = ""
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class TaskCompleted:
    """A tool would complete this task. Its check, if it has one, passed."""

    task: str
    subject: str
    description: str = ""
    result: str = ""
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class PlanSubmitted:
    """A plan would be submitted to its approvers."""

    plan: str
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class RequestAnswered:
    """A request of `by` was answered, expired, or was withdrawn."""

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
    """A schedule is due, and its prompt has not been sent yet. `by` is the recipient."""

    schedule: str
    """Id of the schedule."""
    prompt: str
    slot: float
    """Due time, in Unix seconds."""
    cron: str = ""
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class BudgetReached:
    """The next call of `by` exceeds a budget."""

    budget: str
    """Owner of the budget: the session, an agent, or the name of a schedule."""
    kind: str
    """`tokens`, `cost_usd`, `price` (the price of the model is unknown), `steps`, `seconds`, `agents`, `depth`."""
    limit: float
    spent: float
    wanted: float
    winds_down: bool = False
    """True if one last call is allowed, to report the state of the work."""
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class PreCompact:
    """The conversation would be summarized."""

    trigger: Trigger = "auto"
    instructions: str = ""
    """Instructions of the user for the summary."""
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class PostCompact:
    """The conversation was summarized."""

    trigger: Trigger = "auto"
    summary: str = ""
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class WorktreeCreate:
    """A worktree would be created for `by`."""

    name: str
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class WorktreeRemove:
    """A worktree was removed."""

    path: str
    by: Caller = Caller()


@dataclass(frozen=True, slots=True)
class CwdChanged:
    """The tools of `by` run in another folder from now on. Both paths are absolute."""

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
