"""Which other files an instruction file includes: `@path` between blanks, outside code. Pure; it opens nothing.

`@notes/style.md`, `@./x.md`, `@../x.md`, `@~/x.md`, `@/x.md`; a blank in a path is written `\\ `. A name behind an `@`
may as well be a person or a package: whoever reads decides by whether there is such a file. Inside code spans and
fences an `@` is code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

MOST = 200
"""Includes of one file that are looked at."""
_WORD = re.compile(r"(?<!\S)@((?:\\ |[^\s\\@`])(?:\\ |[^\s\\`])*)")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)\Z")
_TICKS = re.compile(r"`+")
_AFTER = ".,;:!?)]}'\"*_"
"""What may follow a path in a sentence, and is no part of it."""


def includes_in(text: str) -> tuple[str, ...]:
    """The paths, each once, in the order in which they stand."""
    found: dict[str, None] = {}
    for part in _prose(text):
        for match in _WORD.finditer(part):
            path = _path(match[1])
            if path and len(found) < MOST:
                found[path] = None
    return tuple(found)


def only_includes(text: str) -> bool:
    """Whether a file says nothing but what it includes."""
    left = "\n".join(_prose(text, code=True))
    return bool(includes_in(text)) and not _WORD.sub("", left).strip(" \t\r\n-*")


def _path(word: str) -> str:
    """The path of an include; empty for what cannot be one."""
    path = word.replace("\\ ", " ").rstrip(_AFTER).strip()
    return "" if not path or path.startswith(("#", "@")) or "\0" in path else path


def _prose(text: str, *, code: bool = False) -> Iterator[str]:
    """The text outside fences, line by line joined to paragraphs, code spans left out; with `code` these stay."""
    fence = ""
    lines: list[str] = []
    for line in [*text.splitlines(), ""]:
        mark = _FENCE.match(line)
        if fence:
            if mark and mark[1].startswith(fence) and not mark[2].strip():
                fence = ""
            elif code:
                yield line
            continue
        opens = mark is not None and not (mark[1][0] == "`" and "`" in mark[2])
        if opens or not line.strip():
            paragraph = "\n".join(lines)
            yield paragraph if code else _without_spans(paragraph)
            lines = []
        if opens and mark is not None:
            fence = mark[1]
            if code:
                yield "```"
        elif line.strip():
            lines.append(line)
    yield "\n".join(lines) if code else _without_spans("\n".join(lines))


def _without_spans(text: str) -> str:
    """The text with a blank where a code span stood. A run of ticks is closed by the next run as long as it."""
    runs = [(found.start(), found.end()) for found in _TICKS.finditer(text)]
    later: dict[int, list[int]] = {}
    for number in range(len(runs) - 1, -1, -1):
        later.setdefault(runs[number][1] - runs[number][0], []).append(number)
    kept: list[str] = []
    at = number = 0
    while number < len(runs):
        start, end = runs[number]
        same = later[end - start]
        while same and same[-1] <= number:
            same.pop()
        if not same:
            number += 1
            continue
        kept += [text[at:start], " ` "]
        number = same.pop()
        at = runs[number][1]
        number += 1
    return "".join([*kept, text[at:]])
