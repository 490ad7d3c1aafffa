"""The MCP port: the servers that a session may reach, as they stand now.

Connecting never delays a session beyond its own time-out, and a server that dies, hangs or talks nonsense costs its own
calls and nothing else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from callboard.ports.tool import Tool
from callboard.words.mcp import AnsweredBack, Asked, ServerEntry, ServerNow
from callboard.words.values import Json

Elicit = Callable[[Asked], Awaitable[AnsweredBack]]
"""Puts what a server asks in the middle of a call to the person who may answer, as a durable request. Never raises."""
Bridge = Callable[[Json], Awaitable[Json | None]]
"""Carries one JSON-RPC message to a server of transport `sdk`; its answer, None for a notification. Raises any
exception where the other end has gone."""


class Servers(Protocol):
    """The MCP servers of a session."""

    @property
    def revision(self) -> int:
        """Counts changes: of a state, of a list of tools, prompts or resources."""
        ...

    def now(self) -> Sequence[ServerNow]:
        """Every server that is configured, by name, also those that are off or untrusted."""
        ...

    def tools(self) -> Mapping[str, Tool]:
        """The tools of all connected servers, by the name that a model calls them by. One object for each tool for as
        long as its declaration does not change; `ToolContext.elicit` carries what it may ask the person."""
        ...

    async def changed(self, since: int) -> int:
        """Wait until the revision is another one than `since`; the new one."""
        ...

    async def ready(self) -> None:
        """Wait until each server that is to be connected at the start is connected or has failed: their own time-outs
        bound it."""
        ...

    async def connect(self, name: str) -> ServerNow:
        """Connect, reconnect, or switch on again. Raises `ToolRefused` for an unknown name (with those there are), an
        untrusted one, or one that cannot be reached (with why)."""
        ...

    async def switch_off(self, name: str) -> ServerNow:
        """End its connection and do not connect again by ourselves. Raises `ToolRefused` for an unknown name."""
        ...

    async def add(self, entry: ServerEntry) -> None:
        """Have one more server, in the place of one of that name, and begin to connect it; its tools come when it has
        connected."""
        ...

    async def remove(self, name: str) -> None:
        """End its connection and forget it; nothing, if there is none of that name."""
        ...

    async def prompt(self, server: str, name: str, arguments: Mapping[str, str]) -> Sequence[Json]:
        """A prompt's messages as content blocks (text, image), in order. Raises `ToolRefused`."""
        ...

    async def read(self, server: str, uri: str) -> Sequence[Json]:
        """A resource as content blocks (text, image). Raises `ToolRefused`."""
        ...
