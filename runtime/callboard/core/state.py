"""An agent's state: the fold of its journal, and the facts that `decide` sees beside it.

Frozen throughout. Nothing here is ever stored as such except in snapshots; the journal is the truth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from callboard.core.budget.account import Account
from callboard.core.budget.tree import Node
from callboard.core.context.cache.cycle import Cycle
from callboard.core.context.cache.forgotten import Forgotten
from callboard.core.context.cache.health import CacheHealth
from callboard.core.context.cache.state import CacheState
from callboard.core.context.situation import OwnStage
from callboard.core.context.view.conversation import Conversation
from callboard.core.context.view.spare import Spared
from callboard.core.keyed import Keyed
from callboard.core.recovery.turns import RecoveryState
from callboard.core.stuck import Stuck
from callboard.words.context import Injection, StateBlock, SummaryWanted
from callboard.words.events import BackgroundStarted, ModelCalled
from callboard.words.hook_events import StartSource
from callboard.words.skills import Effort
from callboard.words.specs import AgentSpec
from callboard.words.values import Cause, Envelope, Json, Request, Todo, ToolCall, Usage

CallStage = Literal["proposed", "asking", "allowed", "started", "finished", "settled"]


@dataclass(frozen=True)
class CallState:
    """One tool call of the newest reply, until its result is merged."""

    call: ToolCall
    stage: CallStage = "proposed"
    content: tuple[Json, ...] = ()
    is_error: bool = False
    effect: str = ""
    marks: Json = field(default_factory=dict[str, object])
    request_id: str | None = None
    digest: str = ""
    """Of what its request asks for: the approval of anything else is void."""
    expires_at: float | None = None
    context: tuple[str, ...] = ()
    """Texts of hooks, beside the result."""
    ends_turn: bool = False
    denied: bool = False
    data: Json = field(default_factory=dict[str, object])
    """The structured result, for hooks."""
    started_at: float = 0.0
    finished_at: float = 0.0

    @property
    def open(self) -> bool:
        """It has no result yet."""
        return self.stage not in ("finished", "settled")


@dataclass(frozen=True)
class Turn:
    """The turn under way, and what it has used."""

    id: str
    began_at: float
    cause: str
    depth: int = 0
    authority: Cause = "person"
    steps: int = 0
    usage: Usage = Usage()
    interrupted: bool = False
    halted: str = ""
    """Why a hook interrupted it; empty: a person did, or nobody."""
    stop_blocks: int = 0
    """How often in a row a Stop hook kept it going."""
    stop_asked: bool = False
    """The Stop hooks have let it end."""
    summaries_failed: int = 0
    text: str = ""
    """The text of the newest reply that had one: what the turn says in the end."""
    ending: bool = False
    """A tool asked for the end of the turn; it ends once results are merged."""
    wakes: tuple[str, ...] = ()
    """Types of the envelopes delivered in it."""
    winding_down: str = ""
    """Why it ends: which budget is used up. Empty while none is."""
    last_call: bool = False
    """One call is left, to say what is done and what is left."""
    stuck: Stuck = Stuck()
    """What repeats itself in it."""
    lifts: tuple[str, ...] = ()
    """Rules of skills that were started in it: they lift the question of a call."""
    denies: tuple[str, ...] = ()
    """The same, that deny, until the person says something else."""
    effort: Effort = ""
    """What a skill asks of the model; empty: as the agent's own."""
    refused: str = ""
    """Why what was asked in it cannot be done."""


@dataclass(frozen=True)
class Gate:
    """The plan gate. An approval binds to one assignment and one digest."""

    gate: Literal["open", "required", "pending"] = "open"
    request_id: str | None = None
    digest: str = ""
    plan: str = ""
    status: str = ""
    choice: str = ""
    """Which of its options was approved."""
    task: str = ""
    """The task that the plan is for; empty: the assignment."""


@dataclass(frozen=True)
class Background:
    """A background command of this agent."""

    began: BackgroundStarted
    status: Literal["running", "completed", "failed", "stopped", "timed_out", "lost"] = "running"
    exit_code: int | None = None


@dataclass(frozen=True)
class Ended:
    """How a life ended."""

    outcome: str
    result: str


