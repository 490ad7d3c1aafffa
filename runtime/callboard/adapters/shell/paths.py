"""Resolution of paths as in the kernel, and of the paths that a shell pattern matches.

`PathJudge` answers the questions of the permission judge: it follows links, `..` and globs on the real file system, and
finds the known folder that contains the result. Its answer can be outdated a moment later, so files are opened with
`open_beneath` (`system/regular_files.py`): the kernel itself then refuses to leave the folder, whatever was changed
meanwhile.

A shell pattern is replaced by the names that it matches now. There is a limit for the number of names, and a pattern
that exceeds it is reported. `trees.py` lists what is beneath a folder.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from callboard.adapters.git.premise import TrackedLookup, git_is_quiet, names_commit
from callboard.adapters.processes.programs import is_within
from callboard.adapters.shell.trees import MOST_ENTRIES, Tracked, tree_beneath
from callboard.core.permissions import globs
from callboard.core.permissions.gitignore import fold_case
from callboard.core.permissions.sensitive_paths import (
    CLAUDE_LOADED,
    claude_folders,
    critical,
    deeper_than_critical,
    harmless_device,
    is_protected,
    is_secret,
)
from callboard.core.permissions.values import PathFact, PathQuery, Place
from callboard.ports.tool import Folders
from callboard.types.lazy_dataclass import dataclass

MOST_MATCHES = 1_000

_LONGEST = 4_095
_WORST: Sequence[Place] = ("inside", "readable", "protected", "settings", "secret", "outside", "malformed", "own")
_DEVICES = frozenset({stat.S_IFBLK, stat.S_IFCHR})
_FORMS = frozenset({*_DEVICES, stat.S_IFREG, stat.S_IFDIR, None})
"""Kinds of files that can be opened without waiting; None: there is no file."""
_OWN_PROCESS = ("/proc/", "/dev/fd/")
"""Paths that lead to different files in another process."""
_HOLDS_SECRETS = "its name is one of those that hold secrets"


@dataclass(frozen=True, slots=True)
class _Folders:
    """Folders to compare with each path of each call: one look-up, however many there are."""

    paths: frozenset[str]
    prefixes: tuple[str, ...]

    @classmethod
    def of(cls, folders: Iterable[str]) -> _Folders:
        paths = frozenset(folders)
        return cls(paths, tuple(path.rstrip("/") + "/" for path in paths))

    def hold(self, path: str) -> bool:
        """Return True if the path is one of the folders or beneath one."""
        return path in self.paths or path.startswith(self.prefixes)


_REMEMBERED = 256
"""Most paths whose standings are remembered: an agent reads and edits the same files again and again."""


class _Standing(NamedTuple):
    """Facts that follow from the text of a path and the folders of a judge alone, whatever is on the disk."""

    place: Place
    why: str
    critical: bool
    loaded: bool


class PathJudge:
    """`PathFacts` for production, for one agent's folder.

    `root` is the folder. `readable` are folders outside that may be read (an agent's own large results). `own` are the
    runtime's files and folders, which no agent may use. `loaded` are folders outside from which sessions load skills
    and plugins, and which are never changed. `git` is git's own folder if it is outside, for a worktree.
    `folds`: True if the file system is case-insensitive; None: it is asked.
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
        folds: bool | None = None,
    ) -> None:
        seen: dict[str, int] = {}  # these folders share most of their parents: each is checked once here

        def real(path: Path | str) -> str:
            return _lead(str(path), seen)[0]

        self._root = real(root)
        self.root_folder = Path(self._root)
        """The agent's folder, absolute and without links."""
        self._beneath_root = self._root.rstrip("/") + "/"
        self._above = max((at for at in seen if self._root.startswith(at + "/")), key=len, default="")
        """Folder above the root, which is checked now. The root and what is beneath it are checked for each call."""
        self._own = tuple(real(path) for path in own)
        settings = real(root / ".callboard")
        self._home = str(home or Path.home())
        self._claude = tuple(real(folder) for folder in claude_folders(self._home, os.environ))
        files = [os.path.join(at, ".claude.json") for at in (self._home, *self._claude)]  # noqa: PTH118 - every call makes a judge, and texts are cheaper
        files += [os.path.join(at, name) for at in self._claude for name in CLAUDE_LOADED]  # noqa: PTH118 - as above
        outside_paths = (path for path in loaded if not is_within(self._root, real(path)))
        self.folds = _folds(self._root) if folds is None else folds
        """True if the file system is case-insensitive."""
        loaded_paths = tuple(dict.fromkeys(real(path) for path in (*files, *outside_paths)))
        self._own_folders = self._folders(self._own)
        self._kept_folders = self._folders([*self._own, settings])
        """Folders of the runtime and of its settings."""
        self._git_folders = self._folders([real(git)] if git is not None else ())
        self._loaded = frozenset(self._compared(path) for path in (*self._claude, *loaded_paths))
        self._loaded_prefixes = tuple(self._compared(path).rstrip("/") + "/" for path in loaded_paths)
        self._kept = tuple((self._compared(path) + "/", path) for path in (*self._own, settings, *loaded_paths))
        """Paths of the runtime and of what sessions load, each also in the form to compare."""
        self._above_kept = frozenset(
            compared[: at + 1] for compared, _ in self._kept for at, letter in enumerate(compared) if letter == "/"
        )
        """Those paths and all folders above them, each with a slash at its end."""
        self._seen = seen
        self._standings: dict[tuple[str, str], _Standing] = {}
        self._set_readable(*map(real, dict.fromkeys(readable)))

    def with_readable(self, folder: Path) -> PathJudge:
        """Return a judge of the same folder that also lets this folder be read.

        What this judge has resolved stays so: agents of a folder differ in one folder, and the rest takes 0.5 ms.
        """
        judge = self._copy()
        judge._readable = (_lead(str(folder), dict(self._seen))[0], *self._readable)
        if self._is_own(judge._readable[0]):
            judge._set_readable(*judge._readable)
        return judge

    def without_readable(self) -> PathJudge:
        """Return a judge of the same folder that lets no folder outside be read."""
        judge = self._copy()
        judge._set_readable()
        return judge

    def _copy(self) -> PathJudge:
        judge = PathJudge.__new__(PathJudge)
        vars(judge).update(vars(self))
        judge._standings = {}  # they follow from the readable folders, too
        return judge

    def _set_readable(self, *readable: str) -> None:
        self._readable = readable
        self._shown = tuple(filter(self._is_own, readable))
        """Readable folders that are inside a folder of the runtime."""
        self._shown_folders = self._folders(self._shown)

    def _is_own(self, path: str) -> bool:
        return any(is_within(path, folder) for folder in self._own)

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
        """Return True if the repository's own configuration runs no program, or the root has no repository."""
        return git_is_quiet(self.root_folder)

    def look(self, queries: Iterable[PathQuery]) -> Mapping[PathQuery, PathFact]:
        """Return one fact for each query. Never raises."""
        tracked = TrackedLookup(self._root)  # a command contains many paths: one read of the index
        return {query: self._fact(query, tracked) for query in queries}

    def look_at(self, text: str) -> PathFact:
        """Return the fact of one path. Never raises."""
        return self._fact(PathQuery(text), TrackedLookup(self._root))

    def resolve(self, text: str) -> str:
        """Return the path that `look` judges, or an empty text if it cannot be resolved. Never raises."""
        try:
            full = "" if _malformed(text) else self._full(text)
            return full if not full or harmless_device(full) else _lead(full, {}, self._above)[0]
        except (OSError, ValueError, RecursionError):
            return ""

    def _full(self, text: str) -> str:
        # `Path` would drop parts that the kernel sees (`a/../b`).
        return text if text.startswith("/") else self._beneath_root + text

    def _fact(self, query: PathQuery, tracked: Tracked) -> PathFact:
        if query.commit:
            return PathFact("inside", exists=names_commit(self.root_folder, query.text))
        try:
            return self._glob(query, tracked) if query.glob else self._judge_path(query.text, tracked, query)
        except (OSError, ValueError, RecursionError) as error:
            return PathFact("malformed", why=f"it cannot be resolved ({type(error).__name__})")

    def _glob(self, query: PathQuery, tracked: Tracked) -> PathFact:
        segments = query.text.split("/")
        wild = next((at for at, each in enumerate(segments) if globs.is_pattern(each)), len(segments))
        head = globs.unescape("/".join(segments[:wild])) or ("/" if query.text.startswith("/") else ".")
        # Bash keeps a pattern without a match unchanged, so a program may create a file of exactly that name.
        as_written = self._judge_path(globs.unescape(query.text), tracked)  # kept by bash without a match
        facts = [self._judge_path(head, tracked), as_written]
        try:
            paths = list(matches(self._root, query.text, MOST_MATCHES))
        except TooManyMatches:
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
        if _malformed(text):
            return PathFact("malformed", why="it is empty, too long or holds a NUL character")
        full = self._full(text)
        if harmless_device(full):
            return PathFact("readable", full, device=True, exists=True)
        resolved, kind = _lead(full, {}, self._above)
        # A program that opens one of these could wait forever, or reach another program
        # (test_pipes_are_refused_without_waiting_and_absolute_paths_too).
        form = None if kind is None else stat.S_IFMT(kind)
        if form not in _FORMS:
            return PathFact("malformed", resolved, why="it is a pipe or a socket")
        written = full if full == resolved else os.path.normpath(full)
        place, reason, is_critical, loaded = self._standing(resolved, written)
        directory = form == stat.S_IFDIR
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
            critical=is_critical,
            device=form in _DEVICES,
            directory=directory,
            exists=form is not None,
            holds_own=self._holds_own(resolved),
            loaded=loaded,
            beneath=beneath,
            beneath_cut=cut,
            secrets=secrets,
            why=reason,
        )

    def _standing(self, resolved: str, written: str) -> _Standing:
        standing = self._standings.get((resolved, written))
        if standing is None:
            if len(self._standings) >= _REMEMBERED:
                self._standings.clear()
            is_critical = not deeper_than_critical(resolved, self._home) and critical(resolved, self._home)
            loaded = self._is_loaded(resolved) or (written != resolved and self._is_loaded(written))
            standing = _Standing(*self._place(resolved, written), is_critical, loaded)
            self._standings[resolved, written] = standing
        return standing

    def _place(self, resolved: str, written: str) -> tuple[Place, str]:
        # The written path counts too: a link can lead from a protected name to an ordinary file, and change its target.
        paths = (resolved,) if resolved == written else (resolved, written)
        compared = tuple(map(fold_case, paths)) if self.folds else paths
        if any(map(self._kept_folders.hold, compared)):
            if not any(map(self._own_folders.hold, compared)):
                return "settings", "it holds the runtime's settings"
            if all(map(self._shown_folders.hold, compared)):
                return self._runtime_folder_of(resolved)
            return "own", "it belongs to the runtime"
        parts = self._within(resolved, self._root)
        if parts is None or resolved.startswith(_OWN_PROCESS) or written.startswith(_OWN_PROCESS):
            return self._place_outside(resolved)
        inside = [parts, *[self._within(path, self._root) or () for path in paths[1:]]]
        if any(map(is_secret, inside)):
            return "secret", _HOLDS_SECRETS
        if any(map(is_protected, inside)):
            return "protected", "other tools run or obey it"
        return "inside", ""

    def _place_outside(self, resolved: str) -> tuple[Place, str]:
        if self._git_folders.hold(self._compared(resolved)):
            return "protected", "it is git's own"
        for readable in self._readable:
            if (parts := self._within(resolved, readable)) is not None:
                return ("secret", _HOLDS_SECRETS) if is_secret(parts) else ("readable", "")
        return "outside", "it is outside the workspace"

    def _is_loaded(self, path: str) -> bool:
        """Return True if sessions load the path from the user's `.claude`, or from a folder of skills or a plugin.

        `.claude` itself counts, because files copied into it may have any name.
        """
        compared = self._compared(path)
        return compared in self._loaded or compared.startswith(self._loaded_prefixes)

    def _runtime_folder_of(self, resolved: str) -> tuple[Place, str]:
        """Return the place of a readable path in a folder of the runtime: a skill in the user's own settings."""
        parts = next(parts for folder in self._shown if (parts := self._within(resolved, folder)) is not None)
        return ("secret", _HOLDS_SECRETS) if is_secret(parts) else ("settings", "it holds the runtime's settings")

    def _named_secret(self, path: str) -> bool:
        """Return True if a tracked file has the name of a secret.

        The file is in the agent's folder or elsewhere in its repository.
        """
        parts = self._within(path, self._root)
        if parts is None:
            parts = self._within(path, os.path.commonpath((path, self._root)))
        return is_secret(parts or ())

    def _unreadable(self, resolved: str, written: str) -> bool:
        """Return True if a file of a tree must not be read without asking.

        Such a file is a secret, the runtime's own, or a link that leads out.
        """
        return self._place(resolved, written)[0] in ("secret", "outside", "own")

    def _folders(self, paths: Iterable[str]) -> _Folders:
        return _Folders.of(map(self._compared, paths))

    def _within(self, path: str, folder: str) -> tuple[str, ...] | None:
        """Return the components of `path` beneath `folder`, or None if it is not inside."""
        path = self._compared(path)
        folder = self._compared(folder)
        if path == folder:
            return ()
        prefix = folder.rstrip("/") + "/"
        return tuple(path[len(prefix) :].split("/")) if path.startswith(prefix) else None

    def _holds_own(self, resolved: str) -> bool:
        """Return True if a path of the runtime, or of what sessions load, exists at or beneath this one."""
        above = self._compared(resolved).rstrip("/") + "/"
        if above not in self._above_kept:
            return False
        return any(compared.startswith(above) and os.path.lexists(path) for compared, path in self._kept)

    def _compared(self, path: str) -> str:
        """Return the path in the form in which two names of one file are equal."""
        return fold_case(path) if self.folds else path


