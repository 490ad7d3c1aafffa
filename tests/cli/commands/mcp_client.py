"""The SDK's own client for `callboard mcp serve`: over real stdio, or in the same process."""

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
    """Calls of tools, and their results."""

    def __init__(self, session: ClientSession | mcp.Client) -> None:
        self.session = session
        self.progress: list[tuple[float, str]] = []

    async def call(self, tool: str, **tool_input: Any) -> Json:
        """Return the structured result of a successful call."""
        done = await self.session.call_tool(tool, tool_input, progress_callback=self._note)
        assert not done.is_error, done.content
        assert done.structured_content is not None
        return cast("Json", done.structured_content)

    async def error_text(self, tool: str, **tool_input: Any) -> str:
        """Return the text of an error result."""
        done = await self.session.call_tool(tool, tool_input)
        assert done.is_error
        assert done.content[0].type == "text"
        return done.content[0].text

    async def _note(self, progress: float, total: float | None, message: str | None) -> None:
        self.progress.append((progress, message or ""))


@asynccontextmanager
async def start_server(command: Command, *args: str) -> AsyncGenerator[Client]:
    """Start a server, and yield an initialized client."""
    program = command.workspace.parent / "callboard"
    words = ["mcp", "serve", "-C", str(command.workspace), *args]
    server = StdioServerParameters(command=str(program), args=words, env=command.env)
    with warm_program(program):
        async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
            await session.initialize()
            yield Client(session)


@asynccontextmanager
async def connect_inline(
    command: Command, model: str, *, may_approve: bool = False, **flags: object
) -> AsyncGenerator[Client]:
    """Yield a client of the same tools in this process, which has already imported the modules."""
    dotted = {name.replace("__", "."): value for name, value in flags.items()}
    limits = ServerLimits((command.workspace,), model=model, flags=dotted)
    with mock.patch.dict(os.environ, command.env, clear=True):
        async with client_sessions(limits, words_of) as sessions:
            service = McpService("callboard", "0", "", offers(Tools(sessions, may_approve=may_approve)))
            async with mcp.Client(server_of(service)) as client:
                yield Client(client)
