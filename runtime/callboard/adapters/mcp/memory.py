"""MCP servers in memory: the twin of the port `Servers`, for tests of teams that use tools of servers.

    servers = MemoryServers()
    servers.put("shop", tools=[my_tool])        # connected, with mcp__shop__... tools
    servers.fail("shop", "it has crashed")      # agents see each change at once

No process is started and no server is contacted: the test provides the tools as objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from callboard.ports.notifier import Notifier
from callboard.ports.tool import Tool
from callboard.types.choices import unknown
from callboard.types.errors import ToolRefused
from callboard.types.mcp import McpPrompt, McpResource, ServerEntry, ServerState, ServerStatus
from callboard.types.records import Json


class MemoryServers:
    """Servers in memory.

    Implements `Servers`. Call `put(..., state="waiting")` first for a server that `connect` connects.
    """

    def __init__(self) -> None:
        self._now: dict[str, ServerStatus] = {}
        self._tools: dict[str, dict[str, Tool]] = {}
        self._mapping: Mapping[str, Tool] = {}
        self._prompts: dict[tuple[str, str], Sequence[Json]] = {}
        self._texts: dict[tuple[str, str], Sequence[Json]] = {}
        self._changed = Notifier()
        self.coming: dict[str, Sequence[Tool]] = {}
        """Server -> the tools that it has after `add`."""
        self.answers: dict[str, Sequence[Json]] = {}
        """Tool -> the content with which it answers a call of the runtime."""
        self.connected: list[str] = []
        """Names that were connected by `connect`, in order."""

    def put(
        self,
        name: str,
        tools: Iterable[Tool] = (),
        *,
        state: ServerState = "connected",
        instructions: str = "",
        always_load: bool = False,
    ) -> None:
        """Add or replace a server. `tools`: each with its full name, `mcp__server__tool`."""
        self._tools[name] = {tool.spec.name: tool for tool in tools}
        self._now[name] = ServerStatus(
            name, "stdio", "run", "(memory)", state, instructions=instructions, always_load=always_load
        )
        self._change()

    def fail(self, name: str, reason: str) -> None:
        """Mark a server as failed."""
        self._now[name] = replace(self._now[name], state="failed", why=reason)
        self._change()

    def put_prompt(self, server: str, prompt: McpPrompt, messages: Sequence[Json]) -> None:
        """Add a prompt and its messages to an existing server."""
        self._prompts[server, prompt.name] = messages
        now = self._now[server]
        self._now[server] = replace(now, prompts=(*now.prompts, prompt))
        self._change()

    def put_resource(self, server: str, resource: McpResource, content: Sequence[Json]) -> None:
        """Add a resource and its content to an existing server."""
        self._texts[server, resource.uri] = content
        now = self._now[server]
        self._now[server] = replace(now, resources=(*now.resources, resource))
        self._change()

    def _change(self) -> None:
        self._now = {
            name: replace(now, tools=tuple(sorted(self._tools[name])) if now.state == "connected" else ())
            for name, now in sorted(self._now.items())
        }
        up = [name for name, now in self._now.items() if now.state == "connected"]
        self._mapping = {tool: entry for name in up for tool, entry in self._tools[name].items()}
        self._changed.notify()

    @property
    def revision(self) -> int:
        return self._changed.changes

    def now(self) -> Sequence[ServerStatus]:
        return tuple(self._now.values())

    def tools(self) -> Mapping[str, Tool]:
        return self._mapping

    async def changed(self, since: int) -> int:
        return await self._changed.changed(since)

    async def ready(self) -> None:
        """Connect the servers that were added as `connecting`. Others do not connect by themselves."""
        await self._changed.until(lambda: all(now.state != "connecting" for now in self._now.values()))

    async def connect(self, name: str) -> ServerStatus:
        now = self._state_of(name)
        if now.state == "untrusted":
            raise ToolRefused(f"{name} is not trusted")
        self.connected.append(name)
        self._now[name] = replace(now, state="connected", why="")
        self._change()
        return self._now[name]

    async def switch_off(self, name: str) -> ServerStatus:
        self._now[name] = replace(self._state_of(name), state="off", why="switched off")
        self._change()
        return self._now[name]

    async def add(self, entry: ServerEntry) -> None:
        self._tools[entry.name] = {tool.spec.name: tool for tool in self.coming.get(entry.name, ())}
        self._now[entry.name] = ServerStatus(entry.name, entry.transport, entry.scope, entry.path, "connected")
        self._change()

    async def remove(self, name: str) -> None:
        if self._now.pop(name, None) is not None:
            self._change()

    async def call(self, name: str, tool_input: Json) -> Sequence[Json]:
        if name not in self.answers:
            raise ToolRefused(unknown("MCP tool", name, self.answers))
        return self.answers[name]

    async def prompt(self, server: str, name: str, arguments: Mapping[str, str]) -> Sequence[Json]:
        if (server, name) not in self._prompts:
            raise ToolRefused(f"{server} has no prompt {name!r}")
        text = ", ".join(f"{key}={value}" for key, value in arguments.items())
        return (*self._prompts[server, name], *([{"type": "text", "text": text}] if text else []))

    async def read(self, server: str, uri: str) -> Sequence[Json]:
        if (server, uri) not in self._texts:
            raise ToolRefused(f"{server} has no resource {uri!r}")
        return self._texts[server, uri]

    def _state_of(self, name: str) -> ServerStatus:
        if name not in self._now:
            raise ToolRefused(unknown("MCP server", name, self._now))
        return self._now[name]
