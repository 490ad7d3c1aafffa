"""Events of tool calls, and of what a tool changes in its agent's own state. The laws stand in `events.py`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from callboard.words.agent_events import Base
from callboard.words.skills import Effort
from callboard.words.values import Cause, Json, Todo


class CallJudged(Base):
    """Schema, hooks, rules and mode have spoken. `input` is what will run when a hook rewrote it."""

    t: Literal["call_judged"] = "call_judged"
    call: str
    verdict: Literal["allow", "deny"]
    by: str = ""
    """The rule, hook, mode or person that decided."""
    why: str = ""
    input: Json | None = None
    context: tuple[str, ...] = ()
    """Texts that hooks add beside the result."""
    mode: str = ""
    """The permission mode in force; empty: not known, or of no account."""
    level: int = 0
    """The sandbox level (0 to 3) by which it was judged."""


class ApprovalNeeded(Base):
    """A request was written in the same commit; the call waits for its answer, its siblings go on."""

    t: Literal["approval_needed"] = "approval_needed"
    call: str
    request_id: str
    rule: str = ""
    why: str = ""
    input: Json | None = None
    expires_at: float | None = None
    context: tuple[str, ...] = ()
    """Texts that hooks add beside the result, whatever the answer."""
    digest: str = ""
    """Of what is asked: an approval of anything else is void."""
    mode: str = ""
    """The permission mode in force; empty: not known, or of no account."""
    level: int = 0
    """The sandbox level (0 to 3) by which it was judged."""


class AnswerTaken(Base):
    """A request of this agent is no longer pending, and the agent acts on that."""

    t: Literal["answer_taken"] = "answer_taken"
    request_id: str
    kind: Literal["plan", "permission", "shutdown", "question"]
    status: Literal["approved", "rejected", "answered", "expired", "withdrawn"]
    by: str = ""
    reason: str = ""
    digest: str = ""
    choice: str = ""
    """Which of a plan's options was approved; empty: the plan as it stands."""
    plan: str = ""
    """A plan as a person edited and approved it, whole; empty: as it was submitted. `digest` is of this content."""
    submitted: str = ""
    """The digest of the plan that was submitted, where a person edited it."""
    note: str = ""
    """What has changed round it since it was asked for: the commit that a plan is based on."""
    input: Json | None = None
    """With which a person allowed the call to run instead, checked; None: as it was asked for."""
    void: str = ""
    """Why an approval does not count all the same."""


class ToolStarted(Base):
    """Durable before any effect. `marks` tell done from not done after a crash: digests, or a pid and its start."""

    t: Literal["tool_started"] = "tool_started"
    call: str
    effect: Literal["read", "store", "reconcile", "attach", "unknown"]
    marks: Json = Field(default_factory=dict)


class ToolFinished(Base):
    """Its result, together with whatever its effect wrote to the store. `data`: the structured form, for hooks."""

    t: Literal["tool_finished"] = "tool_finished"
    call: str
    content: tuple[Json, ...]
    is_error: bool = False
    data: Json = Field(default_factory=dict)
    ends_turn: bool = False
    """The turn ends when the results of this reply are merged (`report`, `compact` with end_turn)."""


class ToolSettled(Base):
    """PostToolUse has run: this is what the model sees. `content` None: as it finished."""

    t: Literal["tool_settled"] = "tool_settled"
    call: str
    content: tuple[Json, ...] | None = None
    is_error: bool | None = None
    context: tuple[str, ...] = ()


class ResultsMerged(Base):
    """All calls of the reply are settled: one user message with their results, in the order of the calls."""

    t: Literal["results_merged"] = "results_merged"
    waits: bool = False
    """They only watched what others had under way: no repetition is counted (`core.stuck`)."""


class StopHookRan(Base):
    """The Stop hooks spoke at the end of a turn; `go_on` is the reason to continue, empty when there is none."""

    t: Literal["stop_hook_ran"] = "stop_hook_ran"
    go_on: str = ""


class TodosSet(Base):
    t: Literal["todos_set"] = "todos_set"
    todos: tuple[Todo, ...]


class FileSeen(Base):
    """The agent knows this content of a file: `digest` (sha256) as it was read or as the agent wrote it."""

    t: Literal["file_seen"] = "file_seen"
    path: str
    digest: str
    changed: bool = False


class SkillLoaded(Base):
    """A skill's text is in the conversation. What its front matter says of calls holds until the turn ends."""

    t: Literal["skill_loaded"] = "skill_loaded"
    name: str
    digest: str = ""
    text: str = ""
    """The blob of what stands in the conversation, for after a summary; empty: it was not kept."""
    allowed: tuple[str, ...] = ()
    """Rules that lift the question of a call."""
    disallowed: tuple[str, ...] = ()
    """Rules that deny."""
    model: str = ""
    """Asked from the next call on; empty: as before."""
    effort: Effort = ""


class SkillCommandsBegan(Base):
    """Commands in the text of a skill that somebody typed are about to run, and not all of them only read: should they
    be cut, they are not run again."""

    t: Literal["skill_commands_began"] = "skill_commands_began"
    envelope: str
    """What was typed."""
    commands: tuple[str, ...]


class GateSet(Base):
    """The plan gate. `required`: reads only until a plan is approved; `pending`: a plan waits as `request_id`."""

    t: Literal["gate_set"] = "gate_set"
    gate: Literal["open", "required", "pending"]
    request_id: str | None = None
    digest: str = ""
    plan: str = ""
    why: str = ""
    task: str = ""
    """The task that the plan is for; empty: the assignment."""


class TaskHeld(Base):
    """It claimed a task of the board (`held`), or gave it back, completed or failed it (`not held`)."""

    t: Literal["task_held"] = "task_held"
    task: str
    subject: str = ""
    held: bool = True


class Reported(Base):
    """Its final report on its assignment went out."""

    t: Literal["reported"] = "reported"
    status: Literal["done", "failed", "blocked"]
    result: str


class BackgroundStarted(Base):
    """A background command is under way. `pid` and `started` (process start time) find it again."""

    t: Literal["background_started"] = "background_started"
    id: str
    command: str
    pid: int
    started: float
    output: str
    """The file that collects its whole output."""
    deadline: float | None = None
    authority: Cause = "person"
    """Of the turn that started it: what its end sets going may claim no more."""
    boot: str = ""
    """The boot of the machine in which `pid` and `started` count; empty: not known, an older version wrote it."""


class BackgroundEnded(Base):
    """`lost`: it is gone, and nobody knows how it ended."""

    t: Literal["background_ended"] = "background_ended"
    id: str
    status: Literal["completed", "failed", "stopped", "timed_out", "lost"]
    exit_code: int | None = None


class CompactAsked(Base):
    """The `compact` tool or a person's /compact: the whole history is summarised at the next step."""

    t: Literal["compact_asked"] = "compact_asked"
    focus: str = ""
    by: Literal["tool", "person"] = "tool"
