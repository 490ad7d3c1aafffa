"""A page that is painted anew whenever it changed, on a screen of its own, which is given back at the end.

The page is lines, as everything that is shown; control sequences are made here alone. It refuses to know what a page
is about, and to decide when it has changed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import TracebackType
from typing import TextIO

from callboard.faces.terminal import Line, styled

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"
"""A screen of its own, no cursor, no line that wraps."""
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_HOME, _TO_END_OF_LINE, _TO_END = "\x1b[H", "\x1b[K", "\x1b[J"


def can_paint(out: TextIO) -> bool:
    """Whether there is a screen that understands these sequences."""
    return out.isatty() and os.environ.get("TERM", "") not in {"", "dumb"}


class Painter:
    """The screen while the block lasts. Raises `BrokenPipeError` when nobody reads any more."""

    def __init__(self, out: TextIO, *, color: bool) -> None:
        self._out, self._color = out, color
        self._painted = ("", (0, 0))

    def __enter__(self) -> Painter:
        self._write(_ENTER)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._write(_LEAVE)

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows of the screen now; 80 and 24 where it does not tell them."""
        size = os.get_terminal_size(self._out.fileno())
        return size.columns or 80, size.lines or 24

    def paint(self, lines: Sequence[Line]) -> None:
        """Show these lines and nothing else; nothing is written when they stand on a screen of this size already."""
        rows = styled(lines, color=self._color).removesuffix("\n").split("\n")
        page = _HOME + f"{_TO_END_OF_LINE}\r\n".join(rows) + _TO_END_OF_LINE + _TO_END
        if (page, self.size) != self._painted:
            self._painted = (page, self.size)
            self._write(page)

    def _write(self, text: str) -> None:
        encoding = self._out.encoding or "utf-8"
        self._out.write(text.encode(encoding, "replace").decode(encoding))
        self._out.flush()
