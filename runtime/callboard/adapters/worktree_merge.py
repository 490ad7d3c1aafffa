"""How a worktree's branch comes back: merged and tested in a folder of its own, then the workspace moves there at once.

The workspace is touched by one git call, a fast-forward to the tested commit, and only where none of its own changes
is in the way. Where both sides changed the same lines nothing is merged: the conflicts are put into the worktree, where
whoever works there solves them, and the next merge takes that.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import anyio
import anyio.to_thread

from callboard.adapters.archive import make_private
from callboard.adapters.repository import GitFailed, Repository, Spot
from callboard.adapters.worktree_yard import Yard, is_ancestor
from callboard.core.context.reminders import shown_name
from callboard.core.permission.paths import is_secret
from callboard.core.team.worktrees import Worktree
from callboard.ports.worktrees import Check, MergeEnd, Who
from callboard.words.errors import ToolRefused
from callboard.words.worktrees import WorktreeNoted

_MARKS = (b"<<<<<<< ", b">>>>>>> ")
_LARGEST = 5_000_000
"""Bytes of a file that is looked through for marks of conflicts."""


@dataclass(frozen=True, slots=True)
class Merge:
    """One merge, while the lock of its worktree is held."""

    yard: Yard
    repo: Repository
    tree: Worktree
    who: Who

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
        await self.yard.note(intent)
        try:
            end = await self._through(intent, spot, check)
        except BaseException:
            await self._over()
            raise
        return MergeEnd(end.how, onto, end.commit, end.files, end.output, end.dirty, saved)

    async def _through(self, intent: WorktreeNoted, spot: Spot, check: Check | None) -> MergeEnd:
        """From the merge in a folder of its own to the workspace."""
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
        with anyio.CancelScope(shield=True):
            await self._forward(intent.model_copy(update={"commit": commit}), files)
        return MergeEnd("merged", intent.onto, commit, files, dirty=dirty)

    # Before

    async def _branch(self) -> str:
        """The branch of the workspace. Raises `ToolRefused` where there is none that could move."""
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

    async def _spot(self) -> Spot:
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

    async def _save(self, spot: Spot) -> tuple[str, ...]:
        """Commit what is not committed in the worktree, a merge under way included: nothing of it is left behind."""
        assert spot.admin is not None, "a worktree has a folder in git's"
        under_way = self.repo.under_way(spot.admin)
        if under_way not in ("", "a merge"):
            raise ToolRefused(f"{self.tree.name} is in the middle of {under_way}: finish or abort that there first")
        status = await self.repo.status(spot)
        files = tuple(sorted({*status.changed, *status.untracked, *status.conflicts}))
        if secrets := [one for one in status.untracked if is_secret(one.split("/"))]:
            shown = ", ".join(map(shown_name, secrets[:10]))
            raise ToolRefused(
                f"{shown}: may hold secrets, and would be committed; remove or ignore them in the worktree first"
            )
        marked = await anyio.to_thread.run_sync(_marked, spot, status.conflicts)
        if marked:
            shown = ", ".join(map(shown_name, marked[:10]))
            raise ToolRefused(
                f"conflicts are not solved yet in {self.tree.name}: {shown} still have <<<<<<< and >>>>>>> marks"
            )
        if files or under_way:
            commit = await self.repo.commit_all(spot, f"Work in {self.tree.branch}\n\n{self.who.why}".strip())
            await self.yard.note(self._note("saved", tip=commit))
        return files

    # The merge in a folder of its own

    async def _place(self, base: str) -> Spot:
        folder = self.yard.merging(self.tree.name)
        await anyio.to_thread.run_sync(make_private, folder.parent)
        await self.yard.drop_merging(self.repo, self.tree.name)
        async with self.yard.books(self.repo):
            await self.repo.ask("worktree", "add", "--quiet", "--detach", str(folder), base)
        spot = await self.repo.spot(folder)
        assert spot is not None, "git has just made it"
        return spot

    async def _combined(self, place: Spot, intent: WorktreeNoted) -> tuple[str, ...]:
        """Merge there; the files in conflict."""
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

    async def _join(self, spot: Spot, intent: WorktreeNoted) -> None:
        """Put the conflicts into the worktree: the base is merged into it, and left there to be solved."""
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
        return tuple(one for one in text.split("\0") if one)

    async def _refuse_filtered(self, place: Spot, files: Sequence[str]) -> None:
        """Raises `ToolRefused` for files that a filter of the repository would have to write: none is ever run here."""
        given = "\0".join(files).encode(errors="surrogateescape")
        told = (await self.repo.ask("check-attr", "-z", "--stdin", "filter", at=place, given=given)).split("\0")
        filtered = [told[at] for at in range(0, len(told) - 2, 3) if told[at + 2] not in ("unspecified", "unset")]
        if filtered:
            shown = ", ".join(map(shown_name, filtered[:10]))
            raise ToolRefused(
                f"{shown}: goes through a filter of the repository (.gitattributes), which the runtime does not run. "
                f"Ask the person to merge by hand: git merge {self.tree.branch}"
            )

    async def _dirty(self, files: Sequence[str]) -> tuple[str, ...]:
        """Uncommitted changes of the workspace. Raises `ToolRefused` where one of them is in the way."""
        status = await self.repo.status()
        dirty = {*status.changed, *status.untracked, *status.conflicts}
        known = set((await self.repo.ask("ls-files", "-z")).split("\0"))
        there = await anyio.to_thread.run_sync(_existing, self.repo.here, [one for one in files if one not in known])
        if clash := sorted((dirty & set(files)) | there):
            shown = ", ".join(map(shown_name, clash[:10])) + (f" and {len(clash) - 10} more" if len(clash) > 10 else "")
            raise ToolRefused(
                f"the workspace has changes of its own that the merge would overwrite: {shown}. Commit or move them "
                "first (or ask the person to); nothing was merged"
            )
        return tuple(sorted(dirty))

    async def _forward(self, intent: WorktreeNoted, files: Sequence[str]) -> None:
        """The one change of the workspace: its branch and its files go to the tested commit, or nothing does."""
        async with self.yard.books(self.repo):
            onto = await self.repo.branch()
            if onto != intent.onto or await self.repo.commit_of(f"refs/heads/{onto}") != intent.base:
                raise ToolRefused(f"{intent.onto} has moved while the merge was made and tested: merge again")
            await self._dirty(files)
            await self.yard.note(intent)
            await self.repo.ask("merge", "--ff-only", "--quiet", "--no-overwrite-ignore", intent.commit)
        await self.yard.drop_merging(self.repo, self.tree.name)
        await self.yard.note(intent.model_copy(update={"act": "merged", "at": self.yard.clock.now()}))

    # The record

    async def _over(self) -> None:
        """It came to nothing: its folder goes, and the record says so."""
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
        who = {"by": self.who.name, "session": self.who.session, "call": self.who.call, "why": self.who.why}
        about = {"at": self.yard.clock.now(), "act": act, "name": self.tree.name, "branch": self.tree.branch}
        return WorktreeNoted.model_validate({**about, **who, **fields})


def _marked(spot: Spot, conflicts: Sequence[str]) -> list[str]:
    """The files that still hold marks of a conflict."""
    return [one for one in conflicts if _has_marks(os.path.join(spot.folder, one))]  # noqa: PTH118 - names of git's


def _has_marks(path: str) -> bool:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            lines = file.read(_LARGEST).splitlines()
    except OSError:
        return False  # it was deleted: that is how it was solved
    return any(line.startswith(_MARKS) for line in lines)


def _existing(spot: Spot, files: Sequence[str]) -> set[str]:
    """Those of the files at which something stands, though git does not know them: ignored ones."""
    return {one for one in files if os.path.lexists(os.path.join(spot.folder, one))}  # noqa: PTH118
