"""What a git repository says of its branches, and of what would be lost; and how a tree that was cut is put back.

Every call goes through the hardened git. A linked worktree is asked by its own folder in git's (`Spot.admin`), never by
the `.git` file in it, which whoever works there could have changed. Refuses what has no repository of its own.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread

from callboard.adapters.git import Git
from callboard.adapters.locks import holders
from callboard.core.context.reminders import shown_name
from callboard.ports.worktrees import Losses
from callboard.words.errors import ToolRefused

LONG = 900.0
"""Seconds that git may take for a checkout of a large repository."""
_FIELDS = {"1": 7, "2": 8, "u": 9, "?": 0, "!": 0}
_UNDER_WAY = {
    "MERGE_HEAD": "a merge",
    "rebase-merge": "a rebase",
    "rebase-apply": "a rebase",
    "CHERRY_PICK_HEAD": "a cherry-pick",
    "REVERT_HEAD": "a revert",
    "BISECT_LOG": "a bisection",
}
_CACHES = frozenset({"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache"})
"""Ignored files in these are made anew by the tools that made them."""
_RUNTIME = ("Callboard", "callboard@localhost")
"""Who commits where the person has set no name."""


class GitFailed(ToolRefused):
    """A git command ended with an error. `code` None: it was ended for its time or its output."""

    def __init__(self, what: str, code: int | None) -> None:
        super().__init__(what)
        self.code = code


@dataclass(frozen=True, slots=True)
class Spot:
    """A working tree: the workspace's (`admin` None), or a linked one with its own folder in git's."""

    folder: Path
    admin: Path | None = None

    @property
    def extra(self) -> Mapping[str, str]:
        if self.admin is None:
            return {}
        return {"GIT_DIR": str(self.admin), "GIT_WORK_TREE": str(self.folder)}


@dataclass(frozen=True, slots=True)
class Status:
    """What `git status` found, paths relative to the tree."""

    changed: tuple[str, ...] = ()
    untracked: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Repository:
    """One repository. `common` is git's own folder of it, `own` that of the workspace's tree (mostly the same)."""

    git: Git
    common: Path
    own: Path

    @property
    def here(self) -> Spot:
        """The workspace."""
        return Spot(self.git.workspace)

    async def ask(
        self, *arguments: str, at: Spot | None = None, given: bytes = b"", extra: Mapping[str, str] | None = None
    ) -> str:
        """What git prints, without its last newline. Raises `GitFailed` with what it says."""
        spot = at or self.here
        variables = {**spot.extra, **(extra or {})}
        try:
            ran = await self.git.run(arguments, spot.folder, LONG, given, variables)
        except OSError as missing:
            raise ToolRefused(f"git cannot be run: {missing}") from missing
        if ran.code != 0:
            raise GitFailed(_failure(arguments[0], ran.code, ran.err.decode(errors="replace")), ran.code)
        return ran.out.decode(errors="surrogateescape").removesuffix("\n")

    async def commit_of(self, name: str, at: Spot | None = None) -> str:
        """The commit that a name stands for; empty for none."""
        if not name or name.startswith("-"):
            return ""
        try:
            return await self.ask("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}", at=at)
        except GitFailed:
            return ""

    async def branch(self, at: Spot | None = None) -> str:
        """The branch that is checked out; empty for none."""
        try:
            return (await self.ask("symbolic-ref", "--quiet", "HEAD", at=at)).removeprefix("refs/heads/")
        except GitFailed:
            return ""

    async def branches(self) -> tuple[str, ...]:
        """The names of all local branches."""
        text = await self.ask("for-each-ref", "--format=%(refname)", "refs/heads/")
        return tuple(line.removeprefix("refs/heads/") for line in text.splitlines())

    async def status(self, at: Spot | None = None, *, ignored: bool = False) -> Status:
        """What is not committed. Files in caches that tools make anew are left out of `ignored`."""
        wanted = ["--porcelain=v2", "-z", "--no-renames", "--untracked-files=all", "--ignore-submodules=none"]
        wanted.append("--ignored=traditional" if ignored else "--ignored=no")
        found: dict[str, list[str]] = {"1": [], "?": [], "!": [], "u": []}
        for entry in (await self.ask("status", *wanted, at=at)).split("\0"):
            kind = entry[:1]
            if kind in _FIELDS:
                found.setdefault(kind, []).append(entry[2:].split(" ", _FIELDS[kind])[-1])
        kept = [one for one in found["!"] if not (_CACHES & set(one.split("/")) or one.endswith(".pyc"))]
        return Status(tuple(found["1"]), tuple(found["?"]), tuple(kept), tuple(found["u"]))

    def under_way(self, admin: Path) -> str:
        """The operation that is not finished in a tree, in words; empty for none."""
        return next((what for mark, what in _UNDER_WAY.items() if (admin / mark).exists()), "")

    async def own_commits(self, branch: str, at: Spot | None = None) -> tuple[str, ...]:
        """`id subject` of each commit of the branch, and of the tree's HEAD, that no other branch and no tag has."""
        tips = {await self.commit_of(f"refs/heads/{branch}"), await self.commit_of("HEAD", at) if at else ""} - {""}
        if not tips:
            return ()
        others = ("--not", f"--exclude={branch}", "--branches", "--remotes", "--tags")
        text = await self.ask("rev-list", "--no-commit-header", "--format=%h %s", *sorted(tips), *others)
        return tuple(shown_name(line) for line in text.splitlines())

    async def losses(self, branch: str, at: Spot) -> Losses:
        """What would be gone with the folder of a worktree."""
        assert at.admin is not None, "a worktree has a folder in git's"
        status = await self.status(at, ignored=True)
        return Losses(
            changed=tuple(sorted((*status.changed, *status.conflicts))),
            untracked=tuple(sorted(status.untracked)),
            ignored=tuple(sorted(status.ignored)),
            commits=await self.own_commits(branch, at),
            under_way=self.under_way(at.admin),
        )

    def admin_of(self, folder: Path) -> Path | None:
        """Git's own folder of the worktree that stands there; None for none."""
        for admin in self._admins():
            if _reads(admin / "gitdir") == str(folder / ".git"):
                return admin
        return None

    async def spot(self, folder: Path) -> Spot | None:
        """The worktree that stands in this folder; None where there is none that git knows."""
        admin = await anyio.to_thread.run_sync(self.admin_of, folder)
        return Spot(folder, admin) if admin is not None and await anyio.Path(folder).is_dir() else None

    async def forget(self, folder: Path, name: str, *, spare: bool = True) -> None:
        """Take a worktree whose folder is gone out of git's books; `spare`: commits of a detached HEAD get a branch.

        Not `git worktree prune`: that forgets the person's own ones as well, on a disk that is not there just now.
        """
        for admin in self._admins():
            gitdir = _reads(admin / "gitdir")
            if gitdir != str(folder / ".git") and (gitdir or not admin.name.startswith(name)):
                continue
            commit = await self.commit_of(_reads(admin / "HEAD")) if spare else ""
            if commit and not await self.ask("for-each-ref", "--count=1", f"--contains={commit}", "refs/heads/"):
                await self.ask("update-ref", f"refs/heads/wt/{name}-{commit[:10]}", commit)
            await anyio.to_thread.run_sync(shutil.rmtree, admin)

    async def drop_branch(self, branch: str) -> bool:
        """Delete a branch all of whose commits stand in other branches too. False: it is needed, and stays.

        To be called with the lock of the repository held: of two branches with the same commits one must stay."""
        tip = await self.commit_of(f"refs/heads/{branch}")
        if not tip:
            return True
        if await self.own_commits(branch) or branch in await self._checked_out():
            return False
        await self.ask("update-ref", "-d", f"refs/heads/{branch}", tip)
        return True

    async def commit_all(self, at: Spot, message: str) -> str:
        """Commit everything in a tree that git does not ignore; the commit."""
        await self.ask("add", "--all", "--", ".", at=at)
        await self.ask("commit", "--quiet", "--no-verify", "--message", message, at=at, extra=await self.author())
        return await self.commit_of("HEAD", at)

    async def author(self) -> dict[str, str]:
        """Variables for a commit: the person's own name, where there is one."""
        try:
            await self.ask("config", "--get", "user.email")
        except GitFailed:
            name, mail = _RUNTIME
            who = ("AUTHOR", "COMMITTER")
            return {f"GIT_{one}_NAME": name for one in who} | {f"GIT_{one}_EMAIL": mail for one in who}
        return {}

    async def free_index(self, at: Spot, since: float) -> None:
        """Remove the lock that a git of ours left when it was killed, `since` then (Unix seconds). Raises `ToolRefused`
        for anybody else's."""
        await anyio.to_thread.run_sync(_free_index, (at.admin or self.own) / "index.lock", since)

    async def put_back(self, at: Spot, commit: str, paths: Sequence[str], rescue: str) -> bool:
        """Make these paths what they are in `commit`, after git was killed while it changed them; whether any was not.

        What stood there is kept as a commit under `refs/callboard/rescued/<rescue>`: nothing is ever thrown away."""
        admin = at.admin or self.own
        there = await anyio.to_thread.run_sync(_files, at.folder, paths)
        extra = {"GIT_INDEX_FILE": str(admin / "callboard-rescue.index")}
        listed = "\0".join(there).encode(errors="surrogateescape")
        await self.ask("read-tree", commit, at=at, extra=extra)
        gone = "\0".join(path for path in paths if path not in there).encode(errors="surrogateescape")
        await self.ask("update-index", "--force-remove", "-z", "--stdin", at=at, extra=extra, given=gone)
        await self.ask("update-index", "--add", "-z", "--stdin", at=at, extra=extra, given=listed)
        tree = await self.ask("write-tree", at=at, extra=extra)
        await anyio.Path(extra["GIT_INDEX_FILE"]).unlink(missing_ok=True)
        if tree == await self.ask("rev-parse", f"{commit}^{{tree}}", at=at):
            return False
        about = ("-p", commit, "-m", f"Found half-done: {rescue}")
        saved = await self.ask("commit-tree", tree, *about, at=at, extra=await self.author())
        await self.ask("update-ref", f"refs/callboard/rescued/{rescue}", saved)
        await self._restore(at, commit, paths)
        return True

    async def _restore(self, at: Spot, commit: str, paths: Sequence[str]) -> None:
        listed = "\0".join(paths).encode(errors="surrogateescape")
        names = "--pathspec-from-file=-", "--pathspec-file-nul"
        literal = {"GIT_LITERAL_PATHSPECS": "1"}
        known = await self.ask("ls-tree", "-r", "-z", "--name-only", commit, at=at)
        old = [path for path in paths if path in set(known.split("\0"))]
        await self.ask("reset", "--quiet", commit, *names, at=at, given=listed, extra=literal)
        for path in set(paths) - set(old):
            await anyio.to_thread.run_sync(_remove_file, at.folder / path)
        if old:
            listed = "\0".join(old).encode(errors="surrogateescape")
            await self.ask("checkout", "--quiet", commit, *names, at=at, given=listed, extra=literal)

    async def _checked_out(self) -> set[str]:
        text = await self.ask("worktree", "list", "--porcelain")
        return {line[18:] for line in text.splitlines() if line.startswith("branch refs/heads/")}

    def _admins(self) -> Iterable[Path]:
        try:
            return sorted(one for one in (self.common / "worktrees").iterdir() if one.is_dir())
        except OSError:
            return ()


