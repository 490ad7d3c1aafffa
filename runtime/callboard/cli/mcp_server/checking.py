"""Connections to configured servers for a person: their state, and one call of a tool. Loads the SDK."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import anyio

from callboard.adapters.extensions.hook_sandbox import starts_workspace_code
from callboard.adapters.mcp.manager import Manager
from callboard.adapters.mcp.transports import ServerEnvironment
from callboard.adapters.system.scratch import scratch_folder
from callboard.core.mcp.limits import limits_of
from callboard.ports.tool import CallContext, ToolOutcome, ToolSpec
from callboard.sessions.inspect.mcp_servers import ConfiguredServers
from callboard.types.errors import ToolRefused, UsageError
from callboard.types.lazy_dataclass import dataclass
from callboard.types.mcp import Elicitation, ElicitationAnswer, ServerStatus
from callboard.types.records import Json


@dataclass(frozen=True, slots=True)
class ServerCheck:
    """State of a server, with the descriptions of its tools."""

    now: ServerStatus
    tools: tuple[ToolSpec, ...]


@dataclass(frozen=True, slots=True)
class _Folders:
    tool_results: Path


@dataclass(frozen=True, slots=True)
class _Caller:
    """The part of a `CallContext` that a server's tool uses. Questions are declined."""

    folders: _Folders
    progress: Callable[[str], None]
    call: str = "call"

    async def elicit(self, form: Elicitation) -> ElicitationAnswer:
        return ElicitationAnswer("decline")


def check(servers: ConfiguredServers, names: Sequence[str]) -> list[ServerCheck]:
    """Connect to these servers in parallel, and disconnect again."""
    return anyio.run(_check, servers, names)


def call(
    servers: ConfiguredServers, name: str, tool: str, tool_input: Json, *, tell: Callable[[str], None]
) -> ToolOutcome:
    """Call one tool. `tell`: receives its progress. Raises `ToolRefused`, and `UsageError` with the available tools."""
    keep = Path(tempfile.mkdtemp(prefix="callboard-result-"))
    context = cast("CallContext", _Caller(_Folders(keep), tell))
    try:
        return anyio.run(partial(_call, servers, name, tool, tool_input, context=context))
    finally:
        if not any(keep.iterdir()):  # otherwise it contains a large result, whose path was printed
            keep.rmdir()


async def _check(servers: ConfiguredServers, names: Sequence[str]) -> list[ServerCheck]:
    with scratch_folder() as logs:
        manager = _manager(servers, names, logs)
        async with manager.running():
            await manager.ready()
            return _checked(manager)


async def _call(
    servers: ConfiguredServers, name: str, tool: str, tool_input: Json, *, context: CallContext
) -> ToolOutcome:
    with scratch_folder() as logs:
        manager = _manager(servers, [name], logs)
        async with manager.running():
            await manager.ready()
            (now,) = [server for server in manager.now() if server.name == name]
            if now.state != "connected":
                raise ToolRefused(f"the MCP server {name} is {now.state}: {now.why}")
            tools = manager.tools()
            tool_name = next(
                (candidate for candidate in now.tools if candidate == tool or candidate.endswith(f"__{tool}")), None
            )
            if tool_name is None:
                raise UsageError(f"{name} has no tool {tool!r}; it has: {', '.join(now.tools) or 'none'}")
            await tools[tool_name].prepare(tool_input, context)
            return await tools[tool_name].run(tool_input, context)


def _manager(servers: ConfiguredServers, names: Sequence[str], logs: Path) -> Manager:
    entries = [entry for entry in servers.configured.entries if entry.name in names]
    place = ServerEnvironment(
        servers.places.workspace, dict(os.environ), logs, runs_workspace_code=starts_workspace_code
    )
    limits = limits_of(os.environ, servers.settings)
    return Manager(entries, place, limits=limits, held=servers.configured.held)


def _checked(manager: Manager) -> list[ServerCheck]:
    tools = manager.tools()
    return [ServerCheck(now, tuple(tools[name].spec for name in now.tools if name in tools)) for now in manager.now()]
