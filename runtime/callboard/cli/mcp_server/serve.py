"""`callboard mcp serve`, from its start until the client disconnects or a signal arrives.

The client reads stdout; people read stderr.
"""

from __future__ import annotations

import ipaddress
import signal
import sys

import anyio

from callboard import __version__
from callboard.adapters.mcp.server import McpService, serve_stdio, serving_http
from callboard.adapters.system.logs import logging_to
from callboard.cli.mcp_server.tools import INSTRUCTIONS, Tools, offers, words_of
from callboard.cli.terminal.hangup import HANGUP
from callboard.cli.terminal.signals import next_hangup
from callboard.cli.terminal.terminal import Terminal, block
from callboard.sessions.client_sessions import ServerLimits, client_sessions
from callboard.sessions.places import find_places
from callboard.types.errors import UsageError
from callboard.types.lazy_dataclass import dataclass

_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options that the person set for the server. `http`: an address instead of stdio."""

    settings: ServerLimits
    may_approve: bool = False
    http: str = ""


def run_server(served: ServerOptions, terminal: Terminal) -> int:
    """Serve until the client disconnects or a signal arrives, and return the exit code.

    Raises `UsageError` for an invalid address.
    """
    address = address_of(served.http) if served.http else None
    return anyio.run(_Serving(served, terminal, address).go)


def address_of(address: str) -> tuple[str, int]:
    """Parse HOST:PORT; the host must be this machine. Raises `UsageError`."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not port.isdigit() or int(port) > 65_535:
        raise UsageError(f"--http {address}: give HOST:PORT, as in --http 127.0.0.1:8765 (port 0: a free one)")
    try:
        local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = False
    if not local:
        raise UsageError(
            f"--http {address}: this server has no user accounts, so it listens only on this machine (127.0.0.1, ::1). "
            "For other machines, put an authenticating proxy in front of it"
        )
    return ("127.0.0.1" if host == "localhost" else host), int(port)


class _Serving:
    """One running server."""

    def __init__(self, served: ServerOptions, terminal: Terminal, address: tuple[str, int] | None) -> None:
        self._what = served
        self._terminal = terminal
        self._address = address
        self._left = 0

    async def go(self) -> int:
        places = find_places(self._what.settings.workspaces[0])
        with logging_to(places.state / "log" / "mcp-serve.jsonl"):
            async with anyio.create_task_group() as group:
                await group.start(self._watch_signals, group.cancel_scope)
                group.start_soon(self._watch_hangup, group.cancel_scope)
                await self._serve()
                group.cancel_scope.cancel()
        return self._left

    async def _serve(self) -> None:
        served = self._what
        async with client_sessions(served.settings, words_of) as sessions:
            await sessions.open_workspace()  # an unusable workspace is reported at the start
            tools = Tools(sessions, may_approve=served.may_approve)
            service = McpService("callboard", __version__, INSTRUCTIONS, offers(tools))
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
                raise UsageError(f"--http {served.http}: {failed.strerror or failed}") from failed

    async def _watch_signals(self, scope: anyio.CancelScope, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for received in signals:
                self._left = _CODES[received]
                scope.cancel()
                return

    async def _watch_hangup(self, scope: anyio.CancelScope) -> None:
        await next_hangup()
        self._left = HANGUP
        scope.cancel()

    def _say(self, text: str) -> None:
        self._terminal.terminal_print(block(text, "dim", progress=True))
