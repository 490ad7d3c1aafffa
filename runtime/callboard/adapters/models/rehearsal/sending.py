"""Sender of one reply over one connection, with the fault before or inside it.

A lost connection is real: the transport is aborted, so that the client sees a reset.

Encoder of a complete reply as the API's bytes: the events of a stream in order, or one JSON message.

Pure. A stream is a list of encoded events, so that a fault can be inserted between any two of them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from aiohttp import web

from callboard.adapters.models.rehearsal.api import ERROR_STATUS, ApiError, of_status
from callboard.adapters.models.rehearsal.replies import Json, SimulatedFault, SimulatedReply
from callboard.adapters.models.rehearsal.tokens import BilledInput

_PING_EVERY_S = 0.2
_HTML = "<html><head><title>{0} Bad Gateway</title></head><body><h1>{0} Bad Gateway</h1></body></html>"
_BAD_JSON = b'event: content_block_delta\ndata: {"type": "content_block_delta", "index": 0, "del\n\n'


class Log(Protocol):
    """The fields of a log line that are filled in while sending."""

    request_id: str
    status: int
    error: str
    fault: str
    stop_reason: str
    usage: Json


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and the reply chosen for it."""

    http: web.Request
    logged: Log
    reply: SimulatedReply
    usage: BilledInput
    message_id: str
    model: str
    headers: Mapping[str, str]
    streamed: bool
    began: Callable[[], None]
    """Function that is called once, when the first byte of a successful reply is sent."""


async def send(exchange: Exchange, fault: SimulatedFault | None, latency_s: float) -> web.StreamResponse:
    """Answer the request. Raises ConnectionError if the client disconnected."""
    if fault is not None:
        exchange.logged.fault = str(fault)
        latency_s += fault.slow_s or 0.0
    if latency_s > 0:
        await asyncio.sleep(latency_s)  # the simulated model's thinking time
    if fault is not None:
        answered = await _instead(exchange, fault)
        if answered is not None:
            return answered
    exchange.logged.status = 200
    exchange.logged.stop_reason = exchange.reply.stop_reason or ""
    exchange.logged.usage = exchange.usage.as_json(exchange.reply.output)
    if exchange.streamed:
        return await _send_stream(exchange, fault)
    exchange.began()
    body = message(exchange.reply, message_id=exchange.message_id, model=exchange.model, usage=exchange.usage)
    return web.json_response(body, headers=exchange.headers)


async def send_error(
    http: web.Request, logged: Log, error: ApiError, extra_headers: Mapping[str, str] | None = None
) -> web.StreamResponse:
    """Answer with an API error. `extra_headers` are further headers."""
    logged.status = error.status
    logged.error = error.message
    headers = {**(extra_headers or {}), "request-id": logged.request_id}
    if error.retry_after is not None:
        headers["retry-after"] = f"{error.retry_after:g}"
    return web.json_response(error.body(logged.request_id), status=error.status, headers=headers)


def reset(http: web.Request) -> web.StreamResponse:
    """Abort the connection without a further byte."""
    if http.transport is not None:
        http.transport.abort()
    return web.Response()


async def _instead(exchange: Exchange, fault: SimulatedFault) -> web.StreamResponse | None:
    """Return the answer sent in place of the reply; None if the reply is sent, with the fault inside it."""
    http = exchange.http
    logged = exchange.logged
    if fault.status is not None:
        usual = of_status(fault.status, fault.message, fault.error_type)
        error = ApiError(usual.type, usual.message, usual.status, fault.retry_after, fault.code)
        return await send_error(http, logged, error, exchange.headers)
    if fault.html is not None:
        logged.status = fault.html
        return web.Response(text=_HTML.format(fault.html), status=fault.html, content_type="text/html")
    if fault.wrong_shape:
        logged.status = 200
        return web.json_response({"ok": True, "data": None}, headers=exchange.headers)
    if fault.drop == "before_headers" or (fault.drop is not None and not exchange.streamed):
        return reset(http)
    return None


async def _send_stream(exchange: Exchange, fault: SimulatedFault | None) -> web.StreamResponse:
    response = web.StreamResponse(headers={**exchange.headers, "cache-control": "no-cache"})
    response.content_type = "text/event-stream"
    response.charset = "utf-8"
    await response.prepare(exchange.http)
    events = stream(exchange.reply, message_id=exchange.message_id, model=exchange.model, usage=exchange.usage)
    if fault is not None and fault.drop == "after_headers":
        return reset(exchange.http)
    exchange.began()
    if fault is None or fault.slow_s is not None:
        await _write(response, events, exchange.reply.pace_ms)
        await response.write_eof()
        return response
    return await _send_faulty(exchange, response, events, fault)


