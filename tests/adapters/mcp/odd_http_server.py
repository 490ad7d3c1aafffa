"""MCP server over HTTP that fails on demand: at once, by its path, or in the middle of a call, by the tool `do`."""

from __future__ import annotations

import contextlib
import http.server
import json
import socket
import threading
from collections.abc import Generator
from typing import Any

TOOLS = [
    {"name": "echo", "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}}},
    {"name": "do", "inputSchema": {"type": "object", "properties": {"what": {"type": "string"}}}},
]
STATUS_BY_PATH = {"/401": 401, "/403": 403, "/404": 404, "/500": 500, "/503": 503}


class OddHandler(http.server.BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    sessions: set[str]
    """Shared by all connections of a server."""

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        self._plain(405, b"")

    def do_DELETE(self) -> None:
        self._plain(200, b"")

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path in STATUS_BY_PATH:
            self._plain(STATUS_BY_PATH[self.path], b"<h1>no</h1>", ("retry-after", "86400"))
        elif self.path == "/redirect":
            self._plain(307, b"", ("location", "http://192.0.2.1/mcp"))
        elif self.path == "/loop":
            self._plain(307, b"", ("location", "/loop"))
        elif self.path == "/html":
            self._plain(200, b"<html>Sign in</html>", kind="text/html")
        elif self.path == "/silent":
            threading.Event().wait(20)
        elif message["method"] != "initialize" and self.headers.get("mcp-session-id") not in self.sessions:
            self._plain(404, b'{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Session not found"}}')
        elif "id" not in message:
            self._plain(202, b"")
        else:
            self._answer(message)

    def _answer(self, message: dict[str, Any]) -> None:
        number, method, params = message["id"], message["method"], message.get("params", {})
        if method == "initialize":
            new = f"s{len(self.sessions)}-{number}"
            self.sessions.add(new)
            about: dict[str, Any] = {"capabilities": {"tools": {}}, "serverInfo": {"name": "odd", "version": "1"}}
            self._result(number, {"protocolVersion": params["protocolVersion"], **about}, ("mcp-session-id", new))
        elif method == "tools/list":
            self._result(number, {"tools": TOOLS})
        elif method == "tools/call" and params["name"] == "do":
            self._do(number, params["arguments"]["what"])
        elif method == "tools/call":
            self._text(number, params["arguments"].get("text", ""))
        else:
            self._result(number, {})

    def _do(self, number: object, what: str) -> None:
        match what:
            case "500" | "503" | "401" | "404":
                self._plain(int(what), b"no", ("retry-after", "86400"))
            case "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                self._head("text/event-stream")
                self.wfile.write(b"event: message\ndata: {")
                self.connection.close()
                self.close_connection = True
            case "short":
                self._head("application/json", ("content-length", "1000"))
                self.wfile.write(b"{")
                self.close_connection = True
            case "endless":
                self._head("text/event-stream")
                with contextlib.suppress(OSError):
                    while not threading.Event().wait(0.05):
                        self.wfile.write(b": still here\n\n")
            case "expire":
                self.sessions.clear()
                self._text(number, "expired")
            case "garbage":
                self._plain(200, b"this is not JSON")
            case "events":
                self._head("text/event-stream")
                told = json.dumps({"jsonrpc": "2.0", "id": number, "result": _content("by events")})
                self.wfile.write(f"event: odd\ndata: x\n\n: a comment\n\nid: 1\ndata: {told}\n\n".encode())
                self.close_connection = True
            case _:
                self._answer_oddly(number, what)

    def _answer_oddly(self, number: object, what: str) -> None:
        """Answer with a text that is too long, has invalid characters, or is declared wrongly."""
        if what in ("huge", "wrong form"):
            self._result(number, _content("y" * 40_000_000) if what == "huge" else "text")
            return
        if what in ("batch", "batch in events", "another id", "error without an id", "in lines"):
            self._answer_loosely(number, what)
            return
        if what in ("half an emoji", "no UTF-8"):
            other = rb"\ud83d" if what == "half an emoji" else b"\xf0\x9f"
            self._plain(200, _answered(number, f"{what} 😀").replace("😀".encode(), other))
            return
        self._head("text/event-stream; charset=iso-8859-1")
        answer = b"\xef\xbb\xbfdata: " + _answered(number, f"{what} 😀 \\ud83d") + b"\n\n"
        half = answer.replace("😀".encode(), rb"\ude00") if what == "half an emoji in events" else answer
        for byte in half:
            self.wfile.write(bytes([byte]))
        self.close_connection = True

    def _answer_loosely(self, number: object, what: str) -> None:
        """Answer in a batch, with another id, without an id, or in several lines."""
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": number, "result": _content(what)}
        log = {"level": "info", "data": "a line of the log"}
        batch = [answer, {"jsonrpc": "2.0", "method": "notifications/message", "params": log}]
        match what:
            case "batch":
                self._plain(200, json.dumps(batch, indent=1).encode())
            case "batch in events":
                self._head("text/event-stream")
                self.wfile.write(f"event: message\ndata: {json.dumps(batch)}\n\n".encode())
                self.close_connection = True
            case "another id":
                self._plain(200, json.dumps(answer | {"id": "x"}).encode())
            case "error without an id":
                error = {"code": -32603, "message": what}
                self._plain(200, json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode())
            case _:
                self._plain(200, json.dumps(answer, indent=2).replace("\n", "\r\n").encode())

    def _text(self, number: object, text: str) -> None:
        self._result(number, _content(text))

    def _result(self, number: object, result: object, *headers: tuple[str, str]) -> None:
        self._plain(200, json.dumps({"jsonrpc": "2.0", "id": number, "result": result}).encode(), *headers)

    def _plain(self, status: int, body: bytes, *headers: tuple[str, str], kind: str = "application/json") -> None:
        self._head(kind, ("content-length", str(len(body))), *headers, status=status)
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def _head(self, kind: str, *headers: tuple[str, str], status: int = 200) -> None:
        self.send_response(status)
        for name, value in (("content-type", kind), *headers):
            self.send_header(name, value)
        self.end_headers()


def _answered(number: object, text: str) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": number, "result": _content(text)}, ensure_ascii=False).encode()


def _content(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


@contextlib.contextmanager
def served(handler: type[http.server.BaseHTTPRequestHandler]) -> Generator[str]:
    """Yield the address of a server that answers with this handler for the block."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def odd_http() -> Generator[str]:
    """Yield the address of a server that runs for the block."""
    with served(type("Handler", (OddHandler,), {"sessions": set()})) as address:
        yield address
