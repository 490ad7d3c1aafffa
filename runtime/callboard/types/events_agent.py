"""Events of an agent's lifecycle, its mail and turns, and its waiting injections. `events.py` states the rules."""

from __future__ import annotations

from typing import Literal

from callboard.types.agent_spec import AgentSpec
from callboard.types.messages import Injection, Placed
from callboard.types.records import Base, Cause, Envelope, TurnLimit


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
    """Another process hosts the agent now. Operations that ran before have no owner."""

    t: Literal["agent_resumed"] = "agent_resumed"
    pid: int


class PromptSet(Base):
    """System prompt and tool list in use, as blob digests. A resume renders the same bytes; a change is a decision."""

    t: Literal["prompt_set"] = "prompt_set"
    system: str
    tools: str
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
    """The agent's code raised an exception. The supervisor writes this event. The agent continues from its journal at
    `again_at` (Unix seconds); None: it crashed too often in a row and is parked until the user resumes it."""

    t: Literal["agent_crashed"] = "agent_crashed"
    why: str
    count: int
    """Crashes in the last minute, including this one."""
    again_at: float | None = None


class WaitBegan(Base):
    """The agent's next model call waits for the rate limits of the service, or for budget that other calls have
    reserved. `until`: Unix seconds; None if only other calls can end the wait."""

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
    """The agent took an envelope from its mailbox, in mailbox order. This is the acknowledgement. `envelope.seq` moves
    the position."""

    t: Literal["envelope_received"] = "envelope_received"
    envelope: Envelope
    refused: str = ""
    """Reason why the envelope is rejected: it changes nothing and never enters the conversation. Empty: it is
    accepted."""


class EnvelopesDelivered(Base):
    """Envelopes entered the conversation, rendered as `blocks`. An envelope is delivered exactly once."""

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


class TurnBegan(Base):
    t: Literal["turn_began"] = "turn_began"
    turn: str
    cause: str
    """Envelope that woke the agent."""
    depth: int = 0
    authority: Cause = "person"
    """Highest authority that envelopes sent in this turn may claim."""


class Interrupted(Base):
    """The user interrupted the turn."""

    t: Literal["interrupted"] = "interrupted"
    by: str = "person"


class TurnEnded(Base):
    """A turn ended. `text` is its final text. `why` is the reason for the end, if the model did not end the turn
    itself."""

    t: Literal["turn_ended"] = "turn_ended"
    turn: str
    reason: Literal["end", "limit", "failed", "interrupted", "stopped", "refused", "overflow", "blocked"]
    text: str = ""
    why: str = ""
    limit: TurnLimit = ""
    """Limit that ended the turn, where `reason` is `limit`."""


class TasksReminded(Base):
    """The model ended its turn while it holds unfinished tasks. It is reminded once in a turn, and the turn
    continues."""

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
