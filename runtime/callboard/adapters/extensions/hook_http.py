"""Hooks that are URLs: one POST of the event's JSON, answered with 2xx and an empty body, or with a JSON object.

Only that object can block. Redirects are not followed and no proxy is used, so that the content of headers reaches only
the one URL in the file. Headers may name variables of the environment, if these are listed.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import anyio
import anyio.to_thread

from callboard.core.hooks.output import http_meaning
from callboard.types.hook_answers import HandlerResult
from callboard.types.records import Json

MOST_BYTES = 1_000_000
"""Most bytes of one answer; a longer one is a fault."""

GRACE = 5.0
"""Seconds after which a socket times out by itself while it connects, when it cannot be ended from outside."""

_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")


@dataclass(frozen=True, slots=True)
class HttpHandler:
    """A `HookHandler` that calls a URL. Equal handlers are the same hook, even from different files."""

    url: str
    headers: tuple[tuple[str, str], ...] = ()
    """Headers, with `$NAME` and `${NAME}` not yet replaced."""
    variables: tuple[str, ...] = ()
    """Names that may be replaced from the environment; every other one is replaced by the empty text."""
    timeout: float | None = None
    environment: Mapping[str, str] | None = field(default=None, compare=False, repr=False)
    """Environment for the replacement; None: the runtime's own."""

    @property
    def name(self) -> str:
        """Return the URL without parts that may be secret, shortened."""
        parts = urlsplit(self.url)
        text = f"POST {parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        return text if len(text) <= 60 else text[:59] + "…"

    async def run(self, event_json: Json, timeout: float) -> HandlerResult:
        """Send one request. See `HookHandler.run`."""
        try:
            with anyio.move_on_after(timeout):
                status, body = await self._post(event_json, timeout)
                return http_meaning(event_json, status, body)
        except (
            OSError,
            http.client.HTTPException,
            ValueError,
        ) as error:  # no connection; no HTTP; a header that is none
            return HandlerResult(fault=f"{self.name} cannot be asked: {error or type(error).__name__}")
        return HandlerResult(fault=f"no answer within {timeout:g} s")

    async def _post(self, event_json: Json, timeout: float) -> tuple[int, str]:
        """Return status and body. Raises OSError, HTTPException, ValueError."""
        call = _Call(self.url, timeout + GRACE)
        headers = {"Content-Type": "application/json", "Accept": "application/json", **self._filled()}
        own = anyio.CapacityLimiter(1)  # a slow address takes no thread from the tools
        try:
            return await anyio.to_thread.run_sync(
                call.made, json.dumps(event_json).encode(), headers, abandon_on_cancel=True, limiter=own
            )
        finally:
            call.end()

    def _filled(self) -> dict[str, str]:
        environment = os.environ if self.environment is None else self.environment

        def value(match: re.Match[str]) -> str:
            name = match[1] or match[2]
            return environment.get(name, "") if name in self.variables else ""

        return {name: _VARIABLE.sub(value, text) for name, text in self.headers}


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

    def made(self, body: bytes, headers: Mapping[str, str]) -> tuple[int, str]:
        """Return status and body of the response."""
        try:
            self._connection.connect()
            self._socket = self._connection.sock
            if self._over:
                raise OSError("given up")
            self._connection.request("POST", self._target, body, dict(headers))
            with self._connection.getresponse() as answer:
                return answer.status, _body(answer)
        finally:
            self._connection.close()

    def end(self) -> None:
        """End the thread's wait; do nothing if the thread has ended."""
        self._over = True
        if self._socket is not None:
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # it is closed already


def _body(answer: http.client.HTTPResponse) -> str:
    """Return the whole text. Raises HTTPException, ValueError if it is cut off or too long."""
    content = answer.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"its answer is longer than {MOST_BYTES:,} bytes")
    if answer.length:
        raise ValueError("its answer ends before it is whole")
    return content.decode("utf-8", "replace")


def variables_in(text: str) -> tuple[str, ...]:
    """Return the names to replace in a header's text."""
    return tuple(match[1] or match[2] for match in _VARIABLE.finditer(text))
