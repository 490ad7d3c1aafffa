"""What a program may watch in a session: one frozen value for each thing that happens, as `Session.stream` tells it.

Every event has `agent`, the agent's name (`lead`, `alice`, ...). Times are Unix seconds, sizes are tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from callboard.api.results import Result
from callboard.words.events import Event as JournalEvent
from callboard.words.values import EnvelopeType, Json, Request

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
    """A piece of a reply as it streams. Pieces that wait for a slow reader come as one."""

    agent: str
    text: str


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    """A piece of what a model thinks, as it streams."""

    agent: str
    text: str


@dataclass(frozen=True, slots=True)
class ReplyDropped:
    """What has streamed of a reply is void: it is asked for again."""

    agent: str
    why: str


@dataclass(frozen=True, slots=True)
class Replied:
    """A whole reply's text. A reply that is only tool calls has none."""

    agent: str
    text: str


@dataclass(frozen=True, slots=True)
class ToolCalled:
    """A model asks for a tool. `call` is the call's id, `input` as the model wrote it."""

    agent: str
    call: str
    name: str
    input: Json


@dataclass(frozen=True, slots=True)
class ToolEnded:
    """A call has its result; also one that was denied, with why. `text`: its text blocks; `data`: the structured form,
    where the tool has one; `content`: all blocks, in the API's form."""

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
    """Something waits for an answer: `await session.answer(event.request, True)`. `agent` is who asks."""

    agent: str
    request: Request


@dataclass(frozen=True, slots=True)
class Answered:
    """A request is answered, or its time is over."""

    agent: str
    request_id: str
    status: Literal["approved", "rejected", "answered", "expired", "withdrawn"]
    by: str


@dataclass(frozen=True, slots=True)
class Retrying:
    """A model call failed and is made again at `until`. `attempt` is the next one's number, from 1."""

    agent: str
    attempt: int
    until: float
    why: str


@dataclass(frozen=True, slots=True)
class Compacted:
    """The conversation as the model sees it was made smaller. Tokens before and after are estimates."""

    agent: str
    stage: str
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Notice:
    """A text of a hook, or of the runtime, for a person who looks on."""

    agent: str
    text: str


@dataclass(frozen=True, slots=True)
class TurnBegan:
    """An agent begins a turn."""

    agent: str


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """An agent's turn is over. `text` is what it says in the end, `why` what ended it when that was not the model."""

    agent: str
    reason: Literal["end", "limit", "failed", "interrupted", "stopped", "refused", "overflow", "blocked"]
    text: str
    why: str


@dataclass(frozen=True, slots=True)
class Rested:
    """Nothing is left to do: the last event of a stream. `agent` is the lead."""

    agent: str
    result: Result[None]


@dataclass(frozen=True, slots=True)
class Raw:
    """A record of an agent's journal as it stands there (docs/records.md), where a stream was asked for them. `seq` is
    its number, from 1."""

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
"""All of them."""
