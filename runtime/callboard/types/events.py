"""Events of an agent's journal, version 1. `state = fold(apply, journal)`; nothing else changes a state.

Events are in the past tense, frozen, and load forever (`docs/records.md` lists them, `tests/core/golden/` proves it).
Every value that a decision used (a time, an id, a random draw, a deadline) is copied into the event, so that folding
needs no clock. Streaming deltas are never journalled.
"""

from functools import cache
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, TypeAdapter

from callboard.types.agent_spec import AgentSpec
from callboard.types.events_calls import (
    AnswerTaken,
    ApprovalNeeded,
    BackgroundEnded,
    BackgroundStarted,
    BudgetReached,
    CacheThrash,
    CallFailed,
    CallHeld,
    CallJudged,
    CompactAsked,
    ContextEdited,
    ContinuationAsked,
    FileSeen,
    GateSet,
    LimitsLearned,
    ModelCalled,
    ModelReplied,
    ModelSwitched,
    OutputRaised,
    ReactAsked,
    ReplyDropped,
    ReplyInterrupted,
    Reported,
    ResultsMerged,
    RetryPlanned,
    SkillCommandsBegan,
    SkillLoaded,
    StopHookRan,
    StuckNoticed,
    SummaryBegan,
    SummaryFailed,
    TaskHeld,
    TodosSet,
    TokensCounted,
    ToolFinished,
    ToolSettled,
    ToolStarted,
)
from callboard.types.messages import Injection, Placed
from callboard.types.records import Base, Cause, Envelope, TurnLimit

__all__ = [
    "AgentCrashed",
    "AgentResumed",
    "AgentStarted",
    "AgentStopped",
    "AnswerTaken",
    "ApprovalNeeded",
    "BackgroundEnded",
    "BackgroundStarted",
    "Base",
    "BudgetReached",
    "CacheThrash",
    "CallFailed",
    "CallHeld",
    "CallJudged",
    "CompactAsked",
    "ContextEdited",
    "ContinuationAsked",
    "EnvelopeReceived",
    "EnvelopesDelivered",
    "EnvelopesDropped",
    "Event",
    "FileSeen",
    "GateSet",
    "InjectionQueued",
    "InjectionsDelivered",
    "Interrupted",
    "LimitsLearned",
    "MessageCopied",
    "ModelCalled",
    "ModelReplied",
    "ModelSwitched",
    "OutputRaised",
    "PromptSet",
    "ReactAsked",
    "ReplyDropped",
    "ReplyInterrupted",
    "Reported",
    "ResultsMerged",
    "RetryPlanned",
    "ShutdownRefused",
    "SkillCommandsBegan",
    "SkillLoaded",
    "SpecChanged",
    "StallNoticed",
    "StopAsked",
    "StopHookRan",
    "StuckNoticed",
    "SummaryBegan",
    "SummaryFailed",
    "TaskHeld",
    "TasksReminded",
    "TodosSet",
    "TokensCounted",
    "ToolFinished",
    "ToolSettled",
    "ToolStarted",
    "TurnBegan",
    "TurnEnded",
    "WaitBegan",
    "decode_event",
]


class AgentStarted(Base):
    """The first record of every journal."""

    t: Literal["agent_started"] = "agent_started"
    spec: AgentSpec
    session: str
    incarnation: int
    assignment: bool = False
    """True if the agent has an assignment to report on."""
    ordinal: int = 0
    """Model calls of the previous lives of this agent. Its own calls are numbered from there."""
    summaries: int = 0
    """Summaries of the previous lives of this agent."""


class AgentResumed(Base):
    """Another process hosts the agent now. Operations of the previous process have no owner."""

    t: Literal["agent_resumed"] = "agent_resumed"
    pid: int


class PromptSet(Base):
    """System prompt and tool list in use. A resume renders the same bytes; a change is a decision."""

    t: Literal["prompt_set"] = "prompt_set"
    system: str
    """Digest of the blob with the system blocks that agents of a type share."""
    tools: str
    """Digest of the blob with the tool list."""
    own_blocks: str = ""
    """System blocks of this agent alone, as a JSON array. They follow the shared ones; empty: there are none."""
    overhead_tokens: int
    """Estimated tokens of the system prompt and the tool list."""
    instructions: dict[str, str] | None = None
    """Instruction files in the prompt: displayed path -> digest of the text. None: unknown."""


class SpecChanged(Base):
    """The user or the runtime changed the agent's model, mode, limits or tools."""

    t: Literal["spec_changed"] = "spec_changed"
    spec: AgentSpec


class StopAsked(Base):
    """The agent received a stop or a shutdown. It cancels running operations, settles its calls, reports and ends."""

    t: Literal["stop_asked"] = "stop_asked"
    by: str
    request_id: str | None = None
    why: str = ""


class ShutdownRefused(Base):
    """The agent was asked to stop and refused with a reason. It continues."""

    t: Literal["shutdown_refused"] = "shutdown_refused"
    request_id: str
    reason: str


class AgentStopped(Base):
    """The last record of a journal."""

    t: Literal["agent_stopped"] = "agent_stopped"
    outcome: Literal["done", "failed", "limit", "stopped", "blocked"]
    result: str = ""


class AgentCrashed(Base):
    """The agent's code raised an exception.

    The supervisor writes this event. The agent continues from its journal at `again_at` (Unix seconds); None: it
    crashed too often in a row and is parked until the user resumes it.
    """

    t: Literal["agent_crashed"] = "agent_crashed"
    why: str
    count: int
    """Crashes in the last minute, including this one."""
    again_at: float | None = None


