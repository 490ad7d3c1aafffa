"""Where paths lead, as the kernel resolves them, and how to open them without a race.

`PathJudge` answers the questions of the permission judge: it follows links, `..` and globs on the real file system, and
says in which of the known folders the end lies. Its answer can be out of date a moment later, so whoever acts opens by
`open_beneath`: the kernel itself then refuses to leave the folder, whatever was swapped in between.
"""

from __future__ import annotations

import ctypes
import errno
import glob
import os
import stat
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from callboard.core.permission.git import config_is_quiet
from callboard.core.permission.gitignore import folded
from callboard.core.permission.never import critical, harmless_device
from callboard.core.permission.paths import is_protected, is_secret
from callboard.core.permission.values import PathFact, PathQuery, Place

MOST_MATCHES = 1_000
MOST_ENTRIES = 5_000
"""A tree is searched for secrets and links out of it up to this many entries."""

_LONGEST = 4_095
_WORST: Sequence[Place] = ("inside", "readable", "protected", "settings", "secret", "outside", "malformed", "own")
_OWN_PROCESS = ("/proc/", "/dev/fd/")
"""Another process that opens such a path gets something else than we do."""
_SYS_OPENAT2 = 437
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_BENEATH = 0x08
_LIBC = ctypes.CDLL(None, use_errno=True)


