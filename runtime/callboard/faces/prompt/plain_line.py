"""The line on a terminal that cannot move its cursor (`TERM=dumb`): lines in, lines out, nothing is drawn anew.

The terminal itself keeps what is typed until Enter. A backslash at the end of a line goes on with the next one.
It refuses to edit, to complete and to remember.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
from collections.abc import Callable, Generator
from contextlib import contextmanager

import anyio

from callboard.faces.prompt.line import Called, Draft, sound
from callboard.faces.terminal import Terminal

_READ = 65_536


class PlainLine:
    """See `PromptLine`, whose methods these are."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._typed = b""
        self._reading: anyio.CancelScope | None = None
        self._interrupted = False
        self.draft = Draft()

    @contextmanager
    def shown(self) -> Generator[None]:
        """While the block lasts, Ctrl-C is heard by `read`."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._heard_interrupt)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    @contextmanager
    def left(self) -> Generator[None]:
        """While the block lasts another program has the screen and the keyboard."""
        yield

    async def read(self, leave: Callable[[], bool]) -> str:
        """See `PromptLine.read`."""
        lines = [await self._line("> ", leave)]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1].removesuffix("\\")
            lines.append(await self._line("  ", leave))
        return "\n".join(lines)

    async def asked(self, words: str, leave: Callable[[], bool]) -> str | None:
        """See `PromptLine.asked`. What was typed before the question was put is thrown away."""
        self._typed = b""
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
        return await self._line(words, leave)

    def call(self) -> None:
        """See `PromptLine.call`."""
        if self._reading is not None:
            self._reading.cancel()

    def redraw(self) -> None:
        """Nothing is drawn anew."""

    def _heard_interrupt(self) -> None:
        self._interrupted = True
        self.call()

    async def _line(self, words: str, leave: Callable[[], bool]) -> str:
        if leave():
            raise Called
        self._terminal.ask(words)
        try:
            with anyio.CancelScope() as self._reading:
                await self._until_line()
        finally:
            self._reading = None
            self._terminal.answered()
        if self._interrupted:
            self._interrupted = False
            raise KeyboardInterrupt
        line, ended, self._typed = self._typed.partition(b"\n")
        if not ended:
            self._typed = line
            raise Called
        return sound(line.decode(errors="surrogateescape"))

    async def _until_line(self) -> None:
        file = sys.stdin.fileno()
        while b"\n" not in self._typed:
            await anyio.wait_readable(file)
            piece = os.read(file, _READ)  # a terminal hands over whole lines: this does not wait
            if not piece:
                raise EOFError
            self._typed += piece
