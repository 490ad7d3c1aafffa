"""Bounds of file tools: the agent's folder, and for reading also its own large results and transcripts.

Outside of these a tool may only use the paths that a grant of the call covers: those that the permission rules or the
user allowed. Links are resolved as the kernel does. Then every folder on the path is opened without following any link,
so that a link that is put there meanwhile has no effect. All other paths, the runtime's own files, pipes, sockets and
devices are refused without waiting.
"""

from __future__ import annotations

import contextlib
import errno
import os
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import field
from difflib import get_close_matches
from functools import partial
from pathlib import Path

from callboard.adapters.shell.paths import PathJudges
from callboard.adapters.system.regular_files import open_beneath, open_folder
from callboard.core.permissions.gitignore import fold_case
from callboard.ports.tool import Folders
from callboard.types.errors import ToolRefused
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Grant, Json, PathGrant

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class ToolPath:
    """Path that a tool may use. `text` is absolute with every link resolved; `base` is a folder above it."""

    text: str
    base: Path
    relative: str
    """The path relative to `base`; `.` for `base` itself."""
    label: str
    """Path relative to the agent's folder if it is inside, else absolute."""
    open_base: Callable[[], int] = field(compare=False, repr=False)
    """Function that returns a descriptor of `base` as it was at its first use. Raises OSError."""
    closed: frozenset[str] = frozenset()
    """Paths relative to the base that belong to the runtime; no search reads them."""
    exact: bool = False
    """True if only this file was approved, not its neighbours: no link is followed between `base` and the file."""
    apart: bool = False
    """True for the agent's large results and for transcripts, which are no files of its work."""

    @property
    def path(self) -> Path:
        """Return the path. To make it takes longer than to open a file."""
        return Path(self.text)


class Roots:
    """Agents' folders, each held open from its first use: a folder that replaces it later is never used."""

    def __init__(self) -> None:
        self._held: dict[Path, int] = {}
        self.close = weakref.finalize(self, _close_all, self._held)
        """Function that closes the folders; otherwise the garbage collector does."""

    def open(self, root: Path) -> int:
        """Return a new descriptor of a folder. Raises OSError (`ESTALE`: another folder or a link is there now)."""
        held = self._held.get(root)
        held_status = None if held is None else os.fstat(held)
        if held is None or held_status is None or held_status.st_nlink == 0:  # removed: a later folder is another one
            fresh = open_folder(str(root))
            if held is not None:
                os.close(held)
            held = self._held[root] = fresh
            held_status = os.fstat(held)
        current = root.lstat()
        if (current.st_dev, current.st_ino) != (held_status.st_dev, held_status.st_ino):
            raise OSError(errno.ESTALE, "the folder was replaced", str(root))
        # Not `os.dup`: copies share their position in the folder, so that of two walks at once each missed files
        # (test_two_walks_of_one_folder_share_no_position).
        return os.open(".", _FOLDER, dir_fd=held)


def _close_all(held: Mapping[Path, int]) -> None:
    for descriptor in held.values():
        os.close(descriptor)


