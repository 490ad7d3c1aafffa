"""Events of model calls, of context management, of tool calls, and of changes that a tool makes to its agent's state.

The rules are in `events.py`.
"""

from typing import Literal

from pydantic import Field

from callboard.types.messages import Edit, SummaryWanted
from callboard.types.records import Base, Cause, Fault, Grant, Json, Todo, ToolCall, Usage
from callboard.types.skills import Effort


class ModelCalled(Base):
    """A model call was started. `ordinal` numbers the calls of this journal; a retry has the same ordinal."""

    t: Literal["model_called"] = "model_called"
    ordinal: int
    attempt: int
    model: str
    max_tokens: int
    purpose: Literal["turn", "summary"] = "turn"
    reserved_tokens: int = 0
    """Most tokens that this call may use: its input and the requested output. 0 without a budget."""
    reserved_usd: float = 0.0
    wind_down: bool = False
    """True for the last call that a used-up budget allows, to report finished and unfinished work."""
    used: Usage = Usage()
    """For a summary: usage of the earlier calls of the same summary."""


class CallHeld(Base):
    """A model call waited for more than a second before it was sent.

    The reason is the service's rate limits or a refused key.
    """

    t: Literal["call_held"] = "call_held"
    ordinal: int
    seconds: float
    why: str


class BudgetReached(Base):
    """A call or a new agent was refused because it exceeds a budget.

    `budget`: `session`, an agent's name, `schedule:<id>` or `fire:<id>`.
    """

    t: Literal["budget_reached"] = "budget_reached"
    budget: str
    kind: Literal["tokens", "cost_usd", "price", "steps", "seconds", "agents", "depth"]
    limit: float
    spent: float
    """Amount used so far, including reservations of calls in flight."""
    wanted: float
    winds_down: bool = False
    """True if one last call is allowed, to report the state of the work."""


class StuckNoticed(Base):
    """The agent repeats itself. It is nudged the first time in a turn, and stopped if it continues."""

    t: Literal["stuck_noticed"] = "stuck_noticed"
    pattern: Literal["repeat", "alternation", "monologue", "errors", "mail", "tasks"]
    count: int
    what: str
    """Repeated action, in one line for the user."""
    action: Literal["nudge", "stop"] = "nudge"


class ModelReplied(Base):
    """A complete reply (`message_stop` was received).

    `blocks` has the form of the API; `calls` are its tool calls with ids of the runtime.
    """

    t: Literal["model_replied"] = "model_replied"
    ordinal: int
    model: str
    stop_reason: str
    blocks: tuple[Json, ...]
    calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()
    message_id: str = ""
    draw: float = 0.0
    cut_call: str = ""
    """Tool whose input was cut at the output limit and which was therefore not called."""
    trimmed: str = ""
    """White space removed from the end of this part. The continuation of the reply follows it."""


class ReplyDropped(Base):
    """A reply that is not kept: it was cut at the output limit and is requested again with a higher one.

    It is billed.
    """

    t: Literal["reply_dropped"] = "reply_dropped"
    ordinal: int
    why: str
    usage: Usage = Usage()
    cut_call: str = ""
    """Tool whose input was cut; empty if none was."""
    cut_characters: int = 0
    """Characters received of the tool input that was cut."""


class ReplyInterrupted(Base):
    """Part of a reply that the user had seen before the interrupt, kept as assistant text without its tool calls."""

    t: Literal["reply_interrupted"] = "reply_interrupted"
    ordinal: int
    text: str


class CallFailed(Base):
    """A model call ended without a reply. `draw` (0..1) is the jitter that recovery may use."""

    t: Literal["call_failed"] = "call_failed"
    ordinal: int
    attempt: int
    model: str
    purpose: Literal["turn", "summary"] = "turn"
    fault: Fault
    draw: float = 0.0
    text: str = ""
    """Text of a reply that was cut because the window was full. It is kept if the turn ends without another reply."""


class RetryPlanned(Base):
    """The call is repeated at `until`.

    `parked`: a wait for rate or spend limits, which does not count as an attempt.
    """

    t: Literal["retry_planned"] = "retry_planned"
    until: float
    attempt: int
    parked: bool = False
    why: str = ""
    """Fault of the failed attempt, and what may be billed for it."""
    purpose: Literal["turn", "summary"] = "turn"


class ModelSwitched(Base):
    """A fallback model takes over until the turn ends, or until the summary is made."""

    t: Literal["model_switched"] = "model_switched"
    model: str
    why: str = ""
    skipped: tuple[str, ...] = ()
    """Models of the chain that could not take over, with the reason: `name: reason`."""
    purpose: Literal["turn", "summary"] = "turn"


class LimitsLearned(Base):
    """The service stated lower limits of a model than assumed. They apply to this agent from now on."""

    t: Literal["limits_learned"] = "limits_learned"
    model: str
    max_output: int | None = None
    window: int | None = None
    why: str = ""


class OutputRaised(Base):
    """The output limit was raised after a reply was cut."""

    t: Literal["output_raised"] = "output_raised"
    limit: int


class ContinuationAsked(Base):
    """A reply was cut at the highest output limit. Its text is kept, and the model is asked to continue."""

    t: Literal["continuation_asked"] = "continuation_asked"
    count: int
    call: str = ""
    """Tool whose input did not fit; empty if the reply was cut in a text."""


