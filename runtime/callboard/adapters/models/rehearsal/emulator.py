"""The rehearsal model as an HTTP server: the Messages API on a port of this machine, as strict as the real one.

`serve` starts it inside the running event loop and returns the server; `run_server` runs it until cancelled. It uses
asyncio, not anyio, because aiohttp does. It never connects to any network.

The headers `x-callboard-agent: SESSION/AGENT`, `x-callboard-call: ORDINAL`, `x-callboard-purpose: turn|summary` and
`x-callboard-role` identify the caller. Clients without them are agent `lead` of session `default`.

A complete reply is encoded as the API's bytes: the events of a stream in order, or one JSON message. A stream is a list
of encoded events, so that a fault can be inserted between any two of them. A lost connection is real: the transport is
aborted, so that the client sees a reset.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Protocol, cast

from aiohttp import web

from callboard.adapters.models.rehearsal.api import ERROR_STATUS, ApiError, message_id, of_status, request_id
from callboard.adapters.models.rehearsal.chaos import Chaos
from callboard.adapters.models.rehearsal.player import Player
from callboard.adapters.models.rehearsal.rates import RateMeter
from callboard.adapters.models.rehearsal.replies import (
    Json,
    SimulatedFault,
    SimulatedReply,
    SimulatedRequest,
    searches_in,
    written_input,
)
from callboard.adapters.models.rehearsal.scenario import Scenario
from callboard.adapters.models.rehearsal.strict import MAX_BODY, CheckContext, check_headers, check_request
from callboard.adapters.models.rehearsal.tokens import BilledInput, PromptCache, prompt_tokens, survey
from callboard.types.lazy_dataclass import dataclass

_PING_EVERY_S = 0.2
_HTML = "<html><head><title>{0} Bad Gateway</title></head><body><h1>{0} Bad Gateway</h1></body></html>"
_BAD_JSON = b'event: content_block_delta\ndata: {"type": "content_block_delta", "index": 0, "del\n\n'
PING = b'event: ping\ndata: {"type": "ping"}\n\n'
_PIECE = 48
"""Characters of text in one delta."""
_JSON_PIECE = 64


@dataclass(slots=True)
class RequestLogEntry:
    """Log entry of one HTTP request and its response. `body` is None once it is older than the stored bodies."""

    request_id: str
    path: str
    session: str = ""
    agent: str = ""
    ordinal: str = ""
    attempt: int = 0
    purpose: str = ""
    model: str = ""
    messages: int = 0
    streamed: bool = False
    status: int = 0
    error: str = ""
    """Message of the API error in the response, if any."""
    fault: str = ""
    """Fault that was played, if any."""
    stop_reason: str = ""
    usage: Json = field(default_factory=dict[str, object])
    body: Json | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class EmulatorOptions:
    """Settings of a server besides its scenario."""

    state: Path | None = None
    """File that records the replies given, so that a restarted process continues; None: in memory only."""
    chaos: Chaos | None = None
    keys: frozenset[str] | None = None
    """Accepted API keys; None: any."""
    keep_bodies: int = 64
    """Number of request bodies kept in the log."""
    log_file: Path | None = None
    """File that gets one line of JSON for each request, without its body."""
    clock: Callable[[], float] = time.time
    """Clock in Unix seconds for the prompt cache and the rate limits."""


class Emulator:
    """A running server, created by `serve`. `aclose` ends it, including responses that are being sent."""

    def __init__(self, scenario: Scenario, options: EmulatorOptions) -> None:
        self.scenario = scenario
        self.log: list[RequestLogEntry] = []
        self.url = ""
        self.in_flight = 0
        self.most_in_flight = 0
        self._options = options
        self._player = Player(scenario, options.state)
        self._cache = PromptCache()
        self._rate = RateMeter(scenario.rate)
        self._bodies: deque[RequestLogEntry] = deque()
        self._runner: web.AppRunner | None = None
        self._numbers = count(1)

    async def start(self, host: str, port: int) -> None:
        """Start to listen. Raises OSError if the port is in use."""
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_post("/v1/messages", self._guarded(self._messages))
        app.router.add_post("/v1/messages/count_tokens", self._guarded(self._count_tokens))
        app.router.add_get("/v1/models", self._guarded(self._models))
        app.router.add_get("/v1/models/{id}", self._guarded(self._model))
        app.router.add_route("*", "/{rest:.*}", self._guarded(self._no_such_path))
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.05, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, backlog=1024)
        await site.start()
        bound = cast("tuple[str, int]", self._runner.addresses[0])
        self.url = f"http://{f'[{bound[0]}]' if ':' in bound[0] else bound[0]}:{bound[1]}"

    async def aclose(self) -> None:
        """Stop listening and abort all running responses. Idempotent."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def calls(self, agent: str | None = None, purpose: str = "turn") -> list[RequestLogEntry]:
        """Return the logged message requests of an agent (None: of all agents), in order."""
        return [
            logged
            for logged in self.log
            if logged.path == "/v1/messages" and logged.purpose == purpose and agent in (None, logged.agent)
        ]

    def _guarded(
        self, handler: Callable[[web.Request, RequestLogEntry], Awaitable[web.StreamResponse]]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        return partial(self._handle, handler)

    async def _handle(
        self, handler: Callable[[web.Request, RequestLogEntry], Awaitable[web.StreamResponse]], http: web.Request
    ) -> web.StreamResponse:
        logged = RequestLogEntry(request_id(f"{id(self)} {next(self._numbers)}"), http.path)
        logged.headers = {name.lower(): value for name, value in http.headers.items() if name.lower() != "x-api-key"}
        self.log.append(logged)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            refused = check_headers({n.lower(): v for n, v in http.headers.items()}, self._options.keys)
            if refused is not None:
                return await send_error(http, logged, refused)
            return await handler(http, logged)
        except ConnectionError:
            logged.error = logged.error or "the client left"
            return reset(http)
        finally:
            self.in_flight -= 1
            self._write_log(logged)

    async def _messages(self, http: web.Request, logged: RequestLogEntry) -> web.StreamResponse:
        body = await _json(http)
        if isinstance(body, ApiError):
            return await send_error(http, logged, body)
        request = self._request(http, body, logged)
        refused = check_request(body, self._rules(request))
        if refused is not None:
            return await send_error(http, logged, refused)
        spec = self.scenario.models[request.model]
        prefixes = survey(body)
        total = prompt_tokens(prefixes)
        if total > spec.window:
            message = f"prompt is too long: {total} tokens > {spec.window} maximum"
            return await send_error(http, logged, ApiError("invalid_request_error", message, 400))
        plan = self._cache.plan(prefixes, spec, self._options.clock())
        limited = self._rate.admit(plan.usage.total - plan.usage.read, self._options.clock())
        if limited is not None:
            return await send_error(http, logged, limited, self._headers(logged))
        reply = await self._player.play(request)
        if isinstance(reply, ApiError):
            return await send_error(http, logged, reply)
        self._rate.spend(reply.output)
        exchange = Exchange(
            http=http,
            logged=logged,
            reply=reply,
            usage=plan.usage,
            message_id=message_id(f"{request.session}/{request.agent}/{request.ordinal}/{request.attempt}"),
            model=request.model,
            headers=self._headers(logged),
            streamed=bool(body.get("stream", False)),
            began=lambda: self._cache.began(plan, self._options.clock()),
        )
        return await send(exchange, self._fault(request, reply), self._latency_s(reply))

    async def _count_tokens(self, http: web.Request, logged: RequestLogEntry) -> web.StreamResponse:
        body = await _json(http)
        if isinstance(body, ApiError):
            return await send_error(http, logged, body)
        refused = check_request(body, CheckContext(self.scenario.models, paused=True), counting=True)
        if refused is not None:
            return await send_error(http, logged, refused)
        return self._answer(logged, {"input_tokens": prompt_tokens(survey(body))})

    async def _models(self, http: web.Request, logged: RequestLogEntry) -> web.StreamResponse:
        listed = [spec.to_json() for spec in self.scenario.models.values()]
        ends = {"first_id": listed[0]["id"], "last_id": listed[-1]["id"]}
        return self._answer(logged, {"data": listed, "has_more": False, **ends})

    async def _model(self, http: web.Request, logged: RequestLogEntry) -> web.StreamResponse:
        name = http.match_info["id"]
        spec = self.scenario.models.get(name)
        if spec is None:
            return await send_error(http, logged, ApiError("not_found_error", f"model: {name}", 404))
        return self._answer(logged, spec.to_json())

    async def _no_such_path(self, http: web.Request, logged: RequestLogEntry) -> web.StreamResponse:
        exists = http.path in ("/v1/messages", "/v1/messages/count_tokens", "/v1/models")
        refused = (
            ApiError("invalid_request_error", "Method Not Allowed", 405)
            if exists
            else ApiError("not_found_error", "Not Found", 404)
        )
        return await send_error(http, logged, refused)

    def _answer(self, logged: RequestLogEntry, body: Json) -> web.Response:
        logged.status = 200
        return web.json_response(body, headers=self._headers(logged))

    def _headers(self, logged: RequestLogEntry) -> Mapping[str, str]:
        return {**self._rate.headers(self._options.clock()), "request-id": logged.request_id}

    def _request(self, http: web.Request, body: Json, logged: RequestLogEntry) -> SimulatedRequest:
        """Return the request, with its caller and purpose from the headers, and write both to the log entry."""
        sender = http.headers.get("x-callboard-agent", "")
        session, slash, agent = sender.partition("/")
        if not slash:
            session = "default"
            agent = sender or "lead"
        purpose = http.headers.get("x-callboard-purpose", "turn")
        ordinal = http.headers.get("x-callboard-call") or _ordinal(body)
        attempt = self._player.attempt(session, agent, purpose, ordinal)
        logged.session = session
        logged.agent = agent
        logged.purpose = purpose
        logged.ordinal = ordinal
        logged.attempt = attempt
        logged.model = str(body.get("model"))
        logged.streamed = bool(body.get("stream"))
        messages = body.get("messages")
        logged.messages = len(cast("list[object]", messages)) if isinstance(messages, list) else 0
        self._keep_body(logged, body)
        role = http.headers.get("x-callboard-role", "")
        return SimulatedRequest(session, agent, ordinal, attempt, purpose, role, body, logged.headers)

    def _keep_body(self, logged: RequestLogEntry, body: Json) -> None:
        if self._options.keep_bodies < 1:
            return
        logged.body = body
        self._bodies.append(logged)
        if len(self._bodies) > self._options.keep_bodies:
            self._bodies.popleft().body = None

    def _rules(self, request: SimulatedRequest) -> CheckContext:
        model = str(request.body.get("model"))
        return CheckContext(
            self.scenario.models,
            self._player.issued_thinking(request.session, request.agent, model),
            request.headers["anthropic-version"],
            self._player.is_paused(request.session, request.agent),
        )

    def _fault(self, request: SimulatedRequest, reply: SimulatedReply) -> SimulatedFault | None:
        planned = self._player.fault(request, reply)
        if planned is not None or self._options.chaos is None:
            return planned
        after = request.attempt - sum(fault.times for fault in reply.faults)
        return self._options.chaos.draw(request.agent, f"{request.purpose} {request.ordinal}", after)

    def _latency_s(self, reply: SimulatedReply) -> float:
        return (self.scenario.latency_ms if reply.latency_ms is None else reply.latency_ms) / 1000

    def _write_log(self, logged: RequestLogEntry) -> None:
        if self._options.log_file is None:
            return
        line = {name: getattr(logged, name) for name in RequestLogEntry.__slots__ if name not in ("body", "headers")}
        with self._options.log_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


async def serve(
    scenario: Scenario, *, host: str = "127.0.0.1", port: int = 0, options: EmulatorOptions | None = None
) -> Emulator:
    """Start a server in the running asyncio loop; its `url` is the base URL for a client. Port 0: a free port."""
    emulator = Emulator(scenario, options or EmulatorOptions())
    await emulator.start(host, port)
    return emulator


async def run_server(
    scenario: Scenario,
    ready: Callable[[str], None],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    options: EmulatorOptions | None = None,
) -> None:
    """Serve until cancelled. `ready` is called with the URL once requests are accepted."""
    emulator = await serve(scenario, host=host, port=port, options=options)
    try:
        ready(emulator.url)
        await asyncio.Event().wait()
    finally:
        await emulator.aclose()


async def _json(http: web.Request) -> Json | ApiError:
    try:
        raw = await http.read()
    except web.HTTPRequestEntityTooLarge:
        return ApiError("request_too_large", "Request exceeds the maximum size", 413)
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        return ApiError("invalid_request_error", f"The request body is not valid JSON: {error}", 400)
    if not isinstance(body, dict):
        return ApiError("invalid_request_error", "Input should be an object", 400)
    return cast("Json", body)


def _ordinal(body: Json) -> str:
    """Return an ordinal for clients that send none.

    The ordinal is the number of replies so far, and a digest of the last message, which is the same in a retry.
    """
    messages = body.get("messages")
    listed = cast("list[object]", messages) if isinstance(messages, list) else []
    replies = sum(1 for m in listed if isinstance(m, dict) and cast("Json", m).get("role") == "assistant")
    last = json.dumps(listed[-1:], sort_keys=True).encode()
    return f"{replies}-{hashlib.sha256(last).hexdigest()[:10]}"


class Log(Protocol):
    """Fields of a log line that are filled in while sending."""

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
    """Abort the connection without sending another byte."""
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
    # Here the last content event and the ending are omitted, so that a truncated call is really incomplete.
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
    """Write the events one by one if they are paced, else in as few writes as possible.

    A write costs more than its bytes.
    """
    if pace_ms <= 0:
        if events:
            await response.write(b"".join(events))
        return
    for piece in events:
        await response.write(piece)
        await asyncio.sleep(pace_ms / 1000)


def event(name: str, data: Json) -> bytes:
    """Return one server-sent event."""
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode("utf-8", "surrogatepass")


def message(reply: SimulatedReply, *, message_id: str, model: str, usage: BilledInput) -> Json:
    """Return the complete message, for a request that does not stream."""
    blocks = [{name: value for name, value in block.items() if name != "raw_input"} for block in reply.blocks]
    if reply.cut and blocks and blocks[-1]["type"] == "tool_use":
        blocks[-1]["input"] = {}  # the input was cut off before it became an object
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": blocks,
        "stop_reason": reply.stop_reason,
        "stop_sequence": reply.stop_sequence,
        "stop_details": _stop_details(reply),
        "usage": {**usage.as_json(reply.output), **_searched(reply)},
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
    for index, block in enumerate(reply.blocks):
        events.extend(_block_events(dict(block), index))
        if index == 0:
            events.insert(2, PING)
    ending = {
        "stop_reason": reply.stop_reason,
        "stop_sequence": reply.stop_sequence,
        "stop_details": _stop_details(reply),
    }
    totals = {**usage.as_json(reply.output), **_searched(reply)}
    for name in ("cache_creation", "service_tier"):
        totals.pop(name)
    events.append(event("message_delta", {"type": "message_delta", "delta": ending, "usage": totals}))
    events.append(event("message_stop", {"type": "message_stop"}))
    return events


def _searched(reply: SimulatedReply) -> Json:
    """Return the part of the usage that bills searches of the service."""
    count = searches_in(reply.blocks)
    return {"server_tool_use": {"web_search_requests": count}} if count else {}


def _stop_details(reply: SimulatedReply) -> Json | None:
    if reply.stop_reason != "refusal":
        return None
    return {"type": "refusal", "category": None, "explanation": None}


def _block_events(block: Json, index: int) -> Iterator[bytes]:
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
    elif kind in ("tool_use", "server_tool_use"):
        opening = {"type": kind, "id": block["id"], "name": block["name"], "input": {}}
        written = ["", *_pieces(written_input(block), _JSON_PIECE)]
        deltas = [{"type": "input_json_delta", "partial_json": part} for part in written]
    yield event("content_block_start", {"type": "content_block_start", "index": index, "content_block": opening})
    for delta in deltas:
        yield event("content_block_delta", {"type": "content_block_delta", "index": index, "delta": delta})
    yield event("content_block_stop", {"type": "content_block_stop", "index": index})


def _pieces(content: str, size: int) -> list[str]:
    """Return the text in pieces of about `size`, at most 400; a long text has longer pieces."""
    size = max(size, -(-len(content) // 400))
    return [content[at : at + size] for at in range(0, len(content), size)]
