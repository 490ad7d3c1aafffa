"""Checkpoints: the files of a working tree as a commit on a branch of the session, and back into a clone.

A checkpoint touches nothing of the user's: neither HEAD, nor the index, the stash, a branch, or a configuration. It has
its own index, its reference is outside of `refs/heads`, and no hook, filter, or signing program runs.

Files that differ from HEAD are stored byte for byte, without conversion of line ends and without filters, and written
back in the same way. All others are those of HEAD, checked out as git does. Files are copied before git reads them, and
opened without following links, so that a link that an agent puts in their place leads nowhere.

The parents of a checkpoint are the one before and HEAD. So a push needs no force, and also takes along commits that
nobody has pushed.

A host without the workspace fetches the checkpoints of a session into a clone. A clone that is used again gets the
files of the new checkpoint; its own changes are first kept as a commit under `refs/callboard/rescued/`. Nothing is ever
discarded.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from pathlib import Path

import anyio
import anyio.to_thread

from callboard.adapters.git.git import Git, branch_of_head
from callboard.adapters.git.record import is_ancestor
from callboard.adapters.git.repository import Repository, WorkingTree
from callboard.adapters.system.archive import make_private
from callboard.adapters.system.regular_files import make_folders, open_beneath, remove_beneath
from callboard.core.checkpoints.rules import (
    LARGEST,
    CheckpointCommit,
    PushEnd,
    commit_message,
    local_ref,
    push_end,
    read_commit,
    session_branches,
)
from callboard.types.errors import ToolRefused, heart_of
from callboard.types.lazy_dataclass import dataclass

PUSH_SECONDS = 300.0
"""Most seconds for a push or a fetch."""
_NONE = "000000"
_LINK = "120000"
_PROGRAM = "100755"
_FILE = "100644"
_BATCH = 60_000_000
"""Most bytes of files that are written at once; git's output has a limit."""
_BLOCK = 1 << 20
_FIELDS = {"1": 7, "u": 9, "?": 0}
"""Fields between the kind of an entry of `git status --porcelain=v2` and its path."""
_FILTERED = "goes through a filter of the repository (git-lfs), which does not run here"
_RECENT = 100_000_000
"""Nanoseconds within which two changes of a file may have the same time. File systems count in steps of about 4 ms."""
_FETCHED = "refs/callboard/remote"
_ORIGIN = "refs/remotes/origin"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Files of a working tree, as an object of git's, and its HEAD at that moment."""

    tree: str
    head: str
    """Checked-out commit; empty before the first one."""
    branch: str
    """Checked-out branch; empty: none is."""
    left_out: tuple[str, ...] = ()
    """Files that are not in it although git does not ignore them, each with the reason."""
    ignored: tuple[str, ...] = ()
    stamps: tuple[object, ...] = field(default=(), repr=False, compare=False)
    """Times and sizes of its files; empty if they do not show every later change."""


