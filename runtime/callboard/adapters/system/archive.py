"""Storage of agents' large results and transcripts: files outside the workspace, private to the user.

Refuses to write into a folder of another user.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio.to_thread

from callboard.adapters.system.regular_files import read_regular
from callboard.ports.tool import Folders
from callboard.types.agent_spec import AgentSpec
from callboard.types.errors import StoreFull, WorkspaceUnusable

T = TypeVar("T")

Run = Callable[[Callable[[], None]], Awaitable[None]]

_ENDS = 5
"""Number of first and of last lines of a background command's output in its notification."""
_LINE = 500
_READ = 64 * 1024


class FileArchive:
    """The port `Archive`, for one session."""

    def __init__(
        self,
        workspace: Path,
        data: Path,
        own_state: tuple[Path, ...],
        *,
        run: Run = anyio.to_thread.run_sync,
        skills: tuple[Path, ...] = (),
    ) -> None:
        """Create `data`, the session's own folder, with mode 0700. `run` runs blocking work, and repeats it while the
        disk is full. `skills`: folders that all agents may read. Raises `WorkspaceUnusable`."""
        self._run = run
        self._workspace = workspace
        self._skills = skills
        self._lines: dict[str, int] = {}
        """Number of lines of each file that is appended to here."""
        self._results = data / "tool-results"
        self._transcripts = data / "transcripts"
        self._own_state = own_state
        self._known: dict[tuple[str, str], Folders] = {}
        for folder in (data, self._results, self._transcripts):
            make_private(folder)

    def folders(self, spec: AgentSpec) -> Folders:
        """Return the folders of this agent; its folder for large results exists."""
        key = (spec.name, spec.folder)
        if key not in self._known:
            results = self._results / spec.name
            make_private(results)
            root = Path(spec.folder) if spec.folder else self._workspace
            git = git_folder(self._workspace) if spec.folder else None
            self._known[key] = Folders(root, results, self._transcripts, self._own_state, git, self._skills)
        return self._known[key]

    async def keep(self, path: str, text: str) -> None:
        """Write a file atomically. Raises `StoreFull` if there is no room."""
        await self._run(partial(_write_once, Path(path), text))

    async def append(self, path: str, first: int, lines: Sequence[bytes]) -> None:
        """Add lines to a file. Raises `StoreFull` if there is no room."""
        if path not in self._lines:
            self._lines[path] = await anyio.to_thread.run_sync(_whole_lines, Path(path))
        new = b"".join(lines[max(0, self._lines[path] - first) :])
        if new:
            await self._run(partial(_append, Path(path), new))
        self._lines[path] = max(self._lines[path], first + len(lines))

    async def aside(self, work: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(work)

    async def ends_of(self, path: str) -> str:
        return await anyio.to_thread.run_sync(_ends, Path(path))


def git_folder(workspace: Path) -> Path | None:
    """Return git's own folder of the workspace, which all of its worktrees share; None without a repository."""
    git = workspace / ".git"
    try:
        if git.is_file():  # the workspace is a worktree of the person's
            git = workspace / read_regular(git, 4096).decode().partition("gitdir:")[2].strip()
            git = git / read_regular(git / "commondir", 4096).decode().strip()
        return git.resolve() if git.is_dir() else None
    except (OSError, ValueError):
        return None


def make_private(folder: Path) -> None:
    """Create a private folder of the user, mode 0700. Raises `WorkspaceUnusable` if it cannot be created or trusted."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = folder.stat().st_uid
    except OSError as failed:
        raise WorkspaceUnusable(f"{folder}: cannot be made or read: {failed.strerror}") from failed
    if owner != os.getuid():
        raise WorkspaceUnusable(f"{folder}: belongs to another user; remove it or set XDG_DATA_HOME")


def _write_once(path: Path, text: str) -> None:
    if path.exists():
        return
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(text.encode("utf-8", "replace"))
        part.replace(path)
    except OSError as failed:
        part.unlink(missing_ok=True)
        raise StoreFull(f"{path}: cannot be written ({failed.strerror}): make room, then resume") from failed


def _whole_lines(path: Path) -> int:
    """Return the number of lines of an appended file, after removing a last line that a crash cut off."""
    if not path.exists():
        return 0
    with path.open("r+b") as file:
        lengths = [len(line) for line in file if line.endswith(b"\n")]
        file.truncate(sum(lengths))
    return len(lengths)


def _append(path: Path, data: bytes) -> None:
    """Append all of the data or nothing."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        size = os.lseek(descriptor, 0, os.SEEK_END)
        try:
            written = 0
            while written < len(data):
                written += os.write(descriptor, data[written:])
        except OSError as failed:
            os.ftruncate(descriptor, size)
            raise StoreFull(f"{path}: cannot be written ({failed.strerror}): make room, then resume") from failed
    finally:
        os.close(descriptor)


def _ends(path: Path) -> str:
    """Return the first and last lines of a file, long ones shortened."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(_READ)
            tail = b""
            if size > _READ:
                file.seek(max(_READ, size - _READ))
                tail = file.read()
    except OSError as failed:
        return f"(its output cannot be read: {failed.strerror})"
    lines = (head + tail).decode(errors="replace").splitlines()
    excerpt = lines if len(lines) <= 2 * _ENDS and not tail else [*lines[:_ENDS], "...", *lines[-_ENDS:]]
    return "\n".join(line[:_LINE] for line in excerpt)
