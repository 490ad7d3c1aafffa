"""Walk over everything that a command reads beneath a folder, without what git or an ignore file leaves out.

It opens only files of ignore rules, and it is bounded: a walk that reaches its limit reports that.
"""

from __future__ import annotations

import fnmatch
import os
import re
import stat
from collections.abc import Callable
from dataclasses import field
from pathlib import Path

from callboard.adapters.git.premise import in_repository
from callboard.core.permissions import globs
from callboard.core.permissions.values import LeftOut
from callboard.types.late_pattern import late_pattern
from callboard.types.lazy_dataclass import dataclass

MOST_ENTRIES = 50_000
"""Most entries of a tree that are searched for secrets and links out of it."""
_IGNORE_FILES = (".gitignore", ".ignore", ".rgignore")
_PLAIN_RULE = late_pattern(r"/?[\w.*+-]+/?")
_LARGEST_RULES = 100_000


@dataclass(slots=True)
class Tree:
    """Contents beneath a folder that a command reads."""

    paths: list[str] = field(default_factory=list[str])
    """Files, folders and targets of links. Absolute."""
    cut: bool = False
    worst: tuple[str, str] | None = None
    """A path that must not be read without asking, and its name in the tree."""


Tracked = Callable[[], tuple[str, ...] | None]
"""Function that returns the absolute paths that git tracks; None if they are unknown (`tracked_paths`)."""


def tree_beneath(
    folder: str, root: str, *, left_out: LeftOut, bad: Callable[[str, str], bool], tracked: Tracked
) -> Tree:
    """Return everything that a command reads beneath `folder`.

    `bad`: returns True if a path (real, as written) must not be read.
    """
    tree = Tree()
    if left_out == "untracked" and in_repository(Path(root)):
        _tracked(tree, folder, tracked(), bad)
        return tree
    if left_out == "untracked" and folder == "/":
        folder = root  # outside a repository git reads only the named folders
    ignored = _Ignored(root) if left_out == "ignored" else None
    todo = [(folder, ignored.rules_above(folder) if ignored else _Rules())]
    while todo:
        if len(tree.paths) >= MOST_ENTRIES:
            tree.cut = True
            return tree
        at, rules = todo.pop()
        rules = ignored.rules(at, rules) if ignored else rules
        try:
            with os.scandir(at) as scanned:
                entries = list(scanned)
        except OSError:
            continue
        for entry in entries:
            is_folder = entry.is_dir(follow_symlinks=False)
            if ignored and ignored.skips(entry, rules, is_folder=is_folder):
                continue
            real = os.path.realpath(entry.path) if entry.is_symlink() else entry.path
            tree.paths.append(real)
            if tree.worst is None and bad(real, entry.path):
                tree.worst = (real, entry.name)
            if is_folder:
                todo.append((entry.path, rules))
    return tree


def _tracked(tree: Tree, folder: str, paths: tuple[str, ...] | None, bad: Callable[[str, str], bool]) -> None:
    if paths is None:
        tree.cut = True
        return
    start = folder.rstrip("/") + "/"
    for path in paths:
        if path == folder or path.startswith(start):
            tree.paths.append(path)
            if tree.worst is None and bad(path, path):
                tree.worst = (path, path.removeprefix(start))


@dataclass(frozen=True, slots=True)
class _Rules:
    """Names that ignore files exclude, and names that they include again. A folder's rules apply beneath it."""

    names: tuple[str, ...] = ()
    """Patterns of names at any depth; with a final slash, of folders only."""
    folder_names: tuple[str, ...] = ()
    """Patterns of names in the folder itself."""
    readmitted: tuple[re.Pattern[str], ...] = ()
    """Patterns of names on the path to names that a negation includes again, hidden or not."""


class _Ignored:
    """Plain rules of ignore files, as ripgrep follows them. A rule that is not plain excludes nothing."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._in_repository = in_repository(Path(root))

    def rules_above(self, folder: str) -> _Rules:
        """Return the rules of the folders from the workspace down to `folder`, without its own."""
        rules = _Rules()
        for at in reversed([at for at in Path(folder).parents if at.is_relative_to(self._root)]):
            rules = self.rules(str(at), rules)
        return rules

    def rules(self, folder: str, above: _Rules) -> _Rules:
        """Return the rules that apply in a folder: its own and those above it."""
        names = list(above.names)
        readmitted = list(above.readmitted)
        folder_names = list[str]()
        for file in _IGNORE_FILES:
            if file == ".gitignore" and not self._in_repository:
                continue
            for line in _lines(f"{folder}/{file}"):
                if line.startswith("!"):
                    parts = line[1:].rstrip("/").split("/")
                    segments = [part for part in parts if part and part != "**"] + ["*"] * (parts[-1] == "**")
                    readmitted += [globs.matcher(part, dots=False) for part in segments]
                elif _PLAIN_RULE.fullmatch(line) and "**" not in line:
                    (folder_names if line.startswith("/") else names).append(line.lstrip("/"))
        return _Rules(tuple(names), tuple(folder_names), tuple(readmitted))

    def skips(self, entry: os.DirEntry[str], rules: _Rules, *, is_folder: bool) -> bool:
        """Return True if ripgrep skips an entry: it is hidden, a link, or named by a plain rule."""
        if entry.is_symlink():
            return True
        if any(pattern.fullmatch(entry.name) for pattern in rules.readmitted):
            return False
        return entry.name.startswith(".") or any(
            fnmatch.fnmatchcase(entry.name, rule.rstrip("/"))
            for rule in (*rules.names, *rules.folder_names)
            if is_folder or not rule.endswith("/")
        )


def _lines(path: str) -> list[str]:
    """Return the rules of an ignore file; empty if it cannot be read."""
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return []
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - one system call less
            text = file.read(_LARGEST_RULES)
    except (OSError, ValueError):
        return []
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
