"""Claims on files: the paths and globs of a task, and the tasks whose files overlap. Pure.

A claim only informs other agents; nothing enforces it. A path covers everything below it; `*` and `?` match within one
name, `**` matches across folders. A false report of an overlap is better than a missing one: a class such as `[ab]`
counts as any character.
"""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from callboard.types.errors import ToolRefused
from callboard.types.late_pattern import late_pattern
from callboard.types.records import Task

MOST_FILES = 100
"""Most paths and globs of one task. A task that needs more names a folder."""
_LONGEST = 500
"""Most characters of one path."""
_TOKEN = late_pattern(r"\[[^\]]+\]|.", re.DOTALL)
_GLOB = late_pattern(r"[*?\[]")
_ANY = "?"
_MANY = "*"


def normal_paths(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the paths in stored form: relative to the workspace, without duplicates, sorted.

    The stored form has no `./` and no doubled slashes. Raises `ToolRefused` for a path that is empty, absolute, outside
    the workspace, or too long, and for too many paths.
    """
    normalized = tuple(dict.fromkeys(_normal(path) for path in paths))
    if len(normalized) > MOST_FILES:
        raise ToolRefused(f"files: {len(normalized)} paths are too many; name folders or globs, {MOST_FILES} at most")
    return normalized


def meet(first: str, other: str) -> bool:
    """Return True if some path may match both."""
    own = _segments(first)
    others = _segments(other)
    for at, (name, other_name) in enumerate(zip(own, others, strict=False)):
        if not _is_plain(name) or not _is_plain(other_name):
            return _both_match(own[at:], others[at:], "**", _names_agree)
        if name != other_name:
            return False
    raise AssertionError("every path ends with **")


def shared_paths(own: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    """Return the own paths that overlap any of `others`."""
    return tuple(path for path in own if any(meet(path, other) for other in others))


def overlaps(task: Task, board: Mapping[str, Task]) -> list[tuple[Task, tuple[str, ...]]]:
    """Return the other tasks in progress whose files overlap this task's, with those files; oldest first."""
    return ClaimIndex(board).overlaps(task)


class ClaimIndex:
    """Files of all tasks in progress, ordered by the plain names at the beginning of each path.

    Two paths meet only if the plain names of one begin with those of the other, so most pairs are never compared.
    """

    def __init__(self, board: Mapping[str, Task]) -> None:
        self._owners: dict[str, list[Task]] = {}
        self._beginning: dict[tuple[str, ...], list[str]] = {}
        """Plain names -> paths whose plain names begin with these."""
        self._with: dict[tuple[str, ...], list[str]] = {}
        """Plain names -> paths that have exactly these."""
        self._starts: dict[str, str] = {}
        """Path -> its text before the first wildcard."""
        for task in board.values():
            for path in dict.fromkeys(task.files if task.status == "in_progress" else ()):
                if path not in self._owners:
                    self._add(path)
                self._owners.setdefault(path, []).append(task)

    def overlaps(self, task: Task) -> list[tuple[Task, tuple[str, ...]]]:
        """Return the other tasks whose files overlap this task's, with those files; oldest first."""
        met = {path for own in task.files for path in self._candidates(own) if meet(path, own)}
        others = {other.id: other for path in met for other in self._owners[path] if other.id != task.id}
        return [
            (other, tuple(path for path in other.files if path in met))
            for other in sorted(others.values(), key=lambda other: (other.created_at, other.id))
        ]

    def _add(self, path: str) -> None:
        plain = _plain_names(path)
        self._starts[path] = _plain_text(path)
        self._with.setdefault(plain, []).append(path)
        for length in range(len(plain) + 1):
            self._beginning.setdefault(plain[:length], []).append(path)

    def _candidates(self, path: str) -> list[str]:
        plain = _plain_names(path)
        above = [other for length in range(len(plain)) for other in self._with.get(plain[:length], ())]
        start = _plain_text(path)
        # Most paths in one folder differ in a letter before their first wildcard, which is cheap to see.
        return [
            other
            for other in (*above, *self._beginning.get(plain, ()))
            if start.startswith(self._starts[other]) or self._starts[other].startswith(start)
        ]


def _normal(path: str) -> str:
    text = path.strip()
    if not text or len(text) > _LONGEST or not text.isprintable():
        raise ToolRefused(
            f"files: {text[:80]!r} is not a valid path: write one of 1 to {_LONGEST} printable characters"
        )
    normal = posixpath.normpath(text)
    if normal.startswith("/") or normal.split("/")[0] in {"..", "~"}:
        raise ToolRefused(f"files: {text!r} is not in the workspace: name paths relative to it, such as src/*.py")
    return normal


def _segments(path: str) -> list[str]:
    """Return the names of a path, with everything below it."""
    return [*(part for part in path.split("/") if part not in {"", "."}), "**"]


def _is_plain(name: str) -> bool:
    return not _GLOB.search(name)


def _plain_names(path: str) -> tuple[str, ...]:
    return tuple(itertools.takewhile(_is_plain, _segments(path)))


def _plain_text(path: str) -> str:
    """Return the text before the first wildcard, with which every path begins that matches."""
    text = "/".join(_segments(path)[:-1])
    return text[: wildcard.start()] if (wildcard := _GLOB.search(text)) else text


def _names_agree(first: str, other: str) -> bool:
    """Return True if two globs of one name can match the same name."""
    if _is_plain(first) and _is_plain(other):
        return first == other
    return first == other or _both_match(_tokens(first), _tokens(other), _MANY, _tokens_agree)


def _tokens_agree(first: str, other: str) -> bool:
    return first == other or _ANY in {first, other}


def _both_match(own: Sequence[str], others: Sequence[str], many: str, same: Callable[[str, str], bool]) -> bool:
    """Return True if some sequence matches both patterns, where `many` matches any number of items.

    A table over the rests of both patterns, from their ends: `below` is the row without the first item of `own`.
    """
    below = [False] * len(others) + [True]
    for at in range(len(others) - 1, -1, -1):
        below[at] = below[at + 1] and others[at] == many
    for part in reversed(own):
        row = [False] * len(others) + [part == many and below[-1]]
        for at in range(len(others) - 1, -1, -1):
            if many in {part, others[at]}:
                row[at] = below[at] or row[at + 1]
            else:
                row[at] = below[at + 1] and same(part, others[at])
        below = row
    return below[0]


def _tokens(name: str) -> list[str]:
    return [_ANY if len(token) > 1 else token for token in _TOKEN.findall(name)]
