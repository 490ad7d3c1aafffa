"""Simulated worktrees: the twin for replays and tests without git. It creates no folder and deletes none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from callboard.core.team.worktrees import Worktree, Worktrees, branch_of, check_name, fold, free_name
from callboard.ports.worktrees import Check, Losses, MergeEnd, Removed, WorktreeActor, WorktreeFacts
from callboard.types.errors import ToolRefused
from callboard.types.worktrees import WorktreeAct, WorktreeNoted


class MemoryWorktrees:
    """The port `WorktreeKeeper` without a repository: every worktree is clean, every merge has nothing to do."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._notes: list[WorktreeNoted] = []

    def path(self, name: str) -> Path:
        return self._root / name

    async def worktrees(self) -> Sequence[Worktree]:
        return list(self._folded().there.values())

    async def name_for(self, requested: str, call: str) -> str:
        return free_name(requested, call, self._folded(), ())

    async def create(self, name: str, author: WorktreeActor, base: str = "") -> Worktree:
        check_name(name)
        existing = self._folded().there.get(name)
        if existing is None:
            self._note("making", name, author)
            self._note("made", name, author)
        elif not author.call or existing.call != author.call:
            raise ToolRefused(f"a worktree {name} already exists, created by {existing.by}: choose another name")
        return self._tree(name)

    async def open(self, name: str) -> tuple[Path, str]:
        self._tree(name)
        return self.path(name), ""

    async def keep(self, name: str, author: WorktreeActor) -> Worktree:
        self._tree(name)
        self._note("kept", name, author)
        return self._tree(name)

    async def losses(self, name: str) -> Losses:
        self._tree(name)
        return Losses()

    async def remove(self, name: str, author: WorktreeActor, agreed: Sequence[str] | None = None) -> Removed:
        if author.call not in self._folded().done:
            self._tree(name)
            self._note("removed", name, author)
        return Removed("")

    async def merge(self, name: str, author: WorktreeActor, check: Check | None = None) -> MergeEnd:
        self._tree(name)
        return MergeEnd("nothing", "main")

    async def outcome(self, call: str) -> str:
        note = self._folded().done.get(call)
        return note.act if note is not None else ""

    async def recover(self) -> Sequence[str]:
        return ()

    async def facts(self) -> Sequence[WorktreeFacts]:
        return [WorktreeFacts(tree, str(self.path(tree.name))) for tree in await self.worktrees()]

    def _folded(self) -> Worktrees:
        return fold(self._notes)

    def _tree(self, name: str) -> Worktree:
        tree = self._folded().there.get(name)
        if tree is None:
            raise ToolRefused(f"there is no worktree {name[:80]!r}")
        return tree

    def _note(self, act: WorktreeAct, name: str, author: WorktreeActor) -> None:
        note = WorktreeNoted(
            at=0.0, act=act, name=name, by=author.name, session=author.session, call=author.call, branch=branch_of(name)
        )
        self._notes.append(note)