class PathJudges:
    """Judges of the agents of a session. Agents of one folder share what is resolved once for it."""

    def __init__(self) -> None:
        self._shared: dict[tuple[object, ...], PathJudge] = {}

    def judge_for(self, folders: Folders, *, git: Path | None, reads: bool = True) -> PathJudge:
        """Return a judge for an agent's folders. `git`: git's own folder. `reads`: it may read the folders outside."""
        # All but its folder of results, which is each agent's own.
        key = (folders.root, folders.transcripts, folders.own_state, git, folders.skills)
        if key not in self._shared:
            common = (folders.transcripts, *folders.skills)
            self._shared[key] = PathJudge(
                folders.root, readable=common, own=folders.own_state, loaded=folders.skills, git=git
            )
        shared = self._shared[key]
        return shared.with_readable(folders.tool_results) if reads else shared.without_readable()


def _malformed(text: str) -> bool:
    """Return True if no file can have this path. Raises `ValueError` for lone surrogates."""
    return not text or "\0" in text or len(text.encode("utf-8")) > _LONGEST


def _folds(folder: str) -> bool:
    """Return True if a folder's file system is case-insensitive; False if that is unknown."""
    other = folder.swapcase()
    try:
        return other != folder and Path(folder).samefile(other)
    except (OSError, ValueError):
        return False


