"""Where a file tool may go: inside the agent's folder, and for reading its own large results and transcripts.

The judge has been asked before; this holds all the same, whatever was approved. Links are followed as the kernel does,
then every folder on the way is opened without following any, so that a link swapped in meanwhile leads nowhere.
Refuses what lies outside, the runtime's own files, pipes, sockets and devices, without ever waiting for one.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import weakref
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from pathlib import Path

from callboard.adapters.paths import PathJudge, open_beneath, open_folder
from callboard.core.permission.values import PathQuery
from callboard.ports.tool import Folders
from callboard.words.errors import ToolRefused

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Spot:
    """A path that a tool may use. `path` is absolute with every link followed; `base` the folder it lies beneath."""

    path: Path
    base: Path
    shown: str
    """Relative to the agent's folder where it lies in it, else absolute."""
    open_base: Callable[[], int] = field(compare=False, repr=False)
    """A descriptor of `base` as it was when it was first used. Raises OSError."""

    @property
    def relative(self) -> str:
        """The path from `base` on; `.` for `base` itself."""
        return str(self.path.relative_to(self.base))


class Roots:
    """Agents' folders, each held open from its first use on: what is put in its place later is never looked into."""

    def __init__(self) -> None:
        self._held: dict[Path, int] = {}
        weakref.finalize(self, _close_all, self._held)

    def open(self, root: Path) -> int:
        """A descriptor of its own of a folder. Raises OSError (`ESTALE`: another folder or a link stands there now)."""
        held = self._held.get(root)
        if held is None or os.fstat(held).st_nlink == 0:  # it was removed: one that was made anew is another one
            fresh = open_folder(str(root))
            if held is not None:
                os.close(held)
            held = self._held[root] = fresh
        there, kept = root.lstat(), os.fstat(held)
        if (there.st_dev, there.st_ino) != (kept.st_dev, kept.st_ino):
            raise OSError(errno.ESTALE, "the folder was replaced", str(root))
        return os.dup(held)


def _close_all(held: Mapping[Path, int]) -> None:
    for descriptor in held.values():
        os.close(descriptor)


class Ground:
    """What file tools may use of an agent's folders. `Folders` are resolved for good, so this is looked up once."""

    def __init__(self, folders: Folders, *, write: bool = False, roots: Roots | None = None) -> None:
        readable = () if write else (folders.tool_results, folders.transcripts)
        self._folders, self._write, self._roots = folders, write, roots or Roots()
        self._judge = PathJudge(folders.root, readable, folders.own_state)
        self._root = Path(self._judge.root)
        self._bases = (self._root, *(Path(path) for path in self._judge.readable))

    def find(self, text: str) -> Spot:
        """Where the text leads. Raises `ToolRefused` when a tool has no business there."""
        if text.startswith("~"):
            where = self._folders.root
            raise ToolRefused(f"{text}: a tilde is not resolved here; write the path relative to {where}")
        query = PathQuery(text)
        fact = self._judge.look((query,))[query]
        if fact.place == "own":
            raise ToolRefused(f"{text} belongs to the runtime: tools neither show nor change it")
        if fact.place == "malformed":
            raise ToolRefused(f"{text[:200]!r} cannot be used as a path: {fact.why}")
        if fact.place == "settings" and self._write:
            raise ToolRefused(f"{text} holds the runtime's settings: no tool changes them")
        if fact.device:
            raise ToolRefused(f"{text} is a device, not a file")
        path = Path(fact.resolved)
        for base in self._bases:
            if self._write and path == base:
                raise ToolRefused(f"{text} is your folder itself, not a file")
            if path.is_relative_to(base):
                shown = path.relative_to(base) if base == self._root else path
                return Spot(path, base, str(shown), partial(self._open, base))
        raise ToolRefused(f"{text} lies outside your folder {self._folders.root}; file tools stay inside it")

    def _open(self, base: Path) -> int:
        return self._roots.open(base) if base == self._root else open_folder(str(base))


