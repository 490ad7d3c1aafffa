"""What stands in a model's window: blocks, messages, edits. The view is rendered from the journal and these alone.

A block's `data` is the API's own form (a plain dict) and is never mutated. Message ids are the journal position of the
event that opened the message, so that an edit names its target for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from callboard.words.values import Json, Value

Source = Literal[
    "person",
    "assistant",
    "tool",
    "hook",
    "reminder",
    "ide",
    "inbox",
    "schedule",
    "memory",
    "skill",
    "compactor",
    "instructions",
]

TIERS: dict[str, int] = {"reminder": 0, "person": 1, "schedule": 1, "assistant": 2}
"""0 the runtime's reminders; 1 the person, their schedules; 2 the assistant; 3 all else."""


class Placed(Value):
    """A block on its way into a user message, as events carry it."""

    data: Json
    source: Source
    pinned: bool = False
    compactable: bool = True
    by: str = ""
    """Of thinking that is put back: the model whose it is."""


class Restored(Value):
    """A message as it stood before an edit that was undone."""

    id: int
    role: Literal["user", "assistant"]
    blocks: tuple[Placed, ...]
    turn: str = ""
    at: float = 0.0
    times: tuple[float, ...] = ()
    """When each block came (Unix seconds), where not all came at `at`."""


class Edit(Value):
    """How the rendering of the history was reduced. Journalled.

    `cleared`, `persisted`: block `block` of message `message` now reads `text`.
    `summarised`, `dropped`, `snipped`: messages `message`..`last` are one user message of `blocks`.
    `restored`: messages `message`..`last` are `messages` again; an undo is an edit too.
    """

    kind: Literal["cleared", "persisted", "summarised", "dropped", "snipped", "restored"]
    message: int
    last: int
    block: int | None = None
    text: str = ""
    blocks: tuple[Placed, ...] = ()
    path: str = ""
    """Where the whole text stands, if it was written to a file."""
    messages: tuple[Restored, ...] = ()


class SummaryWanted(Value):
    """What a summary stage asks the engine to have summarised; the engine makes the call."""

    stage: str
    trigger: Literal["auto", "manual", "reactive"]
    message: int
    last: int
    """First and last message (ids) that the summary replaces."""
    focus: str = ""
    max_tokens: int = 2_000
    again: bool = False
    """Earlier summaries within are summarised too, and do not stay."""
    input: Literal["all", "head", "tail", "both"] = "all"
    """What of it the model is given: everything, in chunks; or the first, the last, or both ends of `input_chars`."""
    input_chars: int = 80_000
    prompt: str = ""
    """The instructions; empty: the runtime's own."""
    place: Literal["system", "user"] = "system"
    """Where the instructions stand."""
    why: str = ""
    """Why it is made now, for a person to read."""


class Injection(Value):
    """A text of the runtime that waits for the next user message. `kind` is its tag; a newer one replaces an unsent."""

    kind: str
    text: str
    source: Source = "reminder"
    key: str = ""
    """Distinguishes several of one kind; the newest of a (kind, key) counts."""


@dataclass(frozen=True, slots=True)
class Block:
    """One block in the view."""

    data: Json
    source: Source
    tokens: int
    at: float = 0.0
    pinned: bool = False
    compactable: bool = True
    by: str = ""
    """Of thinking: the model that was asked for it. No other model is sent it."""

    @property
    def tier(self) -> int:
        """How much its author may claim: 0 the runtime, 1 the person, 2 the assistant, 3 anybody else."""
        return TIERS.get(self.source, 3)


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the view. `wire` is its JSON as the API gets it; `tokens` the sum over its blocks."""

    id: int
    role: Literal["user", "assistant"]
    blocks: tuple[Block, ...]
    tokens: int
    wire: bytes
    turn: str = ""
    private: bool = False
    """Something in it is not sent to every model: thinking, or a call of the service's own tools."""


class StateBlock(Value):
    """What the runtime knows and a summary need not remember (rendered exactly after every compaction)."""

    todos: tuple[str, ...] = Field(default=())
    tasks: tuple[str, ...] = Field(default=())
    plan: str = ""
    teammates: tuple[str, ...] = Field(default=())
    background: tuple[str, ...] = Field(default=())
    schedules: tuple[str, ...] = Field(default=())
    files_read: tuple[str, ...] = Field(default=())
    files_changed: tuple[str, ...] = Field(default=())
    skills: tuple[str, ...] = Field(default=())
    requests: tuple[str, ...] = Field(default=())
    """What it asked and nobody has answered yet, and what waits for its own word."""
