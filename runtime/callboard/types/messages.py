"""Content of a model's window: blocks, messages, edits. The view is rendered from the journal and these alone.

A block's `data` has the form of the API (a plain dict) and is never mutated. The id of a message is the journal
position of the event that opened it, so that an edit can always name its target.
"""

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Literal

from pydantic import Field

from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json, Value, compact_json

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


class Placed(Value):
    """Block to be added to a user message, as stored in events."""

    data: Json
    source: Source
    pinned: bool = False
    compactable: bool = True
    by: str = ""
    """For restored thinking: the model that produced it."""


class Restored(Value):
    """Message as it was before an edit that was undone."""

    id: int
    role: Literal["user", "assistant"]
    blocks: tuple[Placed, ...]
    turn: str = ""
    at: float = 0.0
    times: tuple[float, ...] = ()
    """Time of each block (Unix seconds), if different from `at`."""


Spared = tuple[tuple[int, int], ...]
"""First and last message id of each range that a person restored."""


class Edit(Value):
    """Reduction of the rendered history. Journalled.

    `cleared`, `persisted`: block `block` of message `message` is replaced by `text`. `summarised`, `dropped`,
    `snipped`: messages `message`..`last` are replaced by one user message of `blocks`. `restored`: messages
    `message`..`last` are replaced by `messages`; an undo is an edit too.
    """

    kind: Literal["cleared", "persisted", "summarised", "dropped", "snipped", "restored"]
    message: int
    last: int
    block: int | None = None
    text: str = ""
    blocks: tuple[Placed, ...] = ()
    path: str = ""
    """File that holds the whole text; empty: it was not written to a file."""
    messages: tuple[Restored, ...] = ()


ESSENTIAL = frozenset({"text", "thinking", "redacted_thinking", "tool_use"})
"""Kinds of blocks of a reply that no edit replaces alone: its own words, and what the service requires unchanged."""
FROM_THE_START = 0
"""`SummaryWanted.message` of a summary that also replaces earlier summaries."""


OwnStage = Callable[..., object]
"""A person's own stage (`core.context.stages.custom`)."""


class SummaryWanted(Value):
    """Summary that a stage requests. The engine makes the model call."""

    stage: str
    trigger: Literal["auto", "manual", "reactive"]
    message: int
    last: int
    """First and last message (ids) that the summary replaces."""
    focus: str = ""
    max_tokens: int = 2_000
    again: bool = False
    """True if earlier summaries in this range are summarized as well instead of being kept."""
    input: Literal["all", "head", "tail", "both"] = "all"
    """Part of the messages that the model gets: everything, in chunks; or the first, the last, or both ends of
    `input_chars`."""
    input_chars: int = 80_000
    prompt: str = ""
    """Instructions for the summary; empty: the default instructions."""
    place: Literal["system", "user"] = "system"
    """Position of the instructions: in the system prompt, or in a user message."""
    why: str = ""
    """Reason for the summary, for the user."""


class Injection(Value):
    """Text of the runtime that waits for the next user message.

    `kind` is its tag. A newer one replaces an unsent one.
    """

    kind: str
    text: str
    source: Source = "reminder"
    key: str = ""
    """Distinguishes several injections of one kind. Only the newest of each (kind, key) is sent."""

    @property
    def is_guidance(self) -> bool:
        """True for an instruction file, a note of memory or a skill: by itself it requires no reply."""
        return self.source in ("instructions", "memory", "skill")

    @property
    def subject(self) -> str:
        """Path of an instruction file or name of a note, whose key is `<digest> <path or note>`."""
        return self.key.partition(" ")[2]


@dataclass(frozen=True, slots=True)
class ViewBlock:
    """One block in the view."""

    data: Json
    source: Source
    tokens: int
    at: float = 0.0
    pinned: bool = False
    compactable: bool = True
    by: str = ""
    """For thinking: the model that produced it. It is never sent to another model."""


def serialise(role: str, blocks: Sequence[ViewBlock]) -> bytes:
    """Return a message as it is sent to the API: compact JSON in UTF-8."""
    body = b",".join([compact_json(block.data) for block in blocks])
    return b'{"role":"%s","content":[%s]}' % (role.encode(), body)


def joined_blocks(shared: bytes, own_blocks: str) -> bytes:
    """Return a system prompt, as JSON, from the array of its shared blocks and that of the agent's own ones.

    Neither array is empty, except that `own_blocks` may be an empty text.
    """
    return b"%b,%b" % (shared[:-1], own_blocks[1:].encode()) if own_blocks else shared


@dataclass(frozen=True, slots=True)
class ViewMessage:
    """One message of the view. `tokens` is the sum over its blocks."""

    id: int
    role: Literal["user", "assistant"]
    blocks: tuple[ViewBlock, ...]
    tokens: int
    turn: str = ""
    private: bool = False
    """True if some content is not sent to every model: thinking, or a call of the service's own tools."""
    sent: bytes = field(default=b"", init=False, compare=False, repr=False)
    """`wire`, once it was made; empty before."""

    @property
    def wire(self) -> bytes:
        """Return the message's JSON for the API.

        Made once, when it is first sent: a resume folds thousands of messages that no request will contain.
        """
        if not self.sent:
            object.__setattr__(self, "sent", serialise(self.role, self.blocks))
        return self.sent

    @property
    def content(self) -> bytes:
        """Return the JSON of the blocks: that of `wire`, which is not made for it."""
        wire = self.sent or serialise(self.role, self.blocks)
        return wire[wire.index(b"[") : -1]


@dataclass(frozen=True, slots=True)
class BranchPoint:
    """Point of the lead's conversation from which another conversation begins."""

    message: str = ""
    """UUID of the last message; empty: the newest."""
    drops: str = ""
    """UUID of the prompt whose turn may be lost. If anything else would be lost, the branch is refused."""


class StateBlock(Value):
    """State that the runtime renders exactly after every compaction, so that summaries need not contain it."""

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
    """Unanswered requests of the agent, and requests that it has to answer."""
