"""The MCP servers of a session: which there are, and how they come into its world. Part of the composition root.

Where no server is configured nothing of them is loaded. They connect in the background while the session is hosted, and
end with it; what a workspace brings is connected when a person trusted it.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import anyio
import anyio.to_thread

from callboard.adapters.agent_files import AgentFile
from callboard.adapters.files import Note
from callboard.adapters.files import Places as FilePlaces
from callboard.adapters.mcp.config import Configured, ServerSources, inline_servers, read_servers
from callboard.adapters.server_prompts import ServerPrompts
from callboard.adapters.tools.servers import server_tools
from callboard.core.mcp.catalogue import Deferral
from callboard.core.mcp.limits import limits_of
from callboard.engine.host import Host
from callboard.engine.toolbox import Toolbox
from callboard.engine.tools.servers import hidden_tools
from callboard.opening import Opened, Options
from callboard.ports.mcp import Servers
from callboard.words.mcp import ServerEntry, ServerNow
from callboard.words.specs import AgentSpec


class Running(Servers, Protocol):
    """Servers that are held while a block lasts."""

    def running(self) -> AbstractAsyncContextManager[None]: ...


@dataclass(frozen=True, slots=True)
class Connecting:
    """The servers of a session before its team lives."""

    servers: Running | None = None
    """None: it has none, and can get none."""
    notes: tuple[Note, ...] = ()
    """What of the configuration is refused."""
    types: Mapping[str, AgentFile] = field(default_factory=dict[str, AgentFile])
    """The agent types as they stand now: the servers that a file brings connect when such an agent begins."""
    workspace: Path = Path()

    @property
    def told(self) -> tuple[str, ...]:
        """What a person is told of them at once, a line each."""
        return tuple(str(note) for note in self.notes if note.verdict == "refused")

    def into(self, host: Host, opened: Opened, *, patient: bool) -> None:
        """Give the host the servers, their tools and their prompts. `patient`: no person waits for the first prompt."""
        if self.servers is None:
            return
        settings, ports = opened.loaded.settings.mcp, host.ports
        theirs = server_tools(self.servers, partial(hidden_tools, host))
        own = {**ports.tools, **{tool.spec.name: tool for tool in theirs}}
        host.ports = replace(
            ports,
            tools=Toolbox(own, self.servers),
            servers=self.servers,
            prompt_source=ServerPrompts(self.servers),
            brought=self._brought,
        )
        host.deferral = Deferral(settings.deferred_over, settings.deferred_share)
        host.server_wait = None if patient else settings.wait

    def _brought(self, me: AgentSpec) -> tuple[ServerEntry, ...]:
        definition = self.types.get(me.agent_type)
        return _inline(definition, self.workspace)[0] if definition is not None else ()


async def connecting(options: Options, opened: Opened, files: FilePlaces, types: Mapping[str, AgentFile]) -> Connecting:
    """The servers that the session may reach. Raises `UsageError` for a `--mcp-config` that cannot be read."""
    if not opened.runs(options):
        return Connecting()  # a replay reaches nobody: what servers answered stands on the tape
    found = await anyio.to_thread.run_sync(_configured, options, opened, files)
    notes = [*found.notes]
    for definition in types.values():
        notes += _inline(definition, opened.places.workspace)[1]
    if not found.entries and not options.bridges and not any(map(_brings, types.values())):
        return Connecting(notes=tuple(notes))
    servers = await anyio.to_thread.run_sync(_manager, options, opened, found)
    return Connecting(servers, tuple(notes), types, opened.places.workspace)


def _configured(options: Options, opened: Opened, files: FilePlaces) -> Configured:
    places, trust, loaded = opened.places, opened.trust, opened.loaded
    return read_servers(
        ServerSources(
            workspace=places.workspace,
            environment=os.environ,
            config=places.config,
            home=Path.home(),
            brought=trust.brought.text(".mcp.json"),
            trusted=trust.trusted,
            plugins=files.plugins,
            given=options.mcp_config,
            folder=Path.cwd(),
            strict=options.mcp_strict,
            approvals=tuple(one for claude in loaded.claude for one in claude.servers),
            off=loaded.settings.mcp.off,
        )
    )


def _manager(options: Options, opened: Opened, found: Configured) -> Running:
    """Importing the SDK takes half a second, so this runs in a thread."""
    from callboard.adapters.mcp.manager import Manager
    from callboard.adapters.mcp.transports import Place

    places = opened.places
    bridged = tuple(
        ServerEntry(name, "sdk", "run", "(the client)")
        for name in options.bridges
        if all(one.name != name for one in found.entries)
    )
    return Manager(
        (*bridged, *found.entries),
        Place(places.workspace, os.environ, places.session_data(opened.row.id) / "servers"),
        limits=limits_of(os.environ, opened.loaded.settings.mcp),
        held=found.held,
        bridges=options.bridges,
    )


def _brings(definition: AgentFile) -> bool:
    return any(isinstance(entry, dict) for entry in definition.mcp_servers)


def _inline(definition: AgentFile, workspace: Path) -> tuple[tuple[ServerEntry, ...], tuple[Note, ...]]:
    """What an agent's file writes out. A workspace's file counts at all only once it is trusted."""
    if not _brings(definition):
        return (), ()
    _, read = inline_servers(definition.mcp_servers, str(definition.path), workspace, os.environ)
    return tuple(entry for entry in read.entries if entry.name not in read.held), read.notes


@asynccontextmanager
async def running(servers: Running | None, tell: Callable[[str], None]) -> AsyncGenerator[None]:
    """Hold the servers while the block lasts, and tell of each that fails, in one line."""
    if servers is None:
        yield
        return
    async with servers.running(), anyio.create_task_group() as group:
        group.start_soon(_tell_failures, servers, tell)
        try:
            yield
        finally:
            group.cancel_scope.cancel()


async def _tell_failures(servers: Running, tell: Callable[[str], None]) -> None:
    told: dict[str, str] = {}
    revision = -1
    while True:
        for now in servers.now():
            words = _failure(now)
            if words and told.get(now.name) != words:
                tell(words)
            if words or now.state == "connected":
                told[now.name] = words
        revision = await servers.changed(revision) if revision >= 0 else servers.revision


def _failure(now: ServerNow) -> str:
    if now.state == "failed":
        return f"MCP server {now.name} failed: {now.why}"
    return f"MCP server {now.name} is not started: {now.why}" if now.state == "untrusted" else ""
