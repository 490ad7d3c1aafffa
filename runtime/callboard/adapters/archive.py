"""Where agents' large results and transcripts are kept: files outside the workspace, private to the user.

Refuses to write into a folder that somebody else owns.
"""

from __future__ import annotations

import os
from pathlib import Path

import anyio.to_thread

from callboard.ports.tool import Folders
from callboard.words.errors import StoreFull, WorkspaceUnusable
from callboard.words.specs import AgentSpec

_ENDS = 5
"""First and last lines of a background command's output that stand in its notification."""
_LINE = 500
_READ = 64 * 1024


class FileArchive:
    """The port `Archive`, for one session."""

    def __init__(self, workspace: Path, data: Path, own_state: tuple[Path, ...]) -> None:
        """`data` is the session's own folder, made here with mode 0700. Raises `WorkspaceUnusable`."""
        self._workspace = workspace
        self._results = data / "tool-results"
        self._transcripts = data / "transcripts"
        self._own_state = own_state
        self._known: dict[tuple[str, str], Folders] = {}
        for folder in (data, self._results, self._transcripts):
            make_private(folder)

    def folders(self, spec: AgentSpec) -> Folders:
        """The folders of this agent; its own for large results exists."""
        key = (spec.name, spec.folder)
        if key not in self._known:
            results = self._results / spec.name
            make_private(results)
            root = Path(spec.folder) if spec.folder else self._workspace
            git = git_folder(self._workspace) if spec.folder else None
            self._known[key] = Folders(root, results, self._transcripts, self._own_state, git)
        return self._known[key]

    async def keep(self, path: str, text: str) -> None:
        """Write a file whole or not at all. Raises `StoreFull` when there is no room."""
        await anyio.to_thread.run_sync(_write_once, Path(path), text)

    async def ends_of(self, path: str) -> str:
        return await anyio.to_thread.run_sync(_ends, Path(path))


def git_folder(workspace: Path) -> Path | None:
    """Git's own folder of the workspace, which all of its worktrees share; None without a repository."""
    git = workspace / ".git"
    try:
        if git.is_file():  # the workspace is a worktree of the person's
            git = workspace / git.read_text(encoding="utf-8").partition("gitdir:")[2].strip()
            git = git / (git / "commondir").read_text(encoding="utf-8").strip()
        return git.resolve() if git.is_dir() else None
    except (OSError, ValueError):
        return None


def make_private(folder: Path) -> None:
    """Make a folder of the user's own, mode 0700. Raises `WorkspaceUnusable` for one that cannot be made or trusted."""
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


def _ends(path: Path) -> str:
    """The first and last lines of a file, long ones cut."""
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
    shown = lines if len(lines) <= 2 * _ENDS and not tail else [*lines[:_ENDS], "...", *lines[-_ENDS:]]
    return "\n".join(line[:_LINE] for line in shown)
