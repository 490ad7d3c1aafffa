"""Prompt line on a terminal that cannot move its cursor (`TERM=dumb`): lines in, lines out, without redrawing.

The terminal itself keeps the typed text until Enter. A backslash at the end of a line continues it on the next one. It
has no editing, completion or history.
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

from callboard.cli.repl.draft import Draft, LineInterrupted, valid_text
from callboard.cli.terminal.frame import DrawnFrame
from callboard.cli.terminal.terminal import Terminal, block

_READ = 65_536


class PlainLine:
    """Prompt line with the methods of `PromptLine`."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._typed = b""
        self._reading: anyio.CancelScope | None = None
        self._interrupted = False
        self.draft = Draft()

    @contextmanager
    def display(self) -> Generator[None]:
        """Let `read` receive Ctrl-C during the block."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._on_interrupt)
        try:
            yield
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    @contextmanager
    def hand_over(self) -> Generator[None]:
        """Give the screen and the keyboard to another program during the block."""
        yield

    async def read(self, leave: Callable[[], bool]) -> str:
        """See `PromptLine.read`."""
        lines = [await self._line("> ", leave)]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1].removesuffix("\\")
            lines.append(await self._line("  ", leave))
        return "\n".join(lines)

    async def ask(self, question: str, leave: Callable[[], bool], drawn: DrawnFrame | None = None) -> str | None:
        """See `PromptLine.ask`. Nothing is drawn here. Text typed before the question was asked is discarded."""
        self._typed = b""
        # Text typed before the question is not an answer to it.
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
        return await self._line(question, leave)

    def interrupt(self) -> None:
        """See `PromptLine.call`."""
        if self._reading is not None:
            self._reading.cancel()

    def redraw(self) -> None:
        """Do nothing: this line is not redrawn."""

    def _on_interrupt(self) -> None:
        self._interrupted = True
        self.interrupt()

    async def _line(self, question: str, leave: Callable[[], bool]) -> str:
        if leave():
            raise LineInterrupted
        self._terminal.ask(question)
        try:
            with anyio.CancelScope() as self._reading:
                await self._until_line()
        finally:
            self._reading = None
            self._terminal.note_answer()
            if b"\n" not in self._typed:  # no Enter has ended the row of the question
                self._terminal.terminal_print(block(""))
        if self._interrupted:
            self._interrupted = False
            raise KeyboardInterrupt
        line, ended, self._typed = self._typed.partition(b"\n")
        if not ended:
            self._typed = line
            raise LineInterrupted
        return valid_text(line.decode(errors="surrogateescape"))

    async def _until_line(self) -> None:
        file = sys.stdin.fileno()
        while b"\n" not in self._typed:
            await anyio.wait_readable(file)
            piece = os.read(file, _READ)  # a terminal delivers whole lines, so this does not wait
            if not piece:
                raise EOFError
            self._typed += piece
