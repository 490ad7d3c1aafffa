"""Port of the model: one request, one complete reply or one fault.

An adapter always streams, never retries, and returns only after the service declared the message complete. Every
failure is raised as `CallFault` with a `Fault` value; no exception of a library leaves the adapter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Literal, Protocol

from callboard.types.errors import RuntimeCanAct
from callboard.types.lazy_dataclass import dataclass
from callboard.types.messages import joined_blocks
from callboard.types.rate_limits import Rates
from callboard.types.records import Fault, Json, Usage

OnHead = Callable[[Rates], None]
"""Function that receives the rate limits from the headers of a response. Must not block or raise."""


@dataclass(frozen=True)  # without slots, a copy with other fields costs a tenth (`core/frozen.py`)
class ModelRequest:
    """Content of one call. The bodies are JSON already: an adapter joins the pieces and never parses them.

    `shared_system` is the JSON of the system blocks that agents of a type share (an array), `own_blocks` that of the
    agent's own blocks behind them, `tools` the JSON of the tool list (an array), each in the form of the API, with its
    `cache_control` marks. `messages` are the JSON texts of the messages, in order, to be joined by commas: a piece is
    one message, or several joined ones. The newest messages are separate pieces.
    """

    session: str
    agent: str
    """Name of the agent in the session: `lead`, `alice`, ..."""
    ordinal: int
    attempt: int
    model: str
    max_tokens: int
    shared_system: bytes
    tools: bytes
    messages: Sequence[bytes]
    own_blocks: str = ""
    """Empty if all system blocks are in `shared_system`."""
    purpose: Literal["turn", "summary", "count"] = "turn"
    first_byte_timeout: float = 120.0
    """Seconds until the first event."""
    idle_timeout: float = 60.0
    """Seconds between two events that carry content. Pings do not count."""
    total_timeout: float = 900.0
    effort: Literal["", "low", "medium", "high", "xhigh", "max"] = ""
    """Thinking effort requested from the model; empty: the service's default."""
    thinking: Json | None = None
    """Parameter `thinking` of the call; None: the service's default."""
    events: bool = field(default=True, compare=False, repr=False)
    """False if nobody wants the service's events (`Delta.event`). Not part of the request itself."""
    on_head: OnHead | None = field(default=None, compare=False, repr=False)
    """Called once, as soon as the headers of a successful response have arrived with rate limits. Those of a refusal
    are in the `CallFault`. Not part of the request itself."""

    @property
    def system(self) -> bytes:
        """Return the JSON of all system blocks (an array)."""
        return joined_blocks(self.shared_system, self.own_blocks)


DeltaKind = Literal["text", "thinking", "tool", "dropped", "notice", "event"]


@dataclass(slots=True)
class Delta:
    """Part of a reply while it streams: displayed, never journalled.

    Not to be changed. It is not frozen, because that doubles the time to make one, and a reply has hundreds.
    """

    kind: DeltaKind
    text: str
    """Text; for `tool` the tool's name or a piece of its input; for `dropped` the reason why the partial reply is void;
    for `notice` the text of a hook for the person; empty for `event`."""
    event: Json | None = None
    """For `event`: the unchanged event of the service, in addition to the parts derived from it. Must not be
    mutated."""
    names_tool: bool = False
    """For `tool`: True if the text is the tool's name."""


@dataclass(frozen=True, slots=True)
class StreamingReply:
    """Reply of an agent while it streams."""

    agent: str
    life: int
    """Incarnation of the agent."""
    position: int
    """End of the agent's journal when the call began, without events that were not written yet. Each call has its own,
    because the end of the one before was written."""
    deltas: list[Delta] = field(default_factory=list[Delta])
    """Pieces so far, without those that are not part of the reply (`dropped`, `notice`, `event`)."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Complete reply. `blocks` have the form of the API and can be sent back unchanged.

    `bad_inputs` maps the index of a tool_use block to the reason why its input is unusable (not valid JSON, duplicate
    keys, not an object); its `input` in the block is then `{}`.
    """

    blocks: tuple[Json, ...]
    stop_reason: str
    usage: Usage
    model: str
    message_id: str = ""
    bad_inputs: dict[int, str] = field(default_factory=dict[int, str])
    cut_call: tuple[str, int] | None = None
    """Call that was cut off at the end of the reply: its tool, and the number of characters of its input."""


class CallFault(RuntimeCanAct):
    """Error of a model call; `fault` has the details.

    `partial` is the text that was streamed (it may be displayed). `rates` has the rate limits from the headers of the
    refusal; None if there were none.
    """

    def __init__(self, fault: Fault, partial: str = "", rates: Rates | None = None) -> None:
        super().__init__(f"{fault.kind}: {fault.message}")
        self.fault = fault
        self.partial = partial
        self.rates = rates


class CannotCount(RuntimeCanAct):
    """The service did not count the tokens of a request, so the estimate applies.

    `fault`: the fault of this attempt; None: the service cannot count.
    """

    def __init__(self, reason: str, fault: Fault | None = None) -> None:
        super().__init__(reason)
        self.fault = fault


OnStreaming = Callable[[StreamingReply, Delta], None]
"""Function that receives the parts of all replies of a session, for followers in other processes. Must not block or
raise."""
OnDelta = Callable[[Delta], None]
"""Function that receives parts of a reply. Must not block or raise: a slow screen drops deltas and never delays a
call."""


class Model(Protocol):
    """A model service."""

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        """Make one call. Raises only `CallFault`. Cancellation ends the connection."""
        ...

    async def count(self, request: ModelRequest) -> int:
        """Return the input tokens of a request as counted by the service.

        Generates nothing and does not send `max_tokens`.

        `ordinal` and `attempt` are those of the next call and of the view's revision. Raises only `CannotCount`, apart
        from cancellation.
        """
        ...

    async def aclose(self) -> None:
        """Close connections. Idempotent."""
        ...
