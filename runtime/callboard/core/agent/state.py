"""State of an agent: the fold of its journal, and the facts that `decide` uses in addition.

Frozen throughout. Stored only in snapshots; the journal is the truth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from callboard.core.agent.open_calls import OpenCalls
from callboard.core.agent.stuck_detector import Stuck
from callboard.core.approvals.plan_gate import PlanGate
from callboard.core.budgets.tree import Account, BudgetNode
from callboard.core.context.cache.health import CacheHealth
from callboard.core.context.cache.rereads import RemovedContent
from callboard.core.context.cache.tracker import CacheState, EditCycle
from callboard.core.context.view.conversation import Conversation
from callboard.core.frozen import PersistentMap, replace
from callboard.core.messaging.floods import MailCounts
from callboard.core.recovery.retry_policy import RecoveryState
from callboard.core.replies import ReplyText
from callboard.types.agent_spec import AgentSpec
from callboard.types.events import BackgroundStarted, ModelCalled
from callboard.types.lazy_dataclass import dataclass
from callboard.types.messages import Injection, OwnStage, Spared, StateBlock, SummaryWanted
from callboard.types.operations import Operation
from callboard.types.records import Cause, Envelope, Request, StartSource, Todo, TurnLimit, Usage
from callboard.types.skills import Effort

OrderClass = Literal["look", "own", "store", "read", "survey", "write", "delegate", "exclusive"]
"""Kinds of things that a tool's calls touch (`core.call_order`)."""


@dataclass(frozen=True)
class Turn:
    """Current turn, and its usage."""

    id: str
    began_at: float
    cause: str
    depth: int = 0
    authority: Cause = "person"
    steps: int = 0
    usage: Usage = Usage()
    interrupted: bool = False
    halted: str = ""
    """Reason of a hook that interrupted the turn; empty if the user did, or it was not interrupted."""
    stop_blocks: int = 0
    """Number of times in a row that a Stop hook kept the turn going."""
    stop_asked: bool = False
    """True if the Stop hooks have allowed the end of the turn."""
    summaries_failed: int = 0
    said: ReplyText = ReplyText()
    """Text of the turn's final reply, as far as it is complete."""
    ending: bool = False
    """True if a tool asked for the end of the turn, which follows the merge of results."""
    wakes: tuple[str, ...] = ()
    """Types of the envelopes delivered in the turn."""
    winding_down: str = ""
    """Used-up budget that ends the turn; empty while there is none."""
    winding_limit: TurnLimit = ""
    """The same budget as a limit."""
    last_call: bool = False
    """True if one call is left, to report the finished and unfinished work."""
    stuck: Stuck = Stuck()
    """Repetition seen in the turn."""
    overrides: tuple[str, ...] = ()
    """Rules of skills started in the turn that allow a call without a question."""
    denies: tuple[str, ...] = ()
    """Rules of skills started in the turn that deny, until the user's next prompt."""
    effort: Effort = ""
    """Effort that a skill requests from the model; empty: the agent's own."""
    refused: str = ""
    """Reason why the turn's request is impossible."""
    refused_by_hook: bool = False
    """True if a hook blocked the turn's request."""
    reminded: bool = False
    """True if the model was about to end the turn with unfinished tasks and was reminded of them."""

    @property
    def text(self) -> str:
        """Return the text of the newest reply that had one, with all its parts."""
        return self.said.text


@dataclass(frozen=True)
class BackgroundCommand:
    """A background command or subagent of this agent."""

    began: BackgroundStarted
    status: Literal["running", "completed", "failed", "stopped", "timed_out", "lost"] = "running"
    exit_code: int | None = None


@dataclass(frozen=True)
class LifeEnd:
    """The end of a life."""

    outcome: str
    result: str


@dataclass(frozen=True)
class WaitReasons:
    """Reasons, besides its calls and its gate, that keep an agent from continuing."""

    crash: Literal["", "restarting", "parked"] = ""
    """Set if its code has crashed and no process has continued it since."""
    held: Literal["", "rate", "budget"] = ""
    """Limit that the agent's next model call waits for."""
    questions: tuple[str, ...] = ()
    """Unanswered questions to the user."""
    stalled: tuple[str, ...] = ()
    """Operations of this turn that were reported as stalled."""
    replies: Mapping[str, str] = field(default_factory=dict[str, str])
    """Agents that owe this agent a reply -> its newest message to each."""
    fresh: frozenset[str] = frozenset()
    """Names that the agent has written to in this turn."""
    read: Mapping[str, str] = field(default_factory=dict[str, str])
    """Senders of messages that the agent has read but not answered -> the newest message of each."""


