"""Events of a session, as frozen values, from `Session.stream`.

Every event has `agent`, the agent's name (`lead`, `alice`, ...). Times are Unix seconds, sizes are tokens.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, Literal

from callboard.sdk.results import Result
from callboard.types.events import Event as JournalEvent
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import EnvelopeType, Json, Request

__all__ = [
    "Answered",
    "Asked",
    "Compacted",
    "Event",
    "Message",
    "Notice",
    "Raw",
    "Replied",
    "ReplyDropped",
    "Rested",
    "Retrying",
    "TextDelta",
    "ThinkingDelta",
    "ToolCalled",
    "ToolEnded",
    "TurnBegan",
    "TurnEnded",
]


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Part of a reply's text while it streams. Parts that wait for a slow reader are joined."""

    agent: str
    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    """Part of a model's thinking while it streams."""

    agent: str
    text: str


@dataclass(frozen=True, slots=True)
class ReplyDropped:
    """The streamed part of a reply is invalid, because the reply is requested again."""

    agent: str
    why: str


@dataclass(frozen=True, slots=True)
class Replied:
    """Full text of a reply. A reply that contains only tool calls has no such event."""

    agent: str
    text: str


@dataclass(frozen=True, slots=True)
class ToolCalled:
    """A model calls a tool. `call` is the id of the call, `input` the input as the model wrote it."""

    agent: str
    call: str
    name: str
    input: Json


@dataclass(frozen=True, slots=True)
class ToolEnded:
    """A call has its result. A denied call ends with the reason.

    `text`: its text blocks. `data`: the structured result of tools that have one. `content`: all blocks, in the form of
    the API.
    """

    agent: str
    call: str
    name: str
    text: str
    is_error: bool
    data: Json = field(default_factory=dict[str, Any])
    content: tuple[Json, ...] = ()


@dataclass(frozen=True, slots=True)
class Message:
    """An envelope between agents. `agent` is its sender."""

    agent: str
    to: str
    kind: EnvelopeType
    text: str


@dataclass(frozen=True, slots=True)
class Asked:
    """A request waits for an answer: `await session.answer(event.request, True)`. `agent` made the request."""

    agent: str
    request: Request


@dataclass(frozen=True, slots=True)
class Answered:
    """A request was answered, or it expired."""

    agent: str
    request_id: str
    status: Literal["approved", "rejected", "answered", "expired", "withdrawn"]
    by: str


@dataclass(frozen=True, slots=True)
class Retrying:
    """A model call failed and is repeated at `until`. `attempt` is the number of the next attempt, from 1."""

    agent: str
    attempt: int
    until: float
    why: str


@dataclass(frozen=True, slots=True)
class Compacted:
    """The model's view of the conversation was reduced. Token counts before and after are estimates."""

    agent: str
    stage: str
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Notice:
    """Text of a hook or of the runtime for the user."""

    agent: str
    text: str


@dataclass(frozen=True, slots=True)
class TurnBegan:
    """An agent begins a turn."""

    agent: str


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """An agent's turn ended.

    `text` is its final text. `why` is the reason for the end, if the model did not end the turn itself.
    """

    agent: str
    reason: Literal["end", "limit", "failed", "interrupted", "stopped", "refused", "overflow", "blocked"]
    text: str
    why: str


@dataclass(frozen=True, slots=True)
class Rested:
    """The session has nothing left to do. This is the last event of a stream. `agent` is the lead."""

    agent: str
    result: Result[None]


@dataclass(frozen=True, slots=True)
class Raw:
    """Unchanged record of an agent's journal (docs/records.md), in streams opened with `raw=True`.

    `seq` is its number, from 1.
    """

    agent: str
    seq: int
    event: JournalEvent


Event = (
    TextDelta
    | ThinkingDelta
    | ReplyDropped
    | Replied
    | ToolCalled
    | ToolEnded
    | Message
    | Asked
    | Answered
    | Retrying
    | Compacted
    | Notice
    | TurnBegan
    | TurnEnded
    | Rested
    | Raw
)
"""Any event."""