async def _send_faulty(
    exchange: Exchange, response: web.StreamResponse, events: Sequence[bytes], fault: SimulatedFault
) -> web.StreamResponse:
    # The last content event is cut off with its ending, so that a truncated call is a cut-off call.
    middle = max(1, len(events) // 2) if fault.drop != "before_stop" else max(1, len(events) - 4)
    await _write(response, events[:middle], exchange.reply.pace_ms)
    if fault.drop == "before_stop":
        await response.write_eof()
        return response
    if fault.drop is not None:
        return reset(exchange.http)
    if fault.error_event is not None:
        error = ApiError(fault.error_event, fault.message or "Overloaded", ERROR_STATUS[fault.error_event])
        await response.write(event("error", error.body(exchange.logged.request_id)))
        exchange.logged.error = error.message
        await response.write_eof()
        return response
    if fault.bad_json:
        await response.write(_BAD_JSON)
    if fault.silence_s is not None:
        await asyncio.sleep(fault.silence_s)
    for _ in range(int((fault.pings_s or 0.0) / _PING_EVERY_S)):
        await response.write(PING)
        await asyncio.sleep(_PING_EVERY_S)
    await _write(response, events[middle:], exchange.reply.pace_ms)
    await response.write_eof()
    return response


async def _write(response: web.StreamResponse, events: Sequence[bytes], pace_ms: float) -> None:
    """Write the events one by one if they are paced, else in as few writes as possible: sockets cost more than
    bytes."""
    if pace_ms <= 0:
        if events:
            await response.write(b"".join(events))
        return
    for piece in events:
        await response.write(piece)
        await asyncio.sleep(pace_ms / 1000)


PING = b'event: ping\ndata: {"type": "ping"}\n\n'
_PIECE = 48
"""Characters of text in one delta."""
_JSON_PIECE = 64


def event(name: str, data: Json) -> bytes:
    """Return one server-sent event."""
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode("utf-8", "surrogatepass")


def message(reply: SimulatedReply, *, message_id: str, model: str, usage: BilledInput) -> Json:
    """Return the complete message, for a request that does not stream."""
    blocks = [{name: value for name, value in block.items() if name != "raw_input"} for block in reply.blocks]
    if reply.cut and blocks and blocks[-1]["type"] == "tool_use":
        blocks[-1]["input"] = {}  # what was cut off never became an object
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": blocks,
        "stop_reason": reply.stop_reason,
        "stop_sequence": reply.stop_sequence,
        "stop_details": _stop_details(reply),
        "usage": usage.as_json(reply.output),
    }


def stream(reply: SimulatedReply, *, message_id: str, model: str, usage: BilledInput) -> list[bytes]:
    """Return the events of a streamed reply, `message_start` to `message_stop`."""
    opening: Json = {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage.as_json(1),
    }
    events = [event("message_start", {"type": "message_start", "message": opening})]
    last = len(reply.blocks) - 1
    for index, block in enumerate(reply.blocks):
        events.extend(_block_events(dict(block), index, cut=reply.cut and index == last))
        if index == 0:
            events.insert(2, PING)
    ending = {
        "stop_reason": reply.stop_reason,
        "stop_sequence": reply.stop_sequence,
        "stop_details": _stop_details(reply),
    }
    totals = usage.as_json(reply.output)
    for name in ("cache_creation", "service_tier"):
        totals.pop(name)
    events.append(event("message_delta", {"type": "message_delta", "delta": ending, "usage": totals}))
    events.append(event("message_stop", {"type": "message_stop"}))
    return events


def _stop_details(reply: SimulatedReply) -> Json | None:
    if reply.stop_reason != "refusal":
        return None
    return {"type": "refusal", "category": None, "explanation": None}


def _block_events(block: Json, index: int, *, cut: bool) -> Iterator[bytes]:
    kind = block["type"]
    deltas: list[Json] = []
    opening: Json = block
    if kind == "text":
        opening = {"type": "text", "text": ""}
        deltas = [{"type": "text_delta", "text": part} for part in _pieces(cast("str", block["text"]), _PIECE)]
    elif kind == "thinking":
        opening = {"type": "thinking", "thinking": "", "signature": ""}
        pieces = _pieces(cast("str", block["thinking"]), _PIECE)
        deltas = [{"type": "thinking_delta", "thinking": part} for part in pieces]
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
    elif kind == "tool_use":
        opening = {"type": kind, "id": block["id"], "name": block["name"], "input": {}}
        written = json.dumps(block["input"], ensure_ascii=False) if block["input"] else ""
        raw = cast("str", block.get("raw_input", written))
        raw = raw[: len(raw) // 2] if cut else raw
        deltas = [{"type": "input_json_delta", "partial_json": part} for part in ["", *_pieces(raw, _JSON_PIECE)]]
    yield event("content_block_start", {"type": "content_block_start", "index": index, "content_block": opening})
    for delta in deltas:
        yield event("content_block_delta", {"type": "content_block_delta", "index": index, "delta": delta})
    yield event("content_block_stop", {"type": "content_block_stop", "index": index})


def _pieces(content: str, size: int) -> list[str]:
    """Return the text in pieces of about `size`, at most 400; a long text has longer pieces."""
    size = max(size, -(-len(content) // 400))
    return [content[at : at + size] for at in range(0, len(content), size)]
