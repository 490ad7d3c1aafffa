"""One git repository: its branches, work that could be lost, and the repair of files after an interrupted change.

Every call goes through the hardened git. Git finds a linked worktree by its own folder in git's (`WorkingTree.admin`),
never by the `.git` file in it, which an agent there could have changed. A workspace without its own repository is
refused.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import anyio.to_thread

from callboard.adapters.git.folders import GitFolders, find_folders, is_git_folder
from callboard.adapters.git.git import Git, NoRepository
from callboard.adapters.storage.file_locks import holders
from callboard.adapters.system.regular_files import read_regular
from callboard.core.context.reminders import displayed_name
from callboard.ports.worktrees import Losses
from callboard.types.errors import ToolRefused
from callboard.types.lazy_dataclass import dataclass

LONG = 900.0
"""Most seconds for git's checkout of a large repository."""
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
"""Folders of ignored files that tools create again."""
_RUNTIME = ("Callboard", "callboard@localhost")
"""Name and email of the committer if the user has set none."""


class GitFailed(ToolRefused):
    """A git command failed. `code` None: it was ended after a timeout or too much output."""

    def __init__(self, message: str, code: int | None) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class WorkingTree:
    """Working tree: the workspace's (`admin` None), or a linked one with its own folder in git's."""

    folder: Path
    admin: Path | None = None

    @property
    def extra(self) -> Mapping[str, str]:
        if self.admin is None:
            return {}
        return {"GIT_DIR": str(self.admin), "GIT_WORK_TREE": str(self.folder)}


