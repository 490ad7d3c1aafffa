"""Drawing surface of a prompt line, whose writes go through the terminal's only writer."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TextIO


class Canvas:
    """Drawing surface of a prompt line: implements the necessary parts of a stream, and never waits for the screen.

    The terminal's only writer writes the drawing, between blocks.
    """

    def __init__(self, stream: TextIO, hand_over: Callable[[str], None]) -> None:
        self._stream = stream
        self._hand_over = hand_over
        self._frame: list[str] | None = None
        """Writes of the current frame; None outside one."""

    @contextmanager
    def frame(self) -> Generator[None]:
        """Hand over all writes of the block in one piece, so that the screen never shows a part of them."""
        self._frame = []
        try:
            yield
        finally:
            pieces, self._frame = self._frame, None
            if pieces:
                self._hand_over("".join(pieces))

    @property
    def encoding(self) -> str:
        """Return the encoding of the stream."""
        return self._stream.encoding or "utf-8"

    def fileno(self) -> int:
        """Return the descriptor of the stream, used to query its size and settings."""
        return self._stream.fileno()

    def isatty(self) -> bool:
        """Return True if the stream is a terminal."""
        return self._stream.isatty()

    def write(self, text: str) -> int:
        """Put the text into the terminal's queue, or into the current frame."""
        if self._frame is None:
            self._hand_over(text)
        else:
            self._frame.append(text)
        return len(text)

    def flush(self) -> None:
        """Do nothing: this object has no buffer."""
