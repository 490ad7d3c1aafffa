"""What changes by itself round an agent: the time on this machine, and the state of the repository that it works in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path

import anyio
import anyio.to_thread

from callboard.adapters.git import Git
from callboard.core.context.reminders import Around
from callboard.words.specs import AgentSpec

LONGEST_LOOK = 1.0
"""Seconds that a turn waits for git."""


class WorkspaceSurroundings:
    """The port `Surroundings`, for one workspace."""

    def __init__(
        self, workspace: Path, environment: Mapping[str, str], types: Callable[[AgentSpec], str] = lambda spec: ""
    ) -> None:
        """`environment`: the person's. `types`: what an agent is told of agent types that changed; empty: nothing."""
        self._types = types
        self._workspace = workspace
        self._git = Git(workspace, environment)

    async def look(self, spec: AgentSpec, now: float) -> Around:
        return Around(datetime.fromtimestamp(now).astimezone(), await self._status(spec), types=self._types(spec))

    async def commit(self, folder: str, why: str) -> str:
        place = Path(folder) if folder else self._workspace
        if not await anyio.to_thread.run_sync(_is_repository, place):
            return ""
        with anyio.move_on_after(LONGEST_LOOK):
            return await self._head(place)
        return ""

    async def _head(self, folder: Path) -> str:
        try:
            told = await self._git.run(("rev-parse", "--verify", "--quiet", "HEAD^{commit}"), folder, timeout=5)
        except OSError:  # no git that may be used
            return ""
        return told.out.decode(errors="replace").strip() if told.code == 0 else ""

    async def _status(self, spec: AgentSpec) -> str | None:
        """None for a subagent too: its caller knows, and twenty of them would ask git twenty times."""
        folder = Path(spec.folder) if spec.folder else self._workspace
        if spec.kind == "subagent" or not await anyio.to_thread.run_sync(_is_repository, folder):
            return None
        with anyio.move_on_after(LONGEST_LOOK):
            facts = await self._git.facts(folder)
            return facts.describe() if facts is not None else None
        return None


def _is_repository(folder: Path) -> bool:
    try:
        return (folder / ".git").exists()
    except OSError:  # a folder that may not be looked into
        return False