@dataclass(frozen=True, slots=True)
class GitStatus:
    """Result of `git status`, paths relative to the tree."""

    changed: tuple[str, ...] = ()
    untracked: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Repository:
    """One repository. `common` is git's own folder of it, `own` that of the workspace's tree (usually the same)."""

    git: Git
    common: Path
    own: Path

    @property
    def workspace(self) -> WorkingTree:
        """Return the working tree of the workspace."""
        return WorkingTree(self.git.workspace)

    async def ask(
        self, *arguments: str, at: WorkingTree | None = None, stdin: bytes = b"", extra: Mapping[str, str] | None = None
    ) -> str:
        """Return git's output, without its last newline. Raises `GitFailed` with git's message."""
        working_tree = at or self.workspace
        variables = {**working_tree.extra, **(extra or {})}
        try:
            ran = await self.git.run(arguments, working_tree.folder, timeout=LONG, stdin=stdin, extra=variables)
        except OSError as missing:
            raise ToolRefused(f"git cannot be run: {missing}") from missing
        if ran.code != 0:
            raise GitFailed(_failure(arguments[0], ran.code, ran.err.decode(errors="replace")), ran.code)
        return ran.out.decode(errors="surrogateescape").removesuffix("\n")

    async def commit_of(self, name: str, at: WorkingTree | None = None) -> str:
        """Return the commit of a name; empty if the name has none."""
        if not name or name.startswith("-"):
            return ""
        try:
            return await self.ask("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}", at=at)
        except GitFailed:
            return ""

    async def branch(self, at: WorkingTree | None = None) -> str:
        """Return the checked-out branch; empty for a detached HEAD."""
        try:
            return (await self.ask("symbolic-ref", "--quiet", "HEAD", at=at)).removeprefix("refs/heads/")
        except GitFailed:
            return ""

    async def off_branch(self, at: WorkingTree, branch: str) -> str:
        """Return the reason why a worktree is not on its branch, with the remedy; empty if it is."""
        assert at.admin is not None, "a worktree has a folder in git's"
        on = await self.branch(at)
        if on == branch:
            return ""
        if under_way := self.under_way(at.admin):
            return f"is in the middle of {under_way}: finish or abort that there first"
        tip = await self.commit_of(f"refs/heads/{branch}")
        where = f"has {on} checked out" if on else "is on no branch"
        if not tip:
            remedy = f"git branch -m {on} {branch}" if on else f"git switch -c {branch}"
            return f"{where}, and its branch {branch} is gone: `{remedy}` there"
        head = await self.commit_of("HEAD", at)
        # Without the merge nothing would lead to the commits of a detached HEAD any more.
        also = not on and head and await self.ask("rev-list", "--count", head, f"^{tip}") != "0"
        merging = f", then `git merge {head[:10]}` for the commits that only HEAD has" if also else ""
        return f"{where}, not {branch}: `git switch {branch}` there{merging}"

    def refuse_submodules(self) -> None:
        """Raise `ToolRefused` in a repository with submodules, whose files a new worktree would not have."""
        if (self.git.workspace / ".gitmodules").exists():
            reason = "the repository has submodules, which git does not put into worktrees: work in the workspace"
            raise ToolRefused(reason)

    async def branches(self) -> tuple[str, ...]:
        """Return the names of all local branches."""
        text = await self.ask("for-each-ref", "--format=%(refname)", "refs/heads/")
        return tuple(line.removeprefix("refs/heads/") for line in text.splitlines())

    async def status(self, at: WorkingTree | None = None, *, ignored: bool = False) -> GitStatus:
        """Return the uncommitted changes. Files in caches that tools create again are left out of `ignored`.

        Repositories within the tree are not entered, because git would run programs from their configuration.
        """
        arguments = ["--porcelain=v2", "-z", "--no-renames", "--untracked-files=all", "--ignore-submodules=all"]
        arguments.append("--ignored=traditional" if ignored else "--ignored=no")
        names: dict[str, list[str]] = {"1": [], "?": [], "!": [], "u": []}
        for entry in (await self.ask("status", *arguments, at=at)).split("\0"):
            kind = entry[:1]
            if kind in _FIELDS:
                names.setdefault(kind, []).append(entry[2:].split(" ", _FIELDS[kind])[-1])
        ignored_files = [path for path in names["!"] if not (_CACHES & set(path.split("/")) or path.endswith(".pyc"))]
        return GitStatus(tuple(names["1"]), tuple(names["?"]), tuple(ignored_files), tuple(names["u"]))

    def under_way(self, admin: Path) -> str:
        """Return a description of the unfinished operation in a tree; empty for none."""
        return next((label for mark, label in _UNDER_WAY.items() if (admin / mark).exists()), "")

    async def own_commits(self, branch: str, at: WorkingTree | None = None) -> tuple[str, ...]:
        """Return `id subject` of each commit that only this branch contains.

        The commits are those of the branch, and of the tree's HEAD, that no other branch and no tag contains.
        """
        tips = {await self.commit_of(f"refs/heads/{branch}"), await self.commit_of("HEAD", at) if at else ""} - {""}
        if not tips:
            return ()
        others = ("--not", f"--exclude={branch}", "--branches", "--remotes", "--tags")
        text = await self.ask("rev-list", "--no-commit-header", "--format=%h %s", *sorted(tips), *others)
        return tuple(displayed_name(line) for line in text.splitlines())

    async def losses(self, branch: str, at: WorkingTree) -> Losses:
        """Return the work that removing the folder of a worktree would lose."""
        assert at.admin is not None, "a worktree has a folder in git's"
        status = await self.status(at, ignored=True)
        nested = await self._nested(at)
        return Losses(
            changed=tuple(sorted({*status.changed, *status.conflicts, *nested})),
            untracked=tuple(sorted(status.untracked)),
            ignored=tuple(sorted(status.ignored)),
            commits=await self.own_commits(branch, at),
            under_way=self.under_way(at.admin),
        )

    async def _nested(self, at: WorkingTree) -> list[str]:
        """Return the repositories within a tree that its index names and whose folders are not empty.

        Each counts as a change as a whole, because they are not inspected.
        """
        entries = (await self.ask("ls-files", "--stage", "-z", at=at)).split("\0")
        # `git status` does not enter them here (test_a_repository_within_a_worktree_counts_as_a_change).
        links = [entry.partition("\t")[2] for entry in entries if entry.startswith("160000 ")]
        return await anyio.to_thread.run_sync(_non_empty, at.folder, links)

    def admin_of(self, folder: Path) -> Path | None:
        """Return git's own folder of the worktree at this path; None if git has none."""
        for admin in self._admins():
            if _reads(admin / "gitdir") == str(folder / ".git"):
                return admin
        return None

    async def working_tree(self, folder: Path) -> WorkingTree | None:
        """Return the worktree in this folder; None if git knows no worktree there."""
        admin = await anyio.to_thread.run_sync(self.admin_of, folder)
        return WorkingTree(folder, admin) if admin is not None and await anyio.Path(folder).is_dir() else None

    async def forget(self, folder: Path, name: str, *, spare: bool = True) -> None:
        """Remove a worktree whose folder is gone from git's list. `spare`: commits of a detached HEAD get a branch.

        `git worktree prune` is not used, because it would also remove the user's own worktrees on a disk that is not
        mounted now.
        """
        for admin in self._admins():
            gitdir = _reads(admin / "gitdir")
            if gitdir != str(folder / ".git") and (gitdir or not admin.name.startswith(name)):
                continue
            commit = await self.commit_of(_reads(admin / "HEAD")) if spare else ""
            if commit and not await self.ask("for-each-ref", "--count=1", f"--contains={commit}", "refs/heads/"):
                await self.ask("update-ref", f"refs/heads/wt/{name}-{commit[:10]}", commit)
            await anyio.to_thread.run_sync(_remove_admin, admin)

    async def drop_branch(self, branch: str) -> bool:
        """Delete a branch whose commits are all in other branches too. False: it is needed, and stays.

        Call it with the lock of the repository held, because one of two branches with the same commits must stay.
        """
        tip = await self.commit_of(f"refs/heads/{branch}")
        if not tip:
            return True
        if await self.own_commits(branch) or branch in await self._checked_out():
            return False
        # With the expected commit, so that a branch that has moved since stays.
        await self.ask("update-ref", "-d", f"refs/heads/{branch}", tip)
        return True

    async def commit_all(self, at: WorkingTree, message: str) -> str:
        """Commit everything in a tree that git does not ignore, and return the commit.

        Raises `ToolRefused` for a repository within the tree: a commit would name it, without its files.
        """
        nested = [path for path in (await self.status(at)).untracked if path.endswith("/")]
        if nested:
            named = ", ".join(map(displayed_name, nested[:10]))
            raise ToolRefused(
                f"{named}: a git repository of its own, whose files no commit outside it contains; remove its .git, or "
                "ignore it, in the worktree first"
            )
        await self.ask("add", "--all", "--", ".", at=at)
        await self.ask("commit", "--quiet", "--no-verify", "--message", message, at=at, extra=await self.author())
        return await self.commit_of("HEAD", at)

    async def author(self) -> dict[str, str]:
        """Return variables for a commit, with the user's own name if it is set."""
        settings = await anyio.to_thread.run_sync(self.git.person)
        if settings.get("user.email"):
            return {}
        name, mail = _RUNTIME
        roles = ("AUTHOR", "COMMITTER")
        return {f"GIT_{role}_NAME": name for role in roles} | {f"GIT_{role}_EMAIL": mail for role in roles}

    async def free_index(self, at: WorkingTree, since: float) -> None:
        """Remove the lock that a killed git call of Callboard left after `since` (Unix seconds).

        Raises `ToolRefused` for any other lock.
        """
        await anyio.to_thread.run_sync(_free_index, (at.admin or self.own) / "index.lock", since)

    async def put_back(self, at: WorkingTree, commit: str, paths: Sequence[str], rescue: str) -> bool:
        """Reset these paths to `commit`, after git was killed while it changed them. Return True if any differed.

        The previous content is kept as a commit under `refs/callboard/rescued/<rescue>`: nothing is ever discarded.
        """
        admin = at.admin or self.own
        existing = await anyio.to_thread.run_sync(_files, at.folder, paths)
        # A separate index: the staged files are not touched before everything is saved.
        extra = {"GIT_INDEX_FILE": str(admin / "callboard-rescue.index")}
        listed = "\0".join(existing).encode(errors="surrogateescape")
        await self.ask("read-tree", commit, at=at, extra=extra)
        gone = "\0".join(path for path in paths if path not in existing).encode(errors="surrogateescape")
        await self.ask("update-index", "--force-remove", "-z", "--stdin", at=at, extra=extra, stdin=gone)
        await self.ask("update-index", "--add", "-z", "--stdin", at=at, extra=extra, stdin=listed)
        tree = await self.ask("write-tree", at=at, extra=extra)
        await anyio.Path(extra["GIT_INDEX_FILE"]).unlink(missing_ok=True)
        if tree == await self.ask("rev-parse", f"{commit}^{{tree}}", at=at):
            return False
        about = ("-p", commit, "-m", f"Found half-done: {rescue}")
        saved = await self.ask("commit-tree", tree, *about, at=at, extra=await self.author())
        await self.ask("update-ref", f"refs/callboard/rescued/{rescue}", saved)
        await self._restore(at, commit, paths)
        return True

    async def _restore(self, at: WorkingTree, commit: str, paths: Sequence[str]) -> None:
        listed = "\0".join(paths).encode(errors="surrogateescape")
        names = "--pathspec-from-file=-", "--pathspec-file-nul"
        # Names of files may contain characters that are patterns for git.
        literal = {"GIT_LITERAL_PATHSPECS": "1"}
        listing = await self.ask("ls-tree", "-r", "-z", "--name-only", commit, at=at)
        old = [path for path in paths if path in set(listing.split("\0"))]
        await self.ask("reset", "--quiet", commit, *names, at=at, stdin=listed, extra=literal)
        for path in set(paths) - set(old):
            await anyio.to_thread.run_sync(_remove_file, at.folder / path)
        if old:
            listed = "\0".join(old).encode(errors="surrogateescape")
            await self.ask("checkout", "--quiet", commit, *names, at=at, stdin=listed, extra=literal)

    async def add_worktree(self, folder: Path, *arguments: str) -> None:
        """Run `git worktree add` into a new folder. Call it with the lock of the repository held.

        Git writes the shared folder that it was given, which is Callboard's, into the new `.git`. The checkout follows
        only after the right folder has been written there.
        """
        await anyio.to_thread.run_sync(_make_place, folder, self.common / "worktrees")
        *options, start = arguments
        await self.ask("worktree", "add", "--quiet", "--no-checkout", *options, str(folder), start)
        working_tree = await anyio.to_thread.run_sync(self._bound, folder)
        await self.ask("reset", "--hard", "--quiet", "--no-recurse-submodules", at=working_tree)

    def _bound(self, folder: Path) -> WorkingTree:
        """Write git's true folder into the `.git` of a new worktree."""
        admin = self.admin_of(folder)
        if admin is None:
            raise GitFailed(f"git worktree left no folder for {folder}", None)
        (folder / ".git").write_text(f"gitdir: {admin}\n", encoding="utf-8", errors="surrogateescape")
        return WorkingTree(folder, admin)

    async def _checked_out(self) -> set[str]:
        working_trees = [
            WorkingTree(self.common.parent, self.common),
            *(WorkingTree(self.common.parent, admin) for admin in self._admins()),
        ]
        return {await self.branch(working_tree) for working_tree in working_trees} - {""}

    def _admins(self) -> Iterable[Path]:
        """Return git's folders of the linked worktrees; empty if a link replaced the folder that contains them."""
        folder = self.common / "worktrees"
        try:
            # A command can replace the folder by a link (test_a_folder_of_worktrees_that_is_a_link_is_not_followed).
            return () if folder.is_symlink() else sorted(entry for entry in folder.iterdir() if entry.is_dir())
        except OSError:
            return ()


