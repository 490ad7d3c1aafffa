"""MCP server over the older HTTP with server-sent events that fails on demand: by its path, or by the tool `do`."""

from __future__ import annotations

import contextlib
import http.server
import json
import queue
from collections.abc import Generator
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.adapters.mcp.odd_http_server import served

TOOLS = [{"name": "do", "inputSchema": {"type": "object", "properties": {"what": {"type": "string"}}}}]
ENDPOINTS = {
    "/elsewhere": "http://192.0.2.1/messages?token=t",
    "/no-address": "http://127.0.0.1:x/",
    "/early-end": None,
}
"""Paths of streams whose first event is wrong -> the endpoint; None: the stream ends without it."""


class OddSseHandler(http.server.BaseHTTPRequestHandler):
    """One connection: an event stream, or a message."""

    protocol_version = "HTTP/1.1"
    streams: list[queue.Queue[bytes | None]]
    """Events that each stream still has to send, shared by all connections; None ends the stream."""

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path.strip("/").isdecimal():
            self._head("text/plain", ("content-length", "0"), status=int(path.strip("/")))
            return
        if path == "/page":
            self._head("text/html", ("content-length", "2"))
            self.wfile.write(b"no")
            return
        if path == "/moved":
            self._head("text/plain", ("content-length", "0"), ("location", "http://192.0.2.1/sse"), status=307)
            return
        self._head("text/event-stream; charset=iso-8859-1")
        self.close_connection = True
        endpoint = ENDPOINTS.get(path, f"/messages{path}?stream={len(self.streams)}")
        events: queue.Queue[bytes | None] = queue.Queue()
        self.streams.append(events)
        events.put("\ufeff: a byte order mark\n\n".encode())
        if path == "/early":
            log = {"level": "info", "data": "early"}
            events.put(event({"jsonrpc": "2.0", "method": "notifications/message", "params": log}))
        if endpoint is not None:
            events.put(f"event: endpoint\r\ndata: {endpoint}\r\n\r\n".encode() * (2 if path == "/twice" else 1))
        if path == "/early-end":
            events.put(None)
        with contextlib.suppress(OSError):
            while data := events.get():
                self._pieces(data)

    def _pieces(self, data: bytes) -> None:
        """Send data so that a character of several bytes is divided between packets."""
        pieces = [data] if len(data) > 10_000 else [data[start : start + 1] for start in range(len(data))]
        for piece in pieces:
            self.wfile.write(piece)
            self.wfile.flush()

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        address = urlsplit(self.path)
        what = message.get("params", {}).get("arguments", {}).get("what", "")
        status = int(what) if what.isdecimal() else 503 if address.path == "/messages/deaf" else 202
        self._head("text/plain", ("content-length", "0"), status=status)
        if status == 202 and "id" in message:
            events = self.streams[int(parse_qs(address.query)["stream"][0])]
            for data in answers(message, what):
                events.put(data)
            if address.path == "/messages/short" and message["method"] == "tools/list":
                events.put(None)

    def _head(self, kind: str, *headers: tuple[str, str], status: int = 200) -> None:
        self.send_response(status)
        for name, value in (("content-type", kind), *headers):
            self.send_header(name, value)
        self.end_headers()


def answers(message: dict[str, Any], what: str) -> list[bytes | None]:
    """Return the events that answer a request."""
    result: Any = {}
    match message["method"], what:
        case "initialize", _:
            about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "odd", "version": "1"}}
            result = {"protocolVersion": message["params"]["protocolVersion"], **about}
        case "tools/list", _:
            result = {"tools": TOOLS}
        case "tools/call", "end":
            return [None]
        case "tools/call", "wrong form":
            result = "a text"
        case "tools/call", "large":
            result = content("y" * 3_000_000)
        case "tools/call", "too large":
            result = content("y" * 17_000_000)
        case "tools/call", _:
            result = content(f"{what} 😀")
        case _:
            pass
    answer = event({"jsonrpc": "2.0", "id": message["id"], "result": result})
    if what == "half an emoji":
        answer = answer.replace("😀".encode(), b"\\ud83d")
    return [answer, None] if what == "answer and end" else [answer]


def event(message: dict[str, Any]) -> bytes:
    """Return a message as an event."""
    return f": a comment\nevent: message\ndata: {json.dumps(message, ensure_ascii=False)}\n\n".encode()


def content(text: str) -> dict[str, Any]:
    """Return the result of a call."""
    return {"content": [{"type": "text", "text": text}]}


@contextlib.contextmanager
def odd_sse() -> Generator[tuple[str, list[queue.Queue[bytes | None]]]]:
    """Yield the address of a server that runs for the block, and its streams."""
    handler = type("Handler", (OddSseHandler,), {"streams": []})
    with served(handler) as address:
        try:
            yield address, handler.streams
        finally:
            for stream in handler.streams:
                stream.put(None)
