"""HTTP server on a loopback port, in a thread, that sends a test's answers and records the requests."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class ReceivedRequests:
    """Requests that the server received."""

    port: int = 0
    bodies: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    headers: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    paths: list[str] = field(default_factory=list[str])
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Keeps the three lists in one order: requests arrive at the same time."""

    def url(self, path: str = "/hook") -> str:
        return f"http://127.0.0.1:{self.port}{path}"


@contextmanager
def run_hook_server(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[ReceivedRequests]:
    received = ReceivedRequests()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with received.lock:
                received.paths.append(self.path)
                received.headers.append(dict(self.headers))
                received.bodies.append(body)
            answer(self)

        def log_message(self, *_: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.block_on_close = False
        received.port = server.server_address[1]
        thread = threading.Thread(target=lambda: server.serve_forever(0.01))
        thread.start()
        try:
            yield received
        finally:
            server.shutdown()
            thread.join()


def respond_with(body: object = "", status: int = 200, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    """Return a handler that answers with this status and body; a body that is not a string is sent as JSON."""
    text = body if isinstance(body, str) else json.dumps(body)

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name.replace("_", "-"), value)
        request.send_header("Content-Length", str(len(text.encode())))
        request.end_headers()
        request.wfile.write(text.encode())

    return answer