async def find_repository(git: Git) -> Repository:
    """The repository whose working tree is the workspace. Raises `ToolRefused` that says what there is instead."""
    workspace = git.workspace
    nobody = Repository(git, workspace / ".git", workspace / ".git")
    try:
        told = await nobody.ask("rev-parse", "--is-bare-repository", "--git-common-dir", "--absolute-git-dir")
    except GitFailed as failed:
        raise ToolRefused(_no_repository(workspace, str(failed))) from failed
    bare, common, own = told.splitlines()
    if bare == "true":
        raise ToolRefused(f"{workspace} is a bare repository: there are no files to work on; clone it and work there")
    found = Repository(git, await anyio.to_thread.run_sync((workspace / common).resolve), Path(own))
    if not await found.commit_of("HEAD"):
        raise ToolRefused("the repository has no commit yet: a worktree needs one to begin from")
    if (workspace / ".gitmodules").exists():
        raise ToolRefused("the repository has submodules, which git does not put into worktrees: work in the workspace")
    return found


def _no_repository(workspace: Path, said: str) -> str:
    """Why git found none in the workspace."""
    if "dubious ownership" in said:
        return f"git does not trust {workspace}, which belongs to another user: see safe.directory in `git help config`"
    above = next((folder for folder in workspace.parents if (folder / ".git").exists()), None)
    if above is not None:
        return f"{workspace} is a folder inside the repository {above}: worktrees need callboard to be started there"
    return f"{workspace} is no git repository: worktrees need one (`git init`, and a first commit)"


def _failure(command: str, code: int | None, said: str) -> str:
    if "No space left on device" in said or "Disk quota exceeded" in said:
        return f"git {command}: the disk is full; make room and try again"
    if code is None:
        return f"git {command} was ended: it took too long or said too much"
    return f"git {command} failed: {' '.join(said.split())[-600:]}"


def _reads(file: Path) -> str:
    try:
        return file.read_text(errors="surrogateescape").strip()
    except OSError:
        return ""


def _free_index(lock: Path, since: float) -> None:
    if not lock.exists():
        return
    if holders(lock) or lock.stat().st_mtime < since - 1:
        raise ToolRefused(f"{lock} is there: another git is at work, or one was cut; a person must see to it")
    lock.unlink(missing_ok=True)


def _files(folder: Path, paths: Sequence[str]) -> list[str]:
    """Those of the paths at which a file or a link stands."""
    found = ((path, os.path.join(folder, path)) for path in paths)  # noqa: PTH118 - many of them
    return [path for path, full in found if os.path.lexists(full) and (os.path.islink(full) or not os.path.isdir(full))]  # noqa: PTH112, PTH114


def _remove_file(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        return
    path.unlink(missing_ok=True)
