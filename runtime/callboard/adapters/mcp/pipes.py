"""stdin and stdout as the one connection of an MCP server: a JSON-RPC message a line.

While it lasts the process's own descriptors 0 and 1 lead elsewhere (to nothing, and to stderr), so that no stray print
and no child can speak on the wire. Reading and writing wait for the descriptor and never in a thread: a thread that
reads stdin cannot be cancelled, and SIGTERM would wait for the client's next word.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager

import anyio
import anyio.lowlevel
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp.types import jsonrpc_message_adapter

LONGEST_LINE = 32_000_000
"""Bytes of one message; a longer one is answered as one that cannot be read."""
_UNREADABLE = b"\0"
_AT_ONCE = 65_536
_FITS = 4_096
"""Bytes that a pipe which can be written to takes without waiting (PIPE_BUF of Linux, pipe(7))."""
_LAST_WORDS = 2.0
"""Seconds that a client which has closed our stdin has to read what is under way."""

Into = MemoryObjectReceiveStream[SessionMessage | Exception]
Out = MemoryObjectSendStream[SessionMessage]


@asynccontextmanager
async def own_pipes() -> AsyncGenerator[tuple[Into, Out]]:
    """Messages from stdin and to stdout. The first ends when the client closes it, or stops reading."""
    with _claimed() as (stdin, stdout):
        arrives, into = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        out, leaves = anyio.create_memory_object_stream[SessionMessage](0)
        reading, written = anyio.CancelScope(), anyio.Event()
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
    """Descriptors of our own for the wire."""
    stdin, stdout, nothing = os.dup(0), os.dup(1), os.open(os.devnull, os.O_RDONLY)
    try:
        os.dup2(nothing, 0)
        os.dup2(2, 1)
        yield stdin, stdout
    finally:
        os.dup2(stdin, 0)
        os.dup2(stdout, 1)
        for one in (stdin, stdout, nothing):
            os.close(one)


async def _read(
    stdin: int, arrives: MemoryObjectSendStream[SessionMessage | Exception], reading: anyio.CancelScope
) -> None:
    """Hand on each line as a message, or as what is wrong with it."""
    rest = bytearray()
    with reading:
        while data := await _some(stdin):
            *lines, last = data.split(b"\n")
            for line in lines:
                rest += line
                await _hand_on(rest, arrives)
                rest.clear()
            rest += last
            if len(rest) > LONGEST_LINE:
                rest = bytearray(_UNREADABLE)  # what follows to the end of its line is no message either
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
    """Write each message as a line. Nobody reads any more: the connection is over."""
    try:
        async with leaves:
            async for one in leaves:
                line = one.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
                await _all(stdout, memoryview(line))
    except BrokenPipeError:
        reading.cancel()
    written.set()


async def _all(stdout: int, line: memoryview) -> None:
    while line:
        await _ready(anyio.wait_writable, stdout)
        line = line[os.write(stdout, line[:_FITS]) :]


async def _ready(wait: Callable[[int], Awaitable[None]], descriptor: int) -> None:
    """Return when it can be read or written without waiting."""
    try:
        await wait(descriptor)
    except PermissionError:  # a file or /dev/null: the selector takes none, and it never makes anybody wait
        await anyio.lowlevel.checkpoint()