@dataclass(frozen=True)
class Identity:
    """The agent and its life. Set by the first record, except for changes of the spec."""

    spec: AgentSpec | None = None
    session: str = ""
    incarnation: int = 1
    began_at: float = 0.0


@dataclass(frozen=True)
class Lifecycle:
    """The end of the agent's life: requested, coming, or reached."""

    ended: LifeEnd | None = None
    stop: Literal["", "asked"] = ""
    stop_by: str = ""
    stop_request: str | None = None
    leaving: str = ""
    """Shutdown request that the agent has read: its life ends with the turn, unless it refuses."""
    renew: Literal["", "carry", "fresh"] = ""
    """Set if a new life of its name follows its end: with a summary of this one (`carry`), or without."""


@dataclass(frozen=True)
class Inbox:
    """Received mail."""

    mail: tuple[Envelope, ...] = ()
    """Received envelopes that are not yet in the conversation."""
    counts: MailCounts = MailCounts()
    """Counts that bound the messages that the agent sends, the tasks that it creates, and the turns that messages
    begin."""
    position: int = 0
    """Mailbox number of the newest received envelope."""
    deliveries: int = 0
    """Number of records that took envelopes out of the mail since the newest model call of a turn."""


@dataclass(frozen=True)
class TurnHistory:
    """The turns so far, and the end of the newest one."""

    count: int = 0
    steps: int = 0
    """Number of model steps of all turns."""
    authority: Cause = "tool"
    """Authority of the newest turn, now or at its end."""
    last_text: str = ""
    last_reason: str = ""
    last_why: str = ""
    last_limit: TurnLimit = ""
    """Limit that ended the newest turn, if one did."""


@dataclass(frozen=True)
class ModelCalls:
    """The model calls: the one in progress, their numbers, and the recovery from failures."""

    call: ModelCalled | None = None
    """Model call in progress."""
    ordinal: int = 0
    """Number of model calls with a reply or given up: the next call's number is this plus one."""
    turn_calls: int = 0
    """Number of model calls of turns that were started, including retries."""
    recovery: RecoveryState = RecoveryState()
    stop_reason: str = ""
    """Stop reason of the newest reply."""
    last_fault: str = ""
    """Kind of the newest failed call; empty after a reply."""
    uncountable: bool = False
    """True if the service cannot count tokens and is not asked again."""
    uncounted_until: float = 0.0
    """Time before which the service is not asked for a count again (Unix seconds), after a temporary failure."""


@dataclass(frozen=True)
class ModelContext:
    """All that the next model call sends, and what is about to be added to it."""

    conversation: Conversation = Conversation()
    wants_reply: bool = False
    system: str = ""
    tools: str = ""
    """Digests of the shared system blocks and of the tool list in use; empty before the first PromptSet."""
    own_blocks: str = ""
    """System blocks of this agent alone (`PromptSet.own_blocks`)."""
    listed: tuple[str, ...] = ()
    """Names of the runtime's own tools in the current tool list."""
    injections: tuple[Injection, ...] = ()
    reminders: Mapping[str, str] = field(default_factory=dict[str, str])
    """Kind of reminder -> the newest one that is in the conversation, or about to be."""
    instructions: Mapping[str, str] | None = None
    """Instruction files that the agent knows: displayed path -> digest of the text; None: not recorded."""
    notes: frozenset[str] = frozenset()
    """Keys of the injections of memory notes that are in the conversation, or about to be."""


@dataclass(frozen=True)
class Compaction:
    """Edits of the view: requested, in progress, tried, done, and undone."""

    focus: str | None = None
    """Focus of a requested compaction; None: none is requested."""
    requested_by: Literal["tool", "person"] = "person"
    summary: SummaryWanted | None = None
    """Summary in progress."""
    summary_transcript: str = ""
    summary_halted: bool = False
    """True if the user interrupts the summary that is made between turns."""
    summary_until: float = 0.0
    """Time before which a summary makes no call (Unix seconds)."""
    summaries: int = 0
    """Number of summaries begun, which numbers their calls."""
    tried: frozenset[tuple[str, int]] = frozenset()
    """Stages already tried, with the revision of the view that they examined."""
    skipped: frozenset[tuple[str, int]] = frozenset()
    """Summaries that hooks rejected, in the same form; ignored if the conversation would not fit without one."""
    faulty: frozenset[str] = frozenset()
    """The user's own stages that failed and were reported."""
    batch: str = ""
    """Stage of the newest edit since the newest reply."""
    count: int = 0
    """Number of times that the view was reduced."""
    by_stage: Mapping[str, int] = field(default_factory=dict[str, int])
    """Number of times each stage reduced the view, by `stage/trigger`."""
    undo: tuple[tuple[int, ...], ...] = ()
    """Edits that the user wants to undo, by journal position, one entry for each request."""
    spared: Spared = ()
    """Ranges whose edits were undone. Stages leave them alone while the view fits."""


