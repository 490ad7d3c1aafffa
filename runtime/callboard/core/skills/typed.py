"""What a person typed that begins with slash commands: which, and with what. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

MOST_STACKED = 6
"""Skills that may stand at the start of one message (Claude Code's own limit)."""
_NAMED = re.compile(r"/(?P<name>[A-Za-z0-9_][\w.:@-]*)(?=\s|\Z)")


@dataclass(frozen=True, slots=True)
class Typed:
    """The commands at the start of a message, and all that stands behind the last of them."""

    names: tuple[str, ...]
    arguments: str


def typed(text: str, known: Callable[[str], bool]) -> Typed | None:
    """The known commands that a message begins with, at most `MOST_STACKED`; None where it begins with none.

    A word behind them that no command goes by (`/etc/hosts`) begins the arguments. Each command counts once.
    """
    at, names = _blanks(text, 0), list[str]()
    while len(names) < MOST_STACKED:
        found = _NAMED.match(text, at)
        if found is None or not known(found["name"]):
            break
        if found["name"] not in names:
            names.append(found["name"])
        at = _blanks(text, found.end())
    return Typed(tuple(names), text[at:].strip()) if names else None


def begins_with_one(text: str) -> bool:
    """Whether a message may begin with a command at all: a cheap look."""
    return text.lstrip().startswith("/")


def _blanks(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at
