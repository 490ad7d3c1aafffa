"""Random sequences of worktree actions in real repositories: no work is ever lost without a person's consent."""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path

import anyio
import pytest
from tests.adapters.git.worktree_world import LEAD, Trees, passing

from callboard.ports.worktrees import WorktreeActor
from callboard.types.errors import ToolRefused

SEEDS = int(os.environ.get("SOAK", "1")) * 40
FILES = ("a.txt", "b.txt", "deep/c.txt", "new.txt", "x.log")
NAMES = ("one", "two", "three")


class RandomActions:
    """A repository, the text written in its worktrees, and a stream of random actions."""

    def __init__(self, base: Path, seed: int) -> None:
        self.trees, self.draw, self.written = Trees(base), random.Random(seed), 0
        self.commits: set[str] = set()

    async def step(self) -> None:
        there = [tree.name for tree in await self.trees.keeper.worktrees()]
        name = self.draw.choice(there or NAMES)
        if not there or self.draw.random() < 0.15:
            await self._try(self.trees.keeper.create(self.draw.choice(NAMES), LEAD))
            return
        acts = (self._edit, self._edit, self._edit, self._commit, self._main, self._merge, self._remove, self._discard)
        await self.draw.choice((*acts, self._lose_folder, self._branch_off))(name)

    async def _try(self, doing: object) -> object:
        try:
            return await doing
        except ToolRefused:
            return None

    def _write(self, folder: Path, file: str) -> None:
        self.written += 1
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(f"line {self.written}\n")

    async def _edit(self, name: str) -> None:
        self._write(self.trees.root / name, self.draw.choice(FILES))

    async def _commit(self, name: str) -> None:
        if self.trees.at(name, "ls-files", "--unmerged"):
            for file in ("a.txt", "b.txt", "deep/c.txt", "new.txt"):
                self._write(self.trees.root / name, file)  # resolves the conflict somehow
        self.trees.at(name, "add", "--all")
        self.trees.at(name, "commit", "-q", "--allow-empty", "-m", f"work {self.written}")

    async def _main(self, name: str) -> None:
        self._write(self.trees.workspace, self.draw.choice(FILES[:4]))
        self.trees.git("add", "--all")
        self.trees.git("commit", "-q", "--allow-empty", "-m", f"main {self.written}")

    async def _merge(self, name: str) -> None:
        await self._try(self.trees.keeper.merge(name, LEAD, passing))

    async def _remove(self, name: str) -> None:
        before = self._uncommitted(name)
        if await self._try(self.trees.keeper.remove(name, LEAD)) is not None:
            assert before == {}, f"removed with {before}"

    async def _discard(self, name: str) -> None:
        lines = (await self.trees.keeper.losses(name)).lines()
        if self.draw.random() < 0.5:
            self._write(self.trees.root / name, "late.txt")
        before = self._uncommitted(name)
        if await self._try(self.trees.keeper.remove(name, WorktreeActor("person"), lines)) is not None:
            assert set(before) <= {line.partition(": ")[2] for line in lines}

    async def _lose_folder(self, name: str) -> None:
        """Delete the folder by hand, if everything in it is committed."""
        if self._uncommitted(name) == {}:
            (self.trees.root / name).rename(self.trees.base / f"lost-{self.written}-{self.draw.random()}")
            await self._try(self.trees.keeper.open(name))

    async def _branch_off(self, name: str) -> None:
        """Leave the worktree's branch, or return to it.

        The commits left behind get a branch, or git itself would lose them.
        """
        if self._uncommitted(name) == {}:
            self.trees.at(name, "branch", f"left-{self.written}-{self.draw.randrange(10**9)}")
            self.trees.at(name, "checkout", "-q", *self.draw.choice([("--detach",), (f"wt/{name}",)]))

    def _uncommitted(self, name: str) -> dict[str, str]:
        """Return the files of a worktree whose content is in none of its commits."""
        folder = self.trees.root / name
        dirty = self.trees.at(name, "status", "--porcelain", "-z", "--ignored", "--untracked-files=all").split("\0")
        return {entry[3:]: entry for entry in dirty if entry and (folder / entry[3:]).is_file()}

    def check(self) -> None:
        """Check that every commit is still on a branch, and that the workspace is intact."""
        found = self.trees.git("for-each-ref", "--format=%(objectname)", "refs/heads").split()
        standing = [name for name in NAMES if (self.trees.root / name / ".git").exists()]
        heads = [self.trees.at(name, "rev-parse", "HEAD") for name in standing]
        self.commits.update(found, heads)
        reached = set(self.trees.git("rev-list", "--branches", *heads).split())
        assert self.commits <= reached, f"lost {self.commits - reached}"
        assert self.trees.git("diff", "--name-only", "--diff-filter=U") == ""
        assert not (self.trees.workspace / ".git" / "MERGE_HEAD").exists()


async def run_random_actions(seed: int, steps: int = 25) -> int:
    with tempfile.TemporaryDirectory() as base:
        life = RandomActions(Path(base).resolve(), seed)
        for _ in range(steps):
            await life.step()
            life.check()
        acts = await life.trees.acts()
        return acts.count("merged") + acts.count("removed")


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("seed", range(2))
def test_nothing_unmerged_is_ever_lost_without_a_person(seed: int) -> None:
    anyio.run(run_random_actions, seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, SEEDS))
def test_nothing_unmerged_is_ever_lost_in_many_lives(seed: int) -> None:
    anyio.run(run_random_actions, seed, 60)
