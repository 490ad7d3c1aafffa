"""MCP server made from plain callables: over stdio, or over HTTP on this machine. Independent of sessions.

A mistake that a client can correct becomes an error result with a text. So does an internal error, so that the
connection continues. Only a cancelled call is cancelled.

With stdio, stdin and stdout are the only connection: one JSON-RPC message per line. Meanwhile the process's own
descriptors 0 and 1 lead elsewhere (to nothing, and to stderr), so that no stray print and no child can write to the
connection. Reading and writing wait for the descriptor and never in a thread: a thread that reads stdin cannot be
cancelled, and SIGTERM would wait for the client's next message.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import anyio.lowlevel
import structlog
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.message import SessionMessage
from mcp.types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
    jsonrpc_message_adapter,
)

from callboard.adapters.system.http_server import serving_app
from callboard.core.json_schema import check_input
from callboard.types.choices import unknown
from callboard.types.errors import CallboardError
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json

Report = Callable[[float, str], Awaitable[None]]
"""Function that reports the progress of a call to the client: an increasing number, and a line. Nothing is sent if the
client did not ask for it.
"""

_Context = ServerRequestContext[Any, Any]


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """One tool.

    `call` returns the structured result, and raises `CallboardError` for mistakes that the client can correct.
    """

    name: str
    title: str
    description: str
    input_schema: Json
    output_schema: Json
    call: Callable[[Json, Report], Awaitable[Json]]
    reads: bool = False
    """True if it changes nothing."""
    destructive: bool = False
    idempotent: bool = False


@dataclass(frozen=True, slots=True)
class McpService:
    """Server: its name, version, instructions and tools."""

    name: str
    version: str
    instructions: str
    tools: Sequence[OfferedTool]


async def serve_stdio(service: McpService) -> None:
    """Serve one client until it closes stdin or stops reading stdout."""
    server = server_of(service)
    async with own_pipes() as (into, out):
        await server.run(into, out, server.create_initialization_options())


@asynccontextmanager
async def serving_http(service: McpService, host: str, port: int) -> AsyncGenerator[int]:
    """Serve clients at `/mcp` of a loopback address while the block runs; yield the port.

    Hosts and origins other than those of this machine are refused, because a web page could use a name that leads here.
    Raises `OSError` for an address in use.
    """
    app = server_of(service).streamable_http_app(host=host)
    async with serving_app(app, host, port, lifespan="on") as bound:
        yield bound


def server_of(service: McpService) -> Server[Any]:
    """Return the SDK's server for the service, for any transport."""
    tools = {tool.name: tool for tool in service.tools}

    async def list_tools(context: _Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[_declared(tool) for tool in service.tools])

    async def call_tool(context: _Context, params: CallToolRequestParams) -> CallToolResult:
        tool = tools.get(params.name)
        if tool is None:
            raise MCPError(INVALID_PARAMS, unknown("tool", params.name, tools))
        return await _called(tool, params.arguments or {}, context)

    return Server(
        service.name,
        version=service.version,
        instructions=service.instructions,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


def _declared(tool: OfferedTool) -> Tool:
    hints = ToolAnnotations(
        title=tool.title,
        read_only_hint=tool.reads,
        destructive_hint=tool.destructive,
        idempotent_hint=tool.idempotent or tool.reads,
        open_world_hint=not tool.reads,
    )
    return Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=tool.input_schema,
        output_schema=tool.output_schema,
        annotations=hints,
    )


async def _called(tool: OfferedTool, arguments: Mapping[str, object], context: _Context) -> CallToolResult:
    async def report(grows: float, line: str) -> None:
        await context.session.report_progress(grows, message=line)

    wrong = check_input(tool.input_schema, arguments)
    if wrong is not None:
        return _refused(wrong)
    try:
        result = await tool.call(dict(arguments), report)
    except CallboardError as refused:
        return _refused(str(refused))
    except Exception as fault:  # noqa: BLE001 - an internal error is an answer too: the client's other calls continue
        structlog.get_logger("callboard.mcp").exception("a tool of ours failed", tool=tool.name)
        return _refused(f"a fault of callboard itself ({type(fault).__name__}: {fault}); its log has the details")
    return CallToolResult(
        content=[TextContent(text=json.dumps(result, indent=2, ensure_ascii=False))], structured_content=result
    )


