"""Model service for the adapter's tests that sends exactly the given bytes, valid or not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest

from callboard.adapters.models.anthropic.client import AnthropicModel
from callboard.ports.model import CallFault, Delta, ModelRequest

Respond = Callable[["Exchange"], Awaitable[None]]

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nrequest-id: req_1\r\ntransfer-encoding: chunked\r\n\r\n"


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields}, ensure_ascii=False)}\n\n".encode()


def start(**usage: int) -> bytes:
    usage = {"input_tokens": 10, "output_tokens": 1} | usage
    return event("message_start", message={"id": "msg_1", "role": "assistant", "model": "m-1", "usage": usage})


def block(index: int, opening: Mapping[str, Any], *deltas: Mapping[str, Any]) -> bytes:
    parts = [event("content_block_start", index=index, content_block=opening)]
    parts += [event("content_block_delta", index=index, delta=delta) for delta in deltas]
    return b"".join(parts) + event("content_block_stop", index=index)


def text(index: int, *pieces: str) -> bytes:
    return block(index, {"type": "text", "text": ""}, *({"type": "text_delta", "text": piece} for piece in pieces))


def call(index: int, *pieces: str, name: str = "bash", call_id: str = "toolu_1") -> bytes:
    opening = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
    return block(index, opening, *({"type": "input_json_delta", "partial_json": piece} for piece in pieces))


def end(reason: str | None = "end_turn", **usage: int) -> bytes:
    usage = {"output_tokens": 7} | usage
    return event("message_delta", delta={"stop_reason": reason}, usage=usage) + event("message_stop")


def hello() -> bytes:
    return start() + text(0, "Hel", "lo") + end()


@dataclass
class Exchange:
    """One request, and the connection for its answer."""

    head: bytes
    body: bytes
    writer: asyncio.StreamWriter
    reader: asyncio.StreamReader
    disconnected: asyncio.Event

    async def chunk(self, data: bytes) -> None:
        if data:
            self.writer.write(b"%x\r\n%s\r\n" % (len(data), data))
            await self.writer.drain()

    async def stream(self, *parts: bytes) -> None:
        """Send a complete stream; each part arrives separately."""
        self.writer.write(HEAD)
        for part in parts:
            await self.chunk(part)
            await asyncio.sleep(0)
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    async def answer(self, status: str, body: bytes, *headers: str) -> None:
        lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers, "", ""]
        self.writer.write("\r\n".join(lines).encode() + body)
        await self.writer.drain()

    async def error(self, status: str, kind: str, message: str, *headers: str, **more: Any) -> None:
        error = {"type": "error", "error": {"type": kind, "message": message, **more}, "request_id": "req_9"}
        await self.answer(status, json.dumps(error).encode(), "content-type: application/json", *headers)

    def reset(self) -> None:
        self.writer.transport.abort()


@dataclass
class Wire:
    """The service: its next answers, and the requests that it received."""

    respond: Respond
    url: str = ""
    requests: list[Exchange] = field(default_factory=list)
    connections: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                sizes = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if b"content-length" in line]
                body = await reader.readexactly(int(sizes[0]))
                exchange = Exchange(head, body, writer, reader, asyncio.Event())
                self.requests.append(exchange)
                await self.respond(exchange)
        except (asyncio.IncompleteReadError, ConnectionError):
            for exchange in self.requests[-1:]:
                exchange.disconnected.set()
        finally:
            writer.close()


@asynccontextmanager
async def run_service(respond: Respond) -> AsyncGenerator[Wire, None]:
    wire = Wire(respond)
    server = await asyncio.start_server(wire.serve, "127.0.0.1", 0, limit=1 << 24, backlog=512)
    wire.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield wire
    finally:
        server.close()


@asynccontextmanager
async def model_at(url: str, **options: Any) -> AsyncGenerator[AnthropicModel, None]:
    model = AnthropicModel(**{"base_url": url, "api_key": "sk-test-0123456789"} | options)
    try:
        yield model
    finally:
        await model.aclose()


def request(**changes: Any) -> ModelRequest:
    fields: dict[str, Any] = {
        "session": "s1",
        "agent": "lead",
        "ordinal": 3,
        "attempt": 1,
        "model": "claude-test",
        "max_tokens": 100,
        "shared_system": b"[]",
        "tools": b"[]",
        "messages": [b'{"role":"user","content":"hi"}'],
        "total_timeout": 10.0,
    }
    return ModelRequest(**fields | changes)


class RecordedDeltas:
    """Deltas streamed to the screen."""

    def __init__(self) -> None:
        self.deltas: list[Delta] = []

    def __call__(self, delta: Delta) -> None:
        self.deltas.append(delta)

    def of(self, kind: str) -> str:
        return "".join(delta.text for delta in self.deltas if delta.kind == kind)


async def fault_of(
    respond: Respond, asked: ModelRequest | None = None, shown: RecordedDeltas | None = None, **options: object
) -> CallFault:
    """Make a failing call and a working one on the same pool, twice, and return the first fault.

    A first call opens a connection and later ones may reuse it, but both must end in the same fault.
    """
    faults: list[CallFault] = []

    async def a_fault_then_hello(exchange: Exchange) -> None:
        await (exchange.stream(hello()) if len(wire.requests) % 2 == 0 else respond(exchange))

    async with run_service(a_fault_then_hello) as wire, model_at(wire.url, **options) as model:
        for screen in (shown or RecordedDeltas(), RecordedDeltas()):
            with anyio.fail_after(180):
                with pytest.raises(CallFault) as caught:
                    await model.complete(asked or request(), screen)
                assert (await model.complete(request(), RecordedDeltas())).stop_reason == "end_turn"
            faults.append(caught.value)
        assert len(wire.requests) == 4, "a call is one request; other code retries it"
    first, later = (one.fault for one in faults)
    assert later == first
    return faults[0]


def respond_with(*parts: bytes) -> Respond:
    async def say(exchange: Exchange) -> None:
        await exchange.stream(*parts)

    return say