class PathJudge:
    """The `PathFacts` of real use, for one agent's folder.

    `root` is the folder; `readable` are folders outside that may be read (an agent's own large results);
    `own` are the runtime's files and folders, which nobody may touch; `settings` those that may be read and never
    changed (default: `.callboard` in the folder); `git` is git's own folder where it lies outside, of a worktree.
    """

    def __init__(
        self,
        root: Path,
        readable: Sequence[Path] = (),
        own: Sequence[Path] = (),
        settings: Sequence[Path] | None = None,
        home: Path | None = None,
        git: Path | None = None,
    ) -> None:
        seen: dict[str, int] = {}  # these folders share most of their parents: each is looked at once here

        def real(path: Path) -> str:
            return _lead(str(path), seen)[0]

        self._git = (real(git),) if git is not None else ()
        self._root = real(root)
        self._above = {at: mode for at, mode in seen.items() if self._root.startswith(at + "/")}
        """The folders that the root stands in, which were looked at now; what is beneath is looked at for each call."""
        self._readable = tuple(real(path) for path in readable)
        self._own = tuple(real(path) for path in own)
        guarded = [root / ".callboard"] if settings is None else settings
        self._settings = tuple(real(path) for path in guarded)
        self._home = str(home or Path.home())
        self.folds = _folds(self._root)
        """The file system does not tell upper from lower case."""

    @property
    def root(self) -> str:
        """The agent's folder, absolute and without links."""
        return self._root

    @property
    def readable(self) -> Sequence[str]:
        """The folders outside that may be read, absolute and without links."""
        return self._readable

    @property
    def home(self) -> str:
        """The home directory that a tilde stands for."""
        return self._home

    @property
    def git_quiet(self) -> bool:
        """Whether the repository's own configuration runs no program. True where there is no repository at the root."""
        return git_is_quiet(Path(self._root))

    def look(self, queries: Iterable[PathQuery]) -> Mapping[PathQuery, PathFact]:
        """Return one fact for each query. Never raises."""
        return {query: self._fact(query) for query in queries}

    def _fact(self, query: PathQuery) -> PathFact:
        try:
            return self._glob(query) if query.glob else self._one(query.text, tree=query.tree)
        except (OSError, ValueError, RecursionError) as error:
            return PathFact("malformed", why=f"it cannot be resolved ({type(error).__name__})")

    def _glob(self, query: PathQuery) -> PathFact:
        facts = [self._one(glob.escape(query.text), tree=False)] if not glob.has_magic(query.text) else []
        head = query.text[: min(i for c in "*?[" if (i := query.text.find(c)) >= 0)] if not facts else query.text
        facts.append(self._one(head.rpartition("/")[0] or ("/" if query.text.startswith("/") else "."), tree=False))
        for index, match in enumerate(glob.iglob(query.text, root_dir=self._root, recursive=False)):  # noqa: PTH207
            if index >= MOST_MATCHES:
                return PathFact("malformed", why="the pattern has too many matches to be judged")
            facts.append(self._one(match, tree=query.tree))
        worst = max(facts, key=lambda fact: _WORST.index(fact.place))
        return replace(worst, matches=tuple(fact.resolved for fact in facts))

    def _one(self, text: str, *, tree: bool) -> PathFact:
        text.encode("utf-8")  # lone surrogates raise ValueError here
        if not text or "\0" in text or len(os.fsencode(text)) > _LONGEST:
            return PathFact("malformed", why="it is empty, too long or holds a NUL character")
        full = os.path.join(self._root, text)  # noqa: PTH118 - Path would drop what the kernel sees (`a/../b`)
        if harmless_device(full):
            return PathFact("readable", full, device=True, exists=True)
        resolved, kind = _lead(full, dict(self._above))
        if kind is not None and not (
            stat.S_ISREG(kind) or stat.S_ISDIR(kind) or stat.S_ISBLK(kind) or stat.S_ISCHR(kind)
        ):
            return PathFact("malformed", resolved, why="it is a pipe or a socket")
        place, why = self._place(resolved, os.path.normpath(full))
        directory = kind is not None and stat.S_ISDIR(kind)
        beneath: tuple[str, ...] = ()
        cut = False
        if tree and directory:
            beneath, cut, worst = self._tree(resolved)
            place, why = worst if worst and place == "inside" else (place, why)
        return PathFact(
            place,
            resolved,
            critical=critical(resolved, self._home),
            device=kind is not None and (stat.S_ISBLK(kind) or stat.S_ISCHR(kind)),
            directory=directory,
            exists=kind is not None,
            holds_own=any(
                self._within(o, resolved) is not None and os.path.lexists(o) for o in self._own + self._settings
            ),
            beneath=beneath,
            beneath_cut=cut,
            why=why,
        )

    def _place(self, resolved: str, written: str) -> tuple[Place, str]:
        both = (resolved,) if resolved == written else (resolved, written)
        if any(self._within(path, own) is not None for own in self._own for path in both):
            return "own", "it belongs to the runtime"
        if any(self._within(path, kept) is not None for kept in self._settings for path in both):
            return "settings", "it holds the runtime's settings"
        parts = self._within(resolved, self._root)
        if parts is None or any(path.startswith(_OWN_PROCESS) for path in both):
            if any(self._within(resolved, git) is not None for git in self._git):
                return "protected", "it is git's own"
            if any(self._within(resolved, readable) is not None for readable in self._readable):
                return "readable", ""
            return "outside", "it lies outside the workspace"
        written_parts = (self._within(written, self._root) or ()) if resolved != written else ()
        if is_secret(parts) or is_secret(written_parts):
            return "secret", "its name is one of those that hold secrets"
        if is_protected(parts) or is_protected(written_parts):
            return "protected", "other tools run or obey it"
        return "inside", ""

    def _tree(self, folder: str) -> tuple[tuple[str, ...], bool, tuple[Place, str] | None]:
        """The files beneath a folder that a command reads as a whole, whether there are more, and what is bad of it: a
        secret in it, or a link that leads out."""
        todo, found, worst = [folder], list[str](), None
        while todo and len(found) < MOST_ENTRIES:
            with os.scandir(todo.pop()) as scanned:
                entries = list(scanned)
            for entry in entries:
                real = os.path.realpath(entry.path) if entry.is_symlink() else entry.path
                found.append(real)
                place, _ = self._place(real, entry.path)
                if worst is None and place in ("secret", "outside", "own"):
                    worst = ("secret", f"it holds {entry.name!r}")
            todo += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        return tuple(found), bool(todo), worst

    def _within(self, path: str, folder: str) -> tuple[str, ...] | None:
        return _within(folded(path), folded(folder)) if self.folds else _within(path, folder)


def _folds(folder: str) -> bool:
    """Whether the file system of a folder takes another case of its name for the same; no, where that is not known."""
    other = folder.swapcase()
    try:
        return other != folder and Path(folder).samefile(other)
    except (OSError, ValueError):
        return False


def _within(path: str, folder: str) -> tuple[str, ...] | None:
    """Return the components of `path` beneath `folder`, or None when it lies elsewhere."""
    if path == folder:
        return ()
    prefix = folder.rstrip("/") + "/"
    return tuple(path[len(prefix) :].split("/")) if path.startswith(prefix) else None


