"""How a server is reached: a process of ours, streamable HTTP, or the older HTTP with server-sent events.

Each is entered and left in the one task that owns the connection (`link.py`), as the SDK's task groups want it.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import anyio
import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage

from callboard.adapters.mcp import process
from callboard.adapters.mcp.lines import LONGEST, read_lines, write_lines
from callboard.adapters.programs import clean_environment
from callboard.words.errors import ToolRefused
from callboard.words.mcp import ServerEntry

PACKED = 2 * 1024 * 1024
"""Bytes of an answer that came compressed all the same; nobody knows what it unpacks to."""
Streams = tuple[Any, Any]
"""What the SDK's dispatcher reads from and writes to."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a session's servers are started."""

    workspace: Path
    environment: Mapping[str, str]
    """The person's, before the allow-list."""
    logs: Path
    """The folder for what they say on standard error."""


@dataclass(slots=True)
class Seen:
    """What was seen of one connection, for the words when it fails."""

    statuses: list[int] = field(default_factory=list[int])
    """HTTP statuses of 400 and above, the newest last."""
    refused: int = 0
    """Lines that were no message."""
    ended: bool = False
    """Its process writes no more."""
    exit_code: int | None = None
    log: Path | None = None

    def words(self) -> list[str]:
        """Why it failed, as far as that was seen."""
        told: list[str] = []
        if self.statuses:
            told.append(f"the server answered with HTTP {self.statuses[-1]}")
        if self.exit_code is not None:
            told.append(f"its process ended with exit code {self.exit_code}")
        if self.refused:
            told.append(f"{self.refused} line{'s' if self.refused > 1 else ''} of its output were no messages")
        if self.log is not None and (last := process.last_words(self.log)):
            told.append(f"it last said: {last}")
        return told


class Bounded(httpx2.AsyncByteStream):
    """The body of an answer, which may not be longer than so many bytes."""

    def __init__(self, body: httpx2.AsyncByteStream, most: int) -> None:
        self._body, self._most = body, most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        read = 0
        async for data in self._body:
            read += len(data)
            if read > self._most:
                raise httpx2.StreamError(f"the answer has over {self._most:,} bytes")
            yield data

    async def aclose(self) -> None:
        await self._body.aclose()


@asynccontextmanager
async def stdio(entry: ServerEntry, place: Place, seen: Seen, ended: Callable[[], None]) -> AsyncGenerator[Streams]:
    """Start the server's process and talk over its pipes. `ended`: called when it writes no more.

    Raises `ToolRefused` for a command that is not there, OSError.
    """
    environment = environment_of(entry, place)
    program = program_of(entry.command, place.workspace, environment["PATH"])
    log = place.logs / f"{_file_name(entry.name)}.log"
    started = process.start(program, [entry.command, *entry.args], place.workspace, environment, log)
    seen.log = log
    try:
        async with _pumping(started, seen, ended) as streams:
            yield streams
    finally:
        seen.exit_code = await process.end(started, died=seen.ended)


@asynccontextmanager
async def _pumping(started: process.Started, seen: Seen, ended: Callable[[], None]) -> AsyncGenerator[Streams]:
    into, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, given = anyio.create_memory_object_stream[SessionMessage](0)

    def refused(what: str) -> None:
        seen.refused += 1

    async def pump() -> None:
        await read_lines(started.stdout, into, refused)
        seen.ended = True
        ended()

    with into, read, write, given:
        async with anyio.create_task_group() as group:
            group.start_soon(pump)
            group.start_soon(write_lines, started.stdin, given)
            try:
                yield read, write
            finally:
                group.cancel_scope.cancel()


@asynccontextmanager
async def remote(entry: ServerEntry, headers: Mapping[str, str], seen: Seen) -> AsyncGenerator[Streams]:
    """Reach a server by HTTP. Raises what httpx2 does."""

    async def noted(response: httpx2.Response) -> None:
        if response.status_code >= 400:
            seen.statuses.append(response.status_code)
        if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            packed = response.headers.get("content-encoding", "identity") != "identity"
            response.stream = Bounded(cast("httpx2.AsyncByteStream", response.stream), PACKED if packed else LONGEST)

    def client(
        headers: dict[str, str] | None = None, timeout: httpx2.Timeout | None = None, auth: httpx2.Auth | None = None
    ) -> httpx2.AsyncClient:
        # Silence is watched by the calls, which know about progress; a read time-out here would end the connection.
        wait = httpx2.Timeout(30.0, read=None)
        return httpx2.AsyncClient(
            headers={"accept-encoding": "identity", **(headers or {})},
            timeout=wait,
            auth=auth,
            event_hooks={"response": [noted]},
        )

    if entry.transport == "sse":
        async with sse_client(
            entry.url, dict(headers), sse_read_timeout=math.inf, httpx_client_factory=client
        ) as streams:
            yield streams
        return
    async with (
        client(dict(headers)) as http,
        streamable_http_client(entry.url, http_client=http, max_sse_event_size=LONGEST) as streams,
    ):
        yield streams


def environment_of(entry: ServerEntry, place: Place) -> dict[str, str]:
    """What a server's process is told: the allow-list, the folder of the project, and what its entry names."""
    own = {"CLAUDE_PROJECT_DIR": str(place.workspace), "PWD": str(place.workspace)}
    return clean_environment(place.environment) | own | entry.env


def program_of(command: str, workspace: Path, path: str) -> str:
    """The program that a command names: a path (relative to the workspace), or a name on PATH. Raises `ToolRefused`."""
    if "/" in command:
        found = os.path.join(workspace, os.path.expanduser(command))  # noqa: PTH111, PTH118 - a text of a file
        if os.access(found, os.X_OK) and not os.path.isdir(found):  # noqa: PTH112
            return found
        raise ToolRefused(f"its command {command} is no program that can be run (seen from {workspace})")
    for entry in path.split(os.pathsep):
        found = os.path.join(entry, command)  # noqa: PTH118
        if os.access(found, os.X_OK) and not os.path.isdir(found):  # noqa: PTH112
            return found
    raise ToolRefused(f"its command `{command}` was not found on PATH: install it, or write its whole path")


def _file_name(server: str) -> str:
    """A file's name for a server, another one for each of them."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", server)[:100]
    if plain == server:
        return plain
    return f"{plain}-{hashlib.blake2b(server.encode('utf-8', 'surrogatepass'), digest_size=4).hexdigest()}"