class ContextEdited(Base):
    """A stage reduced the view. `tokens` before and after are estimates of the whole request."""

    t: Literal["context_edited"] = "context_edited"
    stage: str
    trigger: Literal["auto", "manual", "reactive"] = "auto"
    revision: int
    """Revision of the view that the stage examined."""
    edits: tuple[Edit, ...] = ()
    """Edits of the view. Empty: the stage found nothing to do at this revision and does not run again for it."""
    tokens_before: int = 0
    tokens_after: int = 0
    transcript: str = ""
    usage: Usage = Usage()
    why: str = ""
    """Reason for the edit, for the user."""
    rewritten: int = 0
    """Tokens after the first change, which the service must read again if it had cached them; 0 if it had not."""
    repaired: tuple[str, ...] = ()
    """Items that the check found missing after a summary and restored."""
    undoes: tuple[int, ...] = ()
    """Journal positions of the edits that this edit undoes."""


class TokensCounted(Base):
    """The service counted the tokens of the request at this revision.

    `tokens` None: it did not count them, and is not asked again, or only after `until` (Unix seconds) if set.
    """

    t: Literal["tokens_counted"] = "tokens_counted"
    revision: int
    tokens: int | None
    why: str = ""
    until: float | None = None


class CacheThrash(Base):
    """Several calls in a row found almost nothing of the previous call in the prompt cache."""

    t: Literal["cache_thrash"] = "cache_thrash"
    calls: int
    changed: str
    """First block that differs from the previous call: a section, tool or message; or the statement that nothing in the
    request changed."""


class SummaryBegan(Base):
    """A summary call starts. `transcript` holds the full history before it."""

    t: Literal["summary_began"] = "summary_began"
    wanted: SummaryWanted
    revision: int
    transcript: str = ""


class SummaryFailed(Base):
    """A summary was unusable and counts towards the breaker (3 in a row in a turn), or a hook rejected it."""

    t: Literal["summary_failed"] = "summary_failed"
    why: str
    usage: Usage = Usage()
    skipped: SummaryWanted | None = None
    """Summary that a PreCompact hook rejected: it did not start and is not a failure."""


class ReactAsked(Base):
    """The service refused the prompt as too long. The view is compacted regardless of the thresholds."""

    t: Literal["react_asked"] = "react_asked"
    why: str = ""


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
    """A tool starts.

    Durable before any effect. After a crash, `marks` show whether it finished: digests, or a pid and its start time.
    """

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
    settled: bool = False
    """True if no hook can change the result, so that no `ToolSettled` follows."""


class ToolSettled(Base):
    """The PostToolUse hooks have run, and this is the result for the model. `content` None: the result of the tool.

    Journals of earlier versions have this event for each call, also if there were no hooks.
    """

    t: Literal["tool_settled"] = "tool_settled"
    call: str
    content: tuple[Json, ...] | None = None
    is_error: bool | None = None
    context: tuple[str, ...] = ()


class ResultsMerged(Base):
    """All calls of the reply are settled. One user message has their results, in the order of the calls."""

    t: Literal["results_merged"] = "results_merged"
    waits: bool = False
    """True if the calls only watched work of others, so that no repetition is counted (`core.agent.stuck_detector`)."""


class StopHookRan(Base):
    """The Stop hooks ran at the end of a turn. `go_on` is their reason to continue; empty if there is none."""

    t: Literal["stop_hook_ran"] = "stop_hook_ran"
    go_on: str = ""


class TodosSet(Base):
    """The agent replaced its to-do list."""

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
    """Commands in the text of a skill that the user invoked are about to run, and some of them may write.

    If their process dies, they do not run again.
    """

    t: Literal["skill_commands_began"] = "skill_commands_began"
    envelope: str
    """Envelope that holds the text of the user."""
    commands: tuple[str, ...]


class GateSet(Base):
    """State of the plan gate.

    `required`: only reads until a plan is approved; `pending`: a plan waits as `request_id`.
    """

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
    """A background command or subagent is running. `pid` and `started` (process start time) identify a command."""

    t: Literal["background_started"] = "background_started"
    id: str
    command: str
    pid: int
    started: float
    output: str
    """File that collects the full output; of a subagent, its report at the end. Empty: none (of an older version)."""
    deadline: float | None = None
    authority: Cause = "person"
    """Authority of the turn that started it. Effects of its end may claim no more."""
    boot: str = ""
    """Boot id of the machine to which `pid` and `started` refer; empty if unknown (written by an older version)."""
    agent: str = ""
    """Name of the subagent, which is also its `id`; empty for a command. `command` is then its description, and there
    is no process."""
    moved: bool = False
    """True if a person moved a running command to the background. The result of a turn does not wait for its end."""


class BackgroundEnded(Base):
    """A background command or subagent ended. `lost`: its process is gone and its end is unknown."""

    t: Literal["background_ended"] = "background_ended"
    id: str
    status: Literal["completed", "failed", "stopped", "timed_out", "lost"]
    exit_code: int | None = None
    agent: str = ""
    """Name of the subagent; empty for a command."""


class CompactAsked(Base):
    """The `compact` tool or the user's /compact asked for a summary of the whole history at the next step."""

    t: Literal["compact_asked"] = "compact_asked"
    focus: str = ""
    by: Literal["tool", "person"] = "tool"