@dataclass(frozen=True, slots=True)
class _Status:
    """HEAD of a working tree, and what differs from it."""

    head: str
    branch: str
    paths: tuple[str, ...]
    ignored: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Copied:
    """One path that differs from HEAD. `mode` empty: there is no file any more."""

    path: str
    mode: str = ""
    reason: str = ""
    """Reason why it is left out; empty: it is not."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """One path in which a checkpoint differs from its HEAD. `name`: that of the object."""

    mode: str
    name: str
    path: str


@dataclass(frozen=True, slots=True)
class _Changes:
    """Differences between a checkpoint and its HEAD."""

    gone: tuple[str, ...] = ()
    batches: tuple[Sequence[_Entry], ...] = ()
    """Files to write, in groups of limited size."""


def repository_at(workspace: Path, git: Git) -> Repository:
    """Return the repository of a workspace, which may have no commit yet and may have submodules.

    Raises `NoRepository`.
    """
    folders = git.folders(workspace)
    return Repository(git, folders.common, folders.own)


async def take_snapshot(
    repo: Repository, at: WorkingTree, *, largest: int = LARGEST, last: Snapshot | None = None
) -> Snapshot:
    """Store the files of a working tree as objects of its repository. Raises `ToolRefused`.

    `last`: the snapshot before, which is returned if git and the file system show no change since.
    """
    began = time.time_ns()
    status = await _status(repo, at)
    stamps = await anyio.to_thread.run_sync(_stamps, at.folder, status, began)
    if last is not None and stamps and last.stamps == stamps:
        return last
    filtered = await _filtered(repo, at, status.paths)
    left_out = [f"{path}: {_FILTERED}" for path in filtered]
    left_out += await _submodules(repo, at)
    if under_way := repo.under_way(at.admin or repo.own):
        left_out.append(f"{under_way} that is not finished: only its files are saved")
    part = (at.admin or repo.own) / "callboard-checkpoint"
    await anyio.to_thread.run_sync(_fresh, part)
    try:
        candidates = [path for path in status.paths if path not in filtered]
        copied = await anyio.to_thread.run_sync(_copy, at.folder, candidates, part, largest)
        tree = await _write_tree(repo, at, copied, head=status.head, part=part)
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(lambda: shutil.rmtree(part, ignore_errors=True))
    left_out += [f"{entry.path}: {entry.reason}" for entry in copied if entry.reason]
    return Snapshot(tree, status.head, status.branch, tuple(left_out), status.ignored, stamps)


async def _status(repo: Repository, at: WorkingTree) -> _Status:
    """Return HEAD, and the paths that differ from it or that git ignores, with one call of git."""
    untracked = ("--untracked-files=all", "--ignored=matching", "--ignore-submodules=all")
    text = await repo.ask("status", "--porcelain=v2", "--branch", "-z", "--no-renames", *untracked, at=at)
    paths: list[str] = []
    ignored: list[str] = []
    headers: dict[str, str] = {}
    for entry in text.split("\0"):
        kind, _, fields = entry.partition(" ")
        if kind == "#":
            name, _, headers[name] = fields.partition(" ")
        elif kind == "!":
            ignored.append(fields)
        elif kind in _FIELDS:
            paths.append(fields.split(" ", _FIELDS[kind])[-1])
    head = headers.get("branch.oid", "")
    branch = headers.get("branch.head", "")
    return _Status(
        "" if head == "(initial)" else head,
        "" if branch == "(detached)" else branch,
        tuple(sorted(set(paths))),
        tuple(ignored),
    )


def _stamps(folder: Path, status: _Status, now: int) -> tuple[object, ...]:
    """Return all by which a change of the files shows; empty if one was changed too recently for that."""
    stamps: list[object] = [status]
    for path in status.paths:
        try:
            entry = os.lstat(os.path.join(folder, path))  # noqa: PTH118 - many of them
        except OSError:
            stamps.append(None)
            continue
        if entry.st_ctime_ns > now - _RECENT:
            return ()
        stamps.append((entry.st_mode, entry.st_size, entry.st_ino, entry.st_ctime_ns))
    return tuple(stamps)


async def _write_tree(repo: Repository, at: WorkingTree, copied: Sequence[_Copied], *, head: str, part: Path) -> str:
    extra = {"GIT_INDEX_FILE": str(part / "index")}
    files = [str(part / str(number)) for number, entry in enumerate(copied) if entry.mode]
    text = "\n".join(files)
    objects = (
        (await repo.ask("hash-object", "-w", "--no-filters", "--stdin-paths", at=at, stdin=text.encode())).split()
        if files
        else []
    )
    await repo.ask("read-tree", *([head] if head else ["--empty"]), at=at, extra=extra)
    # First what is gone: a folder may stand where a file was.
    lines = [f"{_gone(head)}\t{entry.path}" for entry in copied if not entry.mode and not entry.reason]
    present = (entry for entry in copied if entry.mode)
    lines += [f"{entry.mode} {name}\t{entry.path}" for entry, name in zip(present, objects, strict=True)]
    if lines:
        stdin = "".join(f"{line}\0" for line in lines).encode(errors="surrogateescape")
        await repo.ask("update-index", "--replace", "-z", "--index-info", at=at, extra=extra, stdin=stdin)
    return await repo.ask("write-tree", at=at, extra=extra)


def _gone(head: str) -> str:
    """Return the entry of a path that is gone. Names of objects have 64 digits in a repository with SHA-256."""
    return "0 " + "0" * (len(head) or 40)


async def _filtered(repo: Repository, at: WorkingTree, paths: Sequence[str]) -> set[str]:
    """Return the paths whose content git would get from a program, such as git-lfs."""
    if not paths:
        return set()
    stdin = "\0".join(paths).encode(errors="surrogateescape")
    fields = (await repo.ask("check-attr", "-z", "--stdin", "filter", at=at, stdin=stdin)).split("\0")
    triples = zip(fields[::3], fields[2::3], strict=False)
    return {path for path, value in triples if value not in ("unspecified", "unset")}


async def _submodules(repo: Repository, at: WorkingTree) -> list[str]:
    if not await anyio.Path(at.folder / ".gitmodules").exists():
        return []
    entries = (await repo.ask("ls-files", "--stage", "-z", at=at)).split("\0")
    names = [entry.partition("\t")[2] for entry in entries if entry.startswith("160000 ")]
    return [f"{name}: a submodule, whose changes stay where they are" for name in names]


def _fresh(part: Path) -> None:
    """Create the folder of a checkpoint, without the rest of one that was killed."""
    shutil.rmtree(part, ignore_errors=True)
    make_private(part)


def _copy(folder: Path, paths: Sequence[str], part: Path, largest: int) -> list[_Copied]:
    root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return [_copy_one(root, path, part / str(number), largest) for number, path in enumerate(paths)]
    finally:
        os.close(root)


def _copy_one(root: int, path: str, copy: Path, largest: int) -> _Copied:
    """Copy one file or link of an open folder, without following a link."""
    if path.endswith("/"):
        return _Copied(path, reason="a git repository of its own")
    inner, _, name = path.rpartition("/")
    try:
        parent = open_beneath(root, inner or ".", os.O_RDONLY | os.O_DIRECTORY, links=False)
    except OSError as error:
        return _missing(path, error)
    try:
        return replace(_copy_from(parent, name, copy, largest), path=path)
    except OSError as error:
        return _missing(path, error)
    finally:
        os.close(parent)


def _copy_from(parent: int, name: str, copy: Path, largest: int) -> _Copied:
    kind = os.stat(name, dir_fd=parent, follow_symlinks=False)
    if stat.S_ISLNK(kind.st_mode):
        copy.write_bytes(os.fsencode(os.readlink(name, dir_fd=parent)))
        return _Copied(name, _LINK)
    if not stat.S_ISREG(kind.st_mode):
        return _Copied(name, reason="neither a file nor a link")
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
    with open(descriptor, "rb") as source, copy.open("xb") as target:  # noqa: PTH123 - there is a descriptor, no path
        size = 0
        while data := source.read(_BLOCK):
            size += len(data)
            if size > largest:
                return _Copied(name, reason=f"larger than {largest:,} bytes")
            target.write(data)
        executable = os.fstat(source.fileno()).st_mode & stat.S_IXUSR
    return _Copied(name, _PROGRAM if executable else _FILE)


def _missing(path: str, error: OSError) -> _Copied:
    """Return a path without a file: it is gone, or it cannot be read."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV):
        return _Copied(path)
    return _Copied(path, reason=f"cannot be read ({error.strerror})")


