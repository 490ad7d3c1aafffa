"""A model service over real HTTP whose replies a test streams piece by piece, when it wants to."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "claude-opus-4-8"
LIMIT = 60
"""Seconds to wait for a request that comes at once on an idle machine."""
Json = dict[str, Any]


@dataclass
class StreamedReply:
    """A reply that has begun. Its pieces are sent as they are given."""

    body: Json
    number: int
    pieces: queue.Queue[Json | None] = field(default_factory=queue.Queue)
    blocks: int = 0
    calls: int = 0

    def text(self, *pieces: str) -> None:
        """Send a text block."""
        self._block({"type": "text", "text": ""}, [{"type": "text_delta", "text": piece} for piece in pieces])

    def think(self, *pieces: str) -> None:
        """Send a block of thinking."""
        deltas: list[Json] = [{"type": "thinking_delta", "thinking": piece} for piece in pieces]
        signature = {"type": "signature_delta", "signature": "c2lnbmVk"}
        self._block({"type": "thinking", "thinking": "", "signature": ""}, [*deltas, signature])

    def call(self, name: str, *pieces: str) -> None:
        """Send a call; `pieces`: of the JSON of its input."""
        use = {"type": "tool_use", "id": f"toolu_{self.number:012}{self.blocks:012}", "name": name, "input": {}}
        self.calls += 1
        self._block(use, [{"type": "input_json_delta", "partial_json": piece} for piece in pieces])

    def open_text(self) -> None:
        """Begin a text block that `more` continues."""
        self.pieces.put({"type": "content_block_start", "index": self.blocks, "content_block": _EMPTY_TEXT})

    def more(self, piece: str) -> None:
        """Send a piece of the open text block."""
        delta = {"type": "text_delta", "text": piece}
        self.pieces.put({"type": "content_block_delta", "index": self.blocks, "delta": delta})

    def finish(self, *, closes_block: bool = False) -> None:
        """End the reply. `closes_block`: end the open text block first."""
        if closes_block:
            self.pieces.put({"type": "content_block_stop", "index": self.blocks})
        reason = "tool_use" if self.calls else "end_turn"
        delta = {"stop_reason": reason, "stop_sequence": None}
        self.pieces.put({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 40}})
        self.pieces.put({"type": "message_stop"})
        self.pieces.put(None)

    def fail(self) -> None:
        """Send an error in the middle of the stream."""
        self.pieces.put({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})
        self.pieces.put(None)

    def _block(self, start: Json, deltas: list[Json]) -> None:
        index = self.blocks
        self.blocks += 1
        self.pieces.put({"type": "content_block_start", "index": index, "content_block": start})
        for delta in deltas:
            self.pieces.put({"type": "content_block_delta", "index": index, "delta": delta})
        self.pieces.put({"type": "content_block_stop", "index": index})


_EMPTY_TEXT: Json = {"type": "text", "text": ""}


class StreamingService:
    """The service, and the replies that it was asked for."""

    def __init__(self) -> None:
        self.url = ""
        self.replies: queue.Queue[StreamedReply] = queue.Queue()
        self.asked = 0

    def reply(self) -> StreamedReply:
        """Return the next reply, as soon as it is asked for."""
        return self.replies.get(timeout=LIMIT)

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the variables by which a session finds this service."""
        return {"ANTHROPIC_BASE_URL": self.url, "ANTHROPIC_API_KEY": "k"}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    service: StreamingService

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        model = {"type": "model", "id": MODEL, "display_name": MODEL, "created_at": "2026-01-01T00:00:00Z"}
        self._json({**model, "max_input_tokens": 200_000, "max_tokens": 32_000})

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers["content-length"]))
        if self.path.endswith("count_tokens"):
            self._json({"input_tokens": len(data) // 4})
            return
        self.service.asked += 1
        reply = StreamedReply(json.loads(data), self.service.asked)
        self.service.replies.put(reply)
        self.close_connection = True
        self.send_response(200)
        for name, value in (("content-type", "text/event-stream"), ("request-id", f"req_{reply.number:024}")):
            self.send_header(name, value)
        self.send_header("connection", "close")
        self.end_headers()
        try:
            self._stream(reply)
        except (BrokenPipeError, ConnectionResetError):
            return  # whoever asked has left

    def _stream(self, reply: StreamedReply) -> None:
        usage = {"input_tokens": 10, "output_tokens": 1, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
        message = {"id": f"msg_{reply.number:024}", "type": "message", "role": "assistant", "model": MODEL}
        empty: Json = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        self._event({"type": "message_start", "message": {**message, **empty}})
        while (piece := reply.pieces.get()) is not None:
            self._event(piece)

    def _event(self, event: Json) -> None:
        self.wfile.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        self.wfile.flush()

    def _json(self, body: Json) -> None:
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def streaming_service() -> Iterator[StreamingService]:
    """Serve on a loopback port while the block lasts."""
    service = StreamingService()

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
