"""Messages about an unknown name, with the names to choose from."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def unknown(kind: str, name: object, names: Iterable[str], *, where: str = "") -> str:
    """Return `unknown place 'x' in the workspace: choose session, project or person`. Similar names come first.

    `where`: `in the workspace`; may be empty.
    """
    every = list(names)
    near = get_close_matches(str(name), every)
    place = f" {where}" if where else ""
    return f"unknown {kind} {name!r}{place}: {choose([*near, *(other for other in every if other not in near)])}"


def choose(names: Iterable[str]) -> str:
    """Return `choose a, b or c`; `there are none` without any names."""
    *first, last = list(names) or [""]
    if not last:
        return "there are none"
    return f"choose {', '.join(first)} or {last}" if first else f"choose {last}"