async def find_repository(git: Git) -> Repository:
    """Return the repository whose working tree is the workspace.

    Raises `ToolRefused` with the reason if there is none.
    """
    workspace = git.workspace
    folders = await anyio.to_thread.run_sync(find_folders, workspace)
    if folders is None:
        raise ToolRefused(_no_repository(workspace))
    repository = Repository(git, folders.common, folders.own)
    try:
        commit = await repository.commit_of("HEAD")
    except NoRepository as error:
        raise ToolRefused(str(error)) from error
    if not commit:
        raise ToolRefused("the repository has no commit yet: a worktree needs one to begin from")
    return repository


def _no_repository(workspace: Path) -> str:
    """Return the reason why the workspace has no repository."""
    if is_git_folder(GitFolders(workspace, workspace)):
        return f"{workspace} is a bare repository: there are no files to work on; clone it and work there"
    above = next((folder for folder in workspace.parents if (folder / ".git").exists()), None)
    if above is not None:
        return f"{workspace} is a folder inside the repository {above}: worktrees need callboard to be started there"
    return f"{workspace} is not a git repository: worktrees need one (`git init`, and a first commit)"


def _failure(command: str, code: int | None, output: str) -> str:
    if "No space left on device" in output or "Disk quota exceeded" in output:
        return f"git {command}: the disk is full; make room and try again"
    if code is None:
        return f"git {command} was ended: it took too long or produced too much output"
    return f"git {command} failed: {' '.join(output.split())[-600:]}"