@dataclass(frozen=True)
class ViewCosts:
    """Costs and savings of the prompt cache, of edits, and of content that is read again."""

    cache: CacheState = CacheState()
    cycle: EditCycle = EditCycle()
    forgotten: RemovedContent = RemovedContent()
    """Content that the view no longer shows, and content that was read again."""
    health: CacheHealth = CacheHealth()


@dataclass(frozen=True)
class AgentWork:
    """The agent's work: its plan, todos, files, skills, background commands, tasks, and assignment."""

    gate: PlanGate = PlanGate()
    todos: tuple[Todo, ...] = ()
    steps_since_todo: int = 0
    files: PersistentMap = field(default_factory=PersistentMap)
    """Files that the agent has seen: path -> digest."""
    changed: tuple[str, ...] = ()
    """Files that this agent wrote."""
    skills: tuple[str, ...] = ()
    skill_texts: Mapping[str, str] = field(default_factory=dict[str, str])
    """Skill -> blob of its most recently loaded text."""
    commands_begun: frozenset[str] = frozenset()
    """Envelopes whose skill commands were started and are not known to have ended."""
    background: Mapping[str, BackgroundCommand] = field(default_factory=dict[str, BackgroundCommand])
    tasks: Mapping[str, str] = field(default_factory=dict[str, str])
    """Tasks held: id -> subject."""
    assignment: bool = False
    """True if the agent owes a report on an assignment."""
    assigned: str = ""
    """Envelope with the assignment."""
    reported: str = ""


@dataclass(frozen=True)
class BudgetUse:
    """Usage of all calls, and the amounts that budgets count."""

    usage: Usage = Usage()
    account: Account = Account()
    """Amounts that budgets count for the agent."""
    wound_down: str = ""
    """Budget for which the agent made its last call (`limits.used_up_key`): one for each budget, not for each turn."""


@dataclass(frozen=True)
class AgentState:
    """All values that the rules use, in parts by theme. An event copies only the parts that it changes."""

    seq: int = 0
    """Journal position of the newest applied event."""
    identity: Identity = Identity()
    lifecycle: Lifecycle = Lifecycle()
    inbox: Inbox = Inbox()
    turn: Turn | None = None
    """Turn in progress; None between turns."""
    turns: TurnHistory = TurnHistory()
    model: ModelCalls = ModelCalls()
    calls: OpenCalls = OpenCalls()
    """Tool calls of the newest reply, until their results are merged."""
    context: ModelContext = ModelContext()
    compaction: Compaction = Compaction()
    costs: ViewCosts = ViewCosts()
    work: AgentWork = AgentWork()
    waits: WaitReasons = WaitReasons()
    budget: BudgetUse = BudgetUse()

    @property
    def me(self) -> AgentSpec:
        """Return the spec. A state without one has not begun."""
        assert self.identity.spec is not None, "the first record of a journal is AgentStarted"
        return self.identity.spec

    @property
    def last_text(self) -> str:
        """Return the final text of the newest turn. Tests of users read it (docs/testing.md)."""
        return self.turns.last_text


@dataclass(frozen=True, slots=True)
class ToolFacts:
    """Facts about a tool that the rules need."""

    order: OrderClass
    barrier: bool = False
    watches: bool = False


@dataclass(frozen=True, slots=True)
class Delivery:
    """Envelopes that entered a conversation together in a recorded run."""

    ids: tuple[str, ...]
    begins_turn: bool
    reminded: bool = False
    """True if it came after the turn's reminder of unfinished tasks."""


