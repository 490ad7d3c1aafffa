"""Steps that `decide` returns. A step is a value; the engine starts it, and its results come back as events."""

from __future__ import annotations

from typing import Literal

from callboard.types.lazy_dataclass import dataclass
from callboard.types.messages import Edit, SummaryWanted
from callboard.types.operations import Operation
from callboard.types.records import Request, StartSource, TurnLimit

TurnReason = Literal["end", "limit", "failed", "interrupted", "stopped", "refused", "overflow", "blocked"]
Outcome = Literal["done", "failed", "limit", "stopped", "blocked"]


@dataclass(frozen=True, slots=True)
class LifeDone:
    """This life is over: the journal has its last record."""

    outcome: str
    result: str = ""


Awaited = Literal[
    "model",
    "tools",
    "permission",
    "plan",
    "mail",
    "more mail",
    "recorded mail",
    "rate",
    "budget",
    "worktree",
    "background commands",
    "cancelled operations",
    "idle",
]
"""Reason of a wait. `recorded mail`: a delivery that a replay has to repeat; `idle`: mail, or a task."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for the next event, or until `until` (Unix seconds)."""

    until: float | None
    awaited: Awaited
    request: str | None = None
    """Request whose answer is awaited (`permission`, `plan`)."""


@dataclass(frozen=True, slots=True)
class BeginTurn:
    """Begin a turn: mail that wakes the agent has arrived."""

    cause: str


@dataclass(frozen=True, slots=True)
class EnterFolder:
    """Prepare the agent's folder, and run its tools there from now on."""

    worktree: str
    """Name of a worktree; empty: the workspace."""


@dataclass(frozen=True, slots=True)
class Inject:
    """Add the waiting injections to the user message."""


@dataclass(frozen=True, slots=True)
class Deliver:
    """Add these envelopes to the user message, in this order."""

    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Drop:
    """Remove these envelopes from the mail: they must not enter the conversation.

    `refused`: the turn was begun for them, and ends with the reason.
    """

    ids: tuple[str, ...]
    why: str
    refused: bool = False


@dataclass(frozen=True, slots=True)
class AskModel:
    """Make the next model call of the turn."""

    ordinal: int
    attempt: int
    model: str
    max_tokens: int
    reserved_tokens: int = 0
    """Most tokens that the call may use, with a budget; as in `ModelCalled`."""
    reserved_usd: float = 0.0
    wind_down: bool = False


@dataclass(frozen=True, slots=True)
class ReachBudget:
    """Report that the next call exceeds a budget. `winds_down`: one last call is allowed."""

    budget: str
    kind: Literal["tokens", "cost_usd", "price", "steps", "seconds", "agents", "depth"]
    limit: float
    spent: float
    wanted: float
    winds_down: bool = False


@dataclass(frozen=True, slots=True)
class SetPrompt:
    """Compose the prompt and the tool list again, because the agent has a new tool."""


@dataclass(frozen=True, slots=True)
class CountTokens:
    """Ask the service for the token count of the request, near the limit of the window and before any compaction."""

    revision: int


@dataclass(frozen=True, slots=True)
class LoseCall:
    """Record a model call as failed, because the process that made it died."""


@dataclass(frozen=True, slots=True)
class CheckPermissions:
    """Decide on these calls: schema check, hooks, rules and mode."""

    calls: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Skip:
    """Answer these calls without running them."""

    calls: tuple[str, ...]
    why: str
    by: str = "barrier"


@dataclass(frozen=True, slots=True)
class Run:
    """Start these calls."""

    calls: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Repair:
    """Find out the outcome of these calls, which were started by a process that died."""

    calls: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Settle:
    """Run PostToolUse for these calls, then fix the results for the model."""

    calls: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Merge:
    """Merge the results of the reply's calls into the next user message, because all are settled."""

    waits: bool = False
    """True if the calls only watched work in progress, so that no repetition is counted."""
    hooks: bool = False
    """True if PostToolBatch hooks run first."""


@dataclass(frozen=True, slots=True)
class NoticeStuck:
    """Nudge an agent that repeats itself (`core.agent.stuck_detector`), or end its turn.

    `what` was repeated `count` times.
    """

    pattern: Literal["repeat", "alternation", "monologue", "errors", "mail", "tasks"]
    count: int
    what: str
    action: Literal["nudge", "stop"]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel these operations."""

    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Answer all open calls as interrupted and withdraw their requests, because nothing is running."""

    why: str


