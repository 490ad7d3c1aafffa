"""Real servers for tests of the MCP connections, and a session's worth of them.

npm servers are installed by name into a folder of their own, once for all workers and runs of a machine's boot, under
a lock; where npm is not there, or the registry gives nothing, the tests that need them are skipped with the reason.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from tests.adapters.tools.tool_world import ToolWorld

from callboard.adapters.extensions.hook_sandbox import starts_workspace_code
from callboard.adapters.mcp.manager import Manager
from callboard.adapters.mcp.transports import Place
from callboard.core.mcp.limits import McpLimits
from callboard.ports.tool import CallContext, Folders, ToolOutcome
from callboard.types.mcp import AnsweredBack, Elicitation, ServerEntry, ServerState

NPM_SERVERS = ("@modelcontextprotocol/server-everything", "@modelcontextprotocol/server-filesystem")
TRIED = 600.0
"""Seconds for which a registry that gave nothing is not asked again: of one run, not of the next."""
GROWTH = 160_000
"""Kilobytes that this process may grow by while a server sends what nobody can use."""

RAW = str(Path(__file__).with_name("mcp_raw_server.py"))
"""A server without an SDK: starts at once, and does what it is called for."""


def npm_server(name: str) -> str:
    """The path of an installed server's program (`mcp-server-everything`). Skips the test where it is not to be had."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("npm and node are not installed on this machine")
    folder = Path(tempfile.gettempdir()) / f"callboard-test-npm-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    program = folder / "node_modules" / ".bin" / name
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        failed = folder / "failed"
        if not program.exists() and not (failed.exists() and time.time() - failed.stat().st_mtime < TRIED):
            _install(folder, failed)
        if not program.exists():
            why = failed.read_text(encoding="utf-8") if failed.exists() else "it is not in the package"
            pytest.skip(f"npm could not install {name}: {why}")
    return str(program)


def _install(folder: Path, failed: Path) -> None:
    # Installed beside and renamed: an install that is cut off would leave a program without all that it imports.
    parts = folder / "unfinished"
    shutil.rmtree(parts, ignore_errors=True)
    parts.mkdir()
    (parts / "package.json").write_text('{"private": true}', encoding="utf-8")
    words = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", *NPM_SERVERS]
    try:
        done = subprocess.run(words, cwd=parts, capture_output=True, text=True, timeout=180, check=False)
    except subprocess.TimeoutExpired:
        failed.write_text("the registry did not answer within 180 s", encoding="utf-8")
        return
    if done.returncode:
        failed.write_text(done.stderr[-300:], encoding="utf-8")
        return
    (parts / "node_modules").rename(folder / "node_modules")


def raw(name: str, *words: str, **fields: object) -> ServerEntry:
    """An entry for the raw server; `types`: what it is to do beside serving."""
    entry = ServerEntry(name, "stdio", "run", "a test", sys.executable, ("-I", "-S", RAW, *words))
    return replace(entry, **fields)  # pyright: ignore[reportArgumentType] - fields of an entry, as the test names them


def python_server(module: str, *words: str) -> ServerEntry:
    """An entry for a server of the Python registry, named as its tools are to be."""
    return ServerEntry(module.rpartition("_")[2], "stdio", "run", "a test", sys.executable, ("-m", module, *words))


@dataclass
class McpWorld:
    """Servers that run, and calls to them as an agent makes them."""

    manager: Manager
    folder: Path
    progress: list[str] = field(default_factory=list[str])
    asked: list[Elicitation] = field(default_factory=list[Elicitation])
    answer: Callable[[Elicitation], AnsweredBack] = field(default=lambda asked: AnsweredBack("decline"))

    async def call(self, tool: str, /, **given: object) -> ToolOutcome:
        """Prepare and run, as the engine does. Raises `ToolRefused`."""
        found = self.manager.tools()[tool]
        context = await self.context()
        await found.prepare(dict(given), context)
        return await found.run(dict(given), context)

    async def text(self, tool: str, /, **given: object) -> str:
        """All text of a call's result, which must be no error."""
        outcome = await self.call(tool, **given)
        assert not outcome.is_error, outcome.content
        return words_of(outcome)

    async def context(self) -> CallContext:
        world = ToolWorld()
        await world.join("lead", "lead")
        given = await world.context()
        folders = Folders(self.folder, self.folder / "results", self.folder / "transcripts")
        return replace(given, folders=folders, progress=self.progress.append, elicit=self._elicit)

    async def _elicit(self, asked: Elicitation) -> AnsweredBack:
        self.asked.append(asked)
        return self.answer(asked)


def words_of(outcome: ToolOutcome) -> str:
    """The texts of an outcome."""
    if isinstance(outcome.content, str):
        return outcome.content
    return "\n".join(str(block["text"]) for block in outcome.content if block["type"] == "text")


@asynccontextmanager
async def servers(
    folder: Path,
    *entries: ServerEntry,
    limits: McpLimits | None = None,
    environment: Mapping[str, str] | None = None,
    held: Mapping[str, tuple[ServerState, str]] | None = None,
) -> AsyncGenerator[McpWorld]:
    """Run these servers, connected or failed, for a block."""
    told = dict(os.environ) if environment is None else environment
    manager = Manager(
        entries,
        Place(folder, told, folder.parent / f"{folder.name}-logs", runs_workspace_code=starts_workspace_code),
        limits=limits,
        held=held,
    )
    async with manager.running():
        await manager.ready()
        yield McpWorld(manager, folder)


def processes_with(mark: str) -> Sequence[int]:
    """The living processes whose command line or environment holds this text; not this one."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            told = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            state = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        except OSError:
            continue  # it has ended, or is not ours
        if mark.encode() in told and state not in "ZX":
            found.append(int(entry.name))
    return found
