"""The model port: one request, one whole reply or one fault.

An adapter streams always, never retries, and returns only after the service said that the message is complete. Whatever
goes wrong is raised as `CallFault` with a `Fault` value; no exception of a library leaves it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from callboard.words.errors import RuntimeCanAct
from callboard.words.rates import Rates
from callboard.words.values import Fault, Json, Usage

OnHead = Callable[[Rates], None]
"""Gets what the head of an answer told of the key's rate limits. Never blocks, never raises."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One call. The bodies are JSON already: an adapter joins the pieces and never looks into them.

    `system` is the JSON of the system blocks (an array), `tools` the JSON of the tool list (an array), each as the API
    wants it, with `cache_control` where it belongs. `messages` are the JSON texts of the messages, in order, to be
    joined by commas: a piece is one message, or several that are joined already. The newest messages stand alone.
    """

    session: str
    agent: str
    """`lead`, `alice`, ...: the name in the session."""
    ordinal: int
    attempt: int
    model: str
    max_tokens: int
    system: bytes
    tools: bytes
    messages: Sequence[bytes]
    purpose: Literal["turn", "summary", "count"] = "turn"
    first_byte_timeout: float = 120.0
    """Seconds until the first event."""
    idle_timeout: float = 60.0
    """Seconds between two events that carry content; pings do not count."""
    total_timeout: float = 900.0
    effort: Literal["", "low", "medium", "high", "xhigh", "max"] = ""
    """How hard the model is asked to think; empty: as the service does by itself."""
    on_head: OnHead | None = field(default=None, compare=False, repr=False)
    """Told once, as soon as the head of a good answer has come, if it says anything; that of a refusal comes with its
    `CallFault`. It is who listens, and no part of what is asked."""


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a reply as it streams: shown, never journalled."""

    kind: Literal["text", "thinking", "tool", "dropped", "notice", "event"]
    text: str
    """The text; for `tool` the tool's name or a piece of its input; for `dropped` why the
    partial reply is void; for `notice` what a hook tells the person; empty for `event`."""
    event: Json | None = None
    """For `event`: what the service sent, as it came, beside the pieces that are made of it. Not to be changed."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole reply. `blocks` are in the API's form, fit to be sent back as they are.

    `bad_inputs` maps the index of a tool_use block to the reason why its input cannot be used (not valid JSON, doubled
    keys, not an object); its `input` in the block is then `{}`.
    """

    blocks: tuple[Json, ...]
    stop_reason: str
    usage: Usage
    model: str
    message_id: str = ""
    bad_inputs: dict[int, str] = field(default_factory=dict[int, str])


class CallFault(RuntimeCanAct):
    """A model call failed; `fault` says how. `partial` is the text that had been streamed (it may be shown). `rates` is
    what a refusal told of the key's rate limits, None where it told nothing."""

    def __init__(self, fault: Fault, partial: str = "", rates: Rates | None = None) -> None:
        super().__init__(f"{fault.kind}: {fault.message}")
        self.fault, self.partial, self.rates = fault, partial, rates


class CannotCount(RuntimeCanAct):
    """The service did not say how long a request is. The estimate must do. `fault`: how this try failed; None: it has
    no way to say."""

    def __init__(self, why: str, fault: Fault | None = None) -> None:
        super().__init__(why)
        self.fault = fault


OnDelta = Callable[[Delta], None]
"""Never blocks, never raises: a slow screen drops deltas, it does not hold a call."""


class Model(Protocol):
    """A model service."""

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        """Make one call. Raises `CallFault` and nothing else (cancellation apart, which ends the connection)."""
        ...

    async def count(self, request: ModelRequest) -> int:
        """Input tokens of a request, as the service counts them; nothing is generated, `max_tokens` is not sent.

        `ordinal` and `attempt` are those of the next call and of the view's revision. Raises `CannotCount` and nothing
        else (cancellation apart).
        """
        ...

    async def aclose(self) -> None:
        """Close connections. Idempotent."""
        ...
