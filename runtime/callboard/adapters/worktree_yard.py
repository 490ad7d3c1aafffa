"""What all acts on worktrees stand on: where things are, the record, the locks, and mending what was cut.

One act at a time on a worktree, and one change of the repository's books at a time, also between processes. Whoever
takes the lock of a worktree that stands in the middle of an act mends it first: its process is dead, or it would still
hold the lock.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread

from callboard.adapters.git import Git
from callboard.adapters.locks import holding, settled
from callboard.adapters.repository import Repository, Spot, find_repository
from callboard.core.names import WORKTREES, host_lease
from callboard.core.team.worktrees import Worktree, Worktrees, fold
from callboard.ports.store import Append, Put, Store, Write
from callboard.ports.worktrees import Who
from callboard.ports.world import Clock
from callboard.words.errors import Conflict, ToolRefused
from callboard.words.values import AgentRow, Task
from callboard.words.worktrees import WorktreeAct, WorktreeNoted

RUNTIME = Who("runtime")


@dataclass(frozen=True, slots=True)
class Yard:
    """The worktrees of one workspace: their folder and their record."""

    git: Git
    root: Path
    store: Store
    clock: Clock

    def path(self, name: str) -> Path:
        return self.root / name

    def aside(self, name: str) -> Path:
        """Where a worktree is looked through once more, out of everybody's way, before it is removed."""
        return self.root / ".removing" / name

    def gone(self, name: str) -> Path:
        """Where a worktree lies that nobody needs any more."""
        return self.root / ".gone" / name

    def merging(self, name: str) -> Path:
        """Where a merge is made and tested."""
        return self.root / ".merging" / name

    async def read(self) -> Worktrees:
        """The record as it stands."""
        records = await self.store.read(WORKTREES)
        return fold(WorktreeNoted.model_validate_json(record.data) for record in records)

    async def note(self, note: WorktreeNoted, *writes: Write) -> None:
        """Add to the record. Shielded: what was done is told, whoever was cancelled."""
        with anyio.CancelScope(shield=True):
            await self.store.commit(append(note), *writes)

    async def repository(self) -> Repository:
        """Raises `ToolRefused` where worktrees cannot be had."""
        return await find_repository(self.git)

    @asynccontextmanager
    async def books(self, repo: Repository) -> AsyncGenerator[None]:
        """The right to change git's books of branches and worktrees; held for single git calls."""
        async with holding(repo.common / "callboard.lock", wait=True):
            yield

    @asynccontextmanager
    async def busy(self, name: str) -> AsyncGenerator[Worktrees]:
        """The right to act on one worktree, mended if need be. Raises `ToolRefused` while another act is under way."""
        async with holding(self.root / ".locks" / name, wait=False) as mine:
            if not mine:
                raise ToolRefused(f"something else is being done to the worktree {name} just now: try again after it")
            known = await self.read()
            tree = known.there.get(name)
            if tree is not None and tree.standing != "ready":
                await self.mend(tree)
                known = await self.read()
            yield known

    # Mending

    async def mend(self, tree: Worktree) -> str:
        """Finish or take back what was cut; what was done, in a line. To be called with its lock held."""
        ways = {"making": self._mend_making, "merging": self._mend_merging, "joining": self._mend_joining}
        mended = ""
        with anyio.CancelScope(shield=True):
            await settled(str(self.path(tree.name)))
            mended = await ways.get(tree.standing, self._mend_removing)(tree)
        return mended  # noqa: RET504 - for a type checker a scope may end before its block does

    async def _mend_making(self, tree: Worktree) -> str:
        repo = await self.repository()
        spot = await repo.spot(self.path(tree.name))
        if spot is not None and spot.admin is not None and await _is_whole(repo, spot, tree.branch):
            (spot.admin / "locked").unlink(missing_ok=True)  # git's own mark of a worktree that is being made
            await self.note(self.about(tree, "made", told(tree)))
            return f"the worktree {tree.name} was finished"
        await self.unmake(repo, tree)
        return f"the worktree {tree.name} was half made, and was taken back"

    async def unmake(self, repo: Repository, tree: Worktree) -> None:
        """Take back what `git worktree add` began; nobody has been in it yet."""
        path, intent = self.path(tree.name), tree.intent
        assert intent is not None, "what is being made was begun"
        async with self.books(repo):
            await remove_tree(path)
            await repo.forget(path, tree.name, spare=False)
            await anyio.Path(repo.common / "refs" / "heads" / f"{tree.branch}.lock").unlink(missing_ok=True)
            new = not (intent.tip or intent.commit)
            if new and await repo.commit_of(f"refs/heads/{tree.branch}") == intent.base:
                await repo.ask("update-ref", "-d", f"refs/heads/{tree.branch}", intent.base)
        await self.note(self.about(tree, "undone", told(tree)))

    async def _mend_removing(self, tree: Worktree) -> str:
        repo = await self.repository()
        path, aside, gone = self.path(tree.name), self.aside(tree.name), self.gone(tree.name)
        if aside.exists() and not path.exists():
            aside.rename(path)
        if path.exists() and not gone.exists():
            await self.note(self.about(tree, "undone", told(tree)))
            return f"the worktree {tree.name} was about to be removed, and was put back"
        await self.clear(repo, tree, told(tree))
        return f"the worktree {tree.name} was removed to the end"

    async def clear(self, repo: Repository, tree: Worktree, who: Who) -> tuple[str, tuple[str, ...]]:
        """The last part of a removal: the folder lies where nobody needs it. The branch if it was kept, and the tasks
        that were bound to it. May be done again from any point of it."""
        await remove_tree(self.gone(tree.name))
        async with self.books(repo):
            await repo.forget(self.path(tree.name), tree.name)
            kept = "" if await repo.drop_branch(tree.branch) else tree.branch
        done = self.about(tree, "removed", who).model_copy(update={"branch": kept})
        return kept, await self.note_gone(done)

    async def note_gone(self, done: WorktreeNoted) -> tuple[str, ...]:
        """Note a removal, and in the same commit bind its tasks to the workspace again; their ids."""
        while True:
            bound = [(task, row) async for task, row in self._tasks(done.name)]
            writes = [
                Put(key, task.model_copy(update={"worktree": None, "updated_at": done.at}).encode(), revision)
                for task, (key, revision) in bound
            ]
            try:
                await self.note(done, *writes)
            except Conflict:
                continue  # somebody changed one of them: look again
            return tuple(task.id for task, _ in bound)

    async def _mend_joining(self, tree: Worktree) -> str:
        """The base was being merged into the worktree. Its work was committed before, so it is put back to that."""
        repo, intent = await self.repository(), tree.intent
        assert intent is not None, "what is being joined was begun"
        spot, whole = await repo.spot(self.path(tree.name)), False
        if spot is not None and spot.admin is not None:
            whole = bool(repo.under_way(spot.admin)) and not (spot.admin / "index.lock").exists()
            if not whole:
                paths = await repo.ask("diff", "--name-only", "-z", "--no-renames", intent.tip, intent.base, at=spot)
                rescue = f"{tree.name}-{intent.tip[:10]}"
                await repo.free_index(spot, intent.at)
                await repo.put_back(spot, intent.tip, [one for one in paths.split("\0") if one], rescue)
        await self.note(self.about(tree, "joined" if whole else "undone", told(tree)))
        return f"the worktree {tree.name} was being brought up to date, and " + ("is" if whole else "was put back")

    async def _mend_merging(self, tree: Worktree) -> str:
        repo, intent = await self.repository(), tree.intent
        assert intent is not None, "what is being merged was begun"
        await self.drop_merging(repo, tree.name)
        if intent.commit:
            await settled(intent.commit)
        ref = await repo.commit_of(f"refs/heads/{intent.onto}")
        if intent.commit and await is_ancestor(repo, intent.commit, ref):
            await self.note(self.about(tree, "merged", told(tree)).model_copy(update=_merge_fields(intent)))
            return f"the merge of {tree.branch} into {intent.onto} was complete"
        if intent.commit and ref == intent.base and await repo.branch() == intent.onto:
            text = await repo.ask("diff", "--name-only", "-z", "--no-renames", intent.base, intent.commit)
            paths = [one for one in text.split("\0") if one]
            await repo.free_index(repo.here, intent.at)
            await repo.put_back(repo.here, intent.base, paths, f"{tree.name}-{intent.commit[:10]}")
        await self.note(self.about(tree, "undone", told(tree)))
        return f"the merge of {tree.branch} into {intent.onto} was cut, and was taken back"

    async def drop_merging(self, repo: Repository, name: str) -> None:
        """Remove the folder in which a merge is made; it holds nothing of anybody's."""
        async with self.books(repo):
            await remove_tree(self.merging(name))
            await repo.forget(self.merging(name), name, spare=False)

    # The record

    def about(self, tree: Worktree, act: WorktreeAct, who: Who) -> WorktreeNoted:
        """An entry on a worktree."""
        return WorktreeNoted(
            at=self.clock.now(),
            act=act,
            name=tree.name,
            by=who.name,
            session=who.session,
            call=who.call,
            why=who.why,
            branch=tree.branch,
            onto=tree.onto,
        )

    async def users(self, name: str, who: Who) -> list[str]:
        """Who works in a worktree, or holds a task bound to it, in a session that is hosted: a line each."""
        found: list[str] = []
        async for task, (key, _) in self._tasks(name):
            if task.status == "in_progress" and await self._lives(key.split("/")[1], who):
                found.append(f"{task.owner} holds {task.id}, which is bound to it")
        for row in await self.store.keys("s/"):
            parts = row.key.split("/")
            if len(parts) == 4 and parts[2] == "agent" and row.value is not None:
                agent = AgentRow.model_validate_json(row.value)
                ended = agent.life in ("stopped", "crashed")
                if agent.worktree == name and not ended and await self._lives(parts[1], who):
                    found.append(f"{agent.name} ({agent.life}) works in it")
        return found

    async def _lives(self, session: str, who: Who) -> bool:
        return session == who.session or await self.store.holder(host_lease(session)) is not None

    async def _tasks(self, name: str) -> AsyncGenerator[tuple[Task, tuple[str, int]]]:
        """The tasks of all sessions that are bound to a worktree and have not ended, with key and revision."""
        for row in await self.store.keys("s/"):
            parts = row.key.split("/")
            if len(parts) == 4 and parts[2] == "task" and row.value is not None:
                task = Task.model_validate_json(row.value)
                if task.worktree == name and task.status not in ("completed", "cancelled"):
                    yield task, (row.key, row.revision)


