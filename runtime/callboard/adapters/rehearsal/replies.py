"""What a rehearsed model answers, and the faults that may stand before it: frozen values, and how they fit a request.

`Request` is what a scenario or a callable sees of a call. `fitted` turns a `Reply` into what the API would send for
this very request: thinking only where asked for, cut at `max_tokens` and stop sequences, with ids and signatures.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import cast

from callboard.adapters.rehearsal.api import redact, sign, tool_use_id
from callboard.adapters.rehearsal.strict_turns import fold_turns
from callboard.adapters.rehearsal.tokens import BLOCK_TOKENS, block_tokens, estimate, output_tokens

Json = dict[str, object]

_CALL = ("name", "input", "raw_input")
_OF_THE_RUNTIME = ("<system-reminder>", "<project-instructions ", "<memory ")
"""How a text begins that nobody said."""

DROPS = ("before_headers", "after_headers", "mid_stream", "before_stop")
"""Where a connection can be lost. `before_stop` ends cleanly, as if all had been sent; the others are resets."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong with a call, `times` attempts in a row. Exactly one kind is set."""

    status: int | None = None
    """An error answer. `error_type`, `message`, `code` and `retry_after` (seconds) shape it."""
    drop: str | None = None
    """One of `DROPS`."""
    silence_s: float | None = None
    """Half of the stream, then nothing for so long, then the rest."""
    pings_s: float | None = None
    """Half of the stream, then nothing but pings for so long, then the rest."""
    html: int | None = None
    """A proxy's HTML page with this status."""
    error_event: str | None = None
    """An error of this type in the middle of the stream, after a 200."""
    bad_json: bool = False
    """An event in the middle of the stream that is no JSON."""
    wrong_shape: bool = False
    """A 200 with JSON that is no message."""
    slow_s: float | None = None
    """So much longer before the first byte; then all is well."""
    times: int = 1
    retry_after: float | None = None
    error_type: str | None = None
    message: str = ""
    code: str | None = None

    @property
    def kind(self) -> str:
        """The name of what is set."""
        for name in ("status", "drop", "silence_s", "pings_s", "html", "error_event", "slow_s"):
            if getattr(self, name) is not None:
                return name
        return "bad_json" if self.bad_json else "wrong_shape"

    def __str__(self) -> str:
        value = getattr(self, self.kind)
        return self.kind if value is True else f"{self.kind} {value}"


@dataclass(frozen=True, slots=True)
class Reply:
    """A model's whole answer. Blocks are as in the API, without ids and signatures."""

    blocks: tuple[Mapping[str, object], ...] = ()
    stop_reason: str | None = None
    """None: `tool_use` if there are calls, else `end_turn`."""
    faults: tuple[Fault, ...] = ()
    latency_ms: float | None = None
    """Before the first byte; None: the scenario's."""
    pace_ms: float = 0.0
    """Between the pieces of a stream."""
    stop_sequence: str | None = None
    cut: bool = False
    """The last block was cut off at a token limit: a call's JSON is incomplete."""
    output: int = 0
    """Output tokens, once fitted to a request."""


def text(words: str) -> Json:
    """A text block."""
    return {"type": "text", "text": words}


def thinking(words: str) -> Json:
    """A thinking block; its signature is added when it is sent."""
    return {"type": "thinking", "thinking": words}


def tool_use(name: str, given: Mapping[str, object]) -> Json:
    """A call; its id is added when it is sent."""
    return {"type": "tool_use", "name": name, "input": dict(given)}


def raw_tool_use(name: str, raw_input: str) -> Json:
    """A call whose input is streamed as this text: doubled keys, broken JSON, anything a model may write."""
    return {"type": "tool_use", "name": name, "input": {}, "raw_input": raw_input}


def say(words: str) -> Reply:
    """A reply of one text block that ends the turn."""
    return Reply((text(words),))


def call(name: str, given: Mapping[str, object]) -> Reply:
    """A reply of one call."""
    return Reply((tool_use(name, given),))


@dataclass(frozen=True, slots=True)
class Result:
    """A tool result of the newest user message, with the name of the tool that was called."""

    tool: str
    tool_use_id: str
    text: str
    is_error: bool


@dataclass(frozen=True)
class Request:
    """A call as a scenario sees it. `body` is the request's JSON, already found valid."""

    session: str
    agent: str
    ordinal: str
    """The number of the call in the agent's journal; without that header: one made from the conversation."""
    attempt: int
    """From 1; a retry of the same call counts on."""
    purpose: str
    role: str
    body: Json
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def model(self) -> str:
        """The model asked for."""
        return cast("str", self.body["model"])

    @property
    def messages(self) -> list[Json]:
        """The conversation."""
        return cast("list[Json]", self.body["messages"])

    @property
    def tools(self) -> list[str]:
        """The names of the tools on offer."""
        return [cast("str", tool["name"]) for tool in cast("list[Json]", self.body.get("tools") or [])]

    @cached_property
    def _newest(self) -> list[Json]:
        """The blocks of the last user turn. Looks at the end of the conversation only."""
        tail: list[Json] = []
        for message in reversed(self.messages):
            if message["role"] == "assistant" and tail:
                break
            if message["role"] == "user":
                tail.append(message)
        return [block for turn in fold_turns(tail[::-1]) for block in turn.blocks]

    @cached_property
    def newest_text(self) -> str:
        """All text of the newest user message, tool results included, joined by newlines."""
        return "\n".join(block_text(block) for block in self._newest)

    @property
    def newest_said(self) -> str:
        """The newest user message as its author wrote it: without reminders, if there is anything else in it."""
        texts = [block_text(block) for block in self._newest]
        said = [text for text in texts if not text.startswith(_OF_THE_RUNTIME)]
        return "\n".join(said or texts)

    @cached_property
    def results(self) -> tuple[Result, ...]:
        """The tool results of the newest user message."""
        found = [block for block in self._newest if block["type"] == "tool_result"]
        names = self._names() if found else {}
        return tuple(
            Result(
                names.get(cast("str", block["tool_use_id"]), ""),
                cast("str", block["tool_use_id"]),
                block_text(block),
                bool(block.get("is_error")),
            )
            for block in found
        )

    @cached_property
    def all_text(self) -> str:
        """The system prompt and every message, as text."""
        system = self.body.get("system") or ""
        parts = [system] if isinstance(system, str) else [block_text(block) for block in cast("list[Json]", system)]
        parts += [block_text(block) for turn in fold_turns(self.messages) for block in turn.blocks]
        return "\n".join(parts)

    def _names(self) -> dict[str, str]:
        for message in reversed(self.messages):
            if message["role"] == "assistant" and isinstance(message["content"], list):
                blocks = cast("list[Json]", message["content"])
                return {cast("str", b["id"]): cast("str", b["name"]) for b in blocks if b["type"] == "tool_use"}
        return {}