def _lead(path: str, seen: dict[str, int]) -> tuple[str, int | None]:
    """Where a path leads (absolute, without links) and the mode of what is there; None when nothing is.

    Every part of it is looked at, once, but for those in `seen`, which grows. Where none is a link, that is all the
    kernel would do; where one is, or where the path is not plain, the library follows it. Raises OSError.
    """
    parts = [part for part in path.split("/") if part]
    if not parts or not path.startswith("/") or path.startswith("//") or "." in parts or ".." in parts:
        return _followed(path)
    at, mode = "", 0
    for part in parts:
        at = f"{at}/{part}"
        known = seen.get(at)
        try:
            mode = os.lstat(at).st_mode if known is None else known
        except (FileNotFoundError, NotADirectoryError):
            return "/" + "/".join(parts), None  # beneath what is not there, there are no links
        except OSError:
            return _followed(path)
        if stat.S_ISLNK(mode):
            return _followed(path)
        seen[at] = mode
    return at, mode


def _followed(path: str) -> tuple[str, int | None]:
    resolved = os.path.realpath(path)
    return resolved, _kind(resolved)


def _kind(path: str) -> int | None:
    try:
        return os.stat(path).st_mode  # noqa: PTH116
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise


def git_is_quiet(root: Path) -> bool:
    """Whether the repository at `root` has a configuration that runs nothing. Unreadable is not quiet."""
    try:
        folder = root / ".git"
        if folder.is_file():
            target = folder.read_text(encoding="utf-8").partition("gitdir:")[2].strip()
            folder = root / target
            common = folder / "commondir"
            folder = folder / common.read_text(encoding="utf-8").strip() if common.is_file() else folder
        if not folder.exists():
            return not (root / "HEAD").exists()
        if (folder / "modules").exists():
            return False  # git also obeys the configuration of each submodule
        return config_is_quiet((folder / "config").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def open_beneath(root_fd: int, relative: str, flags: int, mode: int = 0o600) -> int:
    """Open a path beneath the folder that `root_fd` is open on, and return the descriptor.

    Nothing outside the folder is ever opened, whatever links there are or appear meanwhile. What is no regular file and
    no folder is refused, without waiting for a pipe's other end. Raises OSError (`EXDEV` or `ELOOP`: it leads out;
    `EINVAL`: not a file), ValueError for a NUL character.
    """
    if "\0" in relative:
        raise ValueError("a path cannot hold a NUL character")
    if relative.startswith("/"):
        raise OSError(errno.EXDEV, "an absolute path leads out of the folder", relative)
    flags |= os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    truncate = flags & os.O_TRUNC
    descriptor = _openat2(root_fd, relative, flags & ~os.O_TRUNC, mode)
    if descriptor is None:
        descriptor = open_by_walking(root_fd, relative, flags & ~os.O_TRUNC, mode)
    try:
        kind = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
            raise OSError(errno.EINVAL, "not a regular file", relative)
        if truncate:
            os.ftruncate(descriptor, 0)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def open_folder(path: str) -> int:
    """A descriptor of the folder at an absolute path in which nothing is a link. Raises OSError (`ELOOP`: one is)."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    top = os.open("/", flags)
    try:
        relative = path.lstrip("/") or "."
        found = _openat2(top, relative, flags, 0, _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS)
        return open_by_walking(top, relative, flags) if found is None else found
    finally:
        os.close(top)


def _openat2(
    root_fd: int, relative: str, flags: int, mode: int, resolve: int = _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS
) -> int | None:
    """Return a descriptor, or None where the kernel has no such call."""
    if not sys.platform.startswith("linux"):
        return None
    creates = bool(flags & os.O_CREAT)
    how = _OpenHow(flags, mode if creates else 0, resolve)
    for _ in range(64):  # the kernel asks to try again when a rename raced with a `..`
        result = _LIBC.syscall(
            ctypes.c_long(_SYS_OPENAT2),
            ctypes.c_int(root_fd),
            ctypes.c_char_p(os.fsencode(relative)),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
        if result >= 0:
            return int(result)
        code = ctypes.get_errno()
        if code in (errno.ENOSYS, errno.EPERM):
            return None
        if code not in (errno.EAGAIN, errno.EINTR):
            raise OSError(code, os.strerror(code), relative)
    raise OSError(errno.EAGAIN, "the path kept changing", relative)


def open_by_walking(root_fd: int, relative: str, flags: int, mode: int = 0o600) -> int:
    """Open component by component, following no link at all: the way for kernels without `openat2`."""
    parts = [part for part in relative.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise OSError(errno.EXDEV, "a path with `..` is not walked", relative)
    folder = os.dup(root_fd)
    try:
        for part in parts[:-1]:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            os.close(folder)
            folder = inner
        return os.open(parts[-1] if parts else ".", flags | os.O_NOFOLLOW, mode, dir_fd=folder)
    finally:
        os.close(folder)
