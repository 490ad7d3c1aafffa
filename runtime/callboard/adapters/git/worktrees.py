"""Git worktrees for agents: created, kept, merged and removed, each on a branch `wt/<name>`, in the user's data folder.

Rules (docs/worktrees.md): no commit is ever deleted; a file that no commit contains is deleted only if the user agreed
to lose that file; an interrupted act is finished or undone by the next process, and no call acts twice. The record is
one stream of the store (`WorktreeNoted`), folded again at each act. Git itself runs hardened.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio
import anyio.to_thread

from callboard.adapters.git.git import Git
from callboard.adapters.git.merge import WorktreeMerge
from callboard.adapters.git.record import RUNTIME, Yard
from callboard.adapters.git.repository import GitFailed, Repository
from callboard.adapters.storage.file_locks import holding
from callboard.adapters.system.archive import make_private
from callboard.core.team.worktrees import Worktree, Worktrees, branch_of, check_name, free_name
from callboard.ports.environment import Clock
from callboard.ports.store import Store
from callboard.ports.worktrees import Check, Losses, MergeEnd, Removed, Who, WorktreeFacts
from callboard.types.errors import ToolRefused
from callboard.types.worktrees import WorktreeNoted

MOST_SHOWN = 12
"""Most losses that a refusal lists; the number of others is added."""
_UNKNOWN = Losses(untracked=("(all that is in it: git no longer knows this folder)",))


class GitWorktrees:
    """The port `WorktreeKeeper` over one workspace's repository."""

    def __init__(self, yard: Yard) -> None:
        """Store the yard, whose folder is created with the first worktree."""
        self._yard = yard

    def path(self, name: str) -> Path:
        return self._yard.path(name)

    async def worktrees(self) -> Sequence[Worktree]:
        return list((await self._yard.read()).there.values())

    async def name_for(self, requested: str, call: str) -> str:
        repo = await self._yard.repository()
        return free_name(requested, call, await self._yard.read(), await repo.branches())

    async def outcome(self, call: str) -> str:
        note = (await self._yard.read()).done.get(call)
        return note.act if note is not None else ""

    # Making

    async def create(self, name: str, author: Who, base: str = "") -> Worktree:
        check_name(name)
        repo = await self._yard.repository()
        await anyio.to_thread.run_sync(make_private, self._yard.root)
        async with self._yard.busy(name) as worktrees:
            existing = worktrees.there.get(name)
            # A call that is run again after a crash (test_the_same_call_finds_its_own_worktree_again).
            if existing is not None and author.call and existing.call == author.call:
                return existing
            await self._refuse_taken(name, worktrees)
            note = await self._begun(repo, name, author, base)
            await self._yard.note(note)
            tree = await self._tree(name)
            await self._add(repo, tree)
            return await self._tree(name)

    async def _tree(self, name: str) -> Worktree:
        return (await self._yard.read()).there[name]

    async def _refuse_taken(self, name: str, worktrees: Worktrees) -> None:
        if name in worktrees.there:
            raise ToolRefused(
                f"there is a worktree {name} already, made by {worktrees.there[name].by}: choose another name"
            )
        # One folder would stand for both (test_names_that_differ_by_case_alone_are_refused).
        if alike := worktrees.alike(name):
            raise ToolRefused(f"there is a worktree {alike}, which some file systems cannot tell from {name}")
        if await anyio.Path(self.path(name)).exists():
            raise ToolRefused(
                f"{self.path(name)} exists already, and is not a worktree of Callboard: choose another name"
            )

    async def _begun(self, repo: Repository, name: str, author: Who, base: str) -> WorktreeNoted:
        """Return the first entry of a new worktree, with its starting point. `commit` is set if the branch exists
        already."""
        branch = branch_of(name)
        tip = await repo.commit_of(f"refs/heads/{branch}")
        if tip and base != branch:
            hint = f"to go on with it give base {branch!r}; else choose another name"
            raise ToolRefused(f"the branch {branch} is there already, with its commits: {hint}")
        commit = tip if tip else await repo.commit_of(base or "HEAD")
        if not commit:
            raise ToolRefused(f"base: {base!r} is not a branch, tag or commit of the repository")
        return WorktreeNoted(
            at=self._yard.clock.now(),
            act="making",
            name=name,
            by=author.name,
            session=author.session,
            call=author.call,
            why=author.why,
            branch=branch,
            base=commit,
            onto=await repo.branch(),
            commit=tip,
        )

    async def _add(self, repo: Repository, tree: Worktree) -> None:
        """Run `git worktree add` to its end, or undo it."""
        intent = tree.intent
        assert intent is not None, "its making was noted"
        new = not (intent.tip or intent.commit)
        how = ["--no-track", "-b", tree.branch] if new else []
        try:
            async with self._yard.books(repo):
                await repo.add_worktree(self.path(tree.name), *how, intent.base if new else tree.branch)
            made = self._yard.about(tree, "made", Who(intent.by, intent.session, intent.call, intent.why))
            await self._yard.note(made)
        except BaseException:
            with anyio.CancelScope(shield=True):
                # A full disk or a cancellation must not leave a branch or a folder
                # (test_a_full_disk_is_told_and_leaves_nothing_behind).
                await self._yard.unmake(repo, tree)
            raise

    async def open(self, name: str) -> tuple[Path, str]:
        worktrees = await self._yard.read()
        path = self.path(name)
        if await self._stands(worktrees, name):
            return path, ""
        if name not in worktrees.there:
            raise ToolRefused(_absent(name, worktrees))
        async with self._yard.busy(name) as worktrees:
            if await self._stands(worktrees, name):
                return path, f"the worktree {name} was repaired"
            tree = worktrees.there.get(name)
            if tree is None:
                raise ToolRefused(_absent(name, worktrees))
            return await self._make_anew(tree)

    async def _stands(self, worktrees: Worktrees, name: str) -> bool:
        tree = worktrees.there.get(name)
        ready = tree is not None and tree.standing not in ("making", "removing")
        return ready and await anyio.Path(self.path(name) / ".git").exists()

    async def _make_anew(self, tree: Worktree) -> tuple[Path, str]:
        """Create the missing folder of a worktree again from its branch. Raises `ToolRefused` if the branch is gone
        too: then the worktree no longer exists, and no task stays bound to it."""
        repo = await self._yard.repository()
        path = self.path(tree.name)
        tip = await repo.commit_of(f"refs/heads/{tree.branch}")
        if not tip:
            gone = self._yard.about(tree, "removed", RUNTIME)
            await self._yard.note_gone(gone.model_copy(update={"branch": "", "why": "folder and branch were missing"}))
            raise ToolRefused(f"the worktree {tree.name} is gone: its folder and its branch {tree.branch} are missing")
        if await anyio.Path(path).exists():
            raise ToolRefused(
                f"{path} is no longer a working tree (`git worktree repair` may help): a person must look"
            )
        async with self._yard.books(repo):
            await repo.forget(path, tree.name)
        making = self._yard.about(tree, "making", RUNTIME).model_copy(update={"base": tip, "tip": tip})
        await self._yard.note(making)
        await self._add(repo, await self._tree(tree.name))
        return path, f"the folder of the worktree {tree.name} was missing, and was created again from {tree.branch}"

    # Keeping and removing

    async def keep(self, name: str, author: Who) -> Worktree:
        async with self._yard.busy(name) as worktrees:
            tree = _tree_of(name, worktrees)
            await self._yard.note(self._yard.about(tree, "kept", author))
            return await self._tree(name)

    async def losses(self, name: str) -> Losses:
        tree = _tree_of(name, await self._yard.read())
        return await self._losses(await self._yard.repository(), tree)

    async def _losses(self, repo: Repository, tree: Worktree) -> Losses:
        path = self.path(tree.name)
        spot = await repo.spot(path)
        if spot is not None:
            return await repo.losses(tree.branch, spot)
        # Git says nothing about this folder, which may hold anything
        # (test_a_folder_that_git_forgot_is_not_taken_for_empty).
        return _UNKNOWN if await anyio.Path(path).exists() else Losses(commits=await repo.own_commits(tree.branch))

    async def remove(self, name: str, author: Who, agreed: Sequence[str] | None = None) -> Removed:
        async with self._yard.busy(name) as worktrees:
            # A call that is run again after a crash (test_a_repeated_call_removes_nothing_twice).
            if author.call in worktrees.done:
                return Removed(worktrees.done[author.call].branch)
            tree = _tree_of(name, worktrees)
            if users := await self._yard.users(name, author):
                raise ToolRefused(f"{name} is in use: {'; '.join(users)}")
            if tree.kept and author.name != "person" and agreed is None:
                raise ToolRefused(f"{name} is to be kept, says {tree.kept}: only a person removes it")
            repo = await self._yard.repository()
            losses = await self._losses(repo, tree)
            self._refuse_losses(tree, losses.lines(), agreed)
            begun = self._yard.about(tree, "removing", author)
            await self._yard.note(begun.model_copy(update={"lost": losses.lines()}))
            removed = Removed("")
            with anyio.CancelScope(shield=True):
                await self._put_aside(repo, tree, author, agreed)
                removed = Removed(*await self._yard.clear(repo, tree, author))
            return removed  # noqa: RET504 - for a type checker a scope may end before its block does

    def _refuse_losses(self, tree: Worktree, lines: Sequence[str], agreed: Sequence[str] | None) -> None:
        """Raise `ToolRefused` with the losses that the user did not accept."""
        new = [line for line in lines if line not in (agreed or ())]
        if not new:
            return
        visible = [*new[:MOST_SHOWN], *([f"and {len(new) - MOST_SHOWN} more"] if len(new) > MOST_SHOWN else [])]
        text = "\n".join(f"- {line}" for line in visible)
        if agreed is not None:
            raise ToolRefused(
                f"{tree.name} now holds more than was agreed to be lost:\n{text}\nLook at it, and ask again."
            )
        raise ToolRefused(
            f"{tree.name} holds work that is nowhere else:\n{text}\nBring it back with merge_worktree, or keep it "
            "with keep_worktree; discard_changes asks a person to delete it."
        )

    async def _put_aside(self, repo: Repository, tree: Worktree, author: Who, agreed: Sequence[str] | None) -> None:
        """Move the worktree out of use, then check it once more: new changes bring it back."""
        path = self._yard.path(tree.name)
        aside = self._yard.aside(tree.name)
        gone = self._yard.gone(tree.name)
        spot = await repo.spot(path)
        for folder in (aside.parent, gone.parent):
            await anyio.to_thread.run_sync(make_private, folder)
        if not await anyio.Path(path).exists():
            return
        # Out of reach first, because an editor or a command may write while the losses are read
        # (test_what_is_written_while_it_is_removed_brings_it_back).
        await anyio.Path(path).rename(aside)
        try:
            losses = _UNKNOWN if spot is None else await repo.losses(tree.branch, type(spot)(aside, spot.admin))
            self._refuse_losses(tree, losses.lines(), agreed)
        except BaseException:
            await anyio.Path(aside).rename(path)
            await self._yard.note(self._yard.about(tree, "undone", author))
            raise
        await anyio.Path(aside).rename(gone)

    # Merging

    async def merge(self, name: str, author: Who, check: Check | None = None) -> MergeEnd:
        async with self._yard.busy(name) as worktrees:
            tree = _tree_of(name, worktrees)
            others = [
                user for user in await self._yard.users(name, author) if " works in it" in user and "(idle)" not in user
            ]
            if others:
                raise ToolRefused(f"{name} is being worked in: {'; '.join(others)}; wait for its report, then merge")
            return await WorktreeMerge(self._yard, await self._yard.repository(), tree, author).run(check)

    # Looking

    async def recover(self) -> Sequence[str]:
        lines: list[str] = []
        for tree in (await self._yard.read()).there.values():
            if tree.standing == "ready":
                continue
            async with holding(self._yard.root / ".locks" / tree.name, wait=False) as held:
                now = (await self._yard.read()).there.get(tree.name) if held else None
                if now is not None and now.standing != "ready":
                    lines.append(await self._mended(now))
        return lines

    async def _mended(self, tree: Worktree) -> str:
        try:
            return await self._yard.mend(tree)
        except ToolRefused as failed:  # a missing repository, a full disk: told, and tried again at the next act
            return f"the worktree {tree.name} could not be repaired: {failed}"

    async def facts(self) -> Sequence[WorktreeFacts]:
        trees = await self.worktrees()
        repo = await self._yard.repository() if trees else None
        return [await self._facts(repo, tree) for tree in trees] if repo is not None else []

    async def _facts(self, repo: Repository, tree: Worktree) -> WorktreeFacts:
        path = self.path(tree.name)
        spot = await repo.spot(path)
        dirty = -1
        ahead = behind = 0
        try:
            counts = await repo.ask("rev-list", "--left-right", "--count", f"HEAD...refs/heads/{tree.branch}")
            behind, ahead = map(int, counts.split())
            if spot is not None:
                losses = await repo.losses(tree.branch, spot)
                dirty = len(losses.changed) + len(losses.untracked) + len(losses.ignored)
        except GitFailed:
            pass  # its branch is gone, or git takes too long: the list says so by its numbers
        size = await anyio.to_thread.run_sync(_size, path)
        return WorktreeFacts(tree, str(path), spot is None, ahead, behind, dirty, size)


def worktrees_of(
    workspace: Path, root: Path, store: Store, *, environment: Mapping[str, str], clock: Clock
) -> GitWorktrees:
    """Return the worktrees of a workspace. `root`: the folder of all of them. `environment`: the user's."""
    return GitWorktrees(Yard(Git(workspace, environment), root, store, clock))


def _tree_of(name: str, worktrees: Worktrees) -> Worktree:
    tree = worktrees.there.get(name)
    if tree is None:
        raise ToolRefused(_absent(name, worktrees))
    return tree


def _absent(name: str, worktrees: Worktrees) -> str:
    names = ", ".join(worktrees.there) or "none"
    gone = worktrees.gone.get(name)
    if gone is None:
        return f"there is no worktree {name[:80]!r}; there are: {names}"
    branch_text = f"; its commits are on the branch {gone.branch}" if gone.branch else ""
    return f"the worktree {name} was removed by {gone.by}{branch_text}; there are: {names}"


def _size(folder: Path) -> int:
    """Return the bytes of the files in a folder."""
    total = 0
    for at, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(at, name)).st_size  # noqa: PTH118 - many of them
            except OSError:
                continue  # it went while we looked
    return total
