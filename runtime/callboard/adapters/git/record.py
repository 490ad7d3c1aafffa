"""The worktrees of one workspace: their folders, their record, their locks, and the repair of interrupted acts.

Only one act at a time runs on a worktree, and only one change at a time of the repository's lists, also between
processes. A process that takes the lock of a worktree with an unfinished act repairs the worktree first: the process of
that act is dead, or it would still hold the lock.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread

from callboard.adapters.git.git import Git
from callboard.adapters.git.repository import Repository, WorkingTree, find_repository
from callboard.adapters.storage.file_locks import hold_lock, settled
from callboard.core.decoding import read_value
from callboard.core.keys import WORKTREES, host_lease
from callboard.core.team.worktrees import Worktree, Worktrees, fold
from callboard.ports.environment import Clock
from callboard.ports.store import Append, Put, Record, Row, Store, Write
from callboard.ports.store_reading import records_of, rows_of
from callboard.ports.worktrees import WorktreeActor
from callboard.types.errors import Conflict, SessionUnreadable, ToolRefused
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import AgentRow, Task
from callboard.types.worktrees import WorktreeAct, WorktreeNoted

RUNTIME = WorktreeActor("runtime")


@dataclass(frozen=True, slots=True)
class WorktreeRegistry:
    """The worktrees of one workspace: their folder and their record."""

    git: Git
    root: Path
    store: Store
    clock: Clock
    stream: str = WORKTREES
    """Stream of the record. A clone on this machine has one of its own, because its folders are nowhere else."""

    def path(self, name: str) -> Path:
        return self.root / name

    def aside_folder(self, name: str) -> Path:
        """Return the folder where a worktree, out of use, is checked once more before it is removed."""
        return self.root / ".removing" / name

    def gone_folder(self, name: str) -> Path:
        """Return the folder for a worktree that is no longer needed."""
        return self.root / ".gone" / name

    def merge_folder(self, name: str) -> Path:
        """Return the folder where a merge is made and tested."""
        return self.root / ".merging" / name

    async def read(self) -> Worktrees:
        """Return the present record."""
        records = await records_of(self.store, self.stream)
        return fold(note for record in records if (note := _note(record, self.stream)) is not None)

    async def note(self, note: WorktreeNoted, *writes: Write) -> None:
        """Add to the record. Shielded: a completed act is recorded despite a cancellation."""
        with anyio.CancelScope(shield=True):
            await self.store.commit(Append(self.stream, note.encode()), *writes)

    async def repository(self) -> Repository:
        """Return the repository. Raises `ToolRefused` if worktrees are impossible."""
        return await find_repository(self.git)

    @asynccontextmanager
    async def locked_lists(self, repo: Repository) -> AsyncGenerator[None]:
        """Hold the lock for git's lists of branches and worktrees, for single git calls."""
        async with hold_lock(repo.common / "callboard.lock", wait=True):
            yield

    @asynccontextmanager
    async def locked_worktree(self, name: str) -> AsyncGenerator[Worktrees]:
        """Hold the lock for acts on one worktree, and repair the worktree if necessary.

        Raises `ToolRefused` during another act.
        """
        async with hold_lock(self.root / ".locks" / name, wait=False) as held:
            if not held:
                raise ToolRefused(f"another act on the worktree {name} is in progress: try again later")
            worktrees = await self.read()
            tree = worktrees.there.get(name)
            if tree is not None and tree.standing != "ready":
                await self.repair(tree)
                worktrees = await self.read()
            yield worktrees

    # Repair

    async def repair(self, tree: Worktree) -> str:
        """Finish or undo an interrupted act, and return a line about it. Call it with the worktree's lock held."""
        ways = {"making": self._repair_creation, "merging": self._repair_merge, "joining": self._repair_base_merge}
        repaired = ""
        with anyio.CancelScope(shield=True):
            # A git call of the dead process may still run there (test_a_kill_at_each_step_is_mended kills at each of
            # them).
            await settled(str(self.path(tree.name)))
            repaired = await ways.get(tree.standing, self._repair_removal)(tree)
        return repaired  # noqa: RET504 - for a type checker a scope may end before its block does

    async def _repair_creation(self, tree: Worktree) -> str:
        repo = await self.repository()
        working_tree = await repo.working_tree(self.path(tree.name))
        if (
            working_tree is not None
            and working_tree.admin is not None
            and await _is_whole(repo, working_tree, tree.branch)
        ):
            (working_tree.admin / "locked").unlink(
                missing_ok=True
            )  # git's own mark of a worktree that is being created
            await self.note(self.entry_for(tree, "made", author_of(tree)))
            return f"the worktree {tree.name} was finished"
        await self.undo_creation(repo, tree)
        return f"the creation of the worktree {tree.name} was interrupted, and was undone"

    async def undo_creation(self, repo: Repository, tree: Worktree) -> None:
        """Undo an interrupted `git worktree add`. No agent has used the folder yet."""
        path = self.path(tree.name)
        intent = tree.intent
        assert intent is not None, "what is being made was begun"
        async with self.locked_lists(repo):
            await remove_tree(path)
            await repo.forget(path, tree.name, spare=False)
            # A killed git call leaves its lock of the branch.
            await anyio.Path(repo.common / "refs" / "heads" / f"{tree.branch}.lock").unlink(missing_ok=True)
            new = not (intent.tip or intent.commit)
            # Only a branch that this act created and that was not moved since.
            if new and await repo.commit_of(f"refs/heads/{tree.branch}") == intent.base:
                await repo.ask("update-ref", "-d", f"refs/heads/{tree.branch}", intent.base)
        await self.note(self.entry_for(tree, "undone", author_of(tree)))

    async def _repair_removal(self, tree: Worktree) -> str:
        repo = await self.repository()
        path = self.path(tree.name)
        aside = self.aside_folder(tree.name)
        gone = self.gone_folder(tree.name)
        if aside.exists() and not path.exists():
            aside.rename(path)
        if path.exists() and not gone.exists():
            await self.note(self.entry_for(tree, "undone", author_of(tree)))
            return f"the worktree {tree.name} was about to be removed, and was put back"
        await self.finish_removal(repo, tree, author_of(tree))
        return f"the worktree {tree.name} was removed to the end"

    async def finish_removal(
        self, repo: Repository, tree: Worktree, author: WorktreeActor
    ) -> tuple[str, tuple[str, ...]]:
        """Finish a removal whose folder has been moved away.

        Return the branch if it was kept, and the tasks that were bound to the worktree. May be repeated from any point.
        """
        await remove_tree(self.gone_folder(tree.name))
        async with self.locked_lists(repo):
            await repo.forget(self.path(tree.name), tree.name)
            branch = "" if await repo.drop_branch(tree.branch) else tree.branch
        done = self.entry_for(tree, "removed", author).model_copy(update={"branch": branch})
        return branch, await self.note_removal(done)

    async def note_removal(self, done: WorktreeNoted) -> tuple[str, ...]:
        """Record a removal, and bind its tasks to the workspace again in the same commit. Return their ids."""
        while True:
            bound = [(task, row) async for task, row in self._tasks(done.name)]
            writes = [
                Put(key, task.model_copy(update={"worktree": None, "updated_at": done.at}).encode(), revision)
                for task, (key, revision) in bound
            ]
            try:
                await self.note(done, *writes)
            except Conflict:
                continue  # one of the tasks was changed: read again
            return tuple(task.id for task, _ in bound)

    async def _repair_base_merge(self, tree: Worktree) -> str:
        """Undo an interrupted merge of the base into the worktree.

        The worktree's changes were committed before, so it is reset to that commit.
        """
        repo = await self.repository()
        intent = tree.intent
        assert intent is not None, "what is being joined was begun"
        working_tree = await repo.working_tree(self.path(tree.name))
        whole = False
        if working_tree is not None and working_tree.admin is not None:
            whole = bool(repo.under_way(working_tree.admin)) and not (working_tree.admin / "index.lock").exists()
            if not whole:
                paths = await repo.ask(
                    "diff", "--name-only", "-z", "--no-renames", intent.tip, intent.base, at=working_tree
                )
                rescue = f"{tree.name}-{intent.tip[:10]}"
                await repo.free_index(working_tree, intent.at)
                await repo.put_back(working_tree, intent.tip, [path for path in paths.split("\0") if path], rescue)
        await self.note(self.entry_for(tree, "joined" if whole else "undone", author_of(tree)))
        return f"the worktree {tree.name} was being brought up to date, and " + ("is" if whole else "was put back")

    async def _repair_merge(self, tree: Worktree) -> str:
        repo = await self.repository()
        intent = tree.intent
        assert intent is not None, "what is being merged was begun"
        await self.remove_merge_folder(repo, tree.name)
        if intent.commit:
            await settled(intent.commit)
        ref = await repo.commit_of(f"refs/heads/{intent.onto}")
        # The commit is noted just before the branch moves, so it distinguishes the two cases
        # (test_a_merge_cut_in_the_middle_of_the_files_is_taken_back_and_loses_nothing).
        if intent.commit and await is_ancestor(repo, intent.commit, ref):
            await self.note(self.entry_for(tree, "merged", author_of(tree)).model_copy(update=_merge_fields(intent)))
            return f"the merge of {tree.branch} into {intent.onto} was complete"
        if intent.commit and ref == intent.base and await repo.branch() == intent.onto:
            text = await repo.ask("diff", "--name-only", "-z", "--no-renames", intent.base, intent.commit)
            paths = [path for path in text.split("\0") if path]
            await repo.free_index(repo.workspace, intent.at)
            await repo.put_back(repo.workspace, intent.base, paths, f"{tree.name}-{intent.commit[:10]}")
        await self.note(self.entry_for(tree, "undone", author_of(tree)))
        return f"the merge of {tree.branch} into {intent.onto} was interrupted, and was undone"

    async def remove_merge_folder(self, repo: Repository, name: str) -> None:
        """Remove the folder of a merge, which contains no other work."""
        async with self.locked_lists(repo):
            await remove_tree(self.merge_folder(name))
            await repo.forget(self.merge_folder(name), name, spare=False)

    # Record

    def entry_for(self, tree: Worktree, act: WorktreeAct, author: WorktreeActor) -> WorktreeNoted:
        """Return an entry about a worktree."""
        return WorktreeNoted(
            at=self.clock.now(),
            act=act,
            name=tree.name,
            by=author.name,
            session=author.session,
            call=author.call,
            why=author.why,
            branch=tree.branch,
            onto=tree.onto,
        )

    async def users(self, name: str, author: WorktreeActor) -> list[str]:
        """Return a line for each agent of a hosted session that works in a worktree, or owns a task bound to it."""
        lines: list[str] = []
        async for task, (key, _) in self._tasks(name):
            if task.status == "in_progress" and await self._lives(key.split("/")[1], author):
                lines.append(f"{task.owner} holds {task.id}, which is bound to it")
        for row in await rows_of(self.store, "s/"):
            line = _user(row, name)
            if line and await self._lives(row.key.split("/")[1], author):
                lines.append(line)
        return lines

    async def _lives(self, session: str, author: WorktreeActor) -> bool:
        return session == author.session or await self.store.holder(host_lease(session)) is not None

    async def _tasks(self, name: str) -> AsyncGenerator[tuple[Task, tuple[str, int]]]:
        """Yield the unfinished tasks of all sessions that are bound to a worktree, with key and revision."""
        for row in await rows_of(self.store, "s/"):
            parts = row.key.split("/")
            if len(parts) == 4 and parts[2] == "task" and row.value is not None:
                try:
                    task = read_value(Task, row.value, row.key)
                except SessionUnreadable:
                    continue  # of another session, whose own host handles it
                if task.worktree == name and task.status not in ("completed", "cancelled"):
                    yield task, (row.key, row.revision)


