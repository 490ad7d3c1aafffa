"""Hooks that are addresses: one POST of the event's JSON, answered with 2xx and nothing, or with a JSON object.

Blocking happens only by that object. Redirects are not followed and no proxy is used, so that what a header holds goes
to the one address that stands in the file. Headers may name variables of the environment, if they are listed.
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
from callboard.words.hooks import HandlerResult
from callboard.words.values import Json

MOST_BYTES = 1_000_000
"""Of one answer; a longer one is a fault."""

GRACE = 5.0
"""Seconds after which a socket gives up by itself, where nobody could end it any more: while it connects."""

_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")


@dataclass(frozen=True, slots=True)
class HttpHandler:
    """A `HookHandler` that asks an address. Equal ones are the same hook, whichever file they come from."""

    url: str
    headers: tuple[tuple[str, str], ...] = ()
    """As written, `$NAME` and `${NAME}` still in them."""
    variables: tuple[str, ...] = ()
    """Names that may be filled in from the environment; every other one is filled with nothing."""
    timeout: float | None = None
    environment: Mapping[str, str] | None = field(default=None, compare=False, repr=False)
    """From which they are filled in; None: ours."""

    @property
    def name(self) -> str:
        """The address without what may be secret in it, cut."""
        parts = urlsplit(self.url)
        shown = f"POST {parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        return shown if len(shown) <= 60 else shown[:59] + "…"

    async def run(self, event_json: Json, timeout: float) -> HandlerResult:
        """Ask once. See `HookHandler.run`."""
        try:
            with anyio.move_on_after(timeout):
                status, body = await self._asked(event_json, timeout)
                return http_meaning(event_json, status, body)
        except (
            OSError,
            http.client.HTTPException,
            ValueError,
        ) as error:  # no connection; no HTTP; a header that is none
            return HandlerResult(fault=f"{self.name} cannot be asked: {error or type(error).__name__}")
        return HandlerResult(fault=f"no answer within {timeout:g} s")

    async def _asked(self, event_json: Json, timeout: float) -> tuple[int, str]:
        """Status and body. Raises OSError, HTTPException, ValueError."""
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
        known = os.environ if self.environment is None else self.environment

        def value(found: re.Match[str]) -> str:
            name = found[1] or found[2]
            return known.get(name, "") if name in self.variables else ""

        return {name: _VARIABLE.sub(value, text) for name, text in self.headers}


class _Call:
    """One request in a worker thread, that another thread can end."""

    def __init__(self, url: str, timeout: float) -> None:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname or ""
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._over = False
        self._socket: socket.socket | None = None
        if parts.scheme == "https":
            context = ssl.create_default_context()
            self._connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=context)
        else:
            self._connection = http.client.HTTPConnection(host, port, timeout=timeout)

    def made(self, body: bytes, headers: Mapping[str, str]) -> tuple[int, str]:
        """Status and body of the answer."""
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
        """Whatever the thread waits for ends; nothing happens when it has ended."""
        self._over = True
        if self._socket is not None:
            try:
                self._socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # it is closed already


def _body(answer: http.client.HTTPResponse) -> str:
    """The whole text. Raises HTTPException, ValueError for one that is cut, or too long."""
    said = answer.read(MOST_BYTES + 1)
    if len(said) > MOST_BYTES:
        raise ValueError(f"its answer is longer than {MOST_BYTES:,} bytes")
    if answer.length:
        raise ValueError("its answer ends before it is whole")
    return said.decode("utf-8", "replace")


def variables_in(text: str) -> tuple[str, ...]:
    """The names that a header's text wants filled in."""
    return tuple(found[1] or found[2] for found in _VARIABLE.finditer(text))
