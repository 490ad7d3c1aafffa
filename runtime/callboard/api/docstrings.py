"""What a docstring says of a function and of its parameters: in the styles of Google, NumPy and Sphinx. Pure."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

_SECTION = re.compile(
    r"(args|arguments|parameters|params|keyword args|other parameters|returns?|raises|yields?|examples?|notes?|see also"
    r"|attributes|warns?|warnings?|references|todo):?",
    re.IGNORECASE,
)
_OF_PARAMETERS = frozenset({"args", "arguments", "parameters", "params", "keyword args", "other parameters"})
_FIELD = re.compile(r":(param|parameter|arg|argument)\s+(?:[^:]*\s)?\*{0,2}(?P<name>\w+)\s*:\s*(?P<text>.*)")
_GOOGLE = re.compile(r"\*{0,2}(?P<name>\w+)\s*(?:\([^)]*\))?\s*:\s*(?P<text>.*)")
_NUMPY = re.compile(r"\*{0,2}(?P<names>\w+(?:\s*,\s*\w+)*)\s*(?::.*)?")


class Described(NamedTuple):
    """A docstring, read."""

    summary: str
    """What stands before any section."""
    parameters: dict[str, str]
    """Parameter -> what is said of it."""


def described(text: str | None) -> Described:
    """What a docstring says; empty for none."""
    lines = inspect.cleandoc(text or "").splitlines()
    summary: list[str] = []
    found: dict[str, str] = {}
    place = 0
    while place < len(lines):
        name, body = _section(lines, place)
        if name:
            place = _end(lines, body)
            found |= dict(_parameters(lines[body:place])) if name in _OF_PARAMETERS else {}
        elif lines[place].lstrip().startswith(":") and (field := lines[place].strip()):
            place = _sphinx(lines, place, field, found)
        else:
            summary.append(lines[place])
            place += 1
    return Described("\n".join(summary).strip(), found)


def _section(lines: Sequence[str], place: int) -> tuple[str, int]:
    """The name of the section that begins here, in small letters, and where its body begins; empty for none."""
    line = lines[place]
    if line[:1].isspace() or not _SECTION.fullmatch(line.strip()):
        return "", place
    below = lines[place + 1].strip() if place + 1 < len(lines) else ""
    if below and set(below) == {"-"}:
        return line.strip().rstrip(":").lower(), place + 2
    return (line.strip()[:-1].lower(), place + 1) if line.strip().endswith(":") else ("", place)


def _end(lines: Sequence[str], body: int) -> int:
    """Where the section ends whose body begins here."""
    for place in range(body, len(lines)):
        if _section(lines, place)[0]:
            return place
        if lines[place] and not lines[place][0].isspace() and not lines[place - 1].strip() and _google(lines, body):
            return place
    return len(lines)


def _google(lines: Sequence[str], body: int) -> bool:
    """The body of the section is indented."""
    return next((line[0].isspace() for line in lines[body:] if line.strip()), False)


def _parameters(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each parameter of a section, with its text."""
    depth = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    names: list[str] = []
    said: list[str] = []
    for line in [*lines, " " * depth + "_end_:"]:
        head = line[depth : depth + 1]
        if not head or head.isspace():
            said.append(line.strip())
            continue
        yield from ((name, " ".join(filter(None, said))) for name in names if any(said))
        found = _GOOGLE.fullmatch(line.strip()) if depth else None
        others = _NUMPY.fullmatch(line.strip())
        names = [found["name"]] if found else re.split(r"\s*,\s*", others["names"]) if others else []
        said = [found["text"]] if found else []


def _sphinx(lines: Sequence[str], place: int, field: str, found: dict[str, str]) -> int:
    """Take a field such as `:param x: text`, with the indented lines below it; where to go on."""
    end = place + 1
    while end < len(lines) and lines[end].strip() and lines[end][0].isspace():
        end += 1
    match = _FIELD.fullmatch(field)
    if match is not None:
        more = [line.strip() for line in lines[place + 1 : end]]
        found[match["name"]] = " ".join(filter(None, [match["text"], *more]))
    return end