def _user(row: Row, name: str) -> str:
    """Return a description of the row's agent if it works in the worktree; else empty."""
    parts = row.key.split("/")
    if len(parts) != 4 or parts[2] != "agent" or row.value is None:
        return ""
    try:
        agent = read_value(AgentRow, row.value, row.key)
    except SessionUnreadable:
        return f"{parts[3]} of session {parts[1]}, which a newer Callboard hosts, may work in it"
    if agent.worktree != name or agent.life in ("stopped", "crashed"):
        return ""
    return f"{agent.name} ({agent.life}) works in it"


def _note(record: Record, stream: str) -> WorktreeNoted | None:
    """Return an entry of the record that all sessions share.

    None for an entry of a newer version, which must not stop older ones.
    """
    try:
        return read_value(WorktreeNoted, record.data, f"{stream}#{record.seq}")
    except SessionUnreadable:
        return None


def author_of(tree: Worktree) -> WorktreeActor:
    """Return the author of the interrupted act.

    The entry that ends the act has the same author, so that the author's call finds it.
    """
    intent = tree.intent
    return RUNTIME if intent is None else WorktreeActor(intent.by, intent.session, intent.call, intent.why)


def _merge_fields(intent: WorktreeNoted) -> dict[str, str]:
    return {"base": intent.base, "onto": intent.onto, "tip": intent.tip, "commit": intent.commit}


async def is_ancestor(repo: Repository, commit: str, of: str) -> bool:
    """Return True if `of` contains `commit`."""
    return bool(commit and of) and await repo.ask("rev-list", "--count", commit, "--not", of) == "0"


async def _is_whole(repo: Repository, working_tree: WorkingTree, branch: str) -> bool:
    """Return True if `git worktree add` was completed."""
    assert working_tree.admin is not None, "a worktree has a folder in git's"
    if (
        (working_tree.admin / "index.lock").exists()
        or not (working_tree.admin / "index").exists()
        or not (working_tree.folder / ".git").exists()
    ):
        return False
    status = await repo.status(working_tree)
    return await repo.branch(working_tree) == branch and not (status.changed or status.untracked or status.conflicts)


async def remove_tree(folder: Path) -> None:
    """Delete a folder with its content if it exists. Raises `ToolRefused` on failure."""
    if not await anyio.Path(folder).exists():
        return
    try:
        await anyio.to_thread.run_sync(shutil.rmtree, folder)
    except OSError as failed:
        raise ToolRefused(f"{folder} cannot be deleted: {failed.strerror}: fix that, and try again") from failed
