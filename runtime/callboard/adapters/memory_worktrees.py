"""Worktrees that are only told of: the twin for replays and tests without git. It makes no folder and deletes none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from callboard.core.team.worktrees import Worktree, Worktrees, branch_of, check_name, fold, free_name
from callboard.ports.worktrees import Check, Losses, MergeEnd, Removed, Who, WorktreeFacts
from callboard.words.errors import ToolRefused
from callboard.words.worktrees import WorktreeAct, WorktreeNoted


class MemoryWorktrees:
    """The port `WorktreeKeeper` without a repository: every worktree is clean, every merge finds nothing to do."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._notes: list[WorktreeNoted] = []

    def path(self, name: str) -> Path:
        return self._root / name

    async def known(self) -> Sequence[Worktree]:
        return list(self._folded().there.values())

    async def name_for(self, wanted: str, call: str) -> str:
        return free_name(wanted, call, self._folded(), ())

    async def create(self, name: str, who: Who, base: str = "") -> Worktree:
        check_name(name)
        found = self._folded().there.get(name)
        if found is None:
            self._note("making", name, who)
            self._note("made", name, who)
        elif not who.call or found.call != who.call:
            raise ToolRefused(f"there is a worktree {name} already, made by {found.by}: choose another name")
        return self._there(name)

    async def open(self, name: str) -> tuple[Path, str]:
        self._there(name)
        return self.path(name), ""

    async def keep(self, name: str, who: Who) -> Worktree:
        self._there(name)
        self._note("kept", name, who)
        return self._there(name)

    async def losses(self, name: str) -> Losses:
        self._there(name)
        return Losses()

    async def remove(self, name: str, who: Who, agreed: Sequence[str] | None = None) -> Removed:
        if who.call not in self._folded().done:
            self._there(name)
            self._note("removed", name, who)
        return Removed("")

    async def merge(self, name: str, who: Who, check: Check | None = None) -> MergeEnd:
        self._there(name)
        return MergeEnd("nothing", "main")

    async def outcome(self, call: str) -> str:
        note = self._folded().done.get(call)
        return note.act if note is not None else ""

    async def recover(self) -> Sequence[str]:
        return ()

    async def facts(self) -> Sequence[WorktreeFacts]:
        return [WorktreeFacts(tree, str(self.path(tree.name))) for tree in await self.known()]

    def _folded(self) -> Worktrees:
        return fold(self._notes)

    def _there(self, name: str) -> Worktree:
        found = self._folded().there.get(name)
        if found is None:
            raise ToolRefused(f"there is no worktree {name[:80]!r}")
        return found

    def _note(self, act: WorktreeAct, name: str, who: Who) -> None:
        note = WorktreeNoted(
            at=0.0, act=act, name=name, by=who.name, session=who.session, call=who.call, branch=branch_of(name)
        )
        self._notes.append(note)