@dataclass(frozen=True, slots=True)
class TakeAnswer:
    """Act on the answer to a request of this agent."""

    request: Request


@dataclass(frozen=True, slots=True)
class Expire:
    """Escalate or reject a request that reached its deadline."""

    request: Request


@dataclass(frozen=True, slots=True)
class PlanRetry:
    """Repeat the failed call at `until`."""

    until: float
    attempt: int
    parked: bool
    why: str


@dataclass(frozen=True, slots=True)
class SwitchModel:
    """Continue with a fallback model until the turn ends."""

    model: str
    why: str
    skipped: tuple[str, ...] = ()
    """Models before it in the chain that cannot take over, with the reason: `name: reason`."""


@dataclass(frozen=True, slots=True)
class LearnLimits:
    """Use a lower limit of a model, which the service stated, from now on."""

    model: str
    max_output: int | None
    window: int | None
    why: str


@dataclass(frozen=True, slots=True)
class LeaveOut:
    """Leave out an image or document that the service refuses, then make the call again."""

    edit: Edit
    reason: str
    """Text for the user."""


@dataclass(frozen=True, slots=True)
class React:
    """Compact regardless of the thresholds, because the prompt was refused as too long."""

    why: str


@dataclass(frozen=True, slots=True)
class Continue:
    """Ask the model to continue a reply that was cut at the highest output limit, for the `count`-th time."""

    count: int
    call: str = ""
    """Tool whose input did not fit; empty if the reply was cut in a text."""


@dataclass(frozen=True, slots=True)
class EditView:
    """Apply a stage's edits of the view. No edits: the stage found nothing to do at this revision."""

    stage: str
    trigger: Literal["auto", "manual", "reactive"]
    edits: tuple[Edit, ...]
    transcript: bool = False
    """True if the full history is written to a file first."""
    why: str = ""
    """Fault of a stage that the user wrote."""


@dataclass(frozen=True, slots=True)
class SummarizeView:
    """Write the transcript and make the summary call that a stage requested."""

    wanted: SummaryWanted
    begun: bool
    """True if a process that died began the summary."""


@dataclass(frozen=True, slots=True)
class Undo:
    """Undo the edits at these journal positions, or report why that is impossible."""

    edits: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AskStartHooks:
    """Run the SessionStart or SubagentStart hooks before the first model call."""

    source: StartSource


@dataclass(frozen=True, slots=True)
class ContinueAfterShutdown:
    """Continue, because the shutdown that the agent has read was withdrawn or rejected."""

    request_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class RemindTasks:
    """Remind the agent of its unfinished tasks and continue the turn that could end."""

    tasks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AskStopHooks:
    """Run the Stop hooks, which decide if the turn may end."""


@dataclass(frozen=True, slots=True)
class EndTurn:
    """End the turn for this reason; `why` explains an end that was not the model's decision."""

    reason: TurnReason
    why: str = ""
    limit: TurnLimit = ""


@dataclass(frozen=True, slots=True)
class ClaimTask:
    """Claim this ready task from the board."""

    task: str


@dataclass(frozen=True, slots=True)
class ReleaseTasks:
    """Release tasks that the board reassigned to another agent."""

    tasks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WatchBackground:
    """Wait for the ends of background commands without an owner."""

    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EndCommands:
    """End background commands, because the life that started them is about to end."""

    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StopAgent:
    """Write the last record of the journal."""

    outcome: Outcome
    result: str = ""


Step = (
    LifeDone
    | Wait
    | BeginTurn
    | EnterFolder
    | Inject
    | Deliver
    | Drop
    | AskModel
    | ReachBudget
    | SetPrompt
    | CountTokens
    | LoseCall
    | CheckPermissions
    | Skip
    | Run
    | Repair
    | Settle
    | Merge
    | NoticeStuck
    | Cancel
    | Interrupt
    | TakeAnswer
    | Expire
    | PlanRetry
    | SwitchModel
    | React
    | LearnLimits
    | LeaveOut
    | Continue
    | EditView
    | SummarizeView
    | Undo
    | AskStartHooks
    | ContinueAfterShutdown
    | RemindTasks
    | AskStopHooks
    | EndTurn
    | ClaimTask
    | ReleaseTasks
    | WatchBackground
    | EndCommands
    | StopAgent
)
