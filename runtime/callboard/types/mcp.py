"""MCP servers as values: the entry of a server, its state, and the questions that it asks."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json

Transport = Literal["stdio", "http", "sse", "sdk"]
"""Transport of a server. `sdk`: the server runs in the client of a headless run and uses the control protocol."""
ServerScope = Literal["local", "workspace", "person", "plugin", "agent", "run"]
"""Origin of a server's entry: this workspace on this machine, the shared workspace, the user, a plugin, an agent file,
the command line. Of two entries with one name, the first in this order replaces the other completely; `run` and `agent`
come before all others."""
ServerState = Literal["waiting", "connecting", "connected", "failed", "off", "untrusted"]
"""State of a server. `waiting`: no one has needed it yet; `off`: the user or a setting switched it off; `untrusted`:
the workspace defines it and the user has not trusted it."""


@dataclass(frozen=True, slots=True)
class ServerEntry:
    """Entry of one server, with variables not yet expanded. Source: `.mcp.json` (docs/mcp.md)."""

    name: str
    transport: Transport
    scope: ServerScope
    path: str
    """File or option that defines the server."""
    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict[str, str])
    url: str = ""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    headers_helper: str = ""
    """Shell command that prints a JSON object of headers."""
    timeout: float | None = None
    """Most seconds of one call; None: as in the settings."""
    always_load: bool = False
    """True if the server's tools are never deferred behind the search."""


@dataclass(frozen=True, slots=True)
class McpPrompt:
    """Prompt of a server. The user invokes it as `/mcp__server__name`. `arguments`: (name, description, required)."""

    server: str
    name: str
    description: str = ""
    arguments: tuple[tuple[str, str, bool], ...] = ()


@dataclass(frozen=True, slots=True)
class McpResource:
    """Resource of a server. The user refers to it as `@server:uri`."""

    server: str
    uri: str
    name: str = ""
    description: str = ""
    mime_type: str = ""


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """Current state of a server."""

    name: str
    transport: Transport
    scope: ServerScope
    path: str
    state: ServerState
    why: str = ""
    """Reason why the server failed, is off or untrusted, and what to do about it."""
    version: str = ""
    """Name and version that the server reports: `name version`."""
    instructions: str = ""
    """The server's own instructions, cut to 2,000 characters. Data, never an order."""
    tools: tuple[str, ...] = ()
    """Names under which models call the server's tools (`mcp__server__tool`), sorted."""
    prompts: tuple[McpPrompt, ...] = ()
    resources: tuple[McpResource, ...] = ()
    always_load: bool = False


@dataclass(frozen=True, slots=True)
class Elicitation:
    """Question of a server to the user during a call (elicitation)."""

    server: str
    message: str
    schema: Json
    """Flat JSON schema of the requested fields; empty if the server asks the user to visit a URL."""
    url: str = ""


@dataclass(frozen=True, slots=True)
class ElicitationAnswer:
    """Answer of the user to a server's question."""

    action: Literal["accept", "decline", "cancel"]
    content: Json = field(default_factory=dict[str, object])