class FileRoots:
    """Parts of an agent's folders that file tools may use. `Folders` never change, so this is computed once."""

    def __init__(
        self, folders: Folders, *, write: bool = False, roots: Roots | None = None, judges: PathJudges | None = None
    ) -> None:
        self._folders = folders
        self._write = write
        self._roots = roots or Roots()
        # Commands may use git's own folder, file tools may not.
        self._judge = (judges or PathJudges()).judge_for(folders, git=None, reads=not write)
        self._root = self._judge.root_folder
        self._apart = (folders.tool_results, folders.transcripts)
        self._bases: dict[str, tuple[Path, frozenset[str], bool]] = {}
        """Folders in which a path was found, with the paths beneath each that are closed, and `ToolPath.apart`."""

    def find(self, text: str, grants: Sequence[Grant] = ()) -> ToolPath:
        """Return the path as a `ToolPath`. Raises `ToolRefused` if no tool may use it."""
        if text.startswith("~"):
            where = self._folders.root
            raise ToolRefused(f"{text}: a tilde is not resolved here; write the path relative to {where}")
        fact = self._judge.look_at(text)
        if fact.place == "own":
            raise ToolRefused(f"{text} belongs to the runtime: tools neither show nor change it")
        if fact.place == "malformed":
            raise ToolRefused(f"{text[:200]!r} cannot be used as a path: {fact.why}")
        if self._write and (fact.loaded or fact.place == "settings"):
            content = "what sessions load" if fact.loaded else "the runtime's settings"
            raise ToolRefused(f"{text} holds {content}: no tool changes it")
        if fact.device:
            raise ToolRefused(f"{text} is a device, not a file")
        for folder in (self._judge.root, *self._judge.readable):
            relative = _beneath(fact.resolved, folder)
            if self._write and relative == ".":
                raise ToolRefused(f"{text} is your folder itself, not a file")
            if relative:
                base, closed, apart = self._base(folder)
                label = relative if base is self._root else fact.resolved
                opening = partial(self._open, base)
                return ToolPath(fact.resolved, base, relative, label, opening, closed, apart=apart)
        path = Path(fact.resolved)
        if any(_covers(grant, path, write=self._write) for grant in grants):
            return self._granted(path, directory=fact.directory)
        target = "" if str(path) == text else f" It leads to {path}."
        raise ToolRefused(f"{text} lies outside your folder {self._folders.root}, and was not approved.{target}")

    def _granted(self, path: Path, *, directory: bool) -> ToolPath:
        """Return an approved path as a `ToolPath`.

        Its base is the folder itself, or the nearest existing folder above a file. Each folder is opened from the root
        without following a link, so that the opened file is the approved one.
        """
        base = path if directory else path.parent
        while not directory and not base.is_dir():
            base = base.parent
        text = str(path)
        relative = _beneath(text, str(base))
        opening = partial(open_folder, str(base))
        return ToolPath(text, base, relative, text, opening, self._closed(base), exact=not directory)

    def _base(self, folder: str) -> tuple[Path, frozenset[str], bool]:
        if folder not in self._bases:
            base = self._root if folder == self._judge.root else Path(folder)
            self._bases[folder] = base, self._closed(base), base in self._apart
        return self._bases[folder]

    def _closed(self, base: Path) -> frozenset[str]:
        prefix = f"{str(base).rstrip('/')}/"
        return frozenset(own.removeprefix(prefix) for own in self._judge.own if own.startswith(prefix))

    def key(self, text: str) -> str:
        """Return the resolved path, even if no tool may use it, so that two spellings of one path have the same key."""
        resolved = self._judge.resolve(text) or os.path.normpath(f"{self._root}/{text}")
        return fold_case(resolved) if self._judge.folds else resolved

    def _open(self, base: Path) -> int:
        return self._roots.open(base) if base is self._root else open_folder(str(base))


class RootCache:
    """Usable folders of all agents of a session.

    Each is computed once, and its folders are held open from then on. The workspace, if given, is held from the
    beginning.
    """

    def __init__(self, workspace: Path | None = None) -> None:
        self._roots = Roots()
        self._judges = PathJudges()
        if workspace is not None:
            with contextlib.suppress(OSError):  # the first use reports the error
                os.close(self._roots.open(workspace))
        self._known: dict[tuple[Folders, bool], FileRoots] = {}
        self.keep: Callable[[bytes], None] | None = None
        """Function that copies the content of a file before a tool changes it; None: nothing is copied."""

    def close(self) -> None:
        """Close the folders at the end of the session."""
        self._roots.close()

    def find(self, text: str, folders: Folders, *, write: bool = False, grants: Sequence[Grant] = ()) -> ToolPath:
        """Return the path as a `ToolPath`. `grants`: the approved paths outside of the folders.

        Raises `ToolRefused` if no tool may use it.
        """
        return self._of(folders, write=write).find(text, grants)

    def key(self, tool_input: Json, folders: Folders) -> str:
        """Return the path in a call's input as `find` resolves it, for the order of calls; empty if there is none."""
        path = tool_input.get("path")
        return self._of(folders, write=False).key(path) if isinstance(path, str) else ""

    def _of(self, folders: Folders, *, write: bool) -> FileRoots:
        usable = self._known.get((folders, write))
        if usable is None:
            usable = self._known[folders, write] = FileRoots(
                folders, write=write, roots=self._roots, judges=self._judges
            )
        return usable


