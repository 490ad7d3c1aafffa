"""A Messages API on a port of this process that plays the script of the fault matrix, with one fault in it.

Each request is checked by the published rules; what breaks one is a complaint, and is refused as the API would.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import unquote

import anyio
from tests.adapters.models.anthropic_wire import Exchange, Wire
from tests.simulation.fault_kinds import Kind, kind_of
from tests.simulation.fault_script import MODEL, ROLES, STEPS, TARGETS, Said, Script, blocks_of
from tests.simulation.fault_talk import COUNTS, Talk, whole

from callboard.adapters.models.rehearsal.api import CATALOGUE
from callboard.adapters.models.rehearsal.strict import CheckContext, check_headers, check_request
from callboard.types.rate_limits import PROBE_AFTER
from callboard.types.records import Usage

Json = dict[str, Any]
Mode = Literal["once", "forever"]

OUTAGE = 3.0
"""Seconds for which a service that is gone for once refuses connections."""
BACK_OFF = 0.5
"""Seconds before the first retry, at least."""
PARKINGS = 4
"""How often a call is told to wait for ten minutes, at most: an agent that is always told so always tries again."""
RUNAWAY = 400
"""Requests of one cell, at most."""
KEY = "sk-matrix-0123456789"


@dataclass(frozen=True)
class Cell:
    """One cell of the matrix: a fault, whom it meets, at which step, and how often."""

    kind: Kind
    role: str
    step: str
    mode: Mode

    def __str__(self) -> str:
        return f"{self.kind.name} {self.role} {self.step} {self.mode}"

    @property
    def target(self) -> Said:
        """The reply that it meets."""
        return TARGETS[self.role][self.step]


def cell_of(words: str) -> Cell:
    """The cell that `str` named: `500 lead first once`. Raises `ValueError`."""
    name, role, step, mode = words.split()
    if role not in ROLES or step not in STEPS or mode not in ("once", "forever"):
        raise ValueError(f"not a cell: {words!r}; one is: 500 lead first once")
    return Cell(kind_of(name), role, step, "once" if mode == "once" else "forever")


@dataclass
class FaultService:
    """What it was asked, what was wrong with it, what it billed, and how often the fault struck."""

    cell: Cell
    url: str = ""
    mended: bool = False
    """The fault is over."""
    complaints: list[str] = field(default_factory=list[str])
    billed: Usage = field(default_factory=Usage)
    perhaps: Usage = field(default_factory=Usage)
    """What it billed beside that for answers that may not have been read."""
    unread: int = 0
    """How many of those there were."""
    struck: int = 0
    struck_at: float = 0.0
    asked: Counter[str] = field(default_factory=Counter[str])
    script: Script = field(default_factory=Script)
    server: asyncio.Server | None = None
    talks: list[Exchange] = field(default_factory=list[Exchange])
    tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])

    async def answer(self, exchange: Exchange) -> None:
        """Check one request, and answer it. A bug of this service is a complaint too."""
        try:
            await self._answer(exchange)
        except ConnectionError:
            raise  # whoever asked has left
        except Exception as bug:
            self.complaints.append(f"the service itself: {bug!r}")
            raise ConnectionError from bug

    async def _answer(self, exchange: Exchange) -> None:
        head = exchange.head.decode("latin-1")
        path = head.split(" ", 2)[1]
        headers = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in head.split("\r\n")[1:])}
        body: Json = json.loads(exchange.body)
        counting = path.endswith("/count_tokens")
        wrong = check_headers(headers, frozenset({KEY})) or check_request(
            body, CheckContext(CATALOGUE), counting=counting
        )
        self.asked["all"] += 1
        if wrong is None and self.asked["all"] > RUNAWAY:
            raise RuntimeError(f"{self.cell}: {RUNAWAY} requests, and no end")
        if wrong is not None:
            self.complaints.append(f"request {self.asked['all']}: {wrong.message}")
            await exchange.error(f"{wrong.status} No", wrong.type, wrong.message)
        elif counting:
            counted = json.dumps({"input_tokens": len(exchange.body) // 4}).encode()
            await exchange.answer("200 OK", counted, "content-type: application/json")
        else:
            await self._message(exchange, headers, body)

    async def _message(self, exchange: Exchange, headers: dict[str, str], body: Json) -> None:
        agent = unquote(headers["x-callboard-agent"]).rpartition("/")[2]
        role = {"lead": "lead", "amy": "teammate"}.get(agent, "subagent")
        ordinal = headers["x-callboard-call"]
        newest = json.dumps(body["messages"][-1])
        summary = headers["x-callboard-purpose"] == "summary"
        said = TARGETS["summary"]["first"] if summary else self.script.says(role, ordinal, newest)
        role = "summary" if summary else role
        self.asked[role] += 1
        talk = Talk(exchange, events_of(said, f"{agent}/{ordinal}"))
        play = self.cell.kind.play if self._strikes(role, said, ordinal) else whole
        try:
            await play(talk)
        finally:
            self._bill(Usage(**talk.used), unread=talk.unread)
            if talk.redo and not summary:
                self.script.redo(role)
            elif talk.whole and not summary:
                self.script.whole.add(role)

    def _bill(self, used: Usage, *, unread: bool) -> None:
        if unread:
            self.perhaps, self.unread = self.perhaps.plus(used), self.unread + 1
        else:
            self.billed = self.billed.plus(used)

    def _strikes(self, role: str, said: Said, ordinal: str) -> bool:
        """Whether this call meets the fault."""
        cell = self.cell
        if self.mended or role != cell.role or said != cell.target:
            return False
        if role == "summary" and int(ordinal) // 10_000 != STEPS.index(cell.step) + 1:
            return False
        self._came_again(role)
        times = 1 if cell.mode == "once" else PARKINGS if cell.kind.meaning == "parked" else RUNAWAY
        if self.struck >= times:
            return False
        self.struck, self.struck_at = self.struck + 1, anyio.current_time()
        if cell.kind.meaning == "outage":
            self._go_away()
        return True

    def _came_again(self, role: str) -> None:
        """Nobody comes back at once, nor before the wait that the service named, of which a minute is believed.
        (A summary may: in another form, once its tries in the first are used up.)"""
        waits = self.cell.kind.meaning in ("transient", "parked") and self.cell.kind.name != "max-tokens"
        least = max(BACK_OFF, min(self.cell.kind.wait, PROBE_AFTER)) if waits and role != "summary" else 0.0
        passed = anyio.current_time() - self.struck_at
        if self.struck and passed < least:
            self.complaints.append(f"asked again after {passed:.2f} s, not {least:g}")

    def _go_away(self) -> None:
        """Nobody gets through any more: whoever is connected is cut off, and new connections are refused."""
        assert self.server is not None, "it listens"
        self.server.close()
        for exchange in self.talks:
            exchange.reset()
        if self.cell.mode == "once":
            self.tasks.add(asyncio.create_task(self._come_back(OUTAGE)))

    async def _come_back(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self.listen()

    async def mend(self) -> None:
        """The fault is over."""
        self.mended = True
        if self.server is not None and not self.server.is_serving():
            await self.listen()

    async def listen(self) -> None:
        """Take connections, always at the same address."""
        port = int(self.url.rpartition(":")[2]) if self.url else 0
        wire = Wire(self.answer, requests=self.talks)
        self.server = await asyncio.start_server(wire.serve, "127.0.0.1", port, limit=1 << 24)
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"


@asynccontextmanager
async def fault_service(cell: Cell) -> AsyncGenerator[FaultService]:
    """Serve while the block lasts."""
    service = FaultService(cell)
    await service.listen()
    try:
        yield service
    finally:
        if service.server is not None:
            service.server.close()
        for task in service.tasks:
            task.cancel()


def events_of(said: Said, seed: str) -> list[Json]:
    """The events of a reply, in the API's order."""
    used = dict.fromkeys(COUNTS, 0) | {"input_tokens": 100, "cache_creation_input_tokens": 2_000, "output_tokens": 1}
    head: Json = {"id": f"msg_{seed}", "type": "message", "role": "assistant", "model": MODEL, "content": []}
    events: list[Json] = [
        {"type": "message_start", "message": {**head, "stop_reason": None, "stop_sequence": None, "usage": used}},
        {"type": "ping"},
    ]
    for index, block in enumerate(blocks_of(said, seed)):
        opening, deltas = _streamed(block)
        events.append({"type": "content_block_start", "index": index, "content_block": opening})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": "tool_use" if said.calls else "end_turn", "stop_sequence": None}
    events.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 50}})
    events.append({"type": "message_stop"})
    return events


def _streamed(block: Json) -> tuple[Json, list[Json]]:
    """How a block begins, and what it is made of: two pieces each."""
    if block["type"] == "text":
        return {"type": "text", "text": ""}, [{"type": "text_delta", "text": half} for half in _halves(block["text"])]
    if block["type"] == "thinking":
        deltas = [{"type": "thinking_delta", "thinking": half} for half in _halves(block["thinking"])]
        signed = {"type": "signature_delta", "signature": block["signature"]}
        return {"type": "thinking", "thinking": "", "signature": ""}, [*deltas, signed]
    given = _halves(json.dumps(block["input"])) if block["input"] else []
    return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": half} for half in given]


def _halves(text: str) -> list[str]:
    return [text[: len(text) // 2], text[len(text) // 2 :]]
