"""The servers of a session: the port `Servers`, on the official SDK.

    manager = Manager(entries, Place(workspace, environment, logs))
    async with manager.running():
        await manager.ready()
        manager.tools()["mcp__time__get_current_time"]

Each server has one task that owns its connection, in the task group of `running()`. Leaving that ends every server,
with all that came from it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import Any, cast

import anyio
from anyio.abc import TaskGroup

from callboard.adapters.mcp.link import LEAVING, Around, Link
from callboard.adapters.mcp.offer import Offer
from callboard.adapters.mcp.telling import words_of_sdk
from callboard.adapters.mcp.transports import Place
from callboard.core.mcp.limits import Limits
from callboard.core.mcp.names import clashes_with
from callboard.core.mcp.results import blocks_of, resource_blocks
from callboard.ports.mcp import Bridge
from callboard.ports.tool import Tool
from callboard.words.errors import ToolRefused
from callboard.words.mcp import ServerEntry, ServerNow, ServerState
from callboard.words.values import Json


class Manager:
    """See the module. Entries come in the order of precedence; of two by one name the first counts."""

    def __init__(
        self,
        entries: Sequence[ServerEntry],
        place: Place,
        *,
        limits: Limits | None = None,
        held: Mapping[str, tuple[ServerState, str]] | None = None,
        bridges: Mapping[str, Bridge] | None = None,
    ) -> None:
        """`held`: servers that are not to be connected -> (`off` or `untrusted`, why). `bridges`: of servers whose
        transport is `sdk`, by name."""
        self._around = Around(place, limits or Limits(), self._clashes, self._moved)
        self._bridges: Mapping[str, Bridge] = bridges if bridges is not None else {}
        self._revision, self._news = 0, anyio.Event()
        self._tools: Mapping[str, Tool] | None = None
        self._group: TaskGroup | None = None
        self._links: dict[str, Link] = {}
        for entry in entries:
            if entry.name not in self._links:
                link = self._links[entry.name] = self._new(entry)
                link.state, link.why = (held or {}).get(entry.name, ("waiting", ""))

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Connect all that are on, and hold them until the end of the block."""
        with words_of_sdk():
            async with anyio.create_task_group() as group, self._held_in(group):
                yield

    @asynccontextmanager
    async def _held_in(self, group: TaskGroup) -> AsyncGenerator[None]:
        self._group = group
        for link in self._links.values():
            self._hold(link)
        try:
            yield
        finally:
            self._group = None
            for link in self._links.values():
                link.quit()
            group.cancel_scope.deadline = anyio.current_time() + LEAVING

    # The port.

    @property
    def revision(self) -> int:
        return self._revision

    def now(self) -> Sequence[ServerNow]:
        return [self._links[name].now for name in sorted(self._links)]

    def tools(self) -> Mapping[str, Tool]:
        """Also those of a server that is lost for now, and that a call would connect again."""
        if self._tools is None:
            usable = [link for link in self._links.values() if link.usable]
            self._tools = MappingProxyType({name: tool for link in usable for name, tool in link.offer.tools.items()})
        return self._tools

    async def changed(self, since: int) -> int:
        while self._revision == since:
            await self._news.wait()
        return self._revision

    async def ready(self) -> None:
        for link in list(self._links.values()):
            if link.state in ("waiting", "connecting"):
                await link.settled()

    async def connect(self, name: str) -> ServerNow:
        link = self._link(name)
        if link.state == "untrusted":
            raise ToolRefused(f"the MCP server {name} is not trusted: {link.why}")
        if link.state == "connected":
            link.leave("waiting", "")
        elif link.state == "off":
            link.state, link.why = "waiting", ""
        link.want()
        await link.settled()
        if link.state != "connected":
            raise ToolRefused(f"the MCP server {name} cannot be reached: {link.why}")
        return link.now

    async def switch_off(self, name: str) -> ServerNow:
        link = self._link(name)
        if link.state != "untrusted":
            link.leave("off", "it was switched off in this session")
        return link.now

    async def prompt(self, server: str, name: str, arguments: Mapping[str, str]) -> Sequence[Json]:
        found = await self._link(server).ask("prompts/get", {"name": name, "arguments": dict(arguments)})
        messages = found.get("messages")
        content = [
            cast("Json", one).get("content")
            for one in (cast("list[Any]", messages) if isinstance(messages, list) else [])
            if isinstance(one, dict)
        ]
        return blocks_of(content)

    async def read(self, server: str, uri: str) -> Sequence[Json]:
        found = await self._link(server).ask("resources/read", {"uri": uri})
        contents = found.get("contents")
        return resource_blocks(cast("list[Any]", contents) if isinstance(contents, list) else [])

    async def add(self, entry: ServerEntry) -> None:
        if entry.name in self._links:
            self._links[entry.name].close("another server took its name")
        link = self._links[entry.name] = self._new(entry)
        self._hold(link)
        self._moved()

    async def remove(self, name: str) -> None:
        if name in self._links:
            self._links.pop(name).close("it was removed")
            self._moved()

    # Its own.

    def _new(self, entry: ServerEntry) -> Link:
        return Link(entry, self._around, self._bridges.get(entry.name))

    def _hold(self, link: Link) -> None:
        """Have a server owned by a task of its own, while this runs."""
        if self._group is not None:
            self._group.start_soon(link.own)
            if link.state == "waiting":
                link.want()

    def _link(self, name: str) -> Link:
        if name not in self._links:
            there = ", ".join(sorted(self._links)) or "none is configured"
            raise ToolRefused(f"there is no MCP server {name!r}; there are: {there}")
        return self._links[name]

    def _clashes(self, link: Link, offer: Offer) -> str:
        """The tools of an earlier entry win; a later server that took their names gives way."""
        names = list(self._links)
        mine = names.index(link.entry.name) if link.entry.name in names else len(names)
        standing = {name: other.offer.tools for name, other in self._links.items() if other.state == "connected"}
        earlier = {name: tools for name, tools in standing.items() if names.index(name) < mine}
        if wrong := clashes_with(link.entry.name, offer.tools, earlier):
            return wrong
        for name, tools in standing.items():
            if names.index(name) > mine and (wrong := clashes_with(name, tools, {link.entry.name: offer.tools})):
                self._links[name].leave("failed", wrong)
        return ""

    def _moved(self) -> None:
        self._revision += 1
        self._tools = None
        self._news, old = anyio.Event(), self._news
        old.set()