class Grounds:
    """The grounds of all agents of a session: each is looked up once, so that their folders are held from then on; the
    workspace, where one is named, from now on."""

    def __init__(self, workspace: Path | None = None) -> None:
        self._roots = Roots()
        if workspace is not None:
            with contextlib.suppress(OSError):  # who uses it is told why it cannot be
                os.close(self._roots.open(workspace))
        self._known: dict[tuple[Folders, bool], Ground] = {}

    def find(self, text: str, folders: Folders, *, write: bool = False) -> Spot:
        """Where the text leads. Raises `ToolRefused` when a tool has no business there."""
        known = self._known.get((folders, write))
        if known is None:
            known = self._known[folders, write] = Ground(folders, write=write, roots=self._roots)
        return known.find(text)


@contextlib.contextmanager
def opened(spot: Spot) -> Generator[int]:
    """A descriptor of the file, for reading. Raises `ToolRefused` when it is none, or cannot be read."""
    with telling(spot):
        base = spot.open_base()
        try:
            descriptor = open_beneath(base, spot.relative, os.O_RDONLY)
        finally:
            os.close(base)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def folder_of(spot: Spot, *, make: bool) -> Generator[int]:
    """A descriptor of the folder that the file stands in, made with its parents when asked to. Raises `ToolRefused`."""
    with telling(spot):
        descriptor = spot.open_base()
        try:
            for part in Path(spot.relative).parts[:-1]:
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
        pass  # somebody else made it just now
    return os.open(name, _FOLDER, dir_fd=folder)


def read_in(folder: int, name: str, most: int) -> tuple[bytes, int] | None:
    """Content and mode of a file in an open folder; None when there is none.

    Raises OSError (`EINVAL`: not a regular file; `EFBIG`: more than `most` bytes).
    """
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return None
    with open(descriptor, "rb") as file:  # noqa: PTH123 - there is a descriptor and no path
        told = os.fstat(descriptor)
        if stat.S_ISDIR(told.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(told.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    return content, stat.S_IMODE(told.st_mode)


def part_name(name: str, call: str) -> str:
    """The name of a file that is being written by a call: whoever repairs the call finds what a kill left of it."""
    return f".{name[:100]}.{hashlib.sha256(call.encode()).hexdigest()[:12]}.part"


def clear_part(folder: int, part: str) -> None:
    """Remove what a killed process left of a file that it was writing. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(part, dir_fd=folder)


def put_in(folder: int, name: str, content: bytes, mode: int | None, part: str) -> None:
    """Make `name` in an open folder hold this content: whole or not at all, durable, with its mode kept.

    It is written as `part` first. A link of that name is replaced, never followed. Raises OSError.
    """
    clear_part(folder, part)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(part, flags, 0o666, dir_fd=folder)
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 - there is a descriptor and no path
            file.write(content)
            file.flush()
            if mode is not None:
                os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        os.unlink(part, dir_fd=folder)
        raise
    os.fsync(folder)


_SAID = {
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
def telling(spot: Spot) -> Generator[None]:
    """Turn what the system says of a file into a refusal that the model can act on."""
    try:
        yield
    except FileNotFoundError as error:
        raise ToolRefused(f"{spot.shown} does not exist.{_near(spot)}") from error
    except OSError as error:
        why = _SAID.get(error.errno or 0, error.strerror or type(error).__name__)
        raise ToolRefused(f"{spot.shown}: {why}") from error


def _near(spot: Spot) -> str:
    """Names beside it that look alike: a wrong path is most often a misspelt one."""
    try:
        names: Sequence[str] = os.listdir(spot.path.parent)  # noqa: PTH208 - names only
    except OSError:
        return ""
    alike = get_close_matches(spot.path.name, names, 3)
    return f" Near it there are: {', '.join(alike)}" if alike else ""