def _beneath(path: str, base: str) -> str:
    """Return a path relative to a folder above it, `.` for the folder itself, or an empty text for any other path.

    Both are absolute and normalised. For these, `Path.relative_to` takes twenty times as long.
    """
    if path == base:
        return "."
    prefix = base if base.endswith("/") else f"{base}/"
    rest = path[len(prefix) :] if path.startswith(prefix) else ""
    return "" if rest.startswith("/") else rest  # `//a` is another root than `/`


def _covers(grant: Grant, path: Path, *, write: bool) -> bool:
    return isinstance(grant, PathGrant) and path.is_relative_to(grant.path) and (grant.writes or not write)


@contextlib.contextmanager
def open_file(tool_path: ToolPath) -> Generator[int]:
    """Yield a descriptor of the file for reading. Raises `ToolRefused` if it is not a file or cannot be read."""
    with refusing_os_errors(tool_path):
        base = tool_path.open_base()
        try:
            descriptor = open_beneath(base, tool_path.relative, os.O_RDONLY, links=not tool_path.exact)
        finally:
            os.close(base)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def folder_of(tool_path: ToolPath, *, make: bool) -> Generator[int]:
    """Yield a descriptor of the file's folder, created with its parents if `make`. Raises `ToolRefused`."""
    with refusing_os_errors(tool_path):
        descriptor = tool_path.open_base()
        try:
            for part in Path(tool_path.relative).parts[:-1]:
                inner = _enter(descriptor, part, make=make)
                os.close(descriptor)
                descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)


def _enter(folder: int, name: str, *, make: bool) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=folder)
    except FileNotFoundError:
        if not make:
            raise
    try:
        os.mkdir(name, dir_fd=folder)
    except FileExistsError:
        pass  # created by another process at the same moment
    return os.open(name, _FOLDER, dir_fd=folder)


_ERROR_TEXTS = {
    errno.EISDIR: "it is a folder; use glob to see what is in it",
    errno.ENOTDIR: "a part of its path is no folder",
    errno.ELOOP: "its path changed while it was opened, or links lead in a circle",
    errno.EXDEV: "its path changed while it was opened",
    errno.EINVAL: "it is a pipe, a socket or a device, not a file",
    errno.ENXIO: "it is a pipe, a socket or a device, not a file",
    errno.ENAMETOOLONG: "the name is too long",
    errno.EFBIG: "it is too large to be changed by this tool; use bash",
    errno.EACCES: "permission denied",
    errno.ESTALE: "your folder was replaced by another one while the session runs",
    errno.EROFS: "the file system is read-only",
    errno.ENOSPC: "the disk is full",
}


@contextlib.contextmanager
def refusing_os_errors(tool_path: ToolPath) -> Generator[None]:
    """Convert errors of the system about a file into a refusal that the model can act on."""
    try:
        yield
    except FileNotFoundError as error:
        raise ToolRefused(f"{tool_path.label} does not exist.{_similar_names(tool_path)}") from error
    except OSError as error:
        reason = _ERROR_TEXTS.get(error.errno or 0, error.strerror or type(error).__name__)
        raise ToolRefused(f"{tool_path.label}: {reason}") from error


def _similar_names(tool_path: ToolPath) -> str:
    """Return similar names in the same folder: a wrong path is usually a misspelt one."""
    try:
        names: Sequence[str] = os.listdir(tool_path.path.parent)  # noqa: PTH208 - names only
    except OSError:
        return ""
    similar = get_close_matches(tool_path.path.name, names, 3)
    return f" Similar names: {', '.join(similar)}" if similar else ""
