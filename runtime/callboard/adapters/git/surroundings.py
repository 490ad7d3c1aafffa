"""Facts that change without an agent's action: the time on this machine, and the state of its repository."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path

import anyio
import anyio.to_thread

from callboard.adapters.git.git import Git
from callboard.core.context.reminders import ReminderFacts
from callboard.types.agent_spec import AgentSpec

LONGEST_LOOK = 1.0
"""Most seconds that a turn waits for git."""


class WorkspaceSurroundings:
    """Surroundings of one workspace. Implements the port `Surroundings`."""

    def __init__(
        self, workspace: Path, environment: Mapping[str, str], types: Callable[[AgentSpec], str] = lambda spec: ""
    ) -> None:
        """Store the parts.

        `environment`: the user's. `types`: function that returns an agent's reminder of changed agent types; empty:
        none.
        """
        self._types = types
        self._workspace = workspace
        self._git = Git(workspace, environment)

    async def look(self, spec: AgentSpec, now: float) -> ReminderFacts:
        return ReminderFacts(
            datetime.fromtimestamp(now).astimezone(), await self._status(spec), types=self._types(spec)
        )

    async def commit(self, folder: str, source_id: str) -> str:
        place = Path(folder) if folder else self._workspace
        if not await anyio.to_thread.run_sync(_is_repository, place):
            return ""
        with anyio.move_on_after(LONGEST_LOOK):
            return await self._head(place)
        return ""

    async def _head(self, folder: Path) -> str:
        try:
            ran = await self._git.run(("rev-parse", "--verify", "--quiet", "HEAD^{commit}"), folder, timeout=5)
        except OSError:  # git is missing, or may not be used
            return ""
        return ran.out.decode(errors="replace").strip() if ran.code == 0 else ""

    async def _status(self, spec: AgentSpec) -> str | None:
        """Return the state of the repository.

        None also for a subagent, because its caller knows the state, and twenty subagents would run git twenty times.
        """
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
    except OSError:  # the folder may not be read
        return False
