"""`callboard mcp serve`, from its start to the client's end or a signal. stdout is the client's; people read stderr."""

from __future__ import annotations

import ipaddress
import signal
import sys
from dataclasses import dataclass

import anyio

from callboard import __version__
from callboard.adapters.logs import logging_to
from callboard.adapters.mcp.serving import Service, serve_stdio, serving_http
from callboard.assembly import find_places
from callboard.faces.mcp.offers import INSTRUCTIONS, offers
from callboard.faces.mcp.tools import Tools, words_of
from callboard.faces.terminal import Terminal, block
from callboard.hosting_clients import Wanted, client_sessions
from callboard.words.errors import UsageError

_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


@dataclass(frozen=True, slots=True)
class Served:
    """What the person asked for. `http`: an address instead of stdio."""

    wanted: Wanted
    may_approve: bool = False
    http: str = ""


def run_server(what: Served, terminal: Terminal) -> int:
    """Serve until the client leaves or a signal comes; the exit code. Raises `UsageError` for an address."""
    address = address_of(what.http) if what.http else None
    return anyio.run(_Serving(what, terminal, address).go)


def address_of(words: str) -> tuple[str, int]:
    """HOST:PORT of this machine alone. Raises `UsageError`."""
    host, _, port = words.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not port.isdigit() or int(port) > 65_535:
        raise UsageError(f"--http {words}: give HOST:PORT, as in --http 127.0.0.1:8765 (port 0: a free one)")
    try:
        local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = False
    if not local:
        raise UsageError(
            f"--http {words}: this server knows no users, so it listens on this machine alone (127.0.0.1, ::1). "
            "For others put something before it that asks who they are"
        )
    return ("127.0.0.1" if host == "localhost" else host), int(port)


class _Serving:
    """One server."""

    def __init__(self, what: Served, terminal: Terminal, address: tuple[str, int] | None) -> None:
        self._what, self._terminal, self._address = what, terminal, address
        self._left = 0

    async def go(self) -> int:
        places = find_places(self._what.wanted.workspaces[0])
        with logging_to(places.state / "log" / "mcp-serve.jsonl"):
            async with anyio.create_task_group() as group:
                await group.start(self._heed, group.cancel_scope)
                await self._serve()
                group.cancel_scope.cancel()
        return self._left

    async def _serve(self) -> None:
        what = self._what
        async with client_sessions(what.wanted, words_of) as sessions:
            await sessions.room()  # what cannot be opened is said at the start
            tools = Tools(sessions, may_approve=what.may_approve)
            service = Service("callboard", __version__, INSTRUCTIONS, offers(tools))
            if self._address is None:
                if sys.stdin.isatty():
                    self._say("this speaks MCP over stdin and stdout, and waits for a client to start it (docs/mcp.md)")
                await serve_stdio(service)
                return
            host, port = self._address
            try:
                async with serving_http(service, host, port) as port:
                    named = f"[{host}]" if ":" in host else host
                    self._say(f"serving http://{named}:{port}/mcp to this machine; Ctrl-C leaves")
                    await anyio.sleep_forever()
            except OSError as failed:
                raise UsageError(f"--http {what.http}: {failed.strerror or failed}") from failed

    async def _heed(self, scope: anyio.CancelScope, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for received in signals:
                self._left = _CODES[received]
                scope.cancel()
                return

    def _say(self, words: str) -> None:
        self._terminal.terminal_print(block(words, "dim", progress=True))
