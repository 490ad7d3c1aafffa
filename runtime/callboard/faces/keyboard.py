"""Lines typed at a terminal without a prompt line: read so that a question can be taken back.

It refuses to edit and to draw; the prompt line of `repl.py` does that.
"""

from __future__ import annotations

import os
import sys
import termios
from collections.abc import Callable

import anyio

from callboard.faces.terminal import Block, Terminal


class Keyboard:
    """The person's lines from stdin, while it is a terminal in its ordinary, line by line way."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._typed = b""

    async def ask(self, shown: Block, question: str, taken_back: Callable[[], str]) -> str | None:
        """Show a block, put a question and return the line; None at the end of input. What was typed before the
        question was put is thrown away: nobody approves what they have not seen. Cancelled, it says why."""
        file = sys.stdin.fileno()
        self._typed = b""
        termios.tcflush(file, termios.TCIFLUSH)
        self._terminal.terminal_print(shown)
        self._terminal.ask(question)
        try:
            while b"\n" not in self._typed:
                await anyio.wait_readable(file)
                piece = os.read(file, 4_096)  # a terminal hands over whole lines: this does not wait
                if not piece:
                    self._terminal.answered("(end of input)")
                    return None
                self._typed += piece
        except anyio.get_cancelled_exc_class():
            self._terminal.answered(f"({taken_back()})")
            raise
        self._terminal.answered()
        line, _, _ = self._typed.partition(b"\n")
        return line.decode(errors="replace")


def person_is_there() -> bool:
    """Somebody reads what we ask and can type an answer."""
    return sys.stdin.isatty() and sys.stderr.isatty()
