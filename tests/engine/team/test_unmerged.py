"""The worktrees with unmerged work at the end of a run: git is asked about a few of them at once."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from callboard.adapters.git.memory import MemoryWorktrees
from callboard.engine.operations.worktree import AT_ONCE, unmerged_worktrees
from callboard.ports.worktrees import Losses, WorktreeActor
from callboard.types.errors import ToolRefused

pytestmark = pytest.mark.anyio


class Trees(MemoryWorktrees):
    """Worktrees whose losses are asked for: each answer comes once as many are asked for as may be at once."""

    def __init__(self) -> None:
        super().__init__(Path("/trees"))
        self.asked: list[str] = []
        self.under_way = self.most = 0

    async def losses(self, name: str) -> Losses:
        self.asked.append(name)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        self.under_way -= 1
        if name == "gone":
            raise ToolRefused("its folder is gone")
        if name == "clean":
            return Losses()
        return Losses(changed=("a.py",), untracked=("b.py",), commits=("1 one", "2 two"))


async def test_git_is_asked_at_once_about_a_few_worktrees_of_the_session_and_in_their_order() -> None:
    trees = Trees()
    mine = ["clean", "gone", *(f"tree-{number}" for number in range(9))]
    for name in mine:
        await trees.create(name, WorktreeActor(name="lead", session="s1"))
    await trees.create("theirs", WorktreeActor(name="lead", session="s2"))
    found = await unmerged_worktrees(trees, "s1")
    assert list(found) == [f"tree-{number}: unmerged commits: 2, uncommitted files: 2" for number in range(9)]
    assert sorted(trees.asked) == sorted(mine)
    assert trees.most == AT_ONCE


async def test_a_session_without_worktrees_asks_nothing() -> None:
    trees = Trees()
    await trees.create("theirs", WorktreeActor(name="lead", session="s2"))
    assert await unmerged_worktrees(trees, "s1") == ()
    assert await unmerged_worktrees(None, "s1") == ()
    assert trees.asked == []
