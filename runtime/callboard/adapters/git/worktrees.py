"""Git worktrees for agents: created, kept, merged and removed, each on a branch `wt/<name>`, in the user's data folder.

Rules (docs/worktrees.md): no commit is ever deleted; a file that no commit contains is deleted only if the user agreed
to lose that file; an interrupted act is finished or undone by the next process, and no call acts twice. The record is
one stream of the store (`WorktreeNoted`), folded again at each act. Git itself runs hardened.

A branch is merged and tested in a separate folder, then applied to the workspace at once: one git call changes the
workspace, a fast-forward to the tested commit, and only if none of the workspace's own changes prevents it. If both
sides changed the same lines, nothing is merged: the conflicts are put into the worktree, where its agent resolves them,
and the next merge takes the result.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio
import anyio.to_thread

from callboard.adapters.git.git import Git
from callboard.adapters.git.record import RUNTIME, WorktreeRegistry, author_of, is_ancestor
from callboard.adapters.git.repository import GitFailed, Repository, WorkingTree
from callboard.adapters.storage.file_locks import hold_lock
from callboard.adapters.system.archive import make_private
from callboard.core.context.reminders import displayed_name
from callboard.core.keys import WORKTREES
from callboard.core.permissions.sensitive_paths import is_secret
from callboard.core.team.worktrees import Worktree, Worktrees, branch_of, check_name, free_name
from callboard.ports.environment import Clock
from callboard.ports.store import Store
from callboard.ports.worktrees import Check, Losses, MergeEnd, Removed, WorktreeActor, WorktreeFacts
from callboard.types.choices import choose, unknown
from callboard.types.errors import ToolRefused
from callboard.types.lazy_dataclass import dataclass
from callboard.types.worktrees import WorktreeNoted

MOST_SHOWN = 12
"""Most losses that a refusal lists; the number of others is added."""
_UNKNOWN = Losses(untracked=("(all that is in it: git no longer knows this folder)",))
_MARKS = (b"<<<<<<< ", b">>>>>>> ")
_LARGEST = 5_000_000
"""Most bytes of a file that is searched for conflict markers."""


class GitWorktrees:
    """The port `WorktreeKeeper` over one workspace's repository."""

    def __init__(self, registry: WorktreeRegistry) -> None:
        """Store the registry, whose folder is created with the first worktree."""
        self._registry = registry

    def path(self, name: str) -> Path:
        return self._registry.path(name)

    async def worktrees(self) -> Sequence[Worktree]:
        return list((await self._registry.read()).there.values())

    async def name_for(self, requested: str, call: str) -> str:
        repo = await self._registry.repository()
        return free_name(requested, call, await self._registry.read(), await repo.branches())

    async def outcome(self, call: str) -> str:
        note = (await self._registry.read()).done.get(call)
        return note.act if note is not None else ""

    # Creation

    async def create(self, name: str, author: WorktreeActor, base: str = "") -> Worktree:
        check_name(name)
        repo = await self._registry.repository()
        repo.refuse_submodules()
        await anyio.to_thread.run_sync(make_private, self._registry.root)
        async with self._registry.locked_worktree(name) as worktrees:
            existing = worktrees.there.get(name)
            # A call that runs again after a crash (test_the_same_call_finds_its_own_worktree_again).
            if existing is not None and author.call and existing.call == author.call:
                return existing
            await self._refuse_used_name(name, worktrees)
            note = await self._first_entry(repo, name, author, base)
            await self._registry.note(note)
            tree = await self._tree(name)
            await self._add(repo, tree)
            return await self._tree(name)

    async def _tree(self, name: str) -> Worktree:
        return (await self._registry.read()).there[name]

    async def _refuse_used_name(self, name: str, worktrees: Worktrees) -> None:
        if name in worktrees.there:
            raise ToolRefused(
                f"a worktree {name} already exists, created by {worktrees.there[name].by}: choose another name"
            )
        # Both names could mean one folder (test_names_that_differ_by_case_alone_are_refused).
        if alike := worktrees.alike(name):
            raise ToolRefused(f"there is a worktree {alike}, which some file systems cannot tell from {name}")
        if await anyio.Path(self.path(name)).exists():
            raise ToolRefused(
                f"{self.path(name)} exists already, and is not a worktree of Callboard: choose another name"
            )

    async def _first_entry(self, repo: Repository, name: str, author: WorktreeActor, base: str) -> WorktreeNoted:
        """Return a new worktree's first entry with its starting point; `commit` is set if the branch exists already."""
        branch = branch_of(name)
        tip = await repo.commit_of(f"refs/heads/{branch}")
        if tip and base != branch:
            hint = f"to continue it, give base {branch!r}; else choose another name"
            raise ToolRefused(f"the branch {branch} is there already, with its commits: {hint}")
        commit = tip if tip else await repo.commit_of(base or "HEAD")
        if not commit:
            raise ToolRefused(f"base: {base!r} is not a branch, tag or commit of the repository")
        return WorktreeNoted(
            at=self._registry.clock.now(),
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
            async with self._registry.locked_lists(repo):
                await repo.add_worktree(self.path(tree.name), *how, intent.base if new else tree.branch)
            await self._registry.note(self._registry.entry_for(tree, "made", author_of(tree)))
        except BaseException:
            with anyio.CancelScope(shield=True):
                # A full disk or a cancellation must not leave a branch or a folder
                # (test_a_full_disk_is_told_and_leaves_nothing_behind).
                await self._registry.undo_creation(repo, tree)
            raise

    async def open(self, name: str) -> tuple[Path, str]:
        worktrees = await self._registry.read()
        path = self.path(name)
        if await self._is_ready(worktrees, name):
            return path, ""
        if name not in worktrees.there:
            raise ToolRefused(_absent_text(name, worktrees))
        async with self._registry.locked_worktree(name) as worktrees:
            if await self._is_ready(worktrees, name):
                return path, f"the worktree {name} was repaired"
            tree = worktrees.there.get(name)
            if tree is None:
                raise ToolRefused(_absent_text(name, worktrees))
            return await self._restore_folder(tree)

    async def _is_ready(self, worktrees: Worktrees, name: str) -> bool:
        tree = worktrees.there.get(name)
        ready = tree is not None and tree.standing not in ("making", "removing")
        return ready and await anyio.Path(self.path(name) / ".git").exists()

    async def _restore_folder(self, tree: Worktree) -> tuple[Path, str]:
        """Create the missing folder of a worktree again from its branch.

        Raises `ToolRefused` if the branch is gone too: the worktree then no longer exists, and no task is bound to it.
        """
        repo = await self._registry.repository()
        path = self.path(tree.name)
        tip = await repo.commit_of(f"refs/heads/{tree.branch}")
        if not tip:
            gone = self._registry.entry_for(tree, "removed", RUNTIME)
            await self._registry.note_removal(
                gone.model_copy(update={"branch": "", "why": "folder and branch were missing"})
            )
            raise ToolRefused(f"the worktree {tree.name} is gone: its folder and its branch {tree.branch} are missing")
        if await anyio.Path(path).exists():
            raise ToolRefused(
                f"{path} is no longer a working tree (`git worktree repair` may help): a person must look"
            )
        async with self._registry.locked_lists(repo):
            await repo.forget(path, tree.name)
        making = self._registry.entry_for(tree, "making", RUNTIME).model_copy(update={"base": tip, "tip": tip})
        await self._registry.note(making)
        await self._add(repo, await self._tree(tree.name))
        return path, f"the folder of the worktree {tree.name} was missing, and was created again from {tree.branch}"

    # Keeping and removal

    async def keep(self, name: str, author: WorktreeActor) -> Worktree:
        async with self._registry.locked_worktree(name) as worktrees:
            tree = _tree_of(name, worktrees)
            await self._registry.note(self._registry.entry_for(tree, "kept", author))
            return await self._tree(name)

    async def losses(self, name: str) -> Losses:
        tree = _tree_of(name, await self._registry.read())
        return await self._losses(await self._registry.repository(), tree)

    async def _losses(self, repo: Repository, tree: Worktree) -> Losses:
        path = self.path(tree.name)
        working_tree = await repo.working_tree(path)
        if working_tree is not None:
            return await repo.losses(tree.branch, working_tree)
        # Git reports nothing about this folder, which may contain anything
        # (test_a_folder_that_git_forgot_is_not_taken_for_empty).
        return _UNKNOWN if await anyio.Path(path).exists() else Losses(commits=await repo.own_commits(tree.branch))

    async def remove(self, name: str, author: WorktreeActor, agreed: Sequence[str] | None = None) -> Removed:
        async with self._registry.locked_worktree(name) as worktrees:
            # A call that runs again after a crash (test_a_repeated_call_removes_nothing_twice).
            if author.call in worktrees.done:
                return Removed(worktrees.done[author.call].branch)
            tree = _tree_of(name, worktrees)
            if users := await self._registry.users(name, author):
                raise ToolRefused(f"{name} is in use: {'; '.join(users)}")
            if tree.kept and author.name != "person" and agreed is None:
                raise ToolRefused(f"{name} is to be kept, says {tree.kept}: only a person removes it")
            repo = await self._registry.repository()
            losses = await self._losses(repo, tree)
            self._refuse_losses(tree, losses.lines(), agreed)
            begun = self._registry.entry_for(tree, "removing", author)
            await self._registry.note(begun.model_copy(update={"lost": losses.lines()}))
            removed = Removed("")
            with anyio.CancelScope(shield=True):
                await self._put_aside(repo, tree, author, agreed)
                removed = Removed(*await self._registry.finish_removal(repo, tree, author))
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

    async def _put_aside(
        self, repo: Repository, tree: Worktree, author: WorktreeActor, agreed: Sequence[str] | None
    ) -> None:
        """Move the worktree out of use, then check it once more: new changes bring it back."""
        path = self._registry.path(tree.name)
        aside = self._registry.aside_folder(tree.name)
        gone = self._registry.gone_folder(tree.name)
        at = await repo.working_tree(path)
        for folder in (aside.parent, gone.parent):
            await anyio.to_thread.run_sync(make_private, folder)
        if not await anyio.Path(path).exists():
            return
        # Moved first, because an editor or a command may write while the losses are read
        # (test_what_is_written_while_it_is_removed_brings_it_back).
        await anyio.Path(path).rename(aside)
        try:
            losses = _UNKNOWN if at is None else await repo.losses(tree.branch, WorkingTree(aside, at.admin))
            self._refuse_losses(tree, losses.lines(), agreed)
        except BaseException:
            await anyio.Path(aside).rename(path)
            await self._registry.note(self._registry.entry_for(tree, "undone", author))
            raise
        await anyio.Path(aside).rename(gone)

    # Merge

    async def merge(self, name: str, author: WorktreeActor, check: Check | None = None) -> MergeEnd:
        async with self._registry.locked_worktree(name) as worktrees:
            tree = _tree_of(name, worktrees)
            others = [
                user
                for user in await self._registry.users(name, author)
                if " works in it" in user and "(idle)" not in user
            ]
            if others:
                raise ToolRefused(f"{name} is being worked in: {'; '.join(others)}; wait for its report, then merge")
            if not await self._is_ready(worktrees, name):
                await self._restore_folder(tree)
            return await WorktreeMerge(self._registry, await self._registry.repository(), tree, author).run(check)

    # Listing

    async def recover(self) -> Sequence[str]:
        lines: list[str] = []
        for tree in (await self._registry.read()).there.values():
            if tree.standing == "ready":
                continue
            async with hold_lock(self._registry.root / ".locks" / tree.name, wait=False) as held:
                now = (await self._registry.read()).there.get(tree.name) if held else None
                if now is not None and now.standing != "ready":
                    lines.append(await self._repair_line(now))
        return lines

    async def _repair_line(self, tree: Worktree) -> str:
        try:
            return await self._registry.repair(tree)
        except ToolRefused as failed:  # a missing repository, a full disk: reported, and tried again at the next act
            return f"the worktree {tree.name} could not be repaired: {failed}"

    async def facts(self) -> Sequence[WorktreeFacts]:
        trees = await self.worktrees()
        repo = await self._registry.repository() if trees else None
        return [await self._facts(repo, tree) for tree in trees] if repo is not None else []

    async def _facts(self, repo: Repository, tree: Worktree) -> WorktreeFacts:
        path = self.path(tree.name)
        working_tree = await repo.working_tree(path)
        dirty = -1
        ahead = behind = 0
        try:
            counts = await repo.ask("rev-list", "--left-right", "--count", f"HEAD...refs/heads/{tree.branch}")
            behind, ahead = map(int, counts.split())
            if working_tree is not None:
                losses = await repo.losses(tree.branch, working_tree)
                dirty = len(losses.changed) + len(losses.untracked) + len(losses.ignored)
        except GitFailed:
            pass  # its branch is gone, or git takes too long: the numbers in the list show that
        size = await anyio.to_thread.run_sync(_size, path)
        return WorktreeFacts(tree, str(path), working_tree is None, ahead, behind, dirty, size)


def worktrees_of(
    workspace: Path, root: Path, store: Store, *, environment: Mapping[str, str], clock: Clock, stream: str = WORKTREES
) -> GitWorktrees:
    """Return the worktrees of a workspace. `root`: the folder of all of them. `environment`: the user's."""
    return GitWorktrees(WorktreeRegistry(Git(workspace, environment), root, store, clock, stream))


def _tree_of(name: str, worktrees: Worktrees) -> Worktree:
    tree = worktrees.there.get(name)
    if tree is None:
        raise ToolRefused(_absent_text(name, worktrees))
    return tree


def _absent_text(name: str, worktrees: Worktrees) -> str:
    gone = worktrees.gone.get(name)
    if gone is None:
        return unknown("worktree", name[:80], worktrees.there)
    branch_text = f"; its commits are on the branch {gone.branch}" if gone.branch else ""
    return f"the worktree {name} was removed by {gone.by}{branch_text}: {choose(worktrees.there)}"


def _size(folder: Path) -> int:
    """Return the bytes of the files in a folder."""
    total = 0
    for at, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(at, name)).st_size  # noqa: PTH118 - many of them
            except OSError:
                continue  # it was removed meanwhile
    return total