@dataclass(frozen=True)
class Waits:
    """What keeps it from going on beside its calls and its gate."""

    crash: Literal["", "restarting", "parked"] = ""
    """Its code has crashed, and no process has taken it up since."""
    held: Literal["", "rate", "budget"] = ""
    """What its next model call waits for."""
    questions: tuple[str, ...] = ()
    """Questions to the person that have no answer yet."""
    stalled: tuple[str, ...] = ()
    """Operations of this turn that were told of as stalled."""
    replies: Mapping[str, str] = field(default_factory=dict[str, str])
    """Whom it has written to and not heard from since -> its newest message to him."""
    read: Mapping[str, str] = field(default_factory=dict[str, str])
    """Whose messages it has read and not answered -> the newest of them."""


@dataclass(frozen=True)
class AgentState:
    """All that the rules look at."""

    seq: int = 0
    """The journal position of the newest event applied."""
    spec: AgentSpec | None = None
    session: str = ""
    incarnation: int = 1
    began_at: float = 0.0
    ended: Ended | None = None
    stop: Literal["", "asked"] = ""
    stop_by: str = ""
    stop_request: str | None = None
    renew: Literal["", "carry", "fresh"] = ""
    """A new life of its name follows its end: with what matters of this one, or with nothing."""
    system: str = ""
    tools: str = ""
    """Digests of the system prompt and tool list in use; empty before the first PromptSet."""

    mail: tuple[Envelope, ...] = ()
    """Received, not yet in the conversation."""
    position: int = 0
    """The mailbox number of the newest envelope received."""
    turn: Turn | None = None
    turns: int = 0
    authority: Cause = "tool"
    """Of the newest turn, as it is or was at its end."""
    last_text: str = ""
    last_reason: str = ""
    last_why: str = ""
    last_fault: str = ""
    """The kind of the newest failed call; empty after a reply."""
    conversation: Conversation = Conversation()
    wants_reply: bool = False
    stop_reason: str = ""
    """Of the newest reply."""
    injections: tuple[Injection, ...] = ()
    told: Mapping[str, str] = field(default_factory=dict[str, str])
    """Kind of reminder -> the newest of it that stands in the conversation, or is about to."""
    instructed: Mapping[str, str] | None = None
    """The instruction files that it knows: path as it is shown -> digest of the text; None: nobody kept count."""
    noted: frozenset[str] = frozenset()
    """The notes of memory that stand in the conversation, or are about to, by the keys of their injections."""

    ordinal: int = 0
    """Model calls that brought a reply, or were given up: the next call's number is this plus one."""
    asked: int = 0
    """Model calls of turns that were begun, tries again included."""
    heard: int = 0
    """Records that took envelopes out of the mail since the newest of these calls."""
    call: ModelCalled | None = None
    """The model call under way."""
    calls: tuple[CallState, ...] = ()
    recovery: RecoveryState = RecoveryState()

    compact: str | None = None
    """A compaction was asked for, with this focus."""
    compact_by: Literal["tool", "person"] = "person"
    summary: SummaryWanted | None = None
    summary_transcript: str = ""
    summary_halted: bool = False
    """A person interrupts the summary that is made between turns."""
    summary_until: float = 0.0
    """Before then (Unix seconds) it makes no call."""
    summaries: int = 0
    """Summaries that were begun: their calls are numbered by it."""
    tried: frozenset[tuple[str, int]] = frozenset()
    """Stages already tried, with the view's revision they saw."""
    skipped: frozenset[tuple[str, int]] = frozenset()
    """The same of summaries that hooks would not have; where the conversation would not fit without one, it counts
    no more."""

    gate: Gate = Gate()
    todos: tuple[Todo, ...] = ()
    steps_since_todo: int = 0
    files: Keyed = field(default_factory=Keyed)
    """Files it has seen: path -> digest."""
    changed: tuple[str, ...] = ()
    """Files that this agent wrote."""
    skills: tuple[str, ...] = ()
    skill_texts: Mapping[str, str] = field(default_factory=dict[str, str])
    """Skill -> the blob of the newest text of it that was loaded."""
    commands_begun: frozenset[str] = frozenset()
    """Envelopes whose skills' commands were begun and are not known to have ended."""
    background: Mapping[str, Background] = field(default_factory=dict[str, Background])
    tasks: Mapping[str, str] = field(default_factory=dict[str, str])
    """Tasks held: id -> subject."""
    assignment: bool = False
    """It owes a report on a piece of work."""
    assigned: str = ""
    """The envelope that gave it this piece of work."""
    reported: str = ""
    waits: Waits = Waits()
    usage: Usage = Usage()
    account: Account = Account()
    """What budgets count of it."""
    wound_down: str = ""
    """The budget that it has made its last call for (`limits.used_up_key`): there is one for each, not one a turn."""
    compactions: int = 0
    compacted: Mapping[str, int] = field(default_factory=dict[str, int])
    """How often each stage reduced the view, by `stage/trigger`."""
    undo: tuple[tuple[int, ...], ...] = ()
    """Edits that a person wants taken back, by their journal positions, request by request."""
    spared: Spared = ()
    """What was taken back, and is left alone while it fits."""
    cache: CacheState = CacheState()
    cycle: Cycle = Cycle()
    forgotten: Forgotten = Forgotten()
    """What the view no longer shows, and what was asked for again."""
    health: CacheHealth = CacheHealth()
    faulty: frozenset[str] = frozenset()
    """A person's own stages that failed, and were told of."""
    batch: str = ""
    """Stage of the newest edit since the newest reply."""
    uncountable: bool = False
    """The service cannot count tokens: it is not asked again."""
    uncounted_until: float = 0.0
    """It could not for now: it is not asked before then (Unix seconds)."""
    steps: int = 0
    """Model steps of all turns."""

    @property
    def me(self) -> AgentSpec:
        """The spec; a state without one has not begun."""
        assert self.spec is not None, "the first record of a journal is AgentStarted"
        return self.spec