def append(note: WorktreeNoted) -> Write:
    """The write of an entry."""
    return Append(WORKTREES, note.encode())


def told(tree: Worktree) -> Who:
    """Whoever began what is mended: the entry that ends it is his, so that his call finds it."""
    intent = tree.intent
    return RUNTIME if intent is None else Who(intent.by, intent.session, intent.call, intent.why)


def _merge_fields(intent: WorktreeNoted) -> dict[str, str]:
    return {"base": intent.base, "onto": intent.onto, "tip": intent.tip, "commit": intent.commit}


async def is_ancestor(repo: Repository, commit: str, of: str) -> bool:
    """Whether `of` holds all that `commit` does."""
    return bool(commit and of) and await repo.ask("rev-list", "--count", commit, "--not", of) == "0"


async def _is_whole(repo: Repository, spot: Spot, branch: str) -> bool:
    """Whether `git worktree add` had come to its end."""
    assert spot.admin is not None, "a worktree has a folder in git's"
    if (
        (spot.admin / "index.lock").exists()
        or not (spot.admin / "index").exists()
        or not (spot.folder / ".git").exists()
    ):
        return False
    status = await repo.status(spot)
    return await repo.branch(spot) == branch and not (status.changed or status.untracked or status.conflicts)


async def remove_tree(folder: Path) -> None:
    """Delete a folder with all that is in it, if it is there. Raises `ToolRefused` when it cannot."""
    if not await anyio.Path(folder).exists():
        return
    try:
        await anyio.to_thread.run_sync(shutil.rmtree, folder)
    except OSError as failed:
        raise ToolRefused(f"{folder} cannot be deleted: {failed.strerror}: mend that, and try again") from failed