def _lead(path: str, seen: dict[str, int], above: str = "") -> tuple[str, int | None]:
    """Return the target of a path (absolute, without links) and the mode of the file there.

    The mode is None if the file does not exist.

    Each component is checked once, except those in `seen`, which grows, and `above`, a folder without links. If no
    component is a link, the kernel would do no more. Otherwise, or if the path is not plain, the library follows it.
    Raises OSError.
    """
    start = above if path.startswith(f"{above}/") else ""
    parts = [part for part in path[len(start) :].split("/") if part]
    if not parts or not path.startswith("/") or path.startswith("//") or "." in parts or ".." in parts:
        return _followed(path)
    at = start
    mode = 0
    for part in parts:
        at = f"{at}/{part}"
        cached_mode = seen.get(at)
        try:
            mode = os.lstat(at).st_mode if cached_mode is None else cached_mode
        except (FileNotFoundError, NotADirectoryError):
            return f"{start}/{'/'.join(parts)}", None  # beneath a missing folder there are no links
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
        return os.stat(path).st_mode  # noqa: PTH116 - once for each path of a command: a Path costs more than the call
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise


# Walks.


class TooManyMatches(Exception):
    """A pattern has more matches than can be checked."""


def matches(root: str, pattern: str, most: int) -> Iterator[str]:
    """Yield every path that a shell pattern could match now, in the pattern's notation.

    Raises `TooManyMatches`, OSError.
    """
    start = "/" if pattern.startswith("/") else ""
    paths = [start]
    seen = 0
    for segment in pattern.lstrip("/").split("/") if start else pattern.split("/"):
        if not globs.is_pattern(segment):
            paths = [_joined(path, globs.unescape(segment)) for path in paths]
            continue
        fits = globs.matcher(segment).fullmatch
        dots = [name for name in (".", "..") if segment.startswith((".", "\\.", "[")) and fits(name)]
        fresh: list[str] = []
        for path in paths:
            entries = _names(os.path.join(root, path) if path else root)  # noqa: PTH118 - as the kernel joins
            seen += len(entries)
            if seen > MOST_ENTRIES:
                raise TooManyMatches
            fresh += [_joined(path, name) for name in (*dots, *entries) if name in dots or fits(name)]
            if len(fresh) > most:
                raise TooManyMatches
        paths = fresh
    yield from (path for path in paths if os.path.lexists(os.path.join(root, path)))  # noqa: PTH118 - as the kernel joins


def _joined(path: str, name: str) -> str:
    return path + name if not path or path.endswith("/") else f"{path}/{name}"


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - names, not paths
    except OSError:
        return []
