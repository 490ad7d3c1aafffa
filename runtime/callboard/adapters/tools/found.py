"""How what was found is told: pages of lines, and the lines round a hit, read beneath the folder that was searched.

What is shown is read here, after the search, from a descriptor that cannot lead outside; the search said only where to
look. Binary files are left out. Blocks while it reads: for worker threads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from callboard.adapters.paths import open_beneath
from callboard.adapters.tools.walking import Gone

SHOWN, LINE = 50_000, 500
"""Characters of an answer, characters of a line."""
_PIECE = 1 << 20

Row = tuple[str, bool]
"""A line of an answer, and whether it counts as found: context lines and separators do not."""


@dataclass(frozen=True, slots=True)
class Page:
    """The part of an answer that is shown. `count`: how many of its lines count."""

    lines: Sequence[str]
    count: int

    def text(self, total: int, unit: str) -> str:
        """The page, with a mark when it is not all."""
        text = "\n".join(self.lines)
        if self.count >= total:
            return text
        return f"{text}\n[Output cut: {self.count} of {total} {unit}. Narrow it by path or glob, or set head_limit.]"


def page_of(rows: Iterable[Row], limit: int) -> Page:
    """As many rows as fit; `limit` 0: only the characters count."""
    lines: list[str] = []
    size = count = 0
    for line, counts in rows:
        size += len(line) + 1
        if size > SHOWN or (limit and len(lines) >= limit):
            break
        lines.append(line)
        count += counts
    return Page(lines, count)


@dataclass(frozen=True, slots=True)
class Pages:
    """Files beneath a folder, of which lines are to be shown."""

    folder: int
    """A descriptor of it."""
    name: Callable[[str], str]
    """How the agent names a path."""
    stop: threading.Event

    def texts(self, paths: Iterable[str]) -> list[str]:
        """Those that are text files that can be read."""
        return [path for path in paths if self._is_text(path)]

    def rows(self, lines: Mapping[str, Sequence[int]], paths: Iterable[str], context: int) -> Iterator[Row]:
        """The lines of each file with those round them. Raises `Gone` when nobody waits any more."""
        begun = False
        for path in paths:
            last = 0
            for number, text, hit in self._around(path, lines[path], context):
                if context and begun and number != last + 1:
                    yield "--", False
                begun, last = True, number
                mark = ":" if hit else "-"
                yield f"{self.name(path)}{mark}{number}{mark}{text}", hit

    def _around(self, path: str, wanted: Sequence[int], context: int) -> Iterator[tuple[int, str, bool]]:
        hits = set(wanted)
        last = max(hits) + context
        near = {hit + step for hit in hits for step in range(-context, context + 1)}
        descriptor = self._open(path)
        if descriptor is None:
            return
        with open(descriptor, "rb") as file:  # noqa: PTH123 - there is a descriptor and no path
            number, begins = 1, True
            while number <= last and (piece := file.readline(_PIECE)):
                if begins and number in near:
                    yield number, _line(piece), number in hits
                begins = piece.endswith(b"\n")
                number += begins

    def _open(self, path: str) -> int | None:
        if self.stop.is_set():
            raise Gone
        try:
            return open_beneath(self.folder, path, os.O_RDONLY)
        except OSError:
            return None  # it has gone, or become a link that leads out: then there is nothing to show

    def _is_text(self, path: str) -> bool:
        descriptor = self._open(path)
        if descriptor is None:
            return False
        try:
            return b"\0" not in os.pread(descriptor, 8_192, 0)
        finally:
            os.close(descriptor)


def _line(piece: bytes) -> str:
    text = piece.decode(errors="replace").rstrip("\r\n").replace("\0", "\N{REPLACEMENT CHARACTER}")
    return text if len(text) <= LINE else f"{text[:LINE]} [line cut: {LINE} of {len(text)} characters]"
