"""One POST of JSON to an address that a user named, for hooks and notifications."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Mapping
from urllib.parse import urlsplit

import anyio
import anyio.to_thread

from callboard.types.records import Json

MOST_BYTES = 1_000_000
"""Most bytes of a response."""
GRACE = 5.0
"""Seconds after which a connecting socket times out by itself, because it cannot be ended from outside."""


async def post_json(url: str, content: Json, headers: Mapping[str, str], timeout: float) -> tuple[int, str]:
    """Send JSON in a POST, and return status and body of the response. Follows no redirect, and uses no proxy.

    Raises OSError without a connection or an HTTP response, and ValueError for an invalid header or a response that is
    cut or too long. If it is cancelled, the request ends.
    """
    call = _Call(url, timeout + GRACE)
    sent = {"Content-Type": "application/json", "Accept": "application/json", **headers}
    own = anyio.CapacityLimiter(1)  # a slow address must not take a thread from the tools
    try:
        return await anyio.to_thread.run_sync(
            call.send, json.dumps(content).encode(), sent, abandon_on_cancel=True, limiter=own
        )
    finally:
        call.end()


class _Call:
    """One request in a worker thread that another thread can end."""

    def __init__(self, url: str, timeout: float) -> None:
        parts = urlsplit(url)
        port = parts.port
        host = parts.hostname or ""
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._over = False
        self._socket: socket.socket | None = None
        if parts.scheme == "https":
            context = ssl.create_default_context()
            self._connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
        else:
            self._connection = http.client.HTTPConnection(host, port, timeout=timeout)

    def send(self, body: bytes, headers: Mapping[str, str]) -> tuple[int, str]:
        """Return status and body of the response. Raises as `post_json` does."""
        try:
            self._connection.connect()
            self._socket = self._connection.sock
            if self._over:
                raise OSError("given up")
            self._connection.request("POST", self._target, body, dict(headers))
            with self._connection.getresponse() as answer:
                return answer.status, _body(answer)
        except http.client.HTTPException as error:
            raise OSError(str(error) or type(error).__name__) from error
        finally:
            self._connection.close()

    def end(self) -> None:
        """End the thread's wait; do nothing if the thread has ended."""
        self._over = True
        if self._socket is not None:
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # it is already closed


def _body(answer: http.client.HTTPResponse) -> str:
    """Return the whole text. Raises HTTPException, and ValueError if it is cut off or too long."""
    content = answer.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"its answer is longer than {MOST_BYTES:,} bytes")
    if answer.length:
        raise ValueError("its answer ends before it is whole")
    return content.decode("utf-8", "replace")