class WaitBegan(Base):
    """The agent's next model call waits for the service's rate limits, or for budget that other calls have reserved.

    `until`: Unix seconds; None if only other calls can end the wait.
    """

    t: Literal["wait_began"] = "wait_began"
    what: Literal["rate", "budget"]
    until: float | None = None


class StallNoticed(Base):
    """An operation takes longer than its limit. The lead is notified in the same commit, once."""

    t: Literal["stall_noticed"] = "stall_noticed"
    operation: str
    what: str
    """Description of what the operation waits for."""
    since: float
    limit: float
    """Longest expected duration in seconds."""


class EnvelopeReceived(Base):
    """The agent took an envelope from its mailbox, in mailbox order.

    This is the acknowledgement. `envelope.seq` moves the position.
    """

    t: Literal["envelope_received"] = "envelope_received"
    envelope: Envelope
    refused: str = ""
    """Reason why the envelope is rejected: it changes nothing and never enters the conversation. Empty: it is
    accepted."""


class EnvelopesDelivered(Base):
    """Envelopes entered the conversation, rendered as `blocks`. Each envelope is delivered exactly once."""

    t: Literal["envelopes_delivered"] = "envelopes_delivered"
    ids: tuple[str, ...]
    blocks: tuple[Placed, ...]


class EnvelopesDropped(Base):
    """Envelopes left the mailbox without entering the conversation: handled by the runtime, or void (`why`)."""

    t: Literal["envelopes_dropped"] = "envelopes_dropped"
    ids: tuple[str, ...]
    why: str
    refused: bool = False
    """True if the envelopes asked for something impossible. A turn without other content ends with the reason."""
    by_hook: bool = False
    """True if a hook blocked them."""


class TurnBegan(Base):
    """A turn began. `depth` counts the hops between agents that led to it."""

    t: Literal["turn_began"] = "turn_began"
    turn: str
    cause: str
    """Envelope that woke the agent."""
    depth: int = 0
    authority: Cause = "person"
    """Highest authority that envelopes sent in this turn may claim."""


class Interrupted(Base):
    """The user, a hook, or the runtime interrupted the turn."""

    t: Literal["interrupted"] = "interrupted"
    by: str = "person"
    """`person`, `runtime`, or the reason of a hook."""


class TurnEnded(Base):
    """A turn ended. `text` is its final text. `why` is the reason for an end that was not the model's decision."""

    t: Literal["turn_ended"] = "turn_ended"
    turn: str
    reason: Literal["end", "limit", "failed", "interrupted", "stopped", "refused", "overflow", "blocked"]
    text: str = ""
    why: str = ""
    limit: TurnLimit = ""
    """Limit that ended the turn, if `reason` is `limit`; `hook` if a hook interrupted or blocked it."""


class TasksReminded(Base):
    """The model ended its turn with unfinished tasks. It is reminded once in a turn, and the turn continues."""

    t: Literal["tasks_reminded"] = "tasks_reminded"
    tasks: tuple[str, ...]


class InjectionQueued(Base):
    """A text of the runtime waits for the next user message."""

    t: Literal["injection_queued"] = "injection_queued"
    injection: Injection


class InjectionsDelivered(Base):
    """All waiting injections entered the conversation."""

    t: Literal["injections_delivered"] = "injections_delivered"
    blocks: tuple[Placed, ...]


class MessageCopied(Base):
    """Message of an earlier conversation, with which this one begins."""

    t: Literal["message_copied"] = "message_copied"
    role: Literal["user", "assistant"]
    blocks: tuple[Placed, ...]
    turn: str = ""
    uuid: str = ""
    """UUID by which clients know the message of the earlier conversation."""


Event = Annotated[
    AgentStarted
    | AgentResumed
    | PromptSet
    | SpecChanged
    | AgentCrashed
    | WaitBegan
    | StallNoticed
    | StopAsked
    | AgentStopped
    | EnvelopeReceived
    | EnvelopesDelivered
    | EnvelopesDropped
    | TurnBegan
    | Interrupted
    | TurnEnded
    | InjectionQueued
    | InjectionsDelivered
    | MessageCopied
    | ModelCalled
    | ModelReplied
    | ReplyDropped
    | ReplyInterrupted
    | CallFailed
    | RetryPlanned
    | ModelSwitched
    | LimitsLearned
    | OutputRaised
    | ContinuationAsked
    | CallJudged
    | ApprovalNeeded
    | AnswerTaken
    | ToolStarted
    | ToolFinished
    | ToolSettled
    | ResultsMerged
    | StopHookRan
    | TodosSet
    | FileSeen
    | SkillLoaded
    | SkillCommandsBegan
    | GateSet
    | TaskHeld
    | Reported
    | BackgroundStarted
    | BackgroundEnded
    | CompactAsked
    | ContextEdited
    | SummaryBegan
    | SummaryFailed
    | ReactAsked
    | TokensCounted
    | CacheThrash
    | CallHeld
    | BudgetReached
    | StuckNoticed
    | TasksReminded
    | ShutdownRefused,
    Field(discriminator="t"),
]
EVENTS: frozenset[type[Any]] = frozenset(get_args(get_args(Event)[0]))
"""Classes of events."""


@cache
def _adapter() -> TypeAdapter[Any]:
    """Return the adapter of all events. Making it takes 11 ms, and few commands read a journal."""
    return TypeAdapter(Event)


def decode_event(data: bytes) -> Event:
    """Parse one record of a journal. Raises `pydantic.ValidationError` for a record that is not an event."""
    return _adapter().validate_json(data)
