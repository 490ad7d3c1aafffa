"""What is printed while a person types: above the line, in one piece, through the stream on which the line is drawn.

All goes the same way, in the thread that draws: what was erased, what is printed and what is drawn anew keep their
order. It refuses to decide what is printed.
"""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Callable

from prompt_toolkit.application import Application

from callboard.faces.terminal import Canvas, Terminal, block

BUNDLE = 0.1
"""Seconds in which prints gather: the line is drawn anew after each bundle."""


class Above:
    """Prints above the line that is typed on, if there is one."""

    def __init__(self, canvas: Canvas, typing: Callable[[], Application[str] | None]) -> None:
        """To be made in the loop that draws. `typing`: the line that is on the screen, if one is."""
        self._canvas, self._typing = canvas, typing
        self._loop = asyncio.get_running_loop()
        # Held to put a text into the list or to take all of them, never while writing.
        self._lock = threading.Lock()
        self._waiting: list[str] = []

    def write(self, text: str) -> None:
        """Print whole lines. May be called from any thread; returns at once."""
        with self._lock:
            self._waiting.append(text)
            first = len(self._waiting) == 1
        if first:
            self._loop.call_soon_threadsafe(self._soon)

    def close(self) -> None:
        """Print what waits. No line is on the screen any more."""
        self._put()

    def _soon(self) -> None:
        self._loop.call_later(BUNDLE, self._print)

    def _print(self) -> None:
        """Not by `run_in_terminal`: that leaves the terminal's raw way, and a key typed then is echoed or changed."""
        line = self._typing()
        if line is not None:
            line.renderer.erase(leave_alternate_screen=False)
        self._put()
        if line is not None:
            line.invalidate()

    def _put(self) -> None:
        """Whoever comes first takes all that waits, so that nothing overtakes anything."""
        with self._lock:
            texts, self._waiting = self._waiting, []
        if texts:
            self._canvas.write("".join(texts))


class Strays(io.TextIOBase):
    """In the place of stdout and stderr while a person types: what a library prints there becomes a block."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._begun = ""

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, text: str, /) -> int:
        """Print the lines that are whole."""
        lines, broken, rest = (self._begun + text).rpartition("\n")
        self._begun = rest
        if broken:
            self._terminal.terminal_print(block(lines, "dim"))
        return len(text)