@dataclass(frozen=True, slots=True)
class ExpectedDeliveries:
    """Recorded deliveries of a replay that are due before the next model call, in order."""

    deliveries: tuple[Delivery, ...]
    until: float
    """Time until which it applies (Unix seconds); every event in the session extends it."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Frozen snapshot of the facts that are not in the journal.

    The engine reads most of them when a rule first asks for them (`engine.facts`).
    """

    now: float
    awake_at: float | None = None
    """Time on the clock for time limits; None: `now`."""
    turn_began: float | None = None
    """Start of the current turn on the same clock; None: as in the turn's record."""
    running: frozenset[Operation] = frozenset()
    """Operations that this process owns."""
    requests: Mapping[str, Request] = field(default_factory=dict[str, Request])
    """Rows of this agent's own requests."""
    deadlines: Mapping[str, float] = field(default_factory=dict[str, float])
    """Request id -> deadline on the clock for time limits; without one the wall clock decides."""
    tools: Mapping[str, ToolFacts] = field(default_factory=dict[str, ToolFacts])
    keys: Mapping[str, str] = field(default_factory=dict[str, str])
    """Call id -> path that it reads or changes, as the tools resolve it. A call without an entry may touch
    every path."""
    rewrites: bool = False
    """True if hooks may change the input of a call before the decision."""
    others_at_work: bool = False
    """True if another agent of the session is working, or a request of this agent waits. Read only if all calls only
    watch."""
    mates_at_work: bool = False
    """True if another agent of the team has a turn in progress, so that more mail may come. Set only if mail waits
    between turns."""
    mail_seconds: float = 0.0
    """Seconds since the mail counts were taken (`Inbox.counts`), on the clock for time limits."""
    claimable: str | None = None
    """Ready task that this agent may claim now."""
    taken: tuple[str, ...] = ()
    """Tasks in the agent's state that the board gave to another agent."""
    budgets: tuple[BudgetNode, ...] = ()
    """Budgets that the next call is charged to, the nearest first; empty if no budget limits calls."""
    parked_until: float = 0.0
    """Time until which the current model is parked for all agents; one of them then tries it again."""
    named_until: float = 0.0
    """End of the wait that the service named for the model."""
    worktree: str | None = None
    """Worktree in which the agent's tools should run; empty: the workspace; None: the session has no worktrees."""
    settled: bool = False
    """True if its folder was checked in this turn."""
    folder: str = ""
    """Folder for persisted results of this agent."""
    transcripts: str = ""
    """Folder for this agent's transcripts."""
    known: StateBlock | None = None
    """State of the runtime for a compaction without a summary; set only if such a compaction may come."""
    hooks: bool = False
    """True if there are hooks for the end of its turns."""
    starts: StartSource | None = None
    """Source of the agent's start, if hooks have to run for it."""
    batch: bool = False
    """True if there are PostToolBatch hooks."""
    stages: Mapping[str, OwnStage] = field(default_factory=dict[str, OwnStage])
    """The user's own stages, by name."""
    expected: ExpectedDeliveries | None = None
    """Deliveries of a recorded run at this point; None: nothing is prescribed."""

    @property
    def awake(self) -> float:
        """Return the time on the clock for time limits: it stops while the machine sleeps, and is never set."""
        return self.now if self.awake_at is None else self.awake_at


_FRESH = AgentState()
_SPEC_FIELDS = set(AgentSpec.model_fields)


def without_history(state: AgentState) -> AgentState:
    """Return the state of an ended life without the parts that only a living agent needs.

    These are the conversation, mail, files, and the limits of models that it could have been switched to. Parts that
    equal those of a fresh agent are shared, because a session may have thousands of ended lives
    (test_an_ended_life_shares_what_it_has_in_common_with_others).
    """
    spec = state.identity.spec
    if spec is not None:
        names = {spec.model, spec.plan_model, spec.small_model, *spec.fallback_models, state.model.recovery.model}
        models = {name: spec.models[name] for name in spec.models if name in names}
        spec = spec.model_copy(update={"models": models})
        # All share the set of given fields, of which each copy takes twice the memory of the values.
        object.__setattr__(spec, "__pydantic_fields_set__", _SPEC_FIELDS)
    bare = replace(
        state,
        identity=replace(state.identity, spec=spec),
        inbox=replace(state.inbox, mail=()),
        calls=_FRESH.calls,
        context=replace(
            state.context, conversation=_FRESH.context.conversation, injections=(), reminders=_FRESH.context.reminders
        ),
        compaction=replace(state.compaction, tried=frozenset(), skipped=frozenset()),
        costs=ViewCosts(forgotten=RemovedContent(rereads=state.costs.forgotten.rereads)),
        work=replace(state.work, files=_FRESH.work.files, changed=(), skill_texts=_FRESH.work.skill_texts),
    )
    return replace(bare, **{name: part for name, part in vars(_FRESH).items() if getattr(bare, name) == part})
