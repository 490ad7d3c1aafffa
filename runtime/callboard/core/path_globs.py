"""Globs, matched name by name in bounded time: `*` `?` `[...]` within a name, `**` for any folders, and `{a,b}`.

These are functions of texts, not files. Patterns that expand to very many others are refused.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Sequence

_MOST = 64
"""Most patterns that a pattern with braces may expand to."""


def matcher(pattern: str) -> Callable[[str], bool]:
    """Return a function that returns True if the glob matches a relative path.

    Raises ValueError for an invalid glob.
    """
    if not pattern or len(pattern) > 1_000 or "\0" in pattern:
        raise ValueError("it is empty or too long")
    ways = [_compile(way) for way in expand_braces(pattern)]
    return lambda path: any(_fits(path.split("/"), way) for way in ways)


def expand_braces(pattern: str) -> list[str]:
    """Return the patterns that `{a,b}` expands to. Raises ValueError if they are too many, or a brace is not closed."""
    done: list[str] = []
    todo = [pattern]
    while todo:
        way = todo.pop()
        inner = re.search(r"\{([^{}]*)\}", way)
        if inner is None:
            if "{" in way or "}" in way:
                raise ValueError("a brace is not closed")
            done.append(way)
        else:
            todo += [way[: inner.start()] + choice + way[inner.end() :] for choice in inner[1].split(",")]
        if len(todo) + len(done) > _MOST:
            raise ValueError(f"its braces stand for more than {_MOST} patterns")
    return sorted(set(done))


def _compile(pattern: str) -> list[re.Pattern[str] | None]:
    """Return one expression for each name of the path; None stands for any folders."""
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    compiled: list[re.Pattern[str] | None] = []
    for part in parts:
        if part != "**":
            compiled.append(re.compile(fnmatch.translate(part)))
        elif not compiled or compiled[-1] is not None:
            compiled.append(None)
    if compiled and compiled[-1] is None:
        compiled.append(re.compile(""))
    return compiled


def _fits(names: Sequence[str], way: Sequence[re.Pattern[str] | None]) -> bool:
    """Return True if the names match.

    Tracks the set of reachable positions in the pattern: the steps are names times positions.
    """
    places = _closed({0}, way)
    for name in names:
        places = _closed({after for place in places for after in _step(place, name, way)}, way)
    return len(way) in places


def _step(place: int, name: str, way: Sequence[re.Pattern[str] | None]) -> tuple[int, ...]:
    """Return the positions in the pattern that can follow a name."""
    if place == len(way):
        return ()
    pattern = way[place]
    if pattern is None:
        return (place,)
    return (place + 1,) if pattern.match(name) else ()


def _closed(places: set[int], way: Sequence[re.Pattern[str] | None]) -> set[int]:
    """Add the positions after a `**` that matches no folder."""
    return places | {place + 1 for place in places if place < len(way) and way[place] is None}
