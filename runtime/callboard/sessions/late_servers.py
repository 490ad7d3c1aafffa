"""MCP servers of a session that begins without any: the SDK is loaded when the client adds the first one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup, TaskStatus

from callboard.ports.mcp import Servers
from callboard.ports.notifier import Notifier
from callboard.ports.tool import Tool
from callboard.types.errors import ToolRefused
from callboard.types.mcp import ServerEntry, ServerStatus
from callboard.types.records import Json


class Running(Servers, Protocol):
    """Servers that are held during a block."""

    def running(self) -> AbstractAsyncContextManager[None]: ...


class LateServers:
    """Implements the port `Servers`, without servers until the first `add`."""

    def __init__(self, make: Callable[[], Running]) -> None:
        """`make`: blocking function that loads the SDK and returns the manager of servers."""
        self._make = make
        self._made: Running | None = None
        self._making = anyio.Lock()
        self._changed = Notifier()
        self._group: TaskGroup | None = None
        self._over = anyio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Hold the servers that are added until the end of the block."""
        async with anyio.create_task_group() as group:
            self._group = group
            try:
                yield
            finally:
                self._group = None
                self._over.set()

    async def _hold(self, made: Running, *, task_status: TaskStatus[None]) -> None:
        async with made.running(), anyio.create_task_group() as group:
            group.start_soon(self._relay, made)
            task_status.started()
            await self._over.wait()
            group.cancel_scope.cancel()

    async def _relay(self, made: Running) -> None:
        revision = made.revision
        while True:
            revision = await made.changed(revision)
            self._changed.notify()

    # Port

    @property
    def revision(self) -> int:
        return self._changed.changes + (self._made.revision if self._made is not None else 0)

    def now(self) -> Sequence[ServerStatus]:
        return self._made.now() if self._made is not None else ()

    def tools(self) -> Mapping[str, Tool]:
        return self._made.tools() if self._made is not None else {}

    async def changed(self, since: int) -> int:
        await self._changed.until(lambda: self.revision != since)
        return self.revision

    async def ready(self) -> None:
        if self._made is not None:
            await self._made.ready()

    async def connect(self, name: str) -> ServerStatus:
        return await self._servers(name).connect(name)

    async def switch_off(self, name: str) -> ServerStatus:
        return await self._servers(name).switch_off(name)

    async def add(self, entry: ServerEntry) -> None:
        async with self._making:
            if self._made is None and self._group is not None:
                made = await anyio.to_thread.run_sync(self._make)
                await self._group.start(self._hold, made)
                self._made = made
        if self._made is not None:
            await self._made.add(entry)

    async def remove(self, name: str) -> None:
        if self._made is not None:
            await self._made.remove(name)

    async def call(self, name: str, tool_input: Json) -> Sequence[Json]:
        return await self._servers(name).call(name, tool_input)

    async def prompt(self, server: str, name: str, arguments: Mapping[str, str]) -> Sequence[Json]:
        return await self._servers(server).prompt(server, name, arguments)

    async def read(self, server: str, uri: str) -> Sequence[Json]:
        return await self._servers(server).read(server, uri)

    def _servers(self, name: str) -> Running:
        if self._made is None:
            raise ToolRefused(f"the session has no MCP servers, and so no {name}")
        return self._made
