"""Connects to configured servers for a person: how they stand, and one call of a tool. Loads the SDK."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import anyio

from callboard.adapters.mcp.manager import Manager
from callboard.adapters.mcp.transports import Place
from callboard.core.mcp.limits import limits_of
from callboard.desks.servers import Servers
from callboard.ports.tool import ToolContext, ToolOutcome, ToolSpec
from callboard.words.errors import ToolRefused, UsageError
from callboard.words.mcp import AnsweredBack, Asked, ServerNow
from callboard.words.values import Json


@dataclass(frozen=True, slots=True)
class Checked:
    """How a server stands, with what its tools say of themselves."""

    now: ServerNow
    tools: tuple[ToolSpec, ...]


@dataclass(frozen=True, slots=True)
class _Folders:
    tool_results: Path


@dataclass(frozen=True, slots=True)
class _Caller:
    """As much of a `ToolContext` as a server's tool uses. Nobody is asked anything."""

    folders: _Folders
    progress: Callable[[str], None]
    call: str = "call"

    async def elicit(self, asked: Asked) -> AnsweredBack:
        return AnsweredBack("decline")


def check(servers: Servers, names: Sequence[str]) -> list[Checked]:
    """Connect to these servers, each beside the others, and leave them again."""
    return anyio.run(_check, servers, names)


def call(servers: Servers, name: str, tool: str, given: Json, tell: Callable[[str], None]) -> ToolOutcome:
    """Call one tool. `tell`: hears its progress. Raises `ToolRefused`, and `UsageError` with the tools there are."""
    keep = Path(tempfile.mkdtemp(prefix="callboard-result-"))
    context = cast("ToolContext", _Caller(_Folders(keep), tell))
    try:
        return anyio.run(_call, servers, name, tool, given, context)
    finally:
        if not any(keep.iterdir()):  # else it holds the whole of a large result, whose path was told
            keep.rmdir()


async def _check(servers: Servers, names: Sequence[str]) -> list[Checked]:
    with tempfile.TemporaryDirectory(prefix="callboard-mcp-") as logs:
        manager = _manager(servers, names, Path(logs))
        async with manager.running():
            await manager.ready()
            return _found(manager)


async def _call(servers: Servers, name: str, tool: str, given: Json, context: ToolContext) -> ToolOutcome:
    with tempfile.TemporaryDirectory(prefix="callboard-mcp-") as logs:
        manager = _manager(servers, [name], Path(logs))
        async with manager.running():
            await manager.ready()
            (now,) = [one for one in manager.now() if one.name == name]
            if now.state != "connected":
                raise ToolRefused(f"the MCP server {name} is {now.state}: {now.why}")
            tools = manager.tools()
            wanted = next((one for one in now.tools if one == tool or one.endswith(f"__{tool}")), None)
            if wanted is None:
                raise UsageError(f"{name} has no tool {tool!r}; it has: {', '.join(now.tools) or 'none'}")
            await tools[wanted].prepare(given, context)
            return await tools[wanted].run(given, context)


def _manager(servers: Servers, names: Sequence[str], logs: Path) -> Manager:
    entries = [one for one in servers.configured.entries if one.name in names]
    place = Place(servers.places.workspace, dict(os.environ), logs)
    limits = limits_of(os.environ, servers.settings)
    return Manager(entries, place, limits=limits, held=servers.configured.held)


def _found(manager: Manager) -> list[Checked]:
    tools = manager.tools()
    return [Checked(now, tuple(tools[name].spec for name in now.tools if name in tools)) for now in manager.now()]
