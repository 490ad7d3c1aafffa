"""Worktrees of a workspace, from any process: a list with their owners; a person can merge and remove them."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import anyio
from anyio.abc import TaskStatus

from callboard.adapters.git.diffs import worktree_diff
from callboard.adapters.git.git import Git
from callboard.adapters.processes.launcher import ShellLauncher
from callboard.adapters.processes.tool_ancestry import refuse_inside_tool
from callboard.adapters.system.scratch import scratch_folder
from callboard.config.settings import load_settings
from callboard.core.decoding import read_value
from callboard.core.team.worktrees import branch_of
from callboard.ports.store import Row, Store
from callboard.ports.store_reading import rows_of
from callboard.ports.worktrees import (
    Check,
    MergeCheck,
    MergeEnd,
    Removed,
    WorktreeActor,
    WorktreeDiff,
    WorktreeFacts,
    WorktreeKeeper,
)
from callboard.sessions.person_actions import as_person
from callboard.sessions.places import Notice, WorkspacePaths, find_places
from callboard.sessions.sandbox import launcher_of, serve_way_out
from callboard.sessions.stores import existing_store
from callboard.sessions.workspaces import keeper_of
from callboard.types.errors import SessionUnreadable, UsageError
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import AgentRow, Task, Value

PERSON = WorktreeActor("person")
TEST_SECONDS = 3_600.0
"""Time limit of a person's test command of a merge, in seconds."""


@dataclass(frozen=True, slots=True)
class WorktreeLine:
    """One worktree for a list."""

    name: str
    branch: str
    folder: str
    owner: str
    """Owner of the worktree: the newest agent whose tools ran there; otherwise its creator."""
    session: str
    tasks: tuple[str, ...]
    state: str
    """`ready`, `kept`, `missing`, or the action in progress."""
    ahead: int
    behind: int
    dirty: int
    """Number of changed files; -1 if git did not report it."""
    bytes: int
    check: str = ""
    """Check of a task that is bound to it."""


_V = TypeVar("_V", bound=Value)


def _readable(kind: type[_V], row: Row) -> _V | None:
    """Return the row's value; None if a newer version wrote it."""
    try:
        return read_value(kind, row.value or b"", row.key)
    except SessionUnreadable:
        return None


class WorktreeInspector:
    """The worktrees of one workspace."""

    def __init__(self, places: WorkspacePaths, store: Store, keeper: WorktreeKeeper) -> None:
        self._places = places
        self._store = store
        self._keeper = keeper

    async def lines(self) -> list[WorktreeLine]:
        """Return all worktrees. Raises `UsageError` if the repository is gone."""
        with as_person():
            facts = await self._keeper.facts()
        owners: dict[str, str] = {}
        tasks: dict[str, list[str]] = {}
        checks: dict[str, str] = {}
        for row in await rows_of(self._store, "s/") if facts else ():
            parts = row.key.split("/")
            if len(parts) != 4 or row.value is None:
                continue
            if parts[2] == "agent":
                agent = _readable(AgentRow, row)
                if agent is not None:
                    owners |= {agent.worktree: agent.name} if agent.worktree else {}
            elif parts[2] == "task":
                task = _readable(Task, row)
                if task is None or not task.worktree:
                    continue
                checks |= {task.worktree: task.check} if task.check else {}
                if task.status not in ("completed", "cancelled"):
                    tasks.setdefault(task.worktree, []).append(task.id)
        lines = (_line(each, owners, tuple(tasks.get(each.tree.name, ()))) for each in facts)
        return [replace(line, check=checks.get(line.name, "")) for line in lines]

    async def diff(self, name: str) -> WorktreeDiff:
        """Return the changes of a worktree, committed or not. Raises `UsageError` if git cannot tell."""
        git = Git(self._places.workspace, os.environ)
        with as_person():
            return await worktree_diff(git, self._keeper.path(name), branch_of(name))

    async def losses(self, name: str) -> tuple[str, ...]:
        """Return a line for each item of work that would be lost with a worktree.

        Raises `UsageError` for an unknown one.
        """
        with as_person():
            return (await self._keeper.losses(name)).lines()

    async def remove(self, name: str, agreed: tuple[str, ...]) -> Removed:
        """Remove a worktree.

        Raises `UsageError` if more would be lost than was agreed to, and inside a tool's process.
        """
        refuse_inside_tool("Removing a worktree")
        with as_person():
            return await self._keeper.remove(name, PERSON, agreed)

    async def merge(self, name: str, test_command: str = "") -> MergeEnd:
        """Merge a worktree. Raises `UsageError` if it cannot be merged, and inside a tool's process."""
        refuse_inside_tool("Merging a worktree")
        with as_person():
            return await self._keeper.merge(name, PERSON, self._check(test_command) if test_command.strip() else None)

    def _check(self, command: str) -> Check:
        async def run(folder: Path) -> MergeCheck:
            """Run the test command in the sandbox of agents' commands, since it runs code that agents wrote."""
            launcher = await launcher_of(self._places, load_settings(os.environ), "merge", attended=True)
            checked = MergeCheck(passed=False)
            async with anyio.create_task_group() as group:
                await group.start(_serve_way_out, launcher)
                with scratch_folder() as scratch:
                    ended = await launcher.run(command, folder, timeout=TEST_SECONDS, keep=scratch / "test.out")
                checked = MergeCheck(ended.exit_code == 0 and not ended.timed_out, ended.output)
                group.cancel_scope.cancel()
            return checked

        return run


@asynccontextmanager
async def open_worktrees(workspace: Path, notice: Notice) -> AsyncGenerator[WorktreeInspector]:
    """Open the worktrees of a workspace.

    Raises `UsageError` if it never had a session, and therefore has no worktrees.
    """
    places = find_places(workspace, writable=False)
    async with existing_store(places, notice) as store:
        if store is None:
            raise UsageError(f"there is no session in {places.workspace} yet, so there are no worktrees")
        yield worktrees_in(places, store)


def worktrees_in(places: WorkspacePaths, store: Store) -> WorktreeInspector:
    """Return the worktrees of a workspace whose store is open."""
    return WorktreeInspector(places, store, keeper_of(places, store, os.environ))


async def _serve_way_out(launcher: ShellLauncher, *, task_status: TaskStatus[None]) -> None:
    await serve_way_out(launcher, task_status=task_status)


def _line(facts: WorktreeFacts, owners: dict[str, str], tasks: tuple[str, ...]) -> WorktreeLine:
    tree = facts.tree
    at_rest = "missing" if facts.missing else "kept" if tree.kept else "ready"
    return WorktreeLine(
        name=tree.name,
        branch=tree.branch,
        folder=facts.folder,
        owner=owners.get(tree.name, tree.by),
        session=tree.session,
        tasks=tasks,
        state=at_rest if tree.standing == "ready" else tree.standing,
        ahead=facts.ahead,
        behind=facts.behind,
        dirty=facts.dirty,
        bytes=facts.bytes,
    )
