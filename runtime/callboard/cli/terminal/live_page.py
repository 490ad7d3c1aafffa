"""Page that is repainted whenever it changes, on an alternate screen that is closed at the end.

The page consists of lines, like all output; only this module writes control sequences. Callers provide the content, and
decide when it has changed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import TracebackType
from typing import TextIO

from callboard.cli.terminal.terminal import Line, style_lines

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"
"""Alternate screen, no cursor, no wrapping of lines."""
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_HOME = "\x1b[H"
_TO_END_OF_LINE = "\x1b[K"
_TO_END = "\x1b[J"


def can_paint(out: TextIO) -> bool:
    """Return True if the output is a screen that supports these sequences."""
    return out.isatty() and os.environ.get("TERM", "") not in {"", "dumb"}


class Painter:
    """Alternate screen during the block. Raises `BrokenPipeError` if its reader is gone."""

    def __init__(self, out: TextIO, *, color: bool) -> None:
        self._out = out
        self._color = color
        self._painted = ("", (0, 0))

    def __enter__(self) -> Painter:
        self._write(_ENTER)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._write(_LEAVE)

    @property
    def size(self) -> tuple[int, int]:
        """Return the current columns and rows of the screen; 80 and 24 if unknown."""
        size = os.get_terminal_size(self._out.fileno())
        return size.columns or 80, size.lines or 24

    def paint(self, lines: Sequence[Line]) -> None:
        """Show exactly these lines; nothing is written if a screen of this size already shows them."""
        rows = style_lines(lines, color=self._color).removesuffix("\n").split("\n")
        page = _HOME + f"{_TO_END_OF_LINE}\r\n".join(rows) + _TO_END_OF_LINE + _TO_END
        if (page, self.size) != self._painted:
            self._painted = (page, self.size)
            self._write(page)

    def _write(self, text: str) -> None:
        encoding = self._out.encoding or "utf-8"
        self._out.write(text.encode(encoding, "replace").decode(encoding))
        self._out.flush()