async def commit_snapshot(
    repo: Repository, at: WorkingTree, snapshot: Snapshot, *, session: str, tree: str, previous: str
) -> str:
    """Commit a snapshot after the previous checkpoint, and return the commit: the previous one if nothing changed.

    `tree`: the worktree; empty: the workspace. `previous` empty: it is the first one.
    """
    parents = [previous] if previous else []
    before = await facts_of(repo, previous) if previous else CheckpointCommit("")
    if before == CheckpointCommit(snapshot.tree, snapshot.head, snapshot.branch):
        return previous
    included = previous and (snapshot.head == before.head or await is_ancestor(repo, snapshot.head, previous))
    if snapshot.head and not included:
        parents.append(snapshot.head)
    message = commit_message(session, tree, head=snapshot.head, branch=snapshot.branch, left_out=snapshot.left_out)
    commit = await commit_files(repo, at, snapshot, message=message, parents=parents)
    # It is no branch of the person, and keeps the objects from being collected.
    await repo.ask("update-ref", local_ref(session, tree), commit)
    return commit


async def commit_files(
    repo: Repository, at: WorkingTree, snapshot: Snapshot, *, message: str, parents: Sequence[str] | None = None
) -> str:
    """Commit the files of a snapshot, and return the commit. `parents` None: HEAD."""
    named = parents if parents is not None else [snapshot.head] if snapshot.head else []
    options = [text for parent in named for text in ("-p", parent)]
    stdin = message.encode("utf-8", "replace")
    author = await repo.author()
    return await repo.ask("commit-tree", snapshot.tree, *options, "-F", "-", at=at, stdin=stdin, extra=author)


