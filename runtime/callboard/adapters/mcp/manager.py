"""Servers of a session: the port `Servers`, on the official SDK.

    place = ServerEnvironment(workspace, environment, logs, runs_workspace_code=starts_workspace_code)
    manager = Manager(entries, place)
    async with manager.running():
        await manager.ready()
        manager.tools()["mcp__time__get_current_time"]

One task for each server owns its connection, in the task group of `running()`. Leaving that block ends every server and
all its processes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any, cast

import anyio
from anyio.abc import TaskGroup

from callboard.adapters.mcp.capabilities import ServerCapabilities
from callboard.adapters.mcp.connection import LEAVING, ConnectionContext, ServerConnection
from callboard.adapters.mcp.stdio import words_of_sdk
from callboard.adapters.mcp.transports import ServerEnvironment
from callboard.core.mcp.limits import McpLimits
from callboard.core.mcp.results import blocks_of, resource_blocks, whole_text
from callboard.core.mcp.tool_names import clashes_with
from callboard.ports.mcp import Bridge
from callboard.ports.notifier import Notifier
from callboard.ports.tool import Tool
from callboard.types.choices import unknown
from callboard.types.errors import ToolRefused
from callboard.types.mcp import ServerEntry, ServerState, ServerStatus
from callboard.types.records import Json


class Manager:
    """Servers of a session; see the module.

    Entries are in order of precedence: of two with one name the first counts.
    """

    def __init__(
        self,
        entries: Sequence[ServerEntry],
        place: ServerEnvironment,
        *,
        limits: McpLimits | None = None,
        held: Mapping[str, tuple[ServerState, str]] | None = None,
        bridges: Mapping[str, Bridge] | None = None,
        bridge_of: Callable[[str], Bridge] | None = None,
    ) -> None:
        """Store the servers.

        `held`: those that must not be connected -> `off` or `untrusted`, and the reason. `bridges`: those of servers
        whose transport is `sdk`, by name. `bridge_of`: the bridge of such a server that is added later.
        """
        self._around = ConnectionContext(place, limits or McpLimits(), self._name_conflict, self._moved)
        self._bridges: Mapping[str, Bridge] = bridges if bridges is not None else {}
        self._bridge_of = bridge_of
        self._changed = Notifier()
        self._tools: Mapping[str, Tool] | None = None
        self._group: TaskGroup | None = None
        self._links: dict[str, ServerConnection] = {}
        for entry in entries:
            if entry.name not in self._links:
                link = self._links[entry.name] = self._new(entry)
                link.state, link.why = (held or {}).get(entry.name, ("waiting", ""))

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Connect all enabled servers, and hold them until the end of the block."""
        with words_of_sdk():
            async with anyio.create_task_group() as group, self._held_in(group):
                yield

    @asynccontextmanager
    async def _held_in(self, group: TaskGroup) -> AsyncGenerator[None]:
        self._group = group
        for link in self._links.values():
            self._start_owner(link)
        try:
            yield
        finally:
            self._group = None
            for link in self._links.values():
                link.quit()
            group.cancel_scope.deadline = anyio.current_time() + LEAVING

    # Port

    @property
    def revision(self) -> int:
        return self._changed.changes

    def now(self) -> Sequence[ServerStatus]:
        return [self._links[name].now for name in sorted(self._links)]

    def tools(self) -> Mapping[str, Tool]:
        """Return the usable tools, including those of a lost server that a call would reconnect."""
        if self._tools is None:
            usable = [link for link in self._links.values() if link.usable]
            self._tools = MappingProxyType({name: tool for link in usable for name, tool in link.offer.tools.items()})
        return self._tools

    async def changed(self, since: int) -> int:
        return await self._changed.changed(since)

    async def ready(self) -> None:
        for link in list(self._links.values()):
            if link.state in ("waiting", "connecting"):
                await link.wait_settled()

    async def connect(self, name: str) -> ServerStatus:
        link = self._link(name)
        if link.state == "untrusted":
            raise ToolRefused(f"the MCP server {name} is not trusted: {link.why}")
        if link.state == "connected":
            link.leave("waiting", "")
        elif link.state == "off":
            link.state = "waiting"
            link.why = ""
        link.request_connection()
        await link.wait_settled()
        if link.state != "connected":
            raise ToolRefused(f"the MCP server {name} cannot be reached: {link.why}")
        return link.now

    async def switch_off(self, name: str) -> ServerStatus:
        link = self._link(name)
        if link.state != "untrusted":
            link.leave("off", "it was switched off in this session")
        return link.now

    async def call(self, name: str, tool_input: Json) -> Sequence[Json]:
        offers = ((link, tool) for link in self._links.values() if link.usable for tool in link.offer.tools.values())
        match = next(((link, tool) for link, tool in offers if tool.spec.name == name), None)
        if match is None:
            raise ToolRefused(unknown("MCP tool", name, sorted(self.tools())))
        link, tool = match
        params: Json = {"name": tool.declared.name, "arguments": tool_input}
        result = await link.ask("tools/call", params, seconds=None)
        content = result.get("content")
        blocks = blocks_of(cast("list[Any]", content) if isinstance(content, list) else [])
        if result.get("isError") is True:
            raise ToolRefused(f"{name} failed: {whole_text(blocks)}")
        return blocks

    async def prompt(self, server: str, name: str, arguments: Mapping[str, str]) -> Sequence[Json]:
        result = await self._link(server).ask("prompts/get", {"name": name, "arguments": dict(arguments)})
        messages = result.get("messages")
        content = [
            cast("Json", message).get("content")
            for message in (cast("list[Any]", messages) if isinstance(messages, list) else [])
            if isinstance(message, dict)
        ]
        return blocks_of(content)

    async def read(self, server: str, uri: str) -> Sequence[Json]:
        result = await self._link(server).ask("resources/read", {"uri": uri})
        contents = result.get("contents")
        return resource_blocks(cast("list[Any]", contents) if isinstance(contents, list) else [])

    async def add(self, entry: ServerEntry) -> None:
        if entry.name in self._links:
            self._links[entry.name].close("another server took its name")
        link = self._links[entry.name] = self._new(entry)
        self._start_owner(link)
        self._moved()

    async def remove(self, name: str) -> None:
        if name in self._links:
            self._links.pop(name).close("it was removed")
            self._moved()

    # Private parts

    def _new(self, entry: ServerEntry) -> ServerConnection:
        bridge = self._bridges.get(entry.name)
        if bridge is None and entry.transport == "sdk" and self._bridge_of is not None:
            bridge = self._bridge_of(entry.name)
        return ServerConnection(entry, self._around, bridge)

    def _start_owner(self, link: ServerConnection) -> None:
        """Start the task that owns the server, if the manager is running."""
        if self._group is not None:
            self._group.start_soon(link.own_connection)
            if link.state == "waiting":
                link.request_connection()

    def _link(self, name: str) -> ServerConnection:
        if name not in self._links:
            raise ToolRefused(unknown("MCP server", name, sorted(self._links)))
        return self._links[name]

    def _name_conflict(self, link: ServerConnection, offer: ServerCapabilities) -> str:
        """Return the conflict with the tools of an earlier entry, which take precedence."""
        names = list(self._links)
        position = names.index(link.entry.name) if link.entry.name in names else len(names)
        standing = {name: other.offer.tools for name, other in self._links.items() if other.state == "connected"}
        earlier = {name: tools for name, tools in standing.items() if names.index(name) < position}
        if wrong := clashes_with(link.entry.name, offer.tools, earlier):
            return wrong
        for name, tools in standing.items():
            if names.index(name) > position and (wrong := clashes_with(name, tools, {link.entry.name: offer.tools})):
                self._links[name].leave("failed", wrong)
        return ""

    def _moved(self) -> None:
        self._tools = None
        self._changed.notify()
