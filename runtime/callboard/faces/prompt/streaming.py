"""Which part of a streaming text may be printed: whole blocks of Markdown, each once. Pure.

What streams is only a promise: pieces may be lost, and a reply may turn out to be void. The whole text that comes in
the end decides what is still to be printed, and whether what stands on the screen has gaps.

It refuses to print and to render.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

LONG = 40
"""Lines of one block after which it is printed in parts: a long listing is not held back until its end."""
_FENCE = re.compile(r"(\s*)(`{3,}|~{3,})(.*)")
_ITEM = re.compile(r"([-*+]|\d{1,9}[.)]) ")


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a text that may be printed. `inside`: the line that opened the code block in which it begins."""

    text: str
    inside: str = ""


@dataclass(slots=True)
class Streamed:
    """A text while it streams. `more` and `end` return what is to be printed now."""

    text: str = ""
    _done: int = 0
    """Characters of `text` that were printed."""
    _inside: str = ""
    _ends: list[int] = field(default_factory=list[int])
    """Where the printed pieces end."""

    @property
    def tail(self) -> str:
        """What has come and is not printed."""
        return self.text[self._done :]

    @property
    def begun(self) -> bool:
        """Some of it stands on the screen."""
        return self._done > 0

    def more(self, text: str) -> Piece | None:
        """What is whole now that this has come too."""
        looks = "\n" in self.text[-1:] + text
        self.text += text
        if not looks:
            return None
        cut, inside = whole_until(self.tail, self._inside)
        if not self.text[self._done : self._done + cut].strip():
            return None
        piece = Piece(self.text[self._done : self._done + cut], self._inside)
        self._done, self._inside = self._done + cut, inside
        self._ends.append(self._done)
        return piece

    def end(self, whole: str) -> tuple[Piece | None, bool]:
        """What of the whole text is still to be printed, and whether what stands on the screen has gaps from some
        place on: then the rest begins at that place. Nothing is left to stream."""
        printed, inside = self.text[: self._done], self._inside
        kept, at = _matched(printed, whole)
        lost = kept < len(printed)
        if lost:
            before = max((end for end in self._ends if end <= kept), default=0)
            _, at = _matched(printed[:before], whole)
            inside = ""
        at += printed.endswith("\n") and whole[at : at + 1] == "\n"
        self.text, self._done, self._inside, self._ends = "", 0, "", []
        rest = whole[at:].rstrip()
        return (Piece(rest if printed and not lost else rest.lstrip("\n"), inside) if rest.strip() else None), lost

    def drop(self) -> bool:
        """It is void; whether any of it stands on the screen."""
        begun = self.begun
        self.text, self._done, self._inside, self._ends = "", 0, "", []
        return begun


def whole_until(text: str, inside: str = "") -> tuple[int, str]:
    """How many characters of a text are whole blocks, and the line that opened the code block at that place, if any.

    A block ends before an empty line that is followed by a line at the margin (one that is set in may belong to a
    list), before and behind a code block at the margin, and, when it is long, before the next item or line of code."""
    scan = _Scan(inside=inside, fence=inside)
    at = 0
    while (end := text.find("\n", at)) >= 0:
        line = text[at:end]
        at = end + 1
        scan.begins(line)
        scan.ended(line, at)
    if at < len(text):
        scan.begins(text[at:])
    return scan.cut, scan.inside


@dataclass(slots=True)
class _Scan:
    """Where a text may be cut, line by line. `inside`: the opener of the code block at `cut`; `fence`: of the one at
    the place that was reached."""

    inside: str
    fence: str
    cut: int = 0
    lines: int = 0
    """Since `cut`."""
    words: int = 0
    """Where the last line that is not empty ended."""
    empty: bool = False
    """The line before was."""

    def begins(self, line: str) -> None:
        """A line, perhaps not all of it yet."""
        if self.fence or not self.words or not line or line[0].isspace():
            return
        if self.empty or _opens(line) or (self.lines >= LONG and _ITEM.match(line)):
            self._cut(self.words, "")

    def ended(self, line: str, end: int) -> None:
        """That line is whole; `end` is behind its line break."""
        self.lines += 1
        if self.fence:
            self._in_code(line, end)
        elif _opens(line):
            self.fence = line
        self.empty = not line.strip() and not self.fence
        if not self.empty:
            self.words = end

    def _in_code(self, line: str, end: int) -> None:
        at_margin = not self.fence[0].isspace()
        if _closes(line, self.fence):
            self.fence = ""
        elif self.lines < LONG:
            return
        if at_margin:
            self._cut(end, self.fence)

    def _cut(self, at: int, inside: str) -> None:
        self.cut, self.inside, self.lines = at, inside, 0


def _opens(line: str) -> bool:
    found = _FENCE.match(line)
    return found is not None and not (found[2][0] == "`" and "`" in found[3])


def _closes(line: str, opened: str) -> bool:
    opener, closer = _FENCE.match(opened), _FENCE.match(line)
    if opener is None or closer is None or closer[3].strip():
        return False
    return closer[2].startswith(opener[2])


def _matched(printed: str, whole: str) -> tuple[int, int]:
    """How far the printed text agrees with the whole one, white space aside, and where that is in the whole one."""
    here = there = 0
    while True:
        while here < len(printed) and printed[here].isspace():
            here += 1
        if here == len(printed):
            return here, there
        step = there
        while step < len(whole) and whole[step].isspace():
            step += 1
        if step == len(whole) or whole[step] != printed[here]:
            return here, there
        here, there = here + 1, step + 1
