"""Answers of a rehearsed model, and the faults that may come before them: frozen values, adapted to a request.

`SimulatedRequest` is the view of a call for a scenario or a callable. `fit_reply` turns a `SimulatedReply` into the
API's answer to this very request: thinking only if it was requested, cut at `max_tokens` and stop sequences, with ids
and signatures.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import cast

from callboard.adapters.models.rehearsal.api import redact, service_use_id, sign, tool_use_id
from callboard.adapters.models.rehearsal.strict import fold_turns
from callboard.adapters.models.rehearsal.tokens import BLOCK_TOKENS, block_tokens, estimate, output_tokens
from callboard.types.lazy_dataclass import dataclass

Json = dict[str, object]

_CALL = ("name", "input", "raw_input")
_OF_THE_RUNTIME = ("<system-reminder>", "<project-instructions ", "<memory ")
"""Beginnings of texts that the runtime writes."""

DROPS = ("before_headers", "after_headers", "mid_stream", "before_stop")
"""Points at which a connection can be lost. `before_stop` ends it cleanly, as if everything had been sent; the others
are resets.
"""


@dataclass(frozen=True, slots=True)
class SimulatedFault:
    """One failure of a call, for `times` attempts in a row. Exactly one kind is set."""

    status: int | None = None
    """Status of an error response. `error_type`, `message`, `code` and `retry_after` (seconds) are its other fields."""
    drop: str | None = None
    """One of `DROPS`."""
    silence_s: float | None = None
    """Seconds of silence after half of the stream."""
    pings_s: float | None = None
    """Seconds with only pings after half of the stream."""
    html: int | None = None
    """Status of a response with a proxy's HTML page."""
    error_event: str | None = None
    """Type of an error in the middle of the stream, after a 200."""
    bad_json: bool = False
    """True: send an event in the middle of the stream that is not JSON."""
    wrong_shape: bool = False
    """True: send a 200 with JSON that is not a message."""
    slow_s: float | None = None
    """Seconds of additional delay before the first byte; the rest is normal."""
    times: int = 1
    retry_after: float | None = None
    error_type: str | None = None
    message: str = ""
    code: str | None = None

    @property
    def kind(self) -> str:
        """Return the name of the field that is set."""
        for name in ("status", "drop", "silence_s", "pings_s", "html", "error_event", "slow_s"):
            if getattr(self, name) is not None:
                return name
        return "bad_json" if self.bad_json else "wrong_shape"

    def __str__(self) -> str:
        value = getattr(self, self.kind)
        return self.kind if value is True else f"{self.kind} {value}"


@dataclass(frozen=True, slots=True)
class SimulatedReply:
    """A model's complete reply. Blocks are as in the API, without ids and signatures."""

    blocks: tuple[Mapping[str, object], ...] = ()
    stop_reason: str | None = None
    """Stop reason; None: `tool_use` if there are calls, else `end_turn`."""
    faults: tuple[SimulatedFault, ...] = ()
    latency_ms: float | None = None
    """Milliseconds before the first byte; None: the scenario's latency."""
    pace_ms: float = 0.0
    """Milliseconds between the pieces of a stream."""
    stop_sequence: str | None = None
    cut: bool = False
    """True if the last block was cut off at a token limit: a call's JSON is incomplete."""
    output: int = 0
    """Output tokens after adaptation to a request."""


def text(content: str) -> Json:
    """Return a text block."""
    return {"type": "text", "text": content}


def thinking(content: str) -> Json:
    """Return a thinking block. Its signature is added when it is sent."""
    return {"type": "thinking", "thinking": content}


def tool_use(name: str, tool_input: Mapping[str, object]) -> Json:
    """Return a call. Its id is added when it is sent."""
    return {"type": "tool_use", "name": name, "input": dict(tool_input)}


def raw_tool_use(name: str, raw_input: str) -> Json:
    """Return a call whose input is streamed as this text.

    The text may be anything that a model may write, such as duplicate keys or broken JSON.
    """
    return {"type": "tool_use", "name": name, "input": {}, "raw_input": raw_input}


def web_search(query: str, results: Sequence[Mapping[str, object]] | None) -> tuple[Json, ...]:
    """Return the blocks of a search by the service. `results` (title and url); None: the service pauses in it."""
    call_block: Json = {"type": "server_tool_use", "name": "web_search", "input": {"query": query}}
    return (call_block,) if results is None else (call_block, web_results(results))