async def facts_of(repo: Repository, commit: str) -> CheckpointCommit:
    """Return the facts that the commit of a checkpoint states. Raises `ToolRefused`."""
    return read_commit(await repo.ask("cat-file", "commit", commit))


async def changed_files(repo: Repository, before: str, after: str) -> tuple[str, ...]:
    """Return the names of the files that differ between two commits. `before` empty: all files of the other one."""
    if before:
        text = await repo.ask("diff", "--name-only", "-z", "--no-renames", before, after)
    else:
        text = await repo.ask("ls-tree", "-r", "-z", "--name-only", after)
    return tuple(path for path in text.split("\0") if path)


async def push(repo: Repository, url: str, commit: str, branch: str) -> PushEnd:
    """Push a checkpoint to its branch. A branch with other commits is never overwritten."""
    switches = ("--porcelain", "--no-verify", "--no-follow-tags", "--no-signed", "--recurse-submodules=no")
    try:
        ran = await repo.git.online(
            ("push", *switches, "--", url, f"{commit}:refs/heads/{branch}"), timeout=PUSH_SECONDS
        )
    except OSError as error:
        return PushEnd("unreachable", f"git cannot be run: {error}")
    return push_end(ran.code, (ran.out + b"\n" + ran.err).decode(errors="replace"), branch)


async def make_clone(git: Git, url: str) -> bool:
    """Make an empty repository in git's folder, unless there is one. Nothing is fetched yet.

    Return True if the repository is new. Raises `ToolRefused`.
    """
    folder = git.workspace
    await anyio.to_thread.run_sync(make_private, folder)
    if await anyio.Path(folder / ".git").exists():
        return False
    try:
        ran = await git.begin()
    except OSError as error:
        raise ToolRefused(f"git cannot be run: {error}") from error
    if ran.code != 0:
        raise ToolRefused(f"git init failed in {folder}: {' '.join(ran.err.decode(errors='replace').split())[-300:]}")
    quoted = url.replace("\\", "\\\\").replace('"', '\\"')
    text = f'[remote "origin"]\n\turl = "{quoted}"\n\tfetch = +refs/heads/*:refs/remotes/origin/*\n'
    async with await anyio.open_file(folder / ".git" / "config", "a", encoding="utf-8") as file:
        await file.write(text)
    return True


async def fetch(repo: Repository, url: str, *refspecs: str) -> PushEnd:
    """Fetch references from an address."""
    switches = ("--quiet", "--no-write-fetch-head", "--no-recurse-submodules", "--no-auto-maintenance")
    try:
        ran = await repo.git.online(("fetch", *switches, "--", url, *refspecs), timeout=PUSH_SECONDS)
    except OSError as error:
        return PushEnd("unreachable", f"git cannot be run: {error}")
    return push_end(ran.code, ran.err.decode(errors="replace"), "")