def block_text(block: Json) -> str:
    """The words of a block: text, a result's text, a call's name and input."""
    kind = block["type"]
    if kind == "text":
        return cast("str", block["text"])
    if kind == "tool_result":
        content = block.get("content", "")
        if isinstance(content, str):
            return content
        return "\n".join(block_text(part) for part in cast("list[Json]", content))
    if kind == "tool_use":
        return f"{block['name']} {json.dumps(block['input'], ensure_ascii=False)}"
    return ""


def fitted(reply: Reply, request: Request) -> Reply:
    """The reply as the API would send it for this request."""
    blocks = _with_thinking(reply.blocks, request)
    blocks, stop_sequence = _stopped(blocks, cast("Sequence[str]", request.body.get("stop_sequences") or ()))
    limit = cast("int", request.body["max_tokens"])
    blocks, cut = _limited(blocks, limit - 1)  # a reply costs one token, even an empty one
    stop = reply.stop_reason or ("tool_use" if any(block["type"] == "tool_use" for block in blocks) else "end_turn")
    if stop_sequence is not None:
        stop = "stop_sequence"
    if cut:
        stop = "max_tokens"
    seed = f"{request.session}/{request.agent}/{request.purpose}/{request.ordinal}"
    finished = tuple(_finished(block, request.model, f"{seed}/{n}") for n, block in enumerate(blocks))
    # A reply written as cut off (`stop_reason: max_tokens`) is one whose last call is incomplete.
    return replace(
        reply,
        blocks=finished,
        stop_reason=stop,
        stop_sequence=stop_sequence,
        cut=stop == "max_tokens",
        output=limit if cut else output_tokens(finished),
    )


def _with_thinking(blocks: Sequence[Mapping[str, object]], request: Request) -> list[Json]:
    config = cast("Json", request.body.get("thinking") or {})
    kind = config.get("type", "disabled")
    if kind == "disabled":
        return [dict(block) for block in blocks if block["type"] not in ("thinking", "redacted_thinking")]
    shown = [dict(block) for block in blocks]
    if kind == "enabled" and not (shown and shown[0]["type"] in ("thinking", "redacted_thinking")):
        shown.insert(0, thinking("(The rehearsed model thinks.)"))
    if config.get("display") == "omitted":
        shown = [{**block, "thinking": ""} if block["type"] == "thinking" else block for block in shown]
    return shown


def _stopped(blocks: list[Json], sequences: Sequence[str]) -> tuple[list[Json], str | None]:
    for position, block in enumerate(blocks):
        if block["type"] != "text":
            continue
        words = cast("str", block["text"])
        found = [(words.find(sequence), sequence) for sequence in sequences if sequence in words]
        if found:
            at, sequence = min(found)
            return [*blocks[:position], *([text(words[:at])] if at else [])], sequence
    return blocks, None


def _limited(blocks: list[Json], limit: int) -> tuple[list[Json], bool]:
    """As many blocks as fit into `limit` tokens; the first that does not is cut, and is the last."""
    kept: list[Json] = []
    for block in blocks:
        cost = block_tokens(block)
        if cost <= limit:
            kept.append(block)
            limit -= cost
            continue
        name = {"text": "text", "thinking": "thinking"}.get(cast("str", block["type"]))
        if name is None:
            return ([*kept, block] if limit > 0 else kept), True
        part = _first_tokens(cast("str", block[name]), limit - BLOCK_TOKENS)
        return ([*kept, {**block, name: part}] if part.strip() else kept), True
    return kept, False


def _first_tokens(words: str, limit: int) -> str:
    low, high = 0, len(words)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if estimate(words[:middle]) <= limit else (low, middle - 1)
    return words[:low]


def _finished(block: Json, model: str, seed: str) -> Json:
    kind = block["type"]
    if kind == "tool_use":
        return {"type": "tool_use", "id": tool_use_id(seed), **{name: block[name] for name in _CALL if name in block}}
    if kind == "thinking":
        words = cast("str", block["thinking"])
        return {"type": "thinking", "thinking": words, "signature": sign(model, words)}
    if kind == "redacted_thinking":
        return {"type": "redacted_thinking", "data": redact(model, str(block.get("data", "")))}
    return block
