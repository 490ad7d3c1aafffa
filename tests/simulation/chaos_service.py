"""The model service of a chaos: everything that it can say and every way in which it can fail, drawn from one seed.

It outlives the processes that call it. It refuses, as the real one does, what is not valid, and writes down whatever it
billed, so that both can be held against the journals. The same agent's same call is answered the same whenever it is
asked again; only its faults, its delays and its usage differ.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
from tests.simulation.chaos_replies import CALLS, OVERFLOW, reply_of

from callboard.adapters.models.rehearsal.api import ModelSpec, sign
from callboard.adapters.models.rehearsal.strict import CheckContext, check_request
from callboard.ports.model import CallFault, CannotCount, Delta, ModelRequest, OnDelta, Reply
from callboard.testing import ScriptedModel, fault, say, use
from callboard.types.records import Fault, Usage

MODELS = ("scripted", "two", "three")
FAULTS_IN_A_ROW = 4
"""Faults of one call, at most: then it goes through, so that every run ends."""
_KNOWN = {name: ModelSpec(name) for name in MODELS}
Draw = random.Random
Says = Callable[[int, ModelRequest, bool], Reply]
"""(seed, request, whether this call filled the window before) -> the reply to a call of a turn."""

TRANSIENT: tuple[Fault, ...] = (
    fault("overloaded", status=529, type="overloaded_error"),
    fault("overloaded", status=529, type="overloaded_error"),
    fault("overloaded", message="in the stream"),
    fault("rate_limited", status=429),
    fault("rate_limited", status=429, retry_after=0.0),
    fault("rate_limited", status=429, retry_after=2.0),
    fault("rate_limited", status=429, retry_after=60.0),
    fault("server", status=500),
    fault("server", status=503, retry_after=5.0),
    fault("connection"),
    fault("connection", message="reset in the stream"),
    fault("silence"),
    fault("bad_reply", status=200, message="the stream is not JSON"),
)
PARKING: tuple[Fault, ...] = (
    fault("rate_limited", status=429, retry_after=61.0),
    fault("rate_limited", status=429, retry_after=600.0),
    fault("rate_limited", status=429, retry_after=7_200.0),
    fault("too_long", status=400, message="prompt is too long: 205000 tokens > 200000 maximum"),
    fault("too_long", status=413, type="request_too_large"),
)
LOWER: tuple[Fault, ...] = (
    fault("invalid", status=400, message="max_tokens: 32000 > 8000, which is the maximum", max_output=8_000),
    fault("too_long", status=400, message="input length and max_tokens exceed the context limit", window=150_000),
)
"""Refusals that state a limit which is lower than the one known."""
FINAL: tuple[Fault, ...] = (
    fault("spend_limit", status=400, message="your credit balance is too low"),
    fault("credentials", status=401, message="invalid x-api-key"),
    fault("payment", status=402),
    fault("not_found", status=404, message="model: scripted"),
    fault("invalid", status=400, message="messages: at least one is required"),
)


@dataclass(frozen=True)
class Bill:
    """What one call cost. `usage.output_tokens` is unlike that of any other call of the run."""

    process: int
    agent: str
    purpose: str
    usage: Usage
    failed: bool = False


@dataclass
class Service:
    """What the service knows, whoever calls it."""

    seed: int
    says: Says = reply_of
    faults_of: float = 0.25
    """The share of tries that fail."""
    bills: list[Bill] = field(default_factory=list[Bill])
    complaints: list[str] = field(default_factory=list[str])
    faults: Counter[str] = field(default_factory=Counter[str])
    stops: Counter[str] = field(default_factory=Counter[str])
    tries: Counter[tuple[str, int, str]] = field(default_factory=Counter[tuple[str, int, str]])
    known_tools: set[bytes] = field(default_factory=set[bytes])
    overflowed: set[tuple[str, int, str]] = field(default_factory=set[tuple[str, int, str]])
    """Calls whose reply filled the window: compacted, they do no more."""

    def check(self, request: ModelRequest) -> None:
        """Complain of a request that the real service would not take."""
        tools: list[Any] = json.loads(request.tools)
        if request.tools in self.known_tools:  # a list is looked at once: that is most of the work
            tools = [{"name": "known", "input_schema": {"type": "object"}}] if tools else []
        self.known_tools.add(request.tools)
        system: list[Any] = json.loads(request.system)
        body: dict[str, object] = {
            "model": request.model,
            "max_tokens": request.max_tokens,
            "messages": json.loads(b"[" + b",".join(request.messages) + b"]"),
            **({"tools": tools} if tools else {}),
            **({"system": system} if system else {}),
        }
        if request.purpose == "count":
            del body["max_tokens"]
        paused = b'"paused"' in request.messages[-1]  # nobody says that who was not paused
        rules = CheckContext(_KNOWN, paused=paused and request.purpose != "summary")
        error = check_request(body, rules, counting=request.purpose == "count")
        if error is not None:
            self.complaints.append(f"{request.agent} {request.purpose} {request.ordinal}: {error.message}")

    def billed(self, request: ModelRequest, draw: Draw, process: int, *, failed: bool = False) -> Usage:
        """Bill a call. The tokens of its input follow from its length, some of them from the cache."""
        tokens = sum(map(len, request.messages)) // 4 + len(request.system) // 4
        cached = int(tokens * draw.choice((0, 0, 0.5, 0.9)))
        usage = Usage(
            input_tokens=tokens - cached,
            cache_creation_input_tokens=cached // 3,
            cache_read_input_tokens=cached - cached // 3,
            output_tokens=len(self.bills) + 1,
        )
        self.bills.append(Bill(process, request.agent, request.purpose, usage, failed))
        return usage


class WildModel(ScriptedModel):
    """The service as one process sees it."""

    def __init__(self, service: Service, process: int) -> None:
        super().__init__({})
        self._service, self._process = service, process

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        service = self._service
        service.check(request)
        call = (request.agent, request.ordinal, request.purpose)
        service.tries[call] += 1
        tried = service.tries[call]
        draw = Draw(f"{service.seed}/{call}/{tried}")
        await anyio.sleep(draw.choice((0, 0, 0.1, 3, 20)))
        if tried <= FAULTS_IN_A_ROW and draw.random() < service.faults_of:
            await self._fail(request, on_delta, draw)
        overflowed = call in service.overflowed
        reply = _summary(draw) if request.purpose == "summary" else service.says(service.seed, request, overflowed)
        if reply.stop_reason == OVERFLOW:
            service.overflowed.add(call)
        await _stream(reply, on_delta, draw)
        return self._whole(reply, request, draw)

    async def count(self, request: ModelRequest) -> int:
        self._service.check(request)
        draw = Draw(f"{self._service.seed}/count/{request.agent}/{request.ordinal}/{request.attempt}")
        await anyio.sleep(draw.choice((0, 1, 30)))
        if draw.random() < 0.2:
            raise CannotCount("not now")
        return sum(map(len, request.messages)) // 4

    async def _fail(self, request: ModelRequest, on_delta: OnDelta, draw: Draw) -> None:
        """Raise a fault: before anything was said, or after a part was."""
        service, chance = self._service, draw.random()
        kinds = FINAL if chance < 0.11 else PARKING if chance < 0.25 else LOWER if chance < 0.29 else TRANSIENT
        kind = draw.choice(kinds)
        service.faults[kind.kind] += 1
        if kind.retry_after is not None and kind.retry_after > 60:
            service.faults["parked"] += 1
        early = kind.status is not None or draw.random() < 0.5
        if kind.kind == "silence":
            await anyio.sleep(request.first_byte_timeout if early else request.idle_timeout)
        if not early:
            on_delta(Delta("text", "as I was sa"))
            await anyio.sleep(draw.choice((0, 1)))
            kind = kind.model_copy(update={"usage": service.billed(request, draw, self._process, failed=True)})
        raise CallFault(kind, "" if early else "as I was sa")

    def _whole(self, reply: Reply, request: ModelRequest, draw: Draw) -> Reply:
        service = self._service
        blocks = [
            {**block, "id": f"toolu_{request.agent}_{request.ordinal}_{place}"}
            if block.get("type") == "tool_use"
            else {**block, "signature": sign(request.model, str(block["thinking"]))}
            if block.get("type") == "thinking"
            else block
            for place, block in enumerate(reply.blocks)
        ]
        service.stops[reply.stop_reason] += 1
        usage = service.billed(request, draw, self._process)
        return replace(reply, blocks=tuple(blocks), usage=usage, model=request.model)


async def _stream(reply: Reply, on_delta: OnDelta, draw: Draw) -> None:
    for block in reply.blocks:
        if block.get("type") == "text":
            on_delta(Delta("text", str(block["text"])))
            await anyio.sleep(draw.choice((0, 0, 2)))


_SUMMARIES: tuple[Callable[[], Reply], ...] = (
    lambda: say("The summary: goal, findings, what is left."),
    lambda: say("The summary: goal, findings, what is left."),
    lambda: say("The summary: goal, findings, what is left."),
    lambda: say(""),
    lambda: use("bash", {"command": "in a summary"}),
    lambda: say("cut", "max_tokens"),
    lambda: say("no", "refusal"),
)


def _summary(draw: Draw) -> Reply:
    return draw.choice(_SUMMARIES)()


__all__ = ["CALLS", "MODELS", "Bill", "Service", "WildModel"]