def _reads(file: Path) -> str:
    try:
        return read_regular(file, 4096).decode(errors="surrogateescape").strip()
    except OSError:
        return ""


def _make_place(folder: Path, worktrees: Path) -> None:
    """Create the folder of a new worktree, and the one in which git keeps its own folder of each worktree."""
    folder.mkdir()
    if not worktrees.is_dir():
        worktrees.mkdir()


def _remove_admin(admin: Path) -> None:
    """Remove git's folder of a worktree without following a link in its place."""
    parent = os.open(admin.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        shutil.rmtree(admin.name, dir_fd=parent)
    finally:
        os.close(parent)


def _free_index(lock: Path, since: float) -> None:
    if not lock.exists():
        return
    # A lock from before this act belongs to another git. One second, because time stamps of files are coarse.
    if holders(lock) or lock.stat().st_mtime < since - 1:
        raise ToolRefused(f"{lock} exists: another git is running, or one was interrupted; a person must check this")
    lock.unlink(missing_ok=True)


def _files(folder: Path, paths: Sequence[str]) -> list[str]:
    """Return the paths at which a file or a link exists."""
    pairs = ((path, os.path.join(folder, path)) for path in paths)  # noqa: PTH118 - many of them
    return [path for path, full in pairs if os.path.lexists(full) and (os.path.islink(full) or not os.path.isdir(full))]  # noqa: PTH112, PTH114 - as many as a merge has files


def _non_empty(folder: Path, names: Sequence[str]) -> list[str]:
    """Return the names of existing files and non-empty folders."""
    places = ((name, folder / name) for name in names)
    return [name for name, path in places if os.path.lexists(path) and not (path.is_dir() and not any(path.iterdir()))]


def _remove_file(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        return
    path.unlink(missing_ok=True)
