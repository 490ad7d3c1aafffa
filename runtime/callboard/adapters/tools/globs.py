"""Globs, matched name by name in time that no pattern can blow up: `*` `?` `[...]` within a name, `**` any folders, and
`{a,b}`. Functions of texts, no files. Refuses patterns that stand for very many others.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Sequence

_MOST = 64
"""Patterns that one with braces may stand for."""


def matcher(pattern: str) -> Callable[[str], bool]:
    """A function that says of a relative path whether the glob fits it. Raises ValueError for what is no glob."""
    if not pattern or len(pattern) > 1_000 or "\0" in pattern:
        raise ValueError("it is empty or too long")
    ways = [_compile(way) for way in expand_braces(pattern)]
    return lambda path: any(_fits(path.split("/"), way) for way in ways)


def expand_braces(pattern: str) -> list[str]:
    """The patterns that one with `{a,b}` stands for. Raises ValueError when they are too many, or a brace is open."""
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
    """One expression for each name of the path; None where any folders may stand."""
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
    """Whether the names fit, by the set of places in the pattern that can be reached: names times places steps."""
    places = _closed({0}, way)
    for name in names:
        places = _closed({after for place in places for after in _step(place, name, way)}, way)
    return len(way) in places


def _step(place: int, name: str, way: Sequence[re.Pattern[str] | None]) -> tuple[int, ...]:
    """Where in the pattern one can be after a name."""
    if place == len(way):
        return ()
    wanted = way[place]
    if wanted is None:
        return (place,)
    return (place + 1,) if wanted.match(name) else ()


def _closed(places: set[int], way: Sequence[re.Pattern[str] | None]) -> set[int]:
    """`**` may also stand for no folder at all."""
    return places | {place + 1 for place in places if place < len(way) and way[place] is None}
