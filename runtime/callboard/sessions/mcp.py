"""MCP servers of a session: their configuration, and their connection to the session. Part of the composition root.

Without a configured server none of this code is loaded. Servers connect in the background while the session is hosted,
and end with it; servers of a workspace connect once a person has trusted it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import field
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from callboard.adapters.extensions.agents import AgentFile
from callboard.adapters.extensions.discovery import DiscoveryNote, ExtensionPaths
from callboard.adapters.mcp.config import (
    WORKSPACE_FILE,
    Configured,
    ServerSources,
    inline_servers,
    read_servers,
)
from callboard.adapters.tools.mcp import ServerPrompts, server_tools
from callboard.core.mcp.limits import limits_of
from callboard.engine.operations.mcp_tools import hidden_tools
from callboard.engine.toolbox import Toolbox
from callboard.ports.mcp import PromptSource
from callboard.ports.tool import Tool
from callboard.sessions.definitions import Definitions
from callboard.sessions.late_servers import LateServers, Running
from callboard.sessions.options import McpOptions
from callboard.sessions.prepare import PreparedSession
from callboard.types.agent_spec import AgentSpec
from callboard.types.lazy_dataclass import dataclass
from callboard.types.mcp import ServerEntry, ServerStatus


@dataclass(frozen=True, slots=True)
class SessionServers:
    """Servers of a session before its team starts."""

    manager: Running | None = None
    """The servers; None if there are none and none can be added."""
    notes: tuple[DiscoveryNote, ...] = ()
    """Notes on the refused parts of the configuration."""
    types: Mapping[str, AgentFile] = field(default_factory=dict[str, AgentFile])
    """Current agent types: the servers in an agent's file connect when such an agent starts."""
    workspace: Path = Path()
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """Environment of the session, for the values of `${VAR}`."""

    @property
    def refusals(self) -> tuple[str, ...]:
        """Return the refusals to show the person at once, one line each."""
        return tuple(str(note) for note in self.notes if note.verdict == "refused")

    @property
    def prompts(self) -> PromptSource | None:
        """Return the prompts of the servers; None without servers."""
        return None if self.manager is None else ServerPrompts(self.manager)

    def added_to(self, tools: Mapping[str, Tool], private: Mapping[str, Collection[str]]) -> Mapping[str, Tool]:
        """Return the tools, and those of servers as they connect. `private`: as `SessionRuntime.private_servers`."""
        if self.manager is None:
            return tools
        hidden = partial(hidden_tools, self.manager, private)
        own = {tool.spec.name: tool for tool in server_tools(self.manager, hidden)}
        return Toolbox({**tools, **own}, self.manager)

    def own_servers(self, me: AgentSpec) -> tuple[ServerEntry, ...]:
        """Return the servers that the agent's own type defines."""
        definition = self.types.get(me.agent_type) if self.manager is not None else None
        return _inline(definition, self.workspace, self.environment)[0] if definition is not None else ()


async def find_servers(
    prepared: PreparedSession, options: McpOptions, definitions: Definitions, *, project: bool
) -> SessionServers:
    """Return the servers that the session may reach. `project`: those of the workspace are read.

    Raises `UsageError` for a `--mcp-config` that cannot be read, or that `McpOptions.must_fit` refuses.
    """
    if not prepared.runs_tools:
        return SessionServers()  # a replay reaches no server: the cassette contains the answers
    files = definitions.files
    types = definitions.types
    configured = await anyio.to_thread.run_sync(partial(_configured, prepared, options, files, project=project))
    notes = [*configured.notes]
    for definition in types.values():
        notes += _inline(definition, prepared.places.workspace, prepared.loaded.environment)[1]
    if not configured.entries and not options.bridges and not any(map(_brings, types.values())):
        late = LateServers(partial(_manager, prepared, options, configured)) if options.bridge_of is not None else None
        return SessionServers(late, tuple(notes))
    manager = await anyio.to_thread.run_sync(_manager, prepared, options, configured)
    return SessionServers(manager, tuple(notes), types, prepared.places.workspace, prepared.loaded.environment)