def _refused(message: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=message)], is_error=True)


LONGEST_LINE = 32_000_000
"""Most bytes of one message. A longer one is answered as unreadable."""
_UNREADABLE = b"\0"
_AT_ONCE = 65_536
_FITS = 4_096
"""Bytes that a writable pipe accepts without waiting (PIPE_BUF of Linux, pipe(7))."""
_LAST_WORDS = 2.0
"""Seconds that a client that closed this server's stdin has to read pending output."""

Into = MemoryObjectReceiveStream[SessionMessage | Exception]
Out = MemoryObjectSendStream[SessionMessage]


@asynccontextmanager
async def own_pipes() -> AsyncGenerator[tuple[Into, Out]]:
    """Yield messages from stdin and to stdout. Input ends when the client closes it, or stops reading."""
    arrives, into = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    out, leaves = anyio.create_memory_object_stream[SessionMessage](0)
    reading = anyio.CancelScope()
    written = anyio.Event()
    # A signal may cancel all of this before either end of a stream is closed.
    with _claimed() as (stdin, stdout), arrives, into, out, leaves:
        async with anyio.create_task_group() as group:
            group.start_soon(_read, stdin, arrives, reading)
            group.start_soon(_write, stdout, leaves, reading, written)
            yield into, out
            await out.aclose()
            with anyio.move_on_after(_LAST_WORDS):
                await written.wait()
            group.cancel_scope.cancel()


@contextmanager
def _claimed() -> Generator[tuple[int, int]]:
    """Yield private descriptors for the connection."""
    stdin = os.dup(0)
    stdout = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        os.dup2(nothing, 0)
        os.dup2(2, 1)
        yield stdin, stdout
    finally:
        os.dup2(stdin, 0)
        os.dup2(stdout, 1)
        for descriptor in (stdin, stdout, nothing):
            os.close(descriptor)


async def _read(
    stdin: int, arrives: MemoryObjectSendStream[SessionMessage | Exception], reading: anyio.CancelScope
) -> None:
    """Pass on each line as a message, or as the error that the line contains."""
    buffer = bytearray()
    with reading:
        while data := await _some(stdin):
            *lines, last = data.split(b"\n")
            for line in lines:
                buffer += line
                await _hand_on(buffer, arrives)
                buffer.clear()
            buffer += last
            if len(buffer) > LONGEST_LINE:
                buffer = bytearray(_UNREADABLE)  # the rest of its line is not a message either
    await arrives.aclose()


async def _hand_on(line: bytearray, arrives: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
    if line.strip():
        await arrives.send(_message(bytes(line)))


def _message(line: bytes) -> SessionMessage | Exception:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as wrong:
        return wrong


async def _some(stdin: int) -> bytes:
    await _ready(anyio.wait_readable, stdin)
    return os.read(stdin, _AT_ONCE)


async def _write(
    stdout: int, leaves: MemoryObjectReceiveStream[SessionMessage], reading: anyio.CancelScope, written: anyio.Event
) -> None:
    """Write each message as a line. If the client no longer reads, end the connection."""
    try:
        async with leaves:
            async for message in leaves:
                line = message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
                await _all(stdout, memoryview(line))
    except BrokenPipeError:
        reading.cancel()
    written.set()


async def _all(stdout: int, line: memoryview) -> None:
    while line:
        await _ready(anyio.wait_writable, stdout)
        line = line[os.write(stdout, line[:_FITS]) :]


async def _ready(wait: Callable[[int], Awaitable[None]], descriptor: int) -> None:
    """Return when the descriptor can be read or written without waiting."""
    try:
        await wait(descriptor)
    except PermissionError:  # a file or /dev/null: the selector accepts neither, and neither causes a wait
        await anyio.lowlevel.checkpoint()
