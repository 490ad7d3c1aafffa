"""Ports of the MCP servers of a session, and of external prompts that users type as slash commands.

External prompts are for example those of MCP servers. Connecting never delays a session longer than its timeout. A
server that crashes, hangs or sends garbage affects only its own calls.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from callboard.ports.tool import Tool
from callboard.types.mcp import Elicitation, ElicitationAnswer, ServerEntry, ServerStatus
from callboard.types.records import Json
from callboard.types.skills import PersonCommand

Elicit = Callable[[Elicitation], Awaitable[ElicitationAnswer]]
"""Function that puts a server's question during a call to the user, as a durable request. Never raises."""
Bridge = Callable[[Json], Awaitable[Json | None]]
"""Function that sends one JSON-RPC message to a server of transport `sdk` and returns its answer; None for a
notification. Raises any exception if the other end is gone."""


class Servers(Protocol):
    """The MCP servers of a session."""

    @property
    def revision(self) -> int:
        """Return a counter of changes to states and to lists of tools, prompts and resources."""
        ...

    def now(self) -> Sequence[ServerStatus]:
        """Return every configured server by name, including servers that are off or untrusted."""
        ...

    def tools(self) -> Mapping[str, Tool]:
        """Return the tools of all connected servers, by the name under which a model calls them.

        A tool keeps its object as long as its declaration is unchanged; `CallContext.elicit` carries its questions to
        the user.
        """
        ...

    async def changed(self, since: int) -> int:
        """Wait until the revision differs from `since`, and return it."""
        ...

    async def ready(self) -> None:
        """Wait until each server to be connected at the start is connected or has failed.

        Their timeouts bound the wait.
        """
        ...

    async def connect(self, name: str) -> ServerStatus:
        """Connect, reconnect, or switch on a server.

        Raises `ToolRefused` for an unknown name (with a list), an untrusted server, or one that cannot be reached (with
        the reason).
        """
        ...

    async def switch_off(self, name: str) -> ServerStatus:
        """Disconnect a server and do not reconnect it automatically. Raises `ToolRefused` for an unknown name."""
        ...

    async def add(self, entry: ServerEntry) -> None:
        """Add a server, replacing one with the same name, and start to connect it.

        Its tools appear once it is connected.
        """
        ...

    async def remove(self, name: str) -> None:
        """Disconnect and remove a server. Does nothing for an unknown name."""
        ...

    async def call(self, name: str, tool_input: Json) -> Sequence[Json]:
        """Call a tool for the runtime, by the name under which a model calls it, and return its content blocks.

        The server answers as late as it wants. Raises `ToolRefused` for an unknown tool, and for a call that fails.
        """
        ...

    async def prompt(self, server: str, name: str, arguments: Mapping[str, str]) -> Sequence[Json]:
        """Return the messages of a prompt as content blocks (text, image), in order. Raises `ToolRefused`."""
        ...

    async def read(self, server: str, uri: str) -> Sequence[Json]:
        """Return a resource as content blocks (text, image). Raises `ToolRefused`."""
        ...


class PromptSource(Protocol):
    """Prompts by the names that users type (`mcp__server__prompt`)."""

    def prompts(self) -> Sequence[PersonCommand]:
        """Return the available prompts, of kind `prompt`."""
        ...

    async def prompt(self, name: str, arguments: str) -> Sequence[Json]:
        """Return the messages of a prompt as content blocks (text, image), in order.

        `arguments`: the text after the name, split as a shell would. Raises `ToolRefused` that names the fault or the
        missing argument.
        """
        ...
