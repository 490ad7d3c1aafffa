"""The worktrees of a workspace, from any process: which there are and whose; merged and removed by a person's word."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from callboard.adapters.clock import SystemClock
from callboard.adapters.launcher import ShellLauncher
from callboard.adapters.worktrees import worktrees_of
from callboard.assembly import Places, find_places, open_store
from callboard.desks.persons import as_person, refuse_inside_tool
from callboard.ports.store import Store
from callboard.ports.worktrees import Check, Checked, MergeEnd, Removed, Who, WorktreeFacts, WorktreeKeeper
from callboard.settings import load_settings
from callboard.words.errors import UsageError
from callboard.words.values import AgentRow, Task

PERSON = Who("person")
TEST_SECONDS = 3_600.0
"""What a person's test command of a merge may take."""


@dataclass(frozen=True, slots=True)
class WorktreeLine:
    """One worktree for a list."""

    name: str
    branch: str
    folder: str
    owner: str
    """Who works in it, or whom it was made for: the newest agent whose tools ran there; else who made it."""
    session: str
    tasks: tuple[str, ...]
    state: str
    """`ready`, `kept`, `missing`, or what is under way in it."""
    ahead: int
    behind: int
    dirty: int
    """-1: git did not tell."""
    bytes: int


class WorktreeDesk:
    """The worktrees of one workspace."""

    def __init__(self, places: Places, store: Store, keeper: WorktreeKeeper) -> None:
        self._places, self._store, self._keeper = places, store, keeper

    async def lines(self) -> list[WorktreeLine]:
        """All of them. Raises `UsageError` where the repository is gone."""
        with as_person():
            facts = await self._keeper.facts()
        owners: dict[str, str] = {}
        tasks: dict[str, list[str]] = {}
        for row in await self._store.keys("s/") if facts else ():
            parts = row.key.split("/")
            if len(parts) != 4 or row.value is None:
                continue
            if parts[2] == "agent":
                agent = AgentRow.model_validate_json(row.value)
                owners |= {agent.worktree: agent.name} if agent.worktree else {}
            elif parts[2] == "task":
                task = Task.model_validate_json(row.value)
                if task.worktree and task.status not in ("completed", "cancelled"):
                    tasks.setdefault(task.worktree, []).append(task.id)
        return [_line(one, owners, tuple(tasks.get(one.tree.name, ()))) for one in facts]

    async def losses(self, name: str) -> tuple[str, ...]:
        """What would be lost with it, a line each. Raises `UsageError` for an unknown one."""
        with as_person():
            return (await self._keeper.losses(name)).lines()

    async def remove(self, name: str, agreed: tuple[str, ...]) -> Removed:
        """Raises `UsageError` while more would be lost than was agreed to, and inside a tool's process."""
        refuse_inside_tool("remove a worktree")
        with as_person():
            return await self._keeper.remove(name, PERSON, agreed)

    async def merge(self, name: str, test_command: str = "") -> MergeEnd:
        """Raises `UsageError` where it cannot be merged, and inside a tool's process."""
        refuse_inside_tool("merge a worktree")
        with as_person():
            return await self._keeper.merge(name, PERSON, self._check(test_command) if test_command.strip() else None)

    def _check(self, command: str) -> Check:
        async def run(folder: Path) -> Checked:
            with tempfile.TemporaryDirectory(prefix="callboard-merge-") as kept:
                launcher = ShellLauncher(self._places.workspace, os.environ)
                ended = await launcher.run(command, folder, TEST_SECONDS, Path(kept) / "test.out")
            return Checked(ended.exit_code == 0 and not ended.timed_out, ended.output)

        return run


@asynccontextmanager
async def open_worktrees(workspace: Path) -> AsyncGenerator[WorktreeDesk]:
    """The worktrees of a workspace. Raises `UsageError` where no session ever was: there can be none."""
    places = find_places(workspace, writable=False)
    if not (places.state / "callboard.db").exists():
        raise UsageError(f"there is no session in {places.workspace} yet, so there are no worktrees")
    store = await open_store(places, load_settings(os.environ).settings.durability)
    try:
        keeper = worktrees_of(places.workspace, places.worktrees, store, os.environ, SystemClock())
        yield WorktreeDesk(places, store, keeper)
    finally:
        await store.aclose()


def _line(one: WorktreeFacts, owners: dict[str, str], tasks: tuple[str, ...]) -> WorktreeLine:
    tree = one.tree
    at_rest = "missing" if one.missing else "kept" if tree.kept else "ready"
    return WorktreeLine(
        name=tree.name,
        branch=tree.branch,
        folder=one.folder,
        owner=owners.get(tree.name, tree.by),
        session=tree.session,
        tasks=tasks,
        state=at_rest if tree.standing == "ready" else tree.standing,
        ahead=one.ahead,
        behind=one.behind,
        dirty=one.dirty,
        bytes=one.bytes,
    )