async def check_out(repo: Repository, at: WorkingTree, head: str, branch: str) -> None:
    """Make HEAD and the files those of a commit. `head` empty: an unborn branch. Call it only in Callboard's clones."""
    if branch and branch_of_head(at.admin or repo.own) != branch:
        await repo.ask("symbolic-ref", "HEAD", f"refs/heads/{branch}", at=at)
    if head and not branch:
        await repo.ask("update-ref", "--no-deref", "HEAD", head, at=at)
    if head:
        await repo.ask("reset", "--hard", "--quiet", "--no-recurse-submodules", head, at=at)


async def _changes(repo: Repository, head: str, commit: str) -> _Changes:
    """Return what differs between a checkpoint and its HEAD."""
    tree = f"{head}^{{tree}}" if head else await repo.ask("hash-object", "-t", "tree", "-w", "--stdin")
    text = await repo.ask("diff-tree", "-r", "-z", "--no-renames", "--raw", tree, f"{commit}^{{tree}}")
    fields = text.split("\0")
    pairs = zip(fields[::2], fields[1::2], strict=False)
    entries = [_Entry(meta.split(" ")[1], meta.split(" ")[3], path) for meta, path in pairs]
    gone = tuple(entry.path for entry in entries if entry.mode == _NONE)
    written = [entry for entry in entries if entry.mode in (_LINK, _PROGRAM, _FILE)]
    names = "\n".join(entry.name for entry in written).encode()
    sizes = (await repo.ask("cat-file", "--batch-check=%(objectsize)", stdin=names)).split() if written else []
    return _Changes(gone, tuple(_batches(written, [int(size) for size in sizes])))


def _batches(entries: Sequence[_Entry], sizes: Sequence[int]) -> Iterator[list[_Entry]]:
    """Yield the entries in groups whose content fits into git's output."""
    batch: list[_Entry] = []
    total = 0
    for entry, size in zip(entries, sizes, strict=True):
        if batch and total + size > _BATCH:
            yield batch
            batch = []
            total = 0
        batch.append(entry)
        total += size
    if batch:
        yield batch


async def _lay_out(repo: Repository, at: WorkingTree, changes: _Changes) -> None:
    """Write the files in which a checkpoint differs from its HEAD, whose files are there, byte for byte."""
    # First what is gone: a folder may stand where a file was.
    await anyio.to_thread.run_sync(remove_files, at.folder, changes.gone)
    for batch in changes.batches:
        await _write_files(repo, at, batch)


async def _write_files(repo: Repository, at: WorkingTree, entries: Sequence[_Entry]) -> None:
    names = "\n".join(entry.name for entry in entries).encode()
    ran = await repo.git.run(("cat-file", "--batch"), at.folder, timeout=PUSH_SECONDS, stdin=names, extra=at.extra)
    if ran.code != 0:
        raise ToolRefused(f"git cat-file failed: {' '.join(ran.err.decode(errors='replace').split())[-300:]}")
    await anyio.to_thread.run_sync(_write_all, at.folder, entries, ran.out)


def _write_all(folder: Path, entries: Sequence[_Entry], output: bytes) -> None:
    root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    at = 0
    try:
        for entry in entries:
            end = output.index(b"\n", at)
            size = int(output[at:end].split()[-1])
            _write_one(root, entry, output[end + 1 : end + 1 + size])
            at = end + 1 + size + 1
    finally:
        os.close(root)


def _write_one(root: int, entry: _Entry, content: bytes) -> None:
    """Write one file or link of an open folder. No link is followed."""
    inner, _, name = entry.path.rpartition("/")
    parent = make_folders(root, inner)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=parent)
        if entry.mode == _LINK:
            os.symlink(content, os.fsencode(name), dir_fd=parent)
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, 0o777 if entry.mode == _PROGRAM else 0o666, dir_fd=parent)
        with open(descriptor, "wb") as file:  # noqa: PTH123 - there is a descriptor and no path
            file.write(content)
    finally:
        os.close(parent)


def remove_files(folder: Path, paths: Sequence[str]) -> None:
    """Remove files of a folder, and the folders that become empty. No link is followed. Blocks."""
    root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for path in paths:
            remove_beneath(root, path)
    finally:
        os.close(root)


