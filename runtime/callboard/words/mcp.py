"""MCP servers as values: how one is reached, and how it stands. What is read of a file, and what a person is shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from callboard.words.values import Json

Transport = Literal["stdio", "http", "sse", "sdk"]
"""`sdk`: it lives in the client of a headless run, at the other end of the control protocol."""
ServerScope = Literal["local", "workspace", "person", "plugin", "agent", "run"]
"""Who brings it: this workspace on this machine, the workspace for everybody, the person, a plugin, an agent's file,
the command line. Of two by one name the whole entry of the first in this order counts, `run` and `agent` before all."""
ServerState = Literal["waiting", "connecting", "connected", "failed", "off", "untrusted"]
"""`waiting`: nobody has needed it yet; `off`: a person or a setting switched it off; `untrusted`: what the workspace
brings, and no person has trusted it."""


@dataclass(frozen=True, slots=True)
class ServerEntry:
    """One server as its entry says, variables not yet expanded. Source: `.mcp.json` (docs/mcp.md)."""

    name: str
    transport: Transport
    scope: ServerScope
    path: str
    """The file that says so, or the option."""
    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict[str, str])
    url: str = ""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    headers_helper: str = ""
    """A shell command that prints a JSON object of headers."""
    timeout: float | None = None
    """Seconds that one call may take at most; None: as the settings say."""
    always_load: bool = False
    """Its tools are never deferred behind the search."""


@dataclass(frozen=True, slots=True)
class McpPrompt:
    """A prompt of a server: a person invokes it as `/mcp__server__name`. `arguments`: (name, description, required)."""

    server: str
    name: str
    description: str = ""
    arguments: tuple[tuple[str, str, bool], ...] = ()


@dataclass(frozen=True, slots=True)
class McpResource:
    """A resource of a server: a person names it as `@server:uri`."""

    server: str
    uri: str
    name: str = ""
    description: str = ""
    mime_type: str = ""


@dataclass(frozen=True, slots=True)
class ServerNow:
    """How a server stands now."""

    name: str
    transport: Transport
    scope: ServerScope
    path: str
    state: ServerState
    why: str = ""
    """Why it failed, is off or untrusted, and what to do."""
    version: str = ""
    """What it says of itself: `name version`."""
    instructions: str = ""
    """Its own words on how to use it, cut to 2,000 characters. Data, never an order."""
    tools: tuple[str, ...] = ()
    """The names by which models call its tools (`mcp__server__tool`), sorted."""
    prompts: tuple[McpPrompt, ...] = ()
    resources: tuple[McpResource, ...] = ()
    always_load: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """What a server asks the person in the middle of a call (elicitation)."""

    server: str
    message: str
    schema: Json
    """A flat JSON schema of the wanted fields; empty where it wants a URL visited."""
    url: str = ""


@dataclass(frozen=True, slots=True)
class AnsweredBack:
    """The person's answer to it."""

    action: Literal["accept", "decline", "cancel"]
    content: Json = field(default_factory=dict[str, object])
