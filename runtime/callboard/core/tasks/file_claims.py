"""Claims on files: the paths and globs of a task, and the tasks whose files overlap. Pure.

A claim only informs other agents; nothing enforces it. A path covers everything below it; `*` and `?` match within one
name, `**` matches across folders. A false report of an overlap is better than a missing one: a class such as `[ab]`
counts as any character.
"""

from __future__ import annotations

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
    return _agree(_segments(first), _segments(other), "**", _names_agree)


def shared(own: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    """Return the own paths that overlap any of `others`."""
    return tuple(path for path in own if any(meet(path, other) for other in others))


def overlaps(task: Task, board: Mapping[str, Task]) -> list[tuple[Task, tuple[str, ...]]]:
    """Return the other tasks in progress whose files overlap this task's, with those files; oldest first."""
    working = [other for other in board.values() if other.status == "in_progress" and other.id != task.id]
    overlapping = [(other, shared(other.files, task.files)) for other in working]
    return sorted(
        ((other, files) for other, files in overlapping if files), key=lambda each: (each[0].created_at, each[0].id)
    )


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


def _names_agree(first: str, other: str) -> bool:
    """Return True if two globs of one name can match the same name."""
    return first == other or _agree(_tokens(first), _tokens(other), _MANY, _tokens_agree)


def _tokens_agree(first: str, other: str) -> bool:
    return first == other or _ANY in {first, other}


def _agree(own: Sequence[str], others: Sequence[str], many: str, same: Callable[[str, str], bool]) -> bool:
    """Return True if some sequence matches both patterns, where `many` matches any number of items.

    A table over the rests of both patterns, from their ends: `below` is the row without the first item of `own`.
    """
    below = [all(part == many for part in others[at:]) for at in range(len(others) + 1)]
    for part in reversed(own):
        row = [part == many and below[-1]]
        for at in range(len(others) - 1, -1, -1):
            if many in {part, others[at]}:
                row.insert(0, below[at] or row[0])
            else:
                row.insert(0, below[at + 1] and same(part, others[at]))
        below = row
    return below[0]


def _tokens(name: str) -> list[str]:
    return [_ANY if len(token) > 1 else token for token in _TOKEN.findall(name)]
