"""Claims on files: which paths and globs a task names, and which tasks meet in a file. Pure.

A claim is told, not policed: it says to others where somebody works. A path stands for itself and all below it; `*` and
`?` stay inside one name, `**` goes over folders. It is better to tell of a meeting that is none than to keep one back:
a class such as `[ab]` counts as any character.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from callboard.words.errors import ToolRefused
from callboard.words.values import Task

MOST_FILES = 100
"""Paths and globs of one task; whoever needs more names a folder."""
_LONGEST = 500
"""Characters of one of them."""
_TOKEN = re.compile(r"\[[^\]]+\]|.", re.DOTALL)
_ANY, _MANY = "?", "*"


def normal_paths(paths: Iterable[str]) -> tuple[str, ...]:
    """The paths as they are kept: relative to the workspace, without `./` and doubled slashes, each once, in order.

    Raises `ToolRefused` for one that is empty, absolute, leads out of the workspace, or is too long, and for too many.
    """
    found = tuple(dict.fromkeys(_normal(path) for path in paths))
    if len(found) > MOST_FILES:
        raise ToolRefused(f"files: {len(found)} paths are too many; name folders or globs, {MOST_FILES} at most")
    return found


def meet(one: str, other: str) -> bool:
    """Whether some path may be meant by both."""
    return _agree(_segments(one), _segments(other), "**", _names_agree)


def shared(mine: Sequence[str], others: Sequence[str]) -> tuple[str, ...]:
    """Those of `mine` that meet any of `others`."""
    return tuple(path for path in mine if any(meet(path, other) for other in others))


def overlaps(task: Task, board: Mapping[str, Task]) -> list[tuple[Task, tuple[str, ...]]]:
    """The other tasks in progress that meet this one's files, with the files of theirs that do; oldest first."""
    working = [one for one in board.values() if one.status == "in_progress" and one.id != task.id]
    found = [(one, shared(one.files, task.files)) for one in working]
    return sorted(((one, files) for one, files in found if files), key=lambda each: (each[0].created_at, each[0].id))


def _normal(path: str) -> str:
    text = path.strip()
    if not text or len(text) > _LONGEST or not text.isprintable():
        raise ToolRefused(f"files: {text[:80]!r} is no path: write one of 1 to {_LONGEST} printable characters")
    normal = posixpath.normpath(text)
    if normal.startswith("/") or normal.split("/")[0] in {"..", "~"}:
        raise ToolRefused(f"files: {text!r} is not in the workspace: name paths relative to it, such as src/*.py")
    return normal


def _segments(path: str) -> list[str]:
    """The names of a path, and all that is below it."""
    return [*(part for part in path.split("/") if part not in {"", "."}), "**"]


def _names_agree(one: str, other: str) -> bool:
    """Whether two globs of one name have a name in common."""
    return one == other or _agree(_tokens(one), _tokens(other), _MANY, _tokens_agree)


def _tokens_agree(one: str, other: str) -> bool:
    return one == other or _ANY in {one, other}


def _agree(mine: Sequence[str], theirs: Sequence[str], many: str, same: Callable[[str, str], bool]) -> bool:
    """Whether two patterns have a sequence in common, in which `many` stands for any number of anything.

    A table over what is left of each pattern, from their ends: `below` is the row without the first of `mine`.
    """
    below = [all(part == many for part in theirs[at:]) for at in range(len(theirs) + 1)]
    for part in reversed(mine):
        row = [part == many and below[-1]]
        for at in range(len(theirs) - 1, -1, -1):
            if many in {part, theirs[at]}:
                row.insert(0, below[at] or row[0])
            else:
                row.insert(0, below[at + 1] and same(part, theirs[at]))
        below = row
    return below[0]


def _tokens(name: str) -> list[str]:
    return [_ANY if len(token) > 1 else token for token in _TOKEN.findall(name)]
