"""Merge of a worktree's branch: merged and tested in a separate folder, then applied to the workspace at once.

One git call changes the workspace, a fast-forward to the tested commit, and only if none of the workspace's own changes
prevents it. If both sides changed the same lines, nothing is merged: the conflicts are put into the worktree, where its
agent resolves them, and the next merge takes the result.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import anyio
import anyio.to_thread

from callboard.adapters.git.record import Yard, is_ancestor
from callboard.adapters.git.repository import GitFailed, Repository, WorkingTree
from callboard.adapters.system.archive import make_private
from callboard.core.context.reminders import shown_name
from callboard.core.permissions.sensitive_paths import is_secret
from callboard.core.team.worktrees import Worktree
from callboard.ports.worktrees import Check, MergeEnd, Who
from callboard.types.errors import ToolRefused
from callboard.types.worktrees import WorktreeNoted

_MARKS = (b"<<<<<<< ", b">>>>>>> ")
_LARGEST = 5_000_000
"""Most bytes of a file that is searched for conflict markers."""


@dataclass(frozen=True, slots=True)
class WorktreeMerge:
    """One merge, under the lock of its worktree."""

    yard: Yard
    repo: Repository
    tree: Worktree
    author: Who

    async def run(self, check: Check | None) -> MergeEnd:
        """See the port."""
        onto = await self._branch()
        spot = await self._spot()
        saved = await self._save(spot)
        base = await self.repo.commit_of(f"refs/heads/{onto}")
        tip = await self.repo.commit_of(f"refs/heads/{self.tree.branch}")
        if await is_ancestor(self.repo, tip, base):
            return MergeEnd("nothing", onto, saved=saved)
        intent = self._note("merging", base=base, onto=onto, tip=tip)
        # Before anything happens: the next process finds what to finish or undo (test_a_kill_at_each_step_is_mended).
        await self.yard.note(intent)
        try:
            end = await self._through(intent, spot, check)
        except BaseException:
            await self._over()
            raise
        return MergeEnd(end.how, onto, end.commit, end.files, end.output, end.dirty, saved)

    async def _through(self, intent: WorktreeNoted, spot: WorkingTree, check: Check | None) -> MergeEnd:
        """Continue from the merge in a separate folder to the workspace."""
        place = await self._place(intent.base)
        conflicts = await self._combined(place, intent)
        if conflicts:
            await self._over()
            await self._join(spot, intent)
            return MergeEnd("conflict", intent.onto, files=conflicts)
        commit = await self.repo.commit_of("HEAD", place)
        files = await self._changes(intent.base, commit)
        await self._refuse_filtered(place, files)
        dirty = await self._dirty(files)
        if check is not None:
            checked = await check(place.folder)
            if not checked.passed:
                await self._over()
                return MergeEnd("failed", intent.onto, files=files, output=checked.output, dirty=dirty)
        # A cancelled git call is killed, and would leave half of the files changed.
        with anyio.CancelScope(shield=True):
            await self._forward(intent.model_copy(update={"commit": commit}), files)
        return MergeEnd("merged", intent.onto, commit, files, dirty=dirty)

    # Before

    async def _branch(self) -> str:
        """Return the branch of the workspace. Raises `ToolRefused` if there is none that could be moved."""
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

    async def _spot(self) -> WorkingTree:
        spot = await self.repo.spot(self.yard.path(self.tree.name))
        if spot is None:
            raise ToolRefused(f"the folder of {self.tree.name} is missing, or git no longer knows it: open it first")
        on = await self.repo.branch(spot)
        if on != self.tree.branch:
            where = f"has {on} checked out" if on else "is on no branch"
            raise ToolRefused(
                f"{self.tree.name} {where}, not {self.tree.branch}: `git switch {self.tree.branch}` there"
            )
        return spot

    async def _save(self, spot: WorkingTree) -> tuple[str, ...]:
        """Commit all uncommitted changes in the worktree, including an unfinished merge."""
        assert spot.admin is not None, "a worktree has a folder in git's"
        under_way = self.repo.under_way(spot.admin)
        if under_way not in ("", "a merge"):
            raise ToolRefused(f"{self.tree.name} is in the middle of {under_way}: finish or abort that there first")
        status = await self.repo.status(spot)
        files = tuple(sorted({*status.changed, *status.untracked, *status.conflicts}))
        # Nobody reads the list of files that are committed here
        # (test_a_file_that_may_hold_a_secret_is_not_committed_unseen).
        if secrets := [path for path in status.untracked if is_secret(path.split("/"))]:
            named = ", ".join(map(shown_name, secrets[:10]))
            raise ToolRefused(
                f"{named}: may hold secrets, and would be committed; remove or ignore them in the worktree first"
            )
        marked = await anyio.to_thread.run_sync(_marked, spot, status.conflicts)
        if marked:
            named = ", ".join(map(shown_name, marked[:10]))
            raise ToolRefused(
                f"conflicts are not solved yet in {self.tree.name}: {named} still have <<<<<<< and >>>>>>> marks"
            )
        if files or under_way:
            commit = await self.repo.commit_all(spot, f"Work in {self.tree.branch}\n\n{self.author.why}".strip())
            await self.yard.note(self._note("saved", tip=commit))
        return files

    # The merge in a folder of its own

    async def _place(self, base: str) -> WorkingTree:
        folder = self.yard.merging(self.tree.name)
        await anyio.to_thread.run_sync(make_private, folder.parent)
        await self.yard.drop_merging(self.repo, self.tree.name)
        async with self.yard.books(self.repo):
            await self.repo.add_worktree(folder, "--detach", base)
        spot = await self.repo.spot(folder)
        assert spot is not None, "git has just made it"
        return spot

    async def _combined(self, place: WorkingTree, intent: WorktreeNoted) -> tuple[str, ...]:
        """Merge there, and return the files in conflict."""
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

    async def _join(self, spot: WorkingTree, intent: WorktreeNoted) -> None:
        """Put the conflicts into the worktree: the base is merged into it, and left there for resolution."""
        with anyio.CancelScope(shield=True):
            await self.yard.note(self._note("joining", base=intent.base, onto=intent.onto, tip=intent.tip))
            try:
                how = ("--no-commit", "--no-ff", "--quiet", intent.base)
                await self.repo.ask("merge", *how, at=spot, extra=await self.repo.author())
            except GitFailed:
                if not (await self.repo.status(spot)).conflicts:
                    await self.yard.note(self._note("undone"))
                    raise
            await self.yard.note(self._note("joined", onto=intent.onto))

    # The workspace

    async def _changes(self, base: str, commit: str) -> tuple[str, ...]:
        text = await self.repo.ask("diff", "--name-only", "-z", "--no-renames", base, commit)
        return tuple(path for path in text.split("\0") if path)

    async def _refuse_filtered(self, place: WorkingTree, files: Sequence[str]) -> None:
        """Raise `ToolRefused` for files that a filter of the repository would have to write: filters are never run
        here."""
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
            named = ", ".join(map(shown_name, filtered[:10]))
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
            named = ", ".join(map(shown_name, clash[:10])) + (f" and {len(clash) - 10} more" if len(clash) > 10 else "")
            raise ToolRefused(
                f"the workspace has changes of its own that the merge would overwrite: {named}. Commit or move them "
                "first (or ask the person to); nothing was merged"
            )
        return tuple(sorted(dirty))

    async def _forward(self, intent: WorktreeNoted, files: Sequence[str]) -> None:
        """Move the workspace's branch and files to the tested commit, or change nothing. This is the only change of the
        workspace."""
        async with self.yard.books(self.repo):
            onto = await self.repo.branch()
            # The checks may have run for minutes, without any lock (test_a_person_who_is_quicker_than_the_tests_wins).
            if onto != intent.onto or await self.repo.commit_of(f"refs/heads/{onto}") != intent.base:
                raise ToolRefused(f"{intent.onto} has moved while the merge was made and tested: merge again")
            await self._dirty(files)
            await self.yard.note(intent)
            # Without --no-overwrite-ignore git replaces ignored files of the user without a word.
            await self.repo.ask("merge", "--ff-only", "--quiet", "--no-overwrite-ignore", intent.commit)
        await self.yard.drop_merging(self.repo, self.tree.name)
        await self.yard.note(intent.model_copy(update={"act": "merged", "at": self.yard.clock.now()}))

    # The record

    async def _over(self) -> None:
        """Remove the folder of a merge without result, and record that."""
        with anyio.CancelScope(shield=True):
            now = (await self.yard.read()).there.get(self.tree.name)
            if now is None or now.standing != "merging":
                return
            if now.intent is not None and now.intent.commit:  # the workspace was touched: it is looked at, not guessed
                await self.yard.mend(now)
                return
            await self.yard.drop_merging(self.repo, self.tree.name)
            await self.yard.note(self._note("undone"))

    def _note(self, act: str, **fields: str) -> WorktreeNoted:
        origin = {
            "by": self.author.name,
            "session": self.author.session,
            "call": self.author.call,
            "why": self.author.why,
        }
        about = {"at": self.yard.clock.now(), "act": act, "name": self.tree.name, "branch": self.tree.branch}
        return WorktreeNoted.model_validate({**about, **origin, **fields})


def _marked(spot: WorkingTree, conflicts: Sequence[str]) -> list[str]:
    """Return the files that still contain conflict markers."""
    return [path for path in conflicts if _has_marks(os.path.join(spot.folder, path))]  # noqa: PTH118 - names of git's


def _has_marks(path: str) -> bool:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            lines = file.read(_LARGEST).splitlines()
    except OSError:
        return False  # it was deleted: that is how it was solved
    return any(line.startswith(_MARKS) for line in lines)


def _existing(spot: WorkingTree, files: Sequence[str]) -> set[str]:
    """Return the files that exist although git does not know them: ignored ones."""
    return {path for path in files if os.path.lexists(os.path.join(spot.folder, path))}  # noqa: PTH118
