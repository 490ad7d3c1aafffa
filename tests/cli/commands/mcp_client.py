"""The SDK's own client at what `callboard mcp serve` serves: over real stdio, or without a process between."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast
from unittest import mock

import mcp
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from tests.cli.commands.command import Command
from tests.examples.programs import warm_program

from callboard.adapters.mcp.server import McpService, server_of
from callboard.cli.mcp_server.tools import Tools, offers, words_of
from callboard.sessions.client_sessions import ServerLimits, client_sessions

Json = dict[str, Any]


class Client:
    """Calls, and what came of them."""

    def __init__(self, session: ClientSession | mcp.Client) -> None:
        self.session = session
        self.progress: list[tuple[float, str]] = []

    async def call(self, tool: str, **given: Any) -> Json:
        """The structured result of a call that went well."""
        done = await self.session.call_tool(tool, given, progress_callback=self._note)
        assert not done.is_error, done.content
        assert done.structured_content is not None
        return cast("Json", done.structured_content)

    async def refused(self, tool: str, **given: Any) -> str:
        """The words of an error result."""
        done = await self.session.call_tool(tool, given)
        assert done.is_error
        assert done.content[0].type == "text"
        return done.content[0].text

    async def _note(self, progress: float, total: float | None, message: str | None) -> None:
        self.progress.append((progress, message or ""))


@asynccontextmanager
async def serving(command: Command, *args: str) -> AsyncGenerator[Client]:
    """A server of its own, and a client that has shaken hands with it."""
    program = command.workspace.parent / "callboard"
    words = ["mcp", "serve", "-C", str(command.workspace), *args]
    server = StdioServerParameters(command=str(program), args=words, env=command.env)
    with warm_program(program):
        async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
            await session.initialize()
            yield Client(session)


@asynccontextmanager
async def within(command: Command, model: str, *, may_approve: bool = False, **flags: object) -> AsyncGenerator[Client]:
    """The same tools in this process, whose modules are loaded already."""
    dotted = {name.replace("__", "."): value for name, value in flags.items()}
    wanted = ServerLimits((command.workspace,), model=model, flags=dotted)
    with mock.patch.dict(os.environ, command.env, clear=True):
        async with client_sessions(wanted, words_of) as sessions:
            service = McpService("callboard", "0", "", offers(Tools(sessions, may_approve=may_approve)))
            async with mcp.Client(server_of(service)) as client:
                yield Client(client)
