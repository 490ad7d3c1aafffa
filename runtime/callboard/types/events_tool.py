"""Events of tool calls, and of changes that a tool makes to its agent's state. `events.py` states the rules."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from callboard.types.records import Base, Cause, Grant, Json, Todo
from callboard.types.skills import Effort


class CallJudged(Base):
    """Decision of schema, hooks, rules and mode on a call. `input` is the input to run, if a hook rewrote it."""

    t: Literal["call_judged"] = "call_judged"
    call: str
    verdict: Literal["allow", "deny"]
    by: str = ""
    """Rule, hook, mode or person that decided."""
    why: str = ""
    input: Json | None = None
    context: tuple[str, ...] = ()
    """Texts that hooks add to the result."""
    mode: str = ""
    """Permission mode in force; empty if unknown or irrelevant."""
    level: int = 0
    """Sandbox level (0 to 3) of the decision."""
    grants: tuple[Grant, ...] = ()
    """Paths outside the agent's bounds that the allowed call may use."""


class ApprovalNeeded(Base):
    """The call waits for the answer to a request, which the same commit wrote. Its siblings continue."""

    t: Literal["approval_needed"] = "approval_needed"
    call: str
    request_id: str
    rule: str = ""
    why: str = ""
    input: Json | None = None
    expires_at: float | None = None
    context: tuple[str, ...] = ()
    """Texts that hooks add to the result, whatever the answer."""
    digest: str = ""
    """Digest of the content of the request. An approval of any other content is void."""
    mode: str = ""
    """Permission mode in force; empty if unknown or irrelevant."""
    level: int = 0
    """Sandbox level (0 to 3) of the decision."""
    grants: tuple[Grant, ...] = ()
    """Paths outside the agent's bounds that the call may use after approval."""


class AnswerTaken(Base):
    """A request of this agent is no longer pending, and the agent acts on the answer."""

    t: Literal["answer_taken"] = "answer_taken"
    request_id: str
    kind: Literal["plan", "permission", "shutdown", "question"]
    status: Literal["approved", "rejected", "answered", "expired", "withdrawn"]
    by: str = ""
    reason: str = ""
    digest: str = ""
    choice: str = ""
    """Approved option of a plan; empty: the plan as submitted."""
    mode: str = ""
    """Permission mode for carrying out an approved plan; empty if none was chosen."""
    plan: str = ""
    """Full plan as the user edited and approved it; empty: as submitted. `digest` is the digest of this content."""
    submitted: str = ""
    """Digest of the submitted plan, if the user edited it."""
    note: str = ""
    """Change in the surroundings since the request was made, such as a new commit at a plan's base."""
    input: Json | None = None
    """Checked input with which the user allowed the call to run; None: the original input."""
    void: str = ""
    """Reason why an approval is void; empty: it is valid."""
    grants: tuple[Grant, ...] = ()
    """Paths outside the agent's bounds that the call may use with the changed `input`."""


class ToolStarted(Base):
    """A tool starts. Durable before any effect. After a crash, `marks` show whether it finished: digests, or a pid and
    its start time."""

    t: Literal["tool_started"] = "tool_started"
    call: str
    effect: Literal["read", "store", "reconcile", "attach", "unknown"]
    marks: Json = Field(default_factory=dict)


class ToolFinished(Base):
    """Result of a tool, in one commit with its writes to the store. `data`: the structured result, for hooks."""

    t: Literal["tool_finished"] = "tool_finished"
    call: str
    content: tuple[Json, ...]
    is_error: bool = False
    data: Json = Field(default_factory=dict)
    ends_turn: bool = False
    """True if the turn ends once the results of this reply are merged (`report`, `compact` with end_turn)."""


class ToolSettled(Base):
    """The PostToolUse hooks have run, and this is the result for the model. `content` None: the result of the tool."""

    t: Literal["tool_settled"] = "tool_settled"
    call: str
    content: tuple[Json, ...] | None = None
    is_error: bool | None = None
    context: tuple[str, ...] = ()


class ResultsMerged(Base):
    """All calls of the reply are settled. One user message holds their results, in the order of the calls."""

    t: Literal["results_merged"] = "results_merged"
    waits: bool = False
    """True if the calls only watched work of others, so that no repetition is counted (`core.stuck`)."""


class StopHookRan(Base):
    """The Stop hooks ran at the end of a turn. `go_on` is their reason to continue; empty if there is none."""

    t: Literal["stop_hook_ran"] = "stop_hook_ran"
    go_on: str = ""


class TodosSet(Base):
    t: Literal["todos_set"] = "todos_set"
    todos: tuple[Todo, ...]


class FileSeen(Base):
    """The agent knows the content of a file: `digest` (sha256) of the content that it read or wrote."""

    t: Literal["file_seen"] = "file_seen"
    path: str
    digest: str
    changed: bool = False


class SkillLoaded(Base):
    """The text of a skill is in the conversation. The rules of its front matter apply until the turn ends."""

    t: Literal["skill_loaded"] = "skill_loaded"
    name: str
    digest: str = ""
    text: str = ""
    """Blob of the text in the conversation, for use after a summary; empty: it was not stored."""
    allowed: tuple[str, ...] = ()
    """Rules that allow a call without a question."""
    disallowed: tuple[str, ...] = ()
    """Rules that deny."""
    model: str = ""
    """Model from the next call on; empty: no change."""
    effort: Effort = ""


class SkillCommandsBegan(Base):
    """Commands in the text of a skill that the user invoked are about to run, and some of them may write. If they are
    cut off, they do not run again."""

    t: Literal["skill_commands_began"] = "skill_commands_began"
    envelope: str
    """Envelope that holds the text of the user."""
    commands: tuple[str, ...]


class GateSet(Base):
    """State of the plan gate. `required`: only reads until a plan is approved; `pending`: a plan waits as
    `request_id`."""

    t: Literal["gate_set"] = "gate_set"
    gate: Literal["open", "required", "pending"]
    request_id: str | None = None
    digest: str = ""
    plan: str = ""
    why: str = ""
    task: str = ""
    """Task of the plan; empty: the assignment."""


class TaskHeld(Base):
    """The agent claimed a task of the board (`held`), or returned, completed or failed it (`not held`)."""

    t: Literal["task_held"] = "task_held"
    task: str
    subject: str = ""
    held: bool = True


class Reported(Base):
    """The agent sent its final report on its assignment."""

    t: Literal["reported"] = "reported"
    status: Literal["done", "failed", "blocked"]
    result: str


class BackgroundStarted(Base):
    """A background command is running. `pid` and `started` (process start time) identify it."""

    t: Literal["background_started"] = "background_started"
    id: str
    command: str
    pid: int
    started: float
    output: str
    """File that collects the full output."""
    deadline: float | None = None
    authority: Cause = "person"
    """Authority of the turn that started it. Effects of its end may claim no more."""
    boot: str = ""
    """Boot id of the machine to which `pid` and `started` refer; empty if unknown (written by an older version)."""


class BackgroundEnded(Base):
    """A background command ended. `lost`: its process is gone and its end is unknown."""

    t: Literal["background_ended"] = "background_ended"
    id: str
    status: Literal["completed", "failed", "stopped", "timed_out", "lost"]
    exit_code: int | None = None


class CompactAsked(Base):
    """The `compact` tool or the user's /compact asked for a summary of the whole history at the next step."""

    t: Literal["compact_asked"] = "compact_asked"
    focus: str = ""
    by: Literal["tool", "person"] = "tool"