def _configured(prepared: PreparedSession, options: McpOptions, files: ExtensionPaths, *, project: bool) -> Configured:
    places = prepared.places
    trust = prepared.trust
    loaded = prepared.loaded
    return read_servers(
        ServerSources(
            workspace=places.workspace,
            environment=loaded.environment,
            config=places.config,
            home=Path.home(),
            workspace_text=trust.workspace_claims.text(WORKSPACE_FILE) if project else None,
            workspace_fault=trust.workspace_claims.fault(WORKSPACE_FILE) if project else "",
            trusted=trust.trusted,
            plugins=files.plugins,
            command_line=options.config,
            folder=Path.cwd(),
            strict=options.strict,
            must_fit=options.must_fit,
            approvals=tuple(approval for claude in loaded.claude for approval in claude.servers),
            off=loaded.settings.mcp.off,
        )
    )


def _manager(prepared: PreparedSession, options: McpOptions, configured: Configured) -> Running:
    """Return the manager of the servers. Importing the SDK takes half a second, so this runs in a thread."""
    from callboard.adapters.extensions.hook_sandbox import starts_workspace_code
    from callboard.adapters.mcp.manager import Manager
    from callboard.adapters.mcp.starting import digests_of
    from callboard.adapters.mcp.transports import ServerEnvironment

    places = prepared.places
    bridged = tuple(
        ServerEntry(name, "sdk", "run", "(the client)")
        for name in options.bridges
        if all(entry.name != name for entry in configured.entries)
    )
    workspace_claims = prepared.trust.workspace_claims if prepared.trust.trusted else None
    digests = digests_of(configured.entries, places.workspace, workspace_claims)
    return Manager(
        (*bridged, *configured.entries),
        ServerEnvironment(
            places.workspace,
            prepared.loaded.environment,
            places.session_data(prepared.row.id) / "servers",
            digests,
            runs_workspace_code=starts_workspace_code,
            variables=prepared.loaded.variables,
        ),
        limits=limits_of(prepared.loaded.environment, prepared.loaded.settings.mcp),
        held=configured.held,
        bridges=options.bridges,
        bridge_of=options.bridge_of,
    )


def _brings(definition: AgentFile) -> bool:
    return any(isinstance(entry, dict) for entry in definition.mcp_servers)


def _inline(
    definition: AgentFile, workspace: Path, environment: Mapping[str, str]
) -> tuple[tuple[ServerEntry, ...], tuple[DiscoveryNote, ...]]:
    """Return the servers that an agent's file defines inline, and notes.

    A workspace's file is used only once it is trusted.
    """
    if not _brings(definition):
        return (), ()
    _, read = inline_servers(definition.mcp_servers, str(definition.path), workspace, environment)
    return tuple(entry for entry in read.entries if entry.name not in read.held), read.notes


@asynccontextmanager
async def hold_servers(servers: Running | None, tell: Callable[[str], None]) -> AsyncGenerator[None]:
    """Hold the servers during the block, and report each failure in one line."""
    if servers is None:
        yield
        return
    async with servers.running(), anyio.create_task_group() as group:
        group.start_soon(_report_failures, servers, tell)
        try:
            yield
        finally:
            group.cancel_scope.cancel()


async def _report_failures(servers: Running, tell: Callable[[str], None]) -> None:
    reported: dict[str, str] = {}
    revision = -1
    while True:
        for now in servers.now():
            message = _failure(now)
            if message and reported.get(now.name) != message:
                tell(message)
            if message or now.state == "connected":
                reported[now.name] = message
        revision = await servers.changed(revision) if revision >= 0 else servers.revision


def _failure(now: ServerStatus) -> str:
    if now.state == "failed":
        return f"MCP server {now.name} failed: {now.why}"
    return f"MCP server {now.name} is not started: {now.why}" if now.state == "untrusted" else ""
