"""Send one reply over one connection, with the fault that stands before or in it.

A loss of the connection is a real one: the transport is aborted, so that the client sees a reset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web

from callboard.adapters.rehearsal.api import ERROR_STATUS, ApiError, of_status
from callboard.adapters.rehearsal.replies import Fault, Json, Reply
from callboard.adapters.rehearsal.sse import PING, event, message, stream
from callboard.adapters.rehearsal.tokens import Usage

_PING_EVERY_S = 0.2
_HTML = "<html><head><title>{0} Bad Gateway</title></head><body><h1>{0} Bad Gateway</h1></body></html>"
_BAD_JSON = b'event: content_block_delta\ndata: {"type": "content_block_delta", "index": 0, "del\n\n'


class Log(Protocol):
    """The part of a log line that sending fills in."""

    request_id: str
    status: int
    error: str
    fault: str
    stop_reason: str
    usage: Json


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and the reply that was decided for it."""

    http: web.Request
    logged: Log
    reply: Reply
    usage: Usage
    message_id: str
    model: str
    headers: Mapping[str, str]
    streamed: bool
    began: Callable[[], None]
    """Called once, when the first byte of a good reply goes out."""


async def send(exchange: Exchange, fault: Fault | None, latency_s: float) -> web.StreamResponse:
    """Answer the request. Raises ConnectionError when the client left."""
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
    http: web.Request, logged: Log, error: ApiError, more: Mapping[str, str] | None = None
) -> web.StreamResponse:
    """Answer with an error of the API's. `more` are further headers."""
    logged.status, logged.error = error.status, error.message
    headers = {**(more or {}), "request-id": logged.request_id}
    if error.retry_after is not None:
        headers["retry-after"] = f"{error.retry_after:g}"
    return web.json_response(error.body(logged.request_id), status=error.status, headers=headers)


def reset(http: web.Request) -> web.StreamResponse:
    """Cut the connection without a word more."""
    if http.transport is not None:
        http.transport.abort()
    return web.Response()


async def _instead(exchange: Exchange, fault: Fault) -> web.StreamResponse | None:
    """What is sent in place of the reply; None when the reply is sent, with the fault inside it."""
    http, logged = exchange.http, exchange.logged
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


async def _send_stream(exchange: Exchange, fault: Fault | None) -> web.StreamResponse:
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
    exchange: Exchange, response: web.StreamResponse, events: Sequence[bytes], fault: Fault
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
    """The events one by one when they are paced, else in as few writes as go: sockets cost more than bytes."""
    if pace_ms <= 0:
        if events:
            await response.write(b"".join(events))
        return
    for one in events:
        await response.write(one)
        await asyncio.sleep(pace_ms / 1000)
