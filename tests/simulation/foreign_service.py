"""A Messages API of our own making that shares no code with the runtime: strict, small, and told what to say.

It checks each request by the published rules, keeps what was wrong in `complaints`, and answers from a script. It runs
on threads of the test's process.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]

FIELDS = {
    "model", "messages", "max_tokens", "system", "tools", "tool_choice", "stream", "temperature", "top_p", "top_k",
    "stop_sequences", "metadata", "thinking", "service_tier", "cache_control", "output_config",
}  # fmt: skip
TOOL_NAME = re.compile(r"^[a-zA-Z0-9_-]{1,128}$")
USE_ID = re.compile(r"^[a-zA-Z0-9_-]+$")
BLOCKS = {
    "user": {"text", "image", "document", "tool_result"},
    "assistant": {"text", "thinking", "redacted_thinking", "tool_use"},
}


@dataclass(frozen=True)
class Say:
    """One answer. `raw_input`: what is streamed as the input of the last call, as it stands."""

    blocks: Sequence[Json] = ()
    stop: str = ""
    status: int = 200
    headers: Sequence[tuple[str, str]] = ()
    drop: str = ""
    """`at once`, or `mid`: the connection is lost."""
    error_event: str = ""
    raw_input: str | None = None
    wait_s: float = 0.0

    def stop_reason(self) -> str:
        uses = any(block["type"] == "tool_use" for block in self.blocks)
        return self.stop or ("tool_use" if uses else "end_turn")


@dataclass
class Service:
    """What was asked, what was wrong with it, and what is said next. `script(request, number)` answers."""

    script: Callable[[Json, int], Say]
    url: str = ""
    requests: list[Json] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    """The requests as they came."""
    times: list[float] = field(default_factory=list)
    """When they came (Unix seconds)."""
    complaints: list[str] = field(default_factory=list)
    said: list[Say] = field(default_factory=list)
    asked: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, body: bytes, headers: dict[str, str]) -> tuple[Say, int]:
        """Check a request and choose the answer to it."""
        with self.lock:
            number = len(self.requests)
            request, wrong = read_request(body, headers)
            if request is not None:
                wrong = wrong or [*check(request), *check_thinking(request, self.said)]
            self.requests.append(request or {})
            self.bodies.append(body)
            self.times.append(time.time())
            self.complaints += [f"request {number}: {one}" for one in wrong]
            self.asked.set()
            if wrong or request is None:
                return Say(status=400, blocks=[{"type": "text", "text": "; ".join(wrong)}]), number
            say = self.script(request, number)
            self.said.append(say)
            return say, number


@contextmanager
def foreign_service(script: Callable[[Json, int], Say]) -> Iterator[Service]:
    """Serve on a loopback port while the block lasts."""
    service = Service(script)

    class Handler(_Handler):
        pass

    Handler.service = service
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    service.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


# The rules


def read_request(body: bytes, headers: dict[str, str]) -> tuple[Json | None, list[str]]:
    """The request, or why it is none."""
    wrong: list[str] = []
    if "dummy" not in (headers.get("x-api-key"), headers.get("authorization", "").removeprefix("Bearer ")):
        wrong.append("the key is not the one that was set")
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", headers.get("anthropic-version", "")):
        wrong.append("anthropic-version is missing")
    if headers.get("content-type", "").split(";")[0] != "application/json":
        wrong.append("content-type is not application/json")
    try:
        request = json.loads(body)
    except ValueError as error:
        return None, [*wrong, f"not JSON: {error}"]
    return request, wrong


def check(request: Json) -> list[str]:
    """Everything that the service would refuse about a request."""
    wrong = [f"{name}: extra inputs are not permitted" for name in request if name not in FIELDS]
    wrong += [f"{name}: field required" for name in ("model", "messages", "max_tokens") if name not in request]
    if wrong:
        return wrong
    if not isinstance(request["max_tokens"], int) or not 0 < request["max_tokens"] <= 128_000:
        wrong.append(f"max_tokens: {request['max_tokens']!r}")
    wrong += _check_tools(request.get("tools", []))
    wrong += _check_system(request.get("system", []))
    wrong += _check_messages(request["messages"])
    marks = sum("cache_control" in block for block in _all_blocks(request))
    if marks > 4:
        wrong.append(f"{marks} blocks carry cache_control, at most 4 may")
    return wrong


def _all_blocks(request: Json) -> Iterator[Json]:
    yield from request.get("tools", [])
    if isinstance(request.get("system"), list):
        yield from request["system"]
    for message in request["messages"]:
        if isinstance(message["content"], list):
            for block in message["content"]:
                yield block
                if isinstance(block.get("content"), list):
                    yield from block["content"]


def _check_tools(tools: list[Json]) -> list[str]:
    names = [tool.get("name", "") for tool in tools]
    wrong = [f"tools: {name!r} is not a valid name" for name in names if not TOOL_NAME.match(name)]
    if len(set(names)) != len(names):
        wrong.append("tools: names must be unique")
    for tool in tools:
        if tool.get("input_schema", {}).get("type") != "object":
            wrong.append(f"tools: {tool.get('name')}: input_schema.type is not object")
        extra = set(tool) - {"name", "description", "input_schema", "cache_control", "type"}
        if extra:
            wrong.append(f"tools: {tool.get('name')}: {extra}")
    return wrong


def _check_system(system: str | list[Json]) -> list[str]:
    blocks = [{"type": "text", "text": system}] if isinstance(system, str) else system
    return [f"system: {block}" for block in blocks if block.get("type") != "text" or not block["text"].strip()]


def _check_messages(messages: list[Json]) -> list[str]:
    if not messages:
        return ["messages: at least one message is required"]
    wrong = [f"messages.{n}: fields {set(m)}" for n, m in enumerate(messages) if set(m) != {"role", "content"}]
    wrong += [f"messages.{n}: role {m.get('role')}" for n, m in enumerate(messages) if m.get("role") not in BLOCKS]
    if wrong:
        return wrong
    merged = _merge(messages)
    if merged[0][0] != "user":
        wrong.append("messages: the first message must use the user role")
    for place, (role, blocks) in enumerate(merged):
        wrong += [f"messages.{place}.{n}: {bad}" for n, block in enumerate(blocks) for bad in _check_block(role, block)]
        if not blocks:
            wrong.append(f"messages.{place}: content is empty")
    last_role, last = merged[-1]
    if (
        last_role == "assistant"
        and last
        and last[-1].get("type") == "text"
        and last[-1]["text"] != last[-1]["text"].rstrip()
    ):
        wrong.append("messages: final assistant content cannot end with trailing whitespace")
    return wrong + _check_pairs(merged)


def _merge(messages: list[Json]) -> list[tuple[str, list[Json]]]:
    merged: list[tuple[str, list[Json]]] = []
    for message in messages:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if merged and merged[-1][0] == message["role"]:
            merged[-1][1].extend(blocks)
        else:
            merged.append((message["role"], list(blocks)))
    return merged


def _check_block(role: str, block: Json) -> Iterator[str]:
    kind = block.get("type")
    if kind not in BLOCKS[role]:
        yield f"a block of type {kind} in a message of role {role}"
    elif kind == "text":
        if not block["text"].strip():
            yield "text content blocks must contain non-whitespace text"
    elif kind == "tool_use":
        if not isinstance(block.get("input"), dict) or not USE_ID.match(str(block.get("id"))):
            yield f"a tool_use that is none: {str(block)[:80]}"
    elif kind == "tool_result":
        yield from _check_result(block)
    if kind in ("thinking", "redacted_thinking") and "cache_control" in block:
        yield "cache_control on a thinking block"


def _check_result(block: Json) -> Iterator[str]:
    content = block.get("content")
    if block.get("is_error") and not content:
        yield "content cannot be empty if is_error is true"
    for part in content if isinstance(content, list) else []:
        if part.get("type") == "text" and not part["text"].strip():
            yield "an empty text in a tool_result"


def _check_pairs(merged: list[tuple[str, list[Json]]]) -> list[str]:
    wrong: list[str] = []
    seen: set[str] = set()
    for place, (role, blocks) in enumerate(merged):
        uses = [b["id"] for b in blocks if b.get("type") == "tool_use"]
        wrong += [f"tool_use ids must be unique: {use}" for use in uses if use in seen or uses.count(use) > 1]
        seen.update(uses)
        answers = merged[place + 1][1] if place + 1 < len(merged) else []
        results = [b["tool_use_id"] for b in answers if b.get("type") == "tool_result"]
        if role == "assistant" and sorted(uses) != sorted(results):
            wrong.append(
                f"tool_use ids without tool_result blocks immediately after, or results without: {uses} {results}"
            )
        if role == "user" and place == 0 and any(b.get("type") == "tool_result" for b in blocks):
            wrong.append("a tool_result in the first message")
        kinds = [b.get("type") == "tool_result" for b in blocks]
        if role == "user" and kinds != sorted(kinds, reverse=True):
            wrong.append("tool_result blocks must stand first in their message")
    return wrong


def check_thinking(request: Json, said: Sequence[Say]) -> list[str]:
    """While a tool loop lasts, what was thought goes back as it was, in its place before the calls."""
    sent = {
        block["id"]: [b for b in say.blocks if b["type"] in ("thinking", "redacted_thinking")]
        for say in said
        if say.status == 200
        for block in say.blocks
        if block["type"] == "tool_use"
    }
    wrong: list[str] = []
    merged = _merge(request["messages"])
    for role, blocks in merged:
        uses = [b["id"] for b in blocks if b.get("type") == "tool_use"]
        if role != "assistant" or not uses or not sent.get(uses[0]):
            continue
        thought = [b for b in blocks if b["type"] in ("thinking", "redacted_thinking")]
        if not all(one in thought for one in sent[uses[0]]):
            wrong.append(f"thinking blocks of the reply with {uses[0]} came back changed: {thought}")
        if blocks[0]["type"] not in ("thinking", "redacted_thinking"):
            wrong.append(f"the reply with {uses[0]} must begin with its thinking")
    return wrong


# The wire


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    service: Service

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        say, number = self.service.answer(body, {name.lower(): value for name, value in self.headers.items()})
        time.sleep(say.wait_s)
        try:
            self._send(say, number)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # whoever asked has left

    def _send(self, say: Say, number: int) -> None:
        if say.drop == "at once":
            self.close_connection = True
        elif say.status != 200:
            self._send_error(say, number)
        else:
            self._stream(say, number)

    def _send_error(self, say: Say, number: int) -> None:
        kinds = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error"}
        kind = {**kinds, 429: "rate_limit_error", 529: "overloaded_error"}.get(say.status, "api_error")
        message = say.blocks[0]["text"] if say.blocks else kind
        body = {"type": "error", "error": {"type": kind, "message": message}, "request_id": f"req_{number}"}
        data = json.dumps(body).encode()
        self.send_response(say.status)
        for name, value in (*say.headers, ("content-type", "application/json"), ("content-length", str(len(data)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, say: Say, number: int) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream; charset=utf-8")
        self.send_header("request-id", f"req_{number}")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        events = list(_events(say, number))
        for place, event in enumerate(events):
            if say.drop == "mid" and place >= len(events) // 2:
                self.close_connection = True
                return
            data = f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()


def _events(say: Say, number: int) -> Iterator[Json]:
    usage = {"input_tokens": 100, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 1}
    head = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": "claude-sonnet-5-5", "content": []}
    yield {"type": "message_start", "message": {**head, "stop_reason": None, "stop_sequence": None, "usage": usage}}
    yield {"type": "ping"}
    for index, block in enumerate(say.blocks):
        yield from _block_events(index, block, say.raw_input if block is say.blocks[-1] else None)
        if say.error_event:
            yield {"type": "error", "error": {"type": say.error_event, "message": "in the middle"}}
            return
    delta = {"stop_reason": say.stop_reason(), "stop_sequence": None}
    yield {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 20}}
    yield {"type": "message_stop"}


def _block_events(index: int, block: Json, raw_input: str | None) -> Iterator[Json]:
    kind = block["type"]
    empty = {"text": {"text": ""}, "thinking": {"thinking": "", "signature": ""}, "tool_use": {"input": {}}}
    yield {"type": "content_block_start", "index": index, "content_block": {**block, **empty.get(kind, {})}}
    pieces: list[tuple[str, str, str]] = []
    if kind == "text":
        pieces = [("text_delta", "text", block["text"])]
    elif kind == "thinking":
        pieces = [
            ("thinking_delta", "thinking", block["thinking"]),
            ("signature_delta", "signature", block["signature"]),
        ]
    elif kind == "tool_use":
        pieces = [("input_json_delta", "partial_json", json.dumps(block["input"]) if raw_input is None else raw_input)]
    for delta, name, whole in pieces:
        half = len(whole) // 2 if delta != "signature_delta" else len(whole)
        for part in (whole[:half], whole[half:]):
            if part:
                yield {"type": "content_block_delta", "index": index, "delta": {"type": delta, name: part}}
    yield {"type": "content_block_stop", "index": index}
