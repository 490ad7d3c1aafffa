"""What stands in a skill's text for the arguments and for what the session knows. Pure.

    $ARGUMENTS      everything behind the name, as it was typed
    $ARGUMENTS[1]   one argument, counted from 0 and split as a shell splits; a missing one stays as it is written
    $1              the same
    $issue          one that the front matter names (`arguments: [issue, branch]`); a missing one is empty
    ${CLAUDE_...}   what the session knows; an unknown one stays as it is written
    \\$1            a dollar that is meant as one, before any of these

Everything is replaced in one pass: what comes in is never looked at again. Where arguments are given and none of the
places takes one, they stand in a last line `ARGUMENTS: ...` (docs/skills.md).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_WHOLE = "ARGUMENTS"


def split_arguments(text: str) -> tuple[str, ...]:
    """The arguments of a line, as a shell splits them; at blanks alone where a quote does not close."""
    try:
        return tuple(shlex.split(text))
    except ValueError:
        return tuple(text.split())


@dataclass(slots=True)
class _Filling:
    """One text under way."""

    arguments: str
    names: Sequence[str]
    variables: Mapping[str, str]
    words: tuple[str, ...] = ()
    taken: bool = field(default=False)
    """A place took an argument, or stood for all of them."""

    def place(self, found: re.Match[str]) -> str:
        written, taken = found[0], self.taken
        value = self._value(found)
        if not written.startswith("\\"):
            return written if value is None else value
        self.taken = taken
        return written[1:] if value is not None or found["index"] or found["number"] else written

    def _value(self, found: re.Match[str]) -> str | None:
        """None: it stays as it is written."""
        if found["variable"] is not None:
            return self.variables.get(found["variable"])
        if found["name"] is not None:
            return self._word(self.names.index(found["name"])) or ""
        index = found["index"] or found["number"]
        if index is not None:
            return self._word(int(index))
        self.taken = True
        return self.arguments

    def _word(self, place: int) -> str | None:
        if place >= len(self.words):
            return None
        self.taken = True
        return self.words[place]


def _places(names: Sequence[str]) -> re.Pattern[str]:
    """Longest names first, so that `$issue` does not stand for a part of `$issue-number`."""
    known = sorted((re.escape(name) for name in names), key=len, reverse=True)
    named = f"|(?P<name>{'|'.join(known)})(?![A-Za-z0-9_])" if known else "|(?P<name>(?!))"
    index = r"ARGUMENTS\[(?P<index>\d{1,6})\]|(?P<whole>ARGUMENTS)(?![A-Za-z0-9_])"
    return re.compile(rf"\\?\$(?:{index}|(?P<number>\d{{1,6}})|\{{(?P<variable>[A-Z][A-Z0-9_]*)\}}{named})")


def filled(
    body: str, arguments: str = "", names: Sequence[str] = (), variables: Mapping[str, str] | None = None
) -> tuple[str, bool]:
    """The text with everything in its place, and whether a place took an argument (or there was none to take)."""
    filling = _Filling(arguments, names, variables or {}, split_arguments(arguments))
    text = _places(names).sub(filling.place, body)
    return text, filling.taken or not arguments.strip()


def with_arguments(text: str, arguments: str) -> str:
    """The text with the arguments that none of its places took."""
    return f"{text.rstrip()}\n\nARGUMENTS: {arguments}"


def argument_names(written: object) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names that a front matter gives to arguments (a list, or words between blanks or commas), and those that can
    be none."""
    listed = isinstance(written, list | tuple)
    items = cast("Sequence[object]", written) if listed else str(written or "").replace(",", " ").split()
    words = tuple(str(one).strip() for one in items)
    good = tuple(one for one in words if _NAME.fullmatch(one) and one != _WHOLE)
    return good, tuple(one for one in words if one not in good)
