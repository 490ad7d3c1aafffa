"""List of the files beneath a folder, without those that git ignores, for glob and grep.

Every folder is opened from its parent's descriptor without following links, so that the walk never leaves the root.
Hidden files are included, `.git` is not. The walk stops at a number of files, at a depth, and when its caller stops
waiting.
"""

from __future__ import annotations

import os
import re
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Any, Protocol, cast

from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass

MOST_FILES = 200_000
DEEPEST = 200
_RULES = 1_000_000
"""Most bytes of a .gitignore that are read."""
_ODD_SET = late_pattern(r"\[[^\]]*(\[|--|&&|~~|\|\|)")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class FoundFile:
    """File with its path relative to the root and its modification time (ns)."""

    path: str
    changed: int
    link: bool = False


class WalkCancelled(Exception):
    """The caller was cancelled and does not need the rest."""


class IgnoreRules(Protocol):
    """Rules of an ignore file: `pathspec.GitIgnoreSpec`."""

    def check_file(self, file: str) -> Any:
        """Return an object whose `include` is True for an ignored path, False for one taken back, None for others."""
        ...


@dataclass(frozen=True, slots=True)
class _Rules:
    """Rules of one .gitignore, which apply beneath `folder` (empty: the root)."""

    folder: str
    spec: IgnoreRules


@dataclass
class FolderWalk:
    """One walk beneath the folder whose descriptor `open_root` returns.

    `cut`: True if there were more files than were visited.
    """

    open_root: Callable[[], int]
    stop: threading.Event
    closed: frozenset[str] = frozenset()
    """Paths that are skipped with their contents."""
    cut: bool = False
    _seen: int = 0
    _rules: list[_Rules] = field(default_factory=list[_Rules])

    def files(self, folder: str) -> list[FoundFile]:
        """Return all files beneath a folder (relative to the root, empty for the root itself), newest first.

        Ignore files from the root down to the folder apply too. Raises OSError if the folder cannot be read, and
        `WalkCancelled`.
        """
        descriptor = self.open_root()
        try:
            self._rules = self._start(descriptor)
            parts = folder.split("/") if folder else []
            for index, part in enumerate(parts):
                self._take_rules(descriptor, "/".join(parts[:index]))
                inner = os.open(part, _FOLDER, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = inner
            files = list(self._beneath(descriptor, folder, 0))
        finally:
            os.close(descriptor)
        return sorted(files, key=lambda file: (-file.changed, file.path))

    def _start(self, root: int) -> list[_Rules]:
        """Return the repository's local excludes."""
        text = _small_file(root, ".git/info/exclude")
        return [_Rules("", read_rules(text))] if text else []

    def _take_rules(self, folder: int, name: str) -> bool:
        text = _small_file(folder, ".gitignore")
        if text:
            self._rules.append(_Rules(name, read_rules(text)))
        return bool(text)

    def _beneath(self, folder: int, name: str, depth: int) -> Iterator[FoundFile]:
        added = self._take_rules(folder, name)
        for entry in self._entries(folder):
            if self.stop.is_set():
                raise WalkCancelled
            path = f"{name}/{entry.name}" if name else entry.name
            is_folder = entry.is_dir(follow_symlinks=False)
            if entry.name == ".git" or path in self.closed or self._ignored(path + "/" if is_folder else path):
                continue
            if not is_folder:
                yield from self._file(entry, path)
            elif depth < DEEPEST:
                yield from self._enter(folder, entry.name, path, depth)
        if added:
            self._rules.pop()

    def _file(self, entry: os.DirEntry[str], path: str) -> Iterator[FoundFile]:
        self._seen += 1
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return  # the file has just been removed
        if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
            yield FoundFile(path, status.st_mtime_ns, stat.S_ISLNK(status.st_mode))

    def _entries(self, folder: int) -> Iterator[os.DirEntry[str]]:
        with os.scandir(folder) as entries:
            for entry in entries:
                if self._seen >= MOST_FILES:
                    self.cut = True
                    return
                yield entry

    def _enter(self, parent: int, name: str, path: str, depth: int) -> Iterator[FoundFile]:
        try:
            folder = os.open(name, _FOLDER, dir_fd=parent)
        except OSError:
            return  # unreadable, or just replaced by a link: its files are not shown
        try:
            yield from self._beneath(folder, path, depth + 1)
        finally:
            os.close(folder)

    def _ignored(self, path: str) -> bool:
        """Return True if git ignores the path: the innermost ignore file with a matching rule decides."""
        for rules in reversed(self._rules):
            inner = path[len(rules.folder) + 1 :] if rules.folder else path
            ignored = rules.spec.check_file(inner).include
            if ignored is not None:
                return ignored
        return False


def _small_file(folder: int, name: str) -> str:
    """Return the text of a configuration file; empty if it does not exist or is a link."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return ""
    with open(descriptor, "rb") as file:  # noqa: PTH123 - it opens a descriptor, not a path
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        return file.read(_RULES).decode(errors="replace")


def read_rules(text: str) -> IgnoreRules:
    """Return the rules of an ignore file. Invalid lines are ignored, as in git.

    Lines with more than three stars in a name or more than three `**` are ignored too, because matching them could
    take forever, and a repository may contain any text. So are lines with a set inside a set, and lines of more than
    1,000 characters. Files that such a line would have excluded are shown.
    """
    lines = [line for line in text.splitlines() if _is_quick(line)]
    try:
        return _rules_of(lines)
    except (ValueError, re.error):
        return _rules_of([line for line in lines if _is_rule(line)])


def _rules_of(lines: list[str]) -> IgnoreRules:
    from pathspec import GitIgnoreSpec  # noqa: PLC0415 - only an ignore file needs it; the import takes 12 ms

    return cast("IgnoreRules", GitIgnoreSpec.from_lines(lines))


def _is_quick(line: str) -> bool:
    if _ODD_SET.search(line):
        return False
    parts = line.split("/")
    return len(line) <= 1_000 and parts.count("**") <= 3 and all(part == "**" or part.count("*") <= 3 for part in parts)


def _is_rule(line: str) -> bool:
    try:
        _rules_of([line])
    except (ValueError, re.error):
        return False
    return True