@dataclass(frozen=True, slots=True)
class WorktreeMerge:
    """One merge, under the lock of its worktree."""

    registry: WorktreeRegistry
    repo: Repository
    tree: Worktree
    author: WorktreeActor

    async def run(self, check: Check | None) -> MergeEnd:
        """See the port."""
        onto = await self._branch()
        working_tree = await self._working_tree()
        saved = await self._commit_changes(working_tree)
        base = await self.repo.commit_of(f"refs/heads/{onto}")
        tip = await self.repo.commit_of(f"refs/heads/{self.tree.branch}")
        if await is_ancestor(self.repo, tip, base):
            return MergeEnd("nothing", onto, saved=saved)
        intent = self._note("merging", base=base, onto=onto, tip=tip)
        # Before anything happens, so that the next process can finish or undo it (test_a_kill_at_each_step_is_mended).
        await self.registry.note(intent)
        try:
            end = await self._merge_and_apply(intent, working_tree, check)
        except BaseException:
            await self._discard_merge()
            raise
        return MergeEnd(end.how, onto, end.commit, end.files, end.output, end.dirty, saved)

    async def _merge_and_apply(self, intent: WorktreeNoted, working_tree: WorkingTree, check: Check | None) -> MergeEnd:
        """Continue from the merge in a separate folder to the workspace."""
        place = await self._make_merge_folder(intent.base)
        conflicts = await self._conflicts_of_merge(place, intent)
        if conflicts:
            await self._discard_merge()
            await self._merge_base(working_tree, intent)
            return MergeEnd("conflict", intent.onto, files=conflicts)
        commit = await self.repo.commit_of("HEAD", place)
        files = await self._changes(intent.base, commit)
        await self._refuse_filtered(place, files)
        dirty = await self._dirty(files)
        if check is not None:
            checked = await check(place.folder)
            if not checked.passed:
                await self._discard_merge()
                return MergeEnd("failed", intent.onto, files=files, output=checked.output, dirty=dirty)
        # A cancelled git call is killed, and would leave half of the files changed.
        with anyio.CancelScope(shield=True):
            await self._fast_forward(intent.model_copy(update={"commit": commit}), files)
        return MergeEnd("merged", intent.onto, commit, files, dirty=dirty)

    # Before the merge

    async def _branch(self) -> str:
        """Return the branch of the workspace. Raises `ToolRefused` if no branch could be moved."""
        onto = await self.repo.branch()
        if not onto:
            raise ToolRefused(
                "the workspace has no branch checked out (detached HEAD): a person must check one out first"
            )
        if onto == self.tree.branch:
            raise ToolRefused(f"the workspace itself has {onto} checked out: there is nothing to merge it into")
        if under_way := self.repo.under_way(self.repo.own):
            raise ToolRefused(
                f"the workspace is in the middle of {under_way}: a person must finish or abort that first"
            )
        return onto

    async def _working_tree(self) -> WorkingTree:
        path = self.registry.path(self.tree.name)
        working_tree = await self.repo.working_tree(path)
        if working_tree is None:
            raise ToolRefused(f"git no longer knows the folder {path}: `git worktree repair {path}` may help")
        if reason := await self.repo.off_branch(working_tree, self.tree.branch):
            raise ToolRefused(f"{self.tree.name} {reason}")
        return working_tree

    async def _commit_changes(self, working_tree: WorkingTree) -> tuple[str, ...]:
        """Commit all uncommitted changes in the worktree, including an unfinished merge."""
        assert working_tree.admin is not None, "a worktree has a folder in git's"
        under_way = self.repo.under_way(working_tree.admin)
        if under_way not in ("", "a merge"):
            raise ToolRefused(f"{self.tree.name} is in the middle of {under_way}: finish or abort that there first")
        status = await self.repo.status(working_tree)
        files = tuple(sorted({*status.changed, *status.untracked, *status.conflicts}))
        # The list of files that are committed here is not reviewed
        # (test_a_file_that_may_hold_a_secret_is_not_committed_unseen).
        if secrets := [path for path in status.untracked if is_secret(path.split("/"))]:
            named = ", ".join(map(displayed_name, secrets[:10]))
            raise ToolRefused(
                f"{named}: may hold secrets, and would be committed; remove or ignore them in the worktree first"
            )
        marked = await anyio.to_thread.run_sync(_with_conflict_marks, working_tree, status.conflicts)
        if marked:
            named = ", ".join(map(displayed_name, marked[:10]))
            raise ToolRefused(
                f"conflicts are not solved yet in {self.tree.name}: {named} still have <<<<<<< and >>>>>>> marks"
            )
        if files or under_way:
            message = f"Work in {self.tree.branch}\n\n{self.author.why}".strip()
            commit = await self.repo.commit_all(working_tree, message)
            await self.registry.note(self._note("saved", tip=commit))
        return files

    # The merge in a separate folder

    async def _make_merge_folder(self, base: str) -> WorkingTree:
        folder = self.registry.merge_folder(self.tree.name)
        await anyio.to_thread.run_sync(make_private, folder.parent)
        await self.registry.remove_merge_folder(self.repo, self.tree.name)
        async with self.registry.locked_lists(self.repo):
            await self.repo.add_worktree(folder, "--detach", base)
        working_tree = await self.repo.working_tree(folder)
        assert working_tree is not None, "git has just made it"
        return working_tree

    async def _conflicts_of_merge(self, place: WorkingTree, intent: WorktreeNoted) -> tuple[str, ...]:
        """Merge in that folder, and return the files in conflict."""
        message = f"Merge {self.tree.branch} into {intent.onto}"
        try:
            how = ("--no-ff", "--no-verify", "--quiet", "-m", message, intent.tip)
            await self.repo.ask("merge", *how, at=place, extra=await self.repo.author())
        except GitFailed:
            conflicts = (await self.repo.status(place)).conflicts
            if not conflicts:
                raise
            return conflicts
        return ()

    async def _merge_base(self, working_tree: WorkingTree, intent: WorktreeNoted) -> None:
        """Merge the base into the worktree, and leave the conflicts there for resolution."""
        with anyio.CancelScope(shield=True):
            await self.registry.note(self._note("joining", base=intent.base, onto=intent.onto, tip=intent.tip))
            try:
                how = ("--no-commit", "--no-ff", "--quiet", intent.base)
                await self.repo.ask("merge", *how, at=working_tree, extra=await self.repo.author())
            except GitFailed:
                if not (await self.repo.status(working_tree)).conflicts:
                    await self.registry.note(self._note("undone"))
                    raise
            await self.registry.note(self._note("joined", onto=intent.onto))

    # The workspace

    async def _changes(self, base: str, commit: str) -> tuple[str, ...]:
        text = await self.repo.ask("diff", "--name-only", "-z", "--no-renames", base, commit)
        return tuple(path for path in text.split("\0") if path)

    async def _refuse_filtered(self, place: WorkingTree, files: Sequence[str]) -> None:
        """Raise `ToolRefused` for files that a filter of the repository would have to write: filters never run here."""
        stdin = "\0".join(files).encode(errors="surrogateescape")
        # Without its filter git would write the stored form into the workspace
        # (test_files_that_go_through_a_filter_are_left_to_the_person).
        attributes = (await self.repo.ask("check-attr", "-z", "--stdin", "filter", at=place, stdin=stdin)).split("\0")
        filtered = [
            attributes[at]
            for at in range(0, len(attributes) - 2, 3)
            if attributes[at + 2] not in ("unspecified", "unset")
        ]
        if filtered:
            named = ", ".join(map(displayed_name, filtered[:10]))
            raise ToolRefused(
                f"{named}: goes through a filter of the repository (.gitattributes), which the runtime does not run. "
                f"Ask the person to merge by hand: git merge {self.tree.branch}"
            )

    async def _dirty(self, files: Sequence[str]) -> tuple[str, ...]:
        """Return the uncommitted changes of the workspace. Raises `ToolRefused` if one of them prevents the merge."""
        status = await self.repo.status()
        dirty = {*status.changed, *status.untracked, *status.conflicts}
        tracked = set((await self.repo.ask("ls-files", "-z")).split("\0"))
        existing = await anyio.to_thread.run_sync(
            _existing, self.repo.workspace, [path for path in files if path not in tracked]
        )
        if clash := sorted((dirty & set(files)) | existing):
            named = ", ".join(map(displayed_name, clash[:10])) + (
                f" and {len(clash) - 10} more" if len(clash) > 10 else ""
            )
            raise ToolRefused(
                f"the workspace has changes of its own that the merge would overwrite: {named}. Commit or move them "
                "first (or ask the person to); nothing was merged"
            )
        return tuple(sorted(dirty))

    async def _fast_forward(self, intent: WorktreeNoted, files: Sequence[str]) -> None:
        """Move the workspace's branch and files to the tested commit, its only change, or change nothing."""
        async with self.registry.locked_lists(self.repo):
            onto = await self.repo.branch()
            # The checks may have run for minutes, without any lock (test_a_person_who_is_quicker_than_the_tests_wins).
            if onto != intent.onto or await self.repo.commit_of(f"refs/heads/{onto}") != intent.base:
                raise ToolRefused(f"{intent.onto} has moved while the merge was made and tested: merge again")
            await self._dirty(files)
            await self.registry.note(intent)
            # Without --no-overwrite-ignore git replaces ignored files of the user silently.
            await self.repo.ask("merge", "--ff-only", "--quiet", "--no-overwrite-ignore", intent.commit)
        await self.registry.remove_merge_folder(self.repo, self.tree.name)
        await self.registry.note(intent.model_copy(update={"act": "merged", "at": self.registry.clock.now()}))

    # Record

    async def _discard_merge(self) -> None:
        """Remove the folder of a merge without result, and record that."""
        with anyio.CancelScope(shield=True):
            now = (await self.registry.read()).there.get(self.tree.name)
            if now is None or now.standing != "merging":
                return
            if now.intent is not None and now.intent.commit:  # the workspace was changed: read its state
                await self.registry.repair(now)
                return
            await self.registry.remove_merge_folder(self.repo, self.tree.name)
            await self.registry.note(self._note("undone"))

    def _note(self, act: str, **fields: str) -> WorktreeNoted:
        origin = {
            "by": self.author.name,
            "session": self.author.session,
            "call": self.author.call,
            "why": self.author.why,
        }
        about = {"at": self.registry.clock.now(), "act": act, "name": self.tree.name, "branch": self.tree.branch}
        return WorktreeNoted.model_validate({**about, **origin, **fields})


def _with_conflict_marks(working_tree: WorkingTree, conflicts: Sequence[str]) -> list[str]:
    """Return the files that still contain conflict markers."""
    return [path for path in conflicts if _has_marks(os.path.join(working_tree.folder, path))]  # noqa: PTH118 - names of git's


def _has_marks(path: str) -> bool:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a text that `_with_conflict_marks` joined
            lines = file.read(_LARGEST).splitlines()
    except OSError:
        return False  # the conflict was resolved by deleting the file
    return any(line.startswith(_MARKS) for line in lines)


def _existing(working_tree: WorkingTree, files: Sequence[str]) -> set[str]:
    """Return the files that exist although git does not know them: ignored ones."""
    return {path for path in files if os.path.lexists(os.path.join(working_tree.folder, path))}  # noqa: PTH118 - names of git's