def web_results(results: Sequence[Mapping[str, object]]) -> Json:
    """Return the results of the last search by the service."""
    return {"type": "web_search_tool_result", "content": [dict(result) for result in results]}


def say(content: str) -> SimulatedReply:
    """Return a reply of one text block that ends the turn."""
    return SimulatedReply((text(content),))


def call(name: str, tool_input: Mapping[str, object]) -> SimulatedReply:
    """Return a reply of one call."""
    return SimulatedReply((tool_use(name, tool_input),))


@dataclass(frozen=True, slots=True)
class SimulatedResult:
    """Tool result in the newest user message, with the name of the called tool."""

    tool: str
    tool_use_id: str
    text: str
    is_error: bool


@dataclass(frozen=True)
class SimulatedRequest:
    """View of a call for a scenario. `body` is the request's JSON, already validated."""

    session: str
    agent: str
    ordinal: str
    """Number of the call in the agent's journal; without that header, a number derived from the conversation."""
    attempt: int
    """Number of the attempt, from 1; each retry of the same call increments it."""
    purpose: str
    role: str
    body: Json
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def model(self) -> str:
        """Return the requested model."""
        return cast("str", self.body["model"])

    @property
    def messages(self) -> list[Json]:
        """Return the conversation."""
        return cast("list[Json]", self.body["messages"])

    @property
    def tools(self) -> list[str]:
        """Return the names of the offered tools."""
        return [cast("str", tool["name"]) for tool in cast("list[Json]", self.body.get("tools") or [])]

    @cached_property
    def _newest(self) -> list[Json]:
        """Return the blocks of the last user turn. Reads only the end of the conversation."""
        tail: list[Json] = []
        for message in reversed(self.messages):
            if message["role"] == "assistant" and tail:
                break
            if message["role"] == "user":
                tail.append(message)
        return [block for turn in fold_turns(tail[::-1]) for block in turn.blocks]

    @cached_property
    def newest_text(self) -> str:
        """Return all text of the newest user message, tool results included, joined by newlines."""
        return "\n".join(block_text(block) for block in self._newest)

    @property
    def newest_said(self) -> str:
        """Return the newest user message as its author wrote it: without reminders, if it contains anything else."""
        texts = [block_text(block) for block in self._newest]
        authored = [text for text in texts if not text.startswith(_OF_THE_RUNTIME)]
        return "\n".join(authored or texts)

    @cached_property
    def results(self) -> tuple[SimulatedResult, ...]:
        """Return the tool results of the newest user message."""
        results = [block for block in self._newest if block["type"] == "tool_result"]
        names = self._names() if results else {}
        return tuple(
            SimulatedResult(
                names.get(cast("str", block["tool_use_id"]), ""),
                cast("str", block["tool_use_id"]),
                block_text(block),
                bool(block.get("is_error")),
            )
            for block in results
        )

    @cached_property
    def all_text(self) -> str:
        """Return the system prompt and every message as text."""
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
    """Return the text of a block: its text, the text of a result, or the name and input of a call."""
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


