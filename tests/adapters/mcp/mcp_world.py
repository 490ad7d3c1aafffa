"""Real servers for tests of the MCP connections, and a manager that runs them.

npm servers are installed by name into a separate folder under a lock, once per boot for all workers and runs. If npm is
missing or the registry delivers nothing, the tests that need these servers are skipped with the reason.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from tests.adapters.tools.tool_world import ToolWorld
from tests.npm_packages import npm_folder

from callboard.adapters.extensions.hook_sandbox import starts_workspace_code
from callboard.adapters.mcp.manager import Manager
from callboard.adapters.mcp.transports import ServerEnvironment
from callboard.core.mcp.limits import McpLimits
from callboard.ports.tool import CallContext, Folders, ToolOutcome
from callboard.types.errors import ToolRefused
from callboard.types.mcp import Elicitation, ElicitationAnswer, ServerEntry, ServerState, ServerStatus

NPM_SERVERS = ("@modelcontextprotocol/server-everything", "@modelcontextprotocol/server-filesystem")
MAX_GROWTH_KB = 160_000
"""Kilobytes that this process may grow by while a server sends useless data."""

RAW = str(Path(__file__).with_name("mcp_raw_server.py"))
"""A server without an SDK that starts at once."""


def npm_server(name: str) -> str:
    """Return the path of an installed server's program (`mcp-server-everything`), or skip the test if there is none."""
    program = npm_folder("mcp", *NPM_SERVERS) / "node_modules" / ".bin" / name
    if not program.exists():
        pytest.skip(f"{name} is not in the package")
    return str(program)


def raw_server(name: str, *modes: str, **fields: object) -> ServerEntry:
    """Return an entry for the raw server. `words`: its modes."""
    entry = ServerEntry(name, "stdio", "run", "a test", sys.executable, ("-I", "-S", RAW, *modes))
    return replace(entry, **fields)  # pyright: ignore[reportArgumentType] - fields of an entry, as the test names them


def python_server(module: str, *arguments: str) -> ServerEntry:
    """Return an entry for a server of the Python registry, named for its tools."""
    return ServerEntry(module.rpartition("_")[2], "stdio", "run", "a test", sys.executable, ("-m", module, *arguments))


@dataclass
class McpWorld:
    """Running servers, and calls to them as an agent makes them."""

    manager: Manager
    folder: Path
    progress: list[str] = field(default_factory=list[str])
    elicitations: list[Elicitation] = field(default_factory=list[Elicitation])
    answer: Callable[[Elicitation], ElicitationAnswer] = field(default=lambda asked: ElicitationAnswer("decline"))

    async def call(self, tool: str, /, **tool_input: object) -> ToolOutcome:
        """Prepare and run a call, as the engine does. Raises `ToolRefused`."""
        called = self.manager.tools()[tool]
        context = await self.context()
        await called.prepare(dict(tool_input), context)
        return await called.run(dict(tool_input), context)

    async def text(self, tool: str, /, **tool_input: object) -> str:
        """Return all text of a call's result; fail if it is an error."""
        outcome = await self.call(tool, **tool_input)
        assert not outcome.is_error, outcome.content
        return text_of(outcome)

    async def context(self) -> CallContext:
        world = ToolWorld()
        await world.join("lead", "lead")
        context = await world.context()
        folders = Folders(self.folder, self.folder / "results", self.folder / "transcripts")
        return replace(context, folders=folders, progress=self.progress.append, elicit=self._elicit)

    async def _elicit(self, elicitation: Elicitation) -> ElicitationAnswer:
        self.elicitations.append(elicitation)
        return self.answer(elicitation)


def text_of(outcome: ToolOutcome) -> str:
    """Return the texts of an outcome."""
    if isinstance(outcome.content, str):
        return outcome.content
    return "\n".join(str(block["text"]) for block in outcome.content if block["type"] == "text")


def status_of(world: McpWorld, name: str = "odd") -> ServerStatus:
    """Return the status of a server."""
    return next(status for status in world.manager.now() if status.name == name)


async def answer_to(world: McpWorld, what: str) -> str:
    """Return the text that the agent reads after a call of the tool `do` of the server `odd`."""
    try:
        return text_of(await world.call("mcp__odd__do", what=what))
    except ToolRefused as refused:
        return str(refused)


@asynccontextmanager
async def servers(
    folder: Path,
    *entries: ServerEntry,
    limits: McpLimits | None = None,
    environment: Mapping[str, str] | None = None,
    held: Mapping[str, tuple[ServerState, str]] | None = None,
) -> AsyncGenerator[McpWorld]:
    """Run these servers, connected or failed, for the block."""
    variables = dict(os.environ) if environment is None else environment
    manager = Manager(
        entries,
        ServerEnvironment(
            folder, variables, folder.parent / f"{folder.name}-logs", runs_workspace_code=starts_workspace_code
        ),
        limits=limits,
        held=held,
    )
    async with manager.running():
        await manager.ready()
        yield McpWorld(manager, folder)


def processes_with(mark: str) -> Sequence[int]:
    """Return the running processes whose command line or environment contains this text, except this process."""
    pids: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            state = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        except OSError:
            continue  # it has ended, or belongs to another user
        if mark.encode() in text and state not in "ZX":
            pids.append(int(entry.name))
    return pids
