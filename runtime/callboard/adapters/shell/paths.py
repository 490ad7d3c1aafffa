"""Resolution of paths as in the kernel, and opening of files without a race.

`PathJudge` answers the questions of the permission judge: it follows links, `..` and globs on the real file system, and
says which of the known folders contains the result. Its answer can be outdated a moment later, so files are opened with
`open_beneath`: the kernel itself then refuses to leave the folder, whatever was changed in between.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from callboard.adapters.git.premise import git_is_quiet, names_commit, tracked_paths
from callboard.adapters.shell.path_trees import TooMany, Tracked, matches, tree_beneath
from callboard.core.permissions import globs
from callboard.core.permissions.gitignore import folded
from callboard.core.permissions.hard_deny import critical, harmless_device
from callboard.core.permissions.sensitive_paths import CLAUDE_LOADED, is_protected, is_secret
from callboard.core.permissions.values import PathFact, PathQuery, Place

MOST_MATCHES = 1_000

_LONGEST = 4_095
_WORST: Sequence[Place] = ("inside", "readable", "protected", "settings", "secret", "outside", "malformed", "own")
_OWN_PROCESS = ("/proc/", "/dev/fd/")
"""Paths that lead to different files in another process."""
_SYS_OPENAT2 = 437
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_BENEATH = 0x08
_LIBC = ctypes.CDLL(None, use_errno=True)


_HOLDS_SECRETS = "its name is one of those that hold secrets"


class PathJudge:
    """The production `PathFacts`, for one agent's folder.

    `root` is the folder. `readable` are folders outside that may be read (an agent's own large results). `own` are the
    runtime's files and folders, which no agent may use. `loaded` are folders outside from which sessions load skills
    and plugins, and which are never changed. `git` is git's own folder if it is outside, for a worktree.
    """

    def __init__(
        self,
        root: Path,
        *,
        readable: Sequence[Path] = (),
        own: Sequence[Path] = (),
        loaded: Sequence[Path] = (),
        home: Path | None = None,
        git: Path | None = None,
    ) -> None:
        seen: dict[str, int] = {}  # these folders share most of their parents: each is looked at once here

        def real(path: Path) -> str:
            return _lead(str(path), seen)[0]

        self._git = (real(git),) if git is not None else ()
        self._root = real(root)
        self._above = {at: mode for at, mode in seen.items() if self._root.startswith(at + "/")}
        """Folders above the root, which are checked now; those beneath it are checked for each call."""
        self._readable = tuple(real(path) for path in readable)
        self._own = tuple(real(path) for path in own)
        self._shown = tuple(
            path for path in self._readable if any(_within(path, folder) is not None for folder in self._own)
        )
        """Readable folders inside a folder of the runtime."""
        self._settings = (real(root / ".callboard"),)
        self._home = str(home or Path.home())
        self._claude = tuple(real(folder) for folder in claude_folders(self._home, os.environ))
        files = [Path(self._home, ".claude.json"), *(Path(at, ".claude.json") for at in self._claude)]
        files += [Path(at, name) for at in self._claude for name in CLAUDE_LOADED]
        brought = (path for path in loaded if _within(self._root, real(path)) is None)
        self._loaded = tuple(dict.fromkeys(real(path) for path in (*files, *brought)))
        self.folds = _folds(self._root)
        """True if the file system is case-insensitive."""

    @property
    def root(self) -> str:
        """Return the agent's folder, absolute and without links."""
        return self._root

    @property
    def readable(self) -> Sequence[str]:
        """Return the folders outside that may be read, absolute and without links."""
        return self._readable

    @property
    def own(self) -> Sequence[str]:
        """Return the runtime's files and folders, absolute and without links."""
        return self._own

    @property
    def home(self) -> str:
        """Return the home directory for a tilde."""
        return self._home

    @property
    def git_quiet(self) -> bool:
        """Return True if the repository's own configuration runs no program, or if there is no repository at
        the root."""
        return git_is_quiet(Path(self._root))

    def look(self, queries: Iterable[PathQuery]) -> Mapping[PathQuery, PathFact]:
        """Return one fact for each query. Never raises."""
        tracked = cache(lambda: tracked_paths(Path(self._root)))  # a command asks for many paths: one read of the index
        return {query: self._fact(query, tracked) for query in queries}

    def _fact(self, query: PathQuery, tracked: Tracked) -> PathFact:
        if query.commit:
            return PathFact("inside", exists=names_commit(Path(self._root), query.text))
        try:
            return self._glob(query, tracked) if query.glob else self._judge_path(query.text, tracked, query)
        except (OSError, ValueError, RecursionError) as error:
            return PathFact("malformed", why=f"it cannot be resolved ({type(error).__name__})")

    def _glob(self, query: PathQuery, tracked: Tracked) -> PathFact:
        segments = query.text.split("/")
        wild = next((at for at, each in enumerate(segments) if globs.is_pattern(each)), len(segments))
        head = globs.unescape("/".join(segments[:wild])) or ("/" if query.text.startswith("/") else ".")
        # Bash leaves a pattern that matches nothing as it is, so a program may create a file of that very name.
        as_written = self._judge_path(globs.unescape(query.text), tracked)  # kept by bash where it matches nothing
        facts = [self._judge_path(head, tracked), as_written]
        try:
            paths = list(matches(self._root, query.text, MOST_MATCHES))
        except TooMany:
            return PathFact("malformed", why="the pattern has too many matches to be judged")
        facts += [self._judge_path(match, tracked, query) for match in paths]
        worst = max(facts, key=lambda fact: _WORST.index(fact.place))
        if worst.place == "inside" and any(globs.means_secret(each) for each in segments[wild:] if each):
            worst = replace(worst, place="secret", why="it matches names of secrets")
        return replace(
            worst,
            matches=tuple(fact.resolved for fact in facts),
            critical=any(fact.critical for fact in facts),
            device=any(fact.device for fact in facts[2:]),
            holds_own=any(fact.holds_own for fact in facts[2:]),
            loaded=any(fact.loaded for fact in facts),
            beneath=tuple(path for fact in facts for path in fact.beneath),
            beneath_cut=any(fact.beneath_cut for fact in facts),
        )

    def _judge_path(self, text: str, tracked: Tracked, query: PathQuery | None = None) -> PathFact:
        text.encode("utf-8")  # lone surrogates raise ValueError here
        if not text or "\0" in text or len(os.fsencode(text)) > _LONGEST:
            return PathFact("malformed", why="it is empty, too long or holds a NUL character")
        full = os.path.join(self._root, text)  # noqa: PTH118 - Path would drop what the kernel sees (`a/../b`)
        if harmless_device(full):
            return PathFact("readable", full, device=True, exists=True)
        resolved, kind = _lead(full, dict(self._above))
        # A program that opens one of these could wait forever, or reach another program
        # (test_pipes_are_refused_without_waiting_and_absolute_paths_too).
        if kind is not None and not (
            stat.S_ISREG(kind) or stat.S_ISDIR(kind) or stat.S_ISBLK(kind) or stat.S_ISCHR(kind)
        ):
            return PathFact("malformed", resolved, why="it is a pipe or a socket")
        place, reason = self._place(resolved, os.path.normpath(full))
        directory = kind is not None and stat.S_ISDIR(kind)
        beneath: tuple[str, ...] = ()
        cut = False
        secrets: tuple[str, ...] = ()
        if query and query.tree and (directory or query.left_out == "untracked"):
            tree = tree_beneath(resolved, self._root, left_out=query.left_out, bad=self._unreadable, tracked=tracked)
            beneath = tuple(tree.paths)
            cut = tree.cut
            secrets = tuple(filter(self._named_secret, beneath)) if query.left_out == "untracked" else ()
            if place == "inside" and tree.worst:
                place = "secret"
                reason = f"it holds {tree.worst[1]!r}"
            elif place == "inside" and cut:
                place = "secret"
                reason = "it is too large to be searched for secrets"
        return PathFact(
            place,
            resolved,
            critical=critical(resolved, self._home),
            device=kind is not None and (stat.S_ISBLK(kind) or stat.S_ISCHR(kind)),
            directory=directory,
            exists=kind is not None,
            holds_own=any(
                self._within(o, resolved) is not None and os.path.lexists(o)
                for o in self._own + self._settings + self._loaded
            ),
            loaded=self._is_loaded(resolved, os.path.normpath(full)),
            beneath=beneath,
            beneath_cut=cut,
            secrets=secrets,
            why=reason,
        )

    def _place(self, resolved: str, written: str) -> tuple[Place, str]:
        # The path as written counts too: a link can lead from a protected name to an ordinary file, and change its
        # target.
        both = (resolved,) if resolved == written else (resolved, written)
        if any(self._within(path, own) is not None for own in self._own for path in both):
            if all(any(self._within(path, folder) is not None for folder in self._shown) for path in both):
                return self._shown_place(resolved)
            return "own", "it belongs to the runtime"
        if any(self._within(path, folder) is not None for folder in self._settings for path in both):
            return "settings", "it holds the runtime's settings"
        parts = self._within(resolved, self._root)
        if parts is None or any(path.startswith(_OWN_PROCESS) for path in both):
            if any(self._within(resolved, git) is not None for git in self._git):
                return "protected", "it is git's own"
            for readable in self._readable:
                if (parts := self._within(resolved, readable)) is not None:
                    return ("secret", _HOLDS_SECRETS) if is_secret(parts) else ("readable", "")
            return "outside", "it is outside the workspace"
        written_parts = (self._within(written, self._root) or ()) if resolved != written else ()
        if is_secret(parts) or is_secret(written_parts):
            return "secret", _HOLDS_SECRETS
        if is_protected(parts) or is_protected(written_parts):
            return "protected", "other tools run or obey it"
        return "inside", ""

    def _is_loaded(self, *paths: str) -> bool:
        """Return True if sessions load the path from the user's `.claude`, or from a folder of skills or a plugin.
        `.claude` itself counts, because files copied into it may have any name."""
        return any(
            any(self._within(path, folder) == () for folder in self._claude)
            or any(self._within(path, loaded) is not None for loaded in self._loaded)
            for path in paths
        )

    def _shown_place(self, resolved: str) -> tuple[Place, str]:
        """Return the place of a readable path in a folder of the runtime: a skill in the user's own settings."""
        parts = next(parts for folder in self._shown if (parts := self._within(resolved, folder)) is not None)
        return ("secret", _HOLDS_SECRETS) if is_secret(parts) else ("settings", "it holds the runtime's settings")

    def _named_secret(self, path: str) -> bool:
        """Return True if a tracked file has the name of a secret, in the agent's folder or elsewhere in its
        repository."""
        parts = self._within(path, self._root)
        if parts is None:
            parts = self._within(path, os.path.commonpath((path, self._root)))
        return is_secret(parts or ())

    def _unreadable(self, resolved: str, written: str) -> bool:
        """Return True if a file of a tree must not be read without asking: a secret, the runtime's own, or a link that
        leads out."""
        return self._place(resolved, written)[0] in ("secret", "outside", "own")

    def _within(self, path: str, folder: str) -> tuple[str, ...] | None:
        return _within(folded(path), folded(folder)) if self.folds else _within(path, folder)


def claude_folders(home: str, environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the user's folders of settings for Claude Code, from the home and the environment."""
    named = environment.get("CLAUDE_CONFIG_DIR", "")
    return (Path(home, ".claude"), *([Path(named)] if named.startswith("/") else []))


def _folds(folder: str) -> bool:
    """Return True if a folder's file system is case-insensitive; False if that is unknown."""
    other = folder.swapcase()
    try:
        return other != folder and Path(folder).samefile(other)
    except (OSError, ValueError):
        return False


def _within(path: str, folder: str) -> tuple[str, ...] | None:
    """Return the components of `path` beneath `folder`, or None if it is not inside."""
    if path == folder:
        return ()
    prefix = folder.rstrip("/") + "/"
    return tuple(path[len(prefix) :].split("/")) if path.startswith(prefix) else None


def _lead(path: str, seen: dict[str, int]) -> tuple[str, int | None]:
    """Return the target of a path (absolute, without links) and the mode of the file there; None if there is no file.

    Each component is checked once, except those in `seen`, which grows. If no component is a link, that is all the
    kernel would do. Otherwise, or if the path is not plain, the library follows it. Raises OSError.
    """
    parts = [part for part in path.split("/") if part]
    if not parts or not path.startswith("/") or path.startswith("//") or "." in parts or ".." in parts:
        return _followed(path)
    at = ""
    mode = 0
    for part in parts:
        at = f"{at}/{part}"
        cached_mode = seen.get(at)
        try:
            mode = os.lstat(at).st_mode if cached_mode is None else cached_mode
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


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def open_beneath(root_fd: int, relative: str, flags: int, mode: int = 0o600, *, links: bool = True) -> int:
    """Open a path beneath the folder with the descriptor `root_fd`, and return the new descriptor. `links`: follow
    links that stay beneath it.

    No file outside the folder is ever opened, whatever links exist or appear in between. Anything except a regular file
    or a folder is refused, without waiting for a pipe's other end. Raises OSError (`EXDEV` or `ELOOP`: it leads out;
    `EINVAL`: not a file), ValueError for a NUL character.
    """
    if "\0" in relative:
        raise ValueError("a path cannot hold a NUL character")
    if relative.startswith("/"):
        raise OSError(errno.EXDEV, "an absolute path leads out of the folder", relative)
    # Opening a pipe would otherwise wait for its other end
    # (test_pipes_are_refused_without_waiting_and_absolute_paths_too).
    flags |= os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    truncate = flags & os.O_TRUNC
    resolve = _RESOLVE_BENEATH | (_RESOLVE_NO_MAGICLINKS if links else _RESOLVE_NO_SYMLINKS)
    # One call of the kernel checks and opens, so that no link can be swapped in between
    # (test_a_link_swapped_in_a_loop_never_shows_what_is_outside).
    descriptor = _openat2(root_fd, relative, flags & ~os.O_TRUNC, mode, resolve=resolve)
    if descriptor is None:
        descriptor = open_by_walking(root_fd, relative, flags & ~os.O_TRUNC, mode)
    try:
        kind = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
            raise OSError(errno.EINVAL, "not a regular file", relative)
        # Only now, when the file is known to be a regular one beneath the folder.
        if truncate:
            os.ftruncate(descriptor, 0)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def open_folder(path: str) -> int:
    """Return a descriptor of the folder at an absolute path without links. Raises OSError (`ELOOP`: a component is a
    link)."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    top = os.open("/", flags)
    try:
        relative = path.lstrip("/") or "."
        descriptor = _openat2(top, relative, flags, 0, resolve=_RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS)
        return open_by_walking(top, relative, flags) if descriptor is None else descriptor
    finally:
        os.close(top)


def _openat2(
    root_fd: int, relative: str, flags: int, mode: int, *, resolve: int = _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS
) -> int | None:
    """Return a descriptor, or None if the kernel has no such call."""
    if not sys.platform.startswith("linux"):
        return None
    creates = bool(flags & os.O_CREAT)
    # The kernel refuses a mode without O_CREAT (man 2 openat2).
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
        # EPERM: the system call filters of some containers refuse what they do not know.
        if code in (errno.ENOSYS, errno.EPERM):
            return None
        if code not in (errno.EAGAIN, errno.EINTR):
            raise OSError(code, os.strerror(code), relative)
    raise OSError(errno.EAGAIN, "the path kept changing", relative)


def open_by_walking(root_fd: int, relative: str, flags: int, mode: int = 0o600) -> int:
    """Open component by component, following no link at all, for kernels without `openat2`."""
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
