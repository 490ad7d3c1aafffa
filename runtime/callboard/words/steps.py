"""What `decide` asks for next. A step is a value; the engine begins it, and what happened comes back as events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from callboard.words.context import Edit, SummaryWanted
from callboard.words.hook_events import StartSource
from callboard.words.values import Request

TurnReason = Literal["end", "limit", "failed", "interrupted", "stopped", "refused", "overflow", "blocked"]
Outcome = Literal["done", "failed", "limit", "stopped", "blocked"]


@dataclass(frozen=True, slots=True)
class Done:
    """This life is over; the journal has its last record."""

    outcome: str
    result: str = ""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until the next event, or until `until` (Unix seconds). `what` is shown to people."""

    until: float | None = None
    what: str = ""


@dataclass(frozen=True, slots=True)
class BeginTurn:
    """Mail that wakes is there."""

    cause: str


@dataclass(frozen=True, slots=True)
class Move:
    """See that its folder is there, and let its tools run in it from now on."""

    worktree: str
    """Empty: the workspace."""


@dataclass(frozen=True, slots=True)
class Inject:
    """Put the waiting injections into the user message."""


@dataclass(frozen=True, slots=True)
class Deliver:
    """Put these envelopes into the user message, in this order."""

    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Drop:
    """Take these envelopes out of the mail: they must not enter the conversation."""

    ids: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class AskModel:
    """Make the next model call of the turn."""

    ordinal: int
    attempt: int
    model: str
    max_tokens: int
    reserved_tokens: int = 0
    """The most that it may use, where a budget holds; as in `ModelCalled`."""
    reserved_usd: float = 0.0
    wind_down: bool = False


@dataclass(frozen=True, slots=True)
class ReachBudget:
    """The next call does not fit a budget: say so. `winds_down`: a last call is left."""

    budget: str
    kind: Literal["tokens", "cost_usd", "steps", "seconds", "agents", "depth"]
    limit: float
    spent: float
    wanted: float
    winds_down: bool = False


@dataclass(frozen=True, slots=True)
class CountTokens:
    """Near the limit of the window: ask the service how long the request is, before anything is compacted."""

    revision: int


@dataclass(frozen=True, slots=True)
class LoseCall:
    """A model call has no owner any more (its process died): record it as failed."""


@dataclass(frozen=True, slots=True)
class Judge:
    """Schema check, hooks, rules and mode for these calls."""

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
    """These calls were started by a process that is gone: find out what became of them."""

    calls: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Settle:
    """Run PostToolUse for these calls, then fix what the model sees."""

    calls: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Merge:
    """All calls of the reply are settled: their results become the next user message."""

    waits: bool = False
    """They only watched what is under way: no repetition is counted."""
    hooks: bool = False
    """PostToolBatch hooks read them first."""


@dataclass(frozen=True, slots=True)
class NoticeStuck:
    """The agent repeats itself (`core.stuck`): tell it, or end its turn. `what` is repeated, `count` times."""

    pattern: Literal["repeat", "alternation", "monologue", "errors"]
    count: int
    what: str
    action: Literal["nudge", "stop"]


@dataclass(frozen=True, slots=True)
class Cancel:
    """End these operations."""

    operations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Nothing runs any more: answer all open calls as interrupted, withdraw their requests."""

    why: str


@dataclass(frozen=True, slots=True)
class TakeAnswer:
    """A request of this agent has its answer."""

    request: Request


@dataclass(frozen=True, slots=True)
class Expire:
    """A request reached its deadline: escalate or refuse."""

    request: Request


@dataclass(frozen=True, slots=True)
class PlanRetry:
    """Try the failed call again, at `until`."""

    until: float
    attempt: int
    parked: bool
    why: str


@dataclass(frozen=True, slots=True)
class SwitchModel:
    """Go on with a fallback model until the turn ends."""

    model: str
    why: str
    skipped: tuple[str, ...] = ()
    """Models before it in the chain that cannot take over, and why: `name: why`."""


@dataclass(frozen=True, slots=True)
class React:
    """The prompt was refused as too long: compact, whatever the thresholds say."""

    why: str


@dataclass(frozen=True, slots=True)
class Continue:
    """The reply was cut at the highest output limit: ask the model to go on, for the `count`-th time."""

    count: int


@dataclass(frozen=True, slots=True)
class EditView:
    """A stage reduced the view (no edits: it found nothing to do at this revision)."""

    stage: str
    trigger: Literal["auto", "manual", "reactive"]
    edits: tuple[Edit, ...]
    transcript: bool = False
    """The full history is written to a file first."""
    why: str = ""
    """What is wrong with the stage, if it is one of a person."""


@dataclass(frozen=True, slots=True)
class Summarise:
    """A stage wants a summary: write the transcript, make the call."""

    wanted: SummaryWanted
    begun: bool
    """It was begun by a process that is gone."""


@dataclass(frozen=True, slots=True)
class Undo:
    """Take back the edits at these journal positions, or say why not."""

    edits: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AskStartHooks:
    """It begins, or goes on: SessionStart or SubagentStart hooks have their word before the model has."""

    source: StartSource


@dataclass(frozen=True, slots=True)
class AskStopHooks:
    """The turn could end: may it?"""


@dataclass(frozen=True, slots=True)
class EndTurn:
    reason: TurnReason
    why: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """Take this ready task from the board."""

    task: str


@dataclass(frozen=True, slots=True)
class LetGo:
    """The board gave these tasks to somebody else: they are its own no more."""

    tasks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Watch:
    """Background commands without an owner: wait for their ends."""

    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EndCommands:
    """End background commands: the life that would hear of their ends is about to be over."""

    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """Write the last record."""

    outcome: Outcome
    result: str = ""


Step = (
    Done
    | Wait
    | BeginTurn
    | Move
    | Inject
    | Deliver
    | Drop
    | AskModel
    | ReachBudget
    | CountTokens
    | LoseCall
    | Judge
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
    | Continue
    | EditView
    | Summarise
    | Undo
    | AskStartHooks
    | AskStopHooks
    | EndTurn
    | Claim
    | LetGo
    | Watch
    | EndCommands
    | Stop
)