# Clones


async def fetch_session(git: Git, url: str, session: str, base: str) -> Repository:
    """Fetch the checkpoints of a session, and the base, into the clone in git's folder; make the clone if needed.

    A session without a checkpoint on the remote needs only the base. Raises `ToolRefused` with the reason.
    """
    await make_clone(git, url)
    repo = repository_at(git.workspace, git)
    checkpoints = f"+refs/heads/{session_branches(session)}/*:{_FETCHED}/*"
    end = await fetch(repo, url, checkpoints, *([f"+refs/heads/{base}:{_ORIGIN}/{base}"] if base else []))
    if end.problem and base:  # the base may be gone, which a checkpoint does not need
        only = await fetch(repo, url, checkpoints)
        if not only.problem and await repo.ask("for-each-ref", "--count=1", _FETCHED):
            return repo
    if end.problem:
        raise ToolRefused(end.text)
    return repo


async def base_of(repo: Repository, url: str, base: str) -> tuple[str, str]:
    """Return commit and branch with which a clone begins without a checkpoint. Raises `ToolRefused`.

    The commit is empty if the remote is.
    """
    if base:
        return await repo.commit_of(f"{_ORIGIN}/{base}"), base
    branch = await default_branch(repo, url)
    if not branch:
        return "", "main"
    end = await fetch(repo, url, f"+refs/heads/{branch}:{_ORIGIN}/{branch}")
    if end.problem:
        raise ToolRefused(end.text)
    return await repo.commit_of(f"{_ORIGIN}/{branch}"), branch


async def default_branch(repo: Repository, url: str) -> str:
    """Return the remote's default branch; empty if the remote has no commit."""
    try:
        ran = await repo.git.online(("ls-remote", "--symref", "--", url, "HEAD"), timeout=60)
    except OSError as error:
        raise ToolRefused(f"git cannot be run: {error}") from error
    lines = ran.out.decode(errors="replace").splitlines()
    names = [
        line.split("\t")[0].removeprefix("ref: refs/heads/") for line in lines if line.startswith("ref: refs/heads/")
    ]
    return names[0] if names and ran.code == 0 else ""


async def bring_to_base(repo: Repository, at: WorkingTree, head: str, branch: str) -> None:
    """Bring the files of a clone to a commit without a checkpoint. Raises `ToolRefused`."""
    await _clear(repo, at)
    await check_out(repo, at, head, branch)


async def bring_to(repo: Repository, at: WorkingTree, commit: str, *, session: str, tree: str) -> CheckpointCommit:
    """Bring the files of a working tree of a clone to a checkpoint, and return the facts of its commit.

    Raises `ToolRefused`.
    """
    facts = await facts_of(repo, commit)
    await _clear(repo, at)
    changes = _Changes()
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(check_out, repo, at, facts.head, facts.branch)
            group.start_soon(repo.ask, "update-ref", local_ref(session, tree), commit)
            changes = await _changes(repo, facts.head, commit)
    except BaseExceptionGroup as failed:
        raise heart_of(failed) from failed
    await _lay_out(repo, at, changes)
    return facts


def _is_empty(folder: Path) -> bool:
    return all(entry.name == ".git" for entry in folder.iterdir())


async def _clear(repo: Repository, at: WorkingTree) -> None:
    """Keep the changes in a used clone as a commit, and remove the files that HEAD does not have.

    Files that a commit cannot keep stay, and so do ignored ones.
    """
    if await anyio.to_thread.run_sync(_is_empty, at.folder):
        return
    status = await repo.status(at)
    if not (status.changed or status.untracked or status.conflicts):
        return
    snapshot = await take_snapshot(repo, at)
    commit = await commit_files(repo, at, snapshot, message="Found in a clone that a session left\n")
    await repo.ask("update-ref", f"refs/callboard/rescued/{commit[:10]}", commit)
    saved = set(await changed_files(repo, snapshot.head, commit))
    new = [path for path in status.untracked if path in saved]
    await anyio.to_thread.run_sync(remove_files, at.folder, new)