def fit_reply(reply: SimulatedReply, request: SimulatedRequest) -> SimulatedReply:
    """Return the reply as the API would send it for this request."""
    blocks = _with_thinking(reply.blocks, request)
    blocks, stop_sequence = _stopped(blocks, cast("Sequence[str]", request.body.get("stop_sequences") or ()))
    limit = cast("int", request.body["max_tokens"])
    blocks, cut = _limited(blocks, limit - 1)  # even an empty reply costs one token
    stop = reply.stop_reason or ("tool_use" if any(block["type"] == "tool_use" for block in blocks) else "end_turn")
    if stop_sequence is not None:
        stop = "stop_sequence"
    if cut:
        stop = "max_tokens"
    seed = f"{request.session}/{request.agent}/{request.purpose}/{request.ordinal}"
    # In a reply with `stop_reason: max_tokens`, the last call is incomplete.
    if stop == "max_tokens" and not cut and blocks and blocks[-1]["type"] == "tool_use":
        written = written_input(blocks[-1])
        blocks[-1] = {**blocks[-1], "raw_input": written[: len(written) // 2]}
    finished = tuple(_all_finished(blocks, request, seed))
    return replace(
        reply,
        blocks=finished,
        stop_reason=stop,
        stop_sequence=stop_sequence,
        cut=stop == "max_tokens",
        output=limit if cut else output_tokens(finished),
    )


def _with_thinking(blocks: Sequence[Mapping[str, object]], request: SimulatedRequest) -> list[Json]:
    config = cast("Json", request.body.get("thinking") or {})
    kind = config.get("type", "disabled")
    if kind == "disabled":
        return [dict(block) for block in blocks if block["type"] not in ("thinking", "redacted_thinking")]
    shown_blocks = [dict(block) for block in blocks]
    if kind == "enabled" and not (shown_blocks and shown_blocks[0]["type"] in ("thinking", "redacted_thinking")):
        shown_blocks.insert(0, thinking("(The rehearsed model thinks.)"))
    if config.get("display") == "omitted":
        shown_blocks = [{**block, "thinking": ""} if block["type"] == "thinking" else block for block in shown_blocks]
    return shown_blocks


def _stopped(blocks: list[Json], sequences: Sequence[str]) -> tuple[list[Json], str | None]:
    for position, block in enumerate(blocks):
        if block["type"] != "text":
            continue
        content = cast("str", block["text"])
        stops = [(content.find(sequence), sequence) for sequence in sequences if sequence in content]
        if stops:
            at, sequence = min(stops)
            return [*blocks[:position], *([text(content[:at])] if at else [])], sequence
    return blocks, None


def _limited(blocks: list[Json], limit: int) -> tuple[list[Json], bool]:
    """Return as many blocks as fit into `limit` tokens. The first one that does not fit is cut and is the last."""
    fitting: list[Json] = []
    for block in blocks:
        cost = block_tokens(block)
        if cost <= limit:
            fitting.append(block)
            limit -= cost
            continue
        if block["type"] == "tool_use" and limit > 0:
            return [*fitting, {**block, "raw_input": _first_tokens(written_input(block), limit - BLOCK_TOKENS)}], True
        name = {"text": "text", "thinking": "thinking"}.get(cast("str", block["type"]))
        if name is None:
            return ([*fitting, block] if limit > 0 else fitting), True
        part = _first_tokens(cast("str", block[name]), limit - BLOCK_TOKENS)
        return ([*fitting, {**block, name: part}] if part.strip() else fitting), True
    return fitting, False


def written_input(block: Json) -> str:
    """Return the input of a call as the model writes it."""
    written = json.dumps(block["input"], ensure_ascii=False) if block["input"] else ""
    return cast("str", block.get("raw_input", written))


def _first_tokens(content: str, limit: int) -> str:
    low = 0
    high = len(content)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if estimate(content[:middle]) <= limit else (low, middle - 1)
    return content[:low]


def _all_finished(blocks: Sequence[Json], request: SimulatedRequest, seed: str) -> Iterator[Json]:
    """Yield the blocks with ids and signatures.

    Results belong to the last search, also of a reply that paused in it.
    """
    last = request.messages[-1] if request.messages else {}
    content = last.get("content")
    earlier = cast("list[Json]", content) if last.get("role") == "assistant" and isinstance(content, list) else []
    search = next((str(block["id"]) for block in reversed(earlier) if block["type"] == "server_tool_use"), "")
    for number, block in enumerate(blocks):
        finished = _finished(block, request.model, f"{seed}/{number}")
        if finished["type"] == "server_tool_use":
            search = str(finished["id"])
        elif finished["type"] == "web_search_tool_result":
            finished = {**finished, "tool_use_id": search}
        yield finished


def searches_in(blocks: Sequence[Mapping[str, object]]) -> int:
    """Return the number of searches that the service bills for a reply."""
    return sum(block["type"] == "web_search_tool_result" for block in blocks)


def _found(result: Json) -> Json:
    sealed = sign("web_search", f"{result['url']}\n{result['title']}")
    return {"type": "web_search_result", "page_age": None, **result, "encrypted_content": sealed}


def _finished(block: Json, model: str, seed: str) -> Json:
    kind = block["type"]
    if kind == "server_tool_use":
        return {"type": kind, "id": service_use_id(seed), "name": block["name"], "input": block["input"]}
    if kind == "web_search_tool_result":
        return {
            "type": kind,
            "tool_use_id": "",
            "content": [_found(item) for item in cast("list[Json]", block["content"])],
        }
    if kind == "tool_use":
        return {"type": "tool_use", "id": tool_use_id(seed), **{name: block[name] for name in _CALL if name in block}}
    if kind == "thinking":
        content = cast("str", block["thinking"])
        return {"type": "thinking", "thinking": content, "signature": sign(model, content)}
    if kind == "redacted_thinking":
        return {"type": "redacted_thinking", "data": redact(model, str(block.get("data", "")))}
    return block


Reply = SimulatedReply
Request = SimulatedRequest
"""Names of earlier versions, which scenarios in code import."""
