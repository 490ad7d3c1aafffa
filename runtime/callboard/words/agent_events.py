"""Events of an agent's life, its mail and turns, and the texts that wait for it. The laws stand in `events.py`."""

from __future__ import annotations

from typing import Literal

from callboard.words.context import Injection, Placed
from callboard.words.specs import AgentSpec
from callboard.words.values import Cause, Envelope, Value


class Base(Value):
    """Common to all: `v`, the version of this kind of record, and `at`, Unix seconds."""

    v: int = 1
    at: float


class AgentStarted(Base):
    """The first record of every journal."""

    t: Literal["agent_started"] = "agent_started"
    spec: AgentSpec
    session: str
    incarnation: int
    assignment: bool = False
    """It was given a piece of work to report on."""
    ordinal: int = 0
    """Model calls of the lives that this one goes on from: its own are numbered on from there."""
    summaries: int = 0
    """The same of summaries."""


class AgentResumed(Base):
    """Another process took it up. Operations under way before have no owner now."""

    t: Literal["agent_resumed"] = "agent_resumed"
    pid: int


class PromptSet(Base):
    """System prompt and tool list in use, as blob digests: a resume renders the same bytes, a change is a decision."""

    t: Literal["prompt_set"] = "prompt_set"
    system: str
    tools: str
    overhead_tokens: int
    """Estimated tokens of both."""
    instructions: dict[str, str] | None = None
    """The instruction files that stand in it: path as it is shown -> digest of the text. None: not known."""


class SpecChanged(Base):
    """Its model, mode, limits or tools were changed by a person or the runtime."""

    t: Literal["spec_changed"] = "spec_changed"
    spec: AgentSpec


class StopAsked(Base):
    """A stop or shutdown reached it: it cancels what runs, settles, reports and ends."""

    t: Literal["stop_asked"] = "stop_asked"
    by: str
    request_id: str | None = None
    why: str = ""


class AgentStopped(Base):
    """The last record of a journal."""

    t: Literal["agent_stopped"] = "agent_stopped"
    outcome: Literal["done", "failed", "limit", "stopped", "blocked"]
    result: str = ""


class AgentCrashed(Base):
    """Its code raised an exception; the supervisor writes this. It goes on from its journal at `again_at` (Unix
    seconds); None: it crashed too often in a row and is parked, until a person resumes it."""

    t: Literal["agent_crashed"] = "agent_crashed"
    why: str
    count: int
    """Crashes in the newest minute, this one included."""
    again_at: float | None = None


class WaitBegan(Base):
    """Its next model call waits, for the service's rate or for money that other calls hold back. `until`: Unix seconds,
    None where only others can end the wait."""

    t: Literal["wait_began"] = "wait_began"
    what: Literal["rate", "budget"]
    until: float | None = None


class StallNoticed(Base):
    """An operation takes longer than it may: the lead is told in the same commit, once."""

    t: Literal["stall_noticed"] = "stall_noticed"
    operation: str
    what: str
    """What it waits for, in words."""
    since: float
    limit: float
    """Seconds that it may take."""


class EnvelopeReceived(Base):
    """Taken from the mailbox, in mailbox order: this is the acknowledgement. `envelope.seq` moves the position."""

    t: Literal["envelope_received"] = "envelope_received"
    envelope: Envelope
    refused: str = ""
    """Why it does not count: it changes nothing and never enters the conversation. Empty: it counts."""


class EnvelopesDelivered(Base):
    """Put into the conversation, as `blocks` render them. An envelope is delivered exactly once."""

    t: Literal["envelopes_delivered"] = "envelopes_delivered"
    ids: tuple[str, ...]
    blocks: tuple[Placed, ...]


class EnvelopesDropped(Base):
    """Taken out of the mailbox without entering the conversation: handled by the runtime, or made void (`why`)."""

    t: Literal["envelopes_dropped"] = "envelopes_dropped"
    ids: tuple[str, ...]
    why: str
    refused: bool = False
    """They asked for what cannot be done: a turn in which nothing else was said ends so, and tells why."""


class TurnBegan(Base):
    t: Literal["turn_began"] = "turn_began"
    turn: str
    cause: str
    """The envelope that woke it."""
    depth: int = 0
    authority: Cause = "person"
    """What the envelopes that it sends may claim at most."""


class Interrupted(Base):
    """A person interrupted the turn."""

    t: Literal["interrupted"] = "interrupted"
    by: str = "person"


class TurnEnded(Base):
    """`text` is what the turn says in the end, `why` what ended it when that was not the model."""

    t: Literal["turn_ended"] = "turn_ended"
    turn: str
    reason: Literal["end", "limit", "failed", "interrupted", "stopped", "refused", "overflow", "blocked"]
    text: str = ""
    why: str = ""


class InjectionQueued(Base):
    """A text of the runtime waits for the next user message."""

    t: Literal["injection_queued"] = "injection_queued"
    injection: Injection


class InjectionsDelivered(Base):
    """All waiting injections entered the conversation."""

    t: Literal["injections_delivered"] = "injections_delivered"
    blocks: tuple[Placed, ...]