@dataclass(frozen=True)
class ToolFacts:
    """What the rules must know of a tool."""

    concurrency: Literal["shared", "keyed", "exclusive"]
    barrier: bool = False
    watches: bool = False


@dataclass(frozen=True, slots=True)
class Delivery:
    """Envelopes that entered a conversation together in a recorded run."""

    ids: tuple[str, ...]
    begins_turn: bool


@dataclass(frozen=True, slots=True)
class Expected:
    """A replay: what is still to be delivered before the next model call, in order."""

    deliveries: tuple[Delivery, ...]
    until: float
    """It holds until then (Unix seconds): moved on by whatever happens in the session."""


@dataclass(frozen=True)
class Facts:
    """A frozen snapshot of what is not in the journal."""

    now: float
    running: frozenset[str] = frozenset()
    """Operations that this process owns: `model`, `summary`, those that ask hooks (`core.hooks.moments`), and `judge:`,
    `tool:`, `settle:`, `bg:` (watched), `end:` (being ended) with the id of a call or background command."""
    requests: Mapping[str, Request] = field(default_factory=dict[str, Request])
    """The rows of this agent's own requests."""
    tools: Mapping[str, ToolFacts] = field(default_factory=dict[str, ToolFacts])
    keys: Mapping[str, str] = field(default_factory=dict[str, str])
    """For keyed tools: call id -> what it touches."""
    others_at_work: bool = False
    """Somebody else of the session is at work, or a request of this agent waits. Told where all calls only watch."""
    claimable: str | None = None
    """A ready task that this agent may claim now."""
    taken: tuple[str, ...] = ()
    """Tasks that it knows as its own and that the board gave to somebody else."""
    budgets: tuple[Node, ...] = ()
    """What its next call is charged to, the nearest first; empty where no budget limits calls."""
    parked_until: float = 0.0
    """The key is parked for all agents until then."""
    worktree: str | None = None
    """The worktree that its tools should run in, empty: the workspace; None: there are no worktrees here."""
    settled: bool = False
    """Its folder was looked at in this turn."""
    folder: str = ""
    """Where persisted results of this agent go."""
    transcripts: str = ""
    """Where its transcripts go."""
    known: StateBlock | None = None
    """What the runtime knows, for a compaction without a summary; given only where one may come."""
    hooks: bool = False
    """There are hooks for the end of its turns."""
    starts: StartSource | None = None
    """As what it begins, where hooks wait to be asked about that."""
    batch: bool = False
    """There are PostToolBatch hooks."""
    stages: Mapping[str, OwnStage] = field(default_factory=dict[str, OwnStage])
    """A person's own stages, by name."""
    expected: Expected | None = None
    """What a recorded run delivered at this point; None: nothing is prescribed."""
