"""An MCP server of plain callables: over stdio, or over HTTP on this machine. It knows nothing of sessions.

What a client can mend comes as an error result with words; a fault of ours too, so that the connection goes on. A
cancelled call is cancelled, and nothing else is.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from socket import socket
from typing import Any

import anyio
import structlog
import uvicorn
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)

from callboard.adapters.mcp.pipes import own_pipes
from callboard.core.schema import check_input
from callboard.words.errors import CallboardError
from callboard.words.values import Json

Report = Callable[[float, str], Awaitable[None]]
"""Tells the client how a call goes on: a number that grows, and a line. Nothing is sent where it did not ask."""

_Context = ServerRequestContext[Any, Any]
_GRACE = 2
"""Seconds that HTTP connections have to end."""


@dataclass(frozen=True, slots=True)
class Offered:
    """One tool. `call` returns the structured result; it raises `CallboardError` for what the client can mend."""

    name: str
    title: str
    description: str
    input_schema: Json
    output_schema: Json
    call: Callable[[Json, Report], Awaitable[Json]]
    reads: bool = False
    """It changes nothing."""
    destructive: bool = False
    idempotent: bool = False


@dataclass(frozen=True, slots=True)
class Service:
    """What is served."""

    name: str
    version: str
    instructions: str
    tools: Sequence[Offered]


async def serve_stdio(service: Service) -> None:
    """Serve one client, until it closes our stdin or stops reading our stdout."""
    server = server_of(service)
    async with own_pipes() as (into, out):
        await server.run(into, out, server.create_initialization_options())


@asynccontextmanager
async def serving_http(service: Service, host: str, port: int) -> AsyncGenerator[int]:
    """Serve clients at `/mcp` of a loopback address while the block lasts; the port. Other hosts and origins than this
    machine's are refused (a web page could name one that leads here). Raises `OSError` for an address in use."""
    app = server_of(service).streamable_http_app(host=host)
    config = uvicorn.Config(
        app, host, port, log_config=None, access_log=False, lifespan="on", timeout_graceful_shutdown=_GRACE
    )
    listening = config.bind_socket()
    server = _Quiet(config)
    async with anyio.create_task_group() as group:
        group.start_soon(_serve, server, listening)
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True


async def _serve(server: uvicorn.Server, listening: socket) -> None:
    """To its own end, which `should_exit` brings: cut off, it would leave its connections open."""
    with anyio.CancelScope(shield=True):
        await server.serve([listening])


class _Quiet(uvicorn.Server):
    """A web server that leaves the signals to whoever runs it."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


def server_of(service: Service) -> Server[Any]:
    """The SDK's server of it, for any transport."""
    known = {one.name: one for one in service.tools}

    async def list_tools(context: _Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[_declared(one) for one in service.tools])

    async def call_tool(context: _Context, params: CallToolRequestParams) -> CallToolResult:
        tool = known.get(params.name)
        if tool is None:
            raise MCPError(INVALID_PARAMS, f"there is no tool {params.name!r}; there are: {', '.join(known)}")
        return await _called(tool, params.arguments or {}, context)

    return Server(
        service.name,
        version=service.version,
        instructions=service.instructions,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _declared(one: Offered) -> Tool:
    hints = ToolAnnotations(
        title=one.title,
        read_only_hint=one.reads,
        destructive_hint=one.destructive,
        idempotent_hint=one.idempotent or one.reads,
        open_world_hint=not one.reads,
    )
    return Tool(
        name=one.name,
        title=one.title,
        description=one.description,
        input_schema=one.input_schema,
        output_schema=one.output_schema,
        annotations=hints,
    )


async def _called(tool: Offered, given: Mapping[str, object], context: _Context) -> CallToolResult:
    async def report(grows: float, line: str) -> None:
        await context.session.report_progress(grows, message=line)

    wrong = check_input(tool.input_schema, given)
    if wrong is not None:
        return _refused(wrong)
    try:
        found = await tool.call(dict(given), report)
    except CallboardError as refused:
        return _refused(str(refused))
    except Exception as fault:  # noqa: BLE001 - a fault of ours is an answer too: the client's other calls go on
        structlog.get_logger("callboard.mcp").exception("a tool of ours failed", tool=tool.name)
        return _refused(f"a fault of callboard itself ({type(fault).__name__}: {fault}); its log has the details")
    return CallToolResult(
        content=[TextContent(text=json.dumps(found, indent=2, ensure_ascii=False))], structured_content=found
    )


def _refused(words: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=words)], is_error=True)
