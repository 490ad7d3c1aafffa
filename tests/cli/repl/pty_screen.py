"""A pseudo-terminal that records the bytes from `callboard`, and the window that a person sees (by pyte)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import termios
import threading
import time
from collections.abc import Callable

import pyte
from tests.cli.commands.command import Command
from tests.warm import Process

SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[()][0-9A-B]|\x1b[=>78MDEc]")
JOINER = "\u200d".encode()
"""Zero-width joiner. Pyte drops the character after one; without it the columns are the same."""


class PtyScreen:
    """A pseudo-terminal with `callboard` in it. All output is read at once, except after `hold`."""

    def __init__(self, command: Command, *args: str, columns: int = 100, rows: int = 30, **env: str) -> None:
        self.columns, self.rows = columns, rows
        self._master, slave = pty.openpty()
        self.slave_name = os.ttyname(slave)
        self._size(columns, rows)
        self.before = termios.tcgetattr(slave)
        self._raw = bytearray()
        self._seen = 0
        self._news = threading.Condition()
        self._reads = threading.Event()
        self._reads.set()
        self._closed = False
        self._pyte = pyte.HistoryScreen(columns, rows, history=20_000)
        self._stream = pyte.ByteStream(self._pyte)
        self.slave = slave
        self.process = Process(
            [*command.argv[1:], *args],
            command.workspace,
            {**command.env, **env},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            terminal=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _read(self) -> None:
        readable = select.poll()  # `select.select` refuses the descriptors of a worker with many open stores
        readable.register(self._master, select.POLLIN)
        while not self._closed:
            self._reads.wait()
            if not readable.poll(200):
                continue
            if not self._reads.is_set():
                continue
            try:
                piece = os.read(self._master, 65_536)
            except OSError:
                return
            with self._news:
                self._raw += piece
                self._news.notify_all()

    def hold(self) -> None:
        """Stop reading, like a terminal whose connection was cut."""
        self._reads.clear()

    def release(self) -> None:
        self._reads.set()

    def type(self, keys: str | bytes) -> None:
        os.write(self._master, keys.encode() if isinstance(keys, str) else keys)

    def resize(self, columns: int, rows: int) -> None:
        """Resize the window, and then, as a terminal does, tell the kernel, which notifies the process.

        The process may draw for the new size at once.
        """
        self._feed()
        self.columns, self.rows = columns, rows
        self._pyte.resize(rows, columns)
        self._size(columns, rows)

    def attributes(self) -> list[object]:
        """Return the terminal's settings: echo, canonical mode, and so on."""
        return termios.tcgetattr(self.slave)

    @property
    def raw(self) -> bytes:
        return bytes(self._raw)

    def count(self, part: bytes) -> int:
        """Return how often these bytes were written."""
        with self._news:
            return self._raw.count(part)

    @property
    def output(self) -> str:
        """All output, without control sequences."""
        return SEQUENCE.sub("", self.raw.decode(errors="replace"))

    def _feed(self) -> None:
        with self._news:
            piece, self._seen = bytes(self._raw[self._seen :]), len(self._raw)
        if piece:
            self._stream.feed(piece.replace(JOINER, b""))

    def rows_now(self) -> list[str]:
        """Return the rows of the window."""
        self._feed()
        return self._shown()

    def _shown(self) -> list[str]:
        return [row.rstrip() for row in self._pyte.display]

    @property
    def cursor(self) -> tuple[int, int]:
        """Return column and row, from 0."""
        self._feed()
        return self._pyte.cursor.x, self._pyte.cursor.y

    @property
    def cursor_is_visible(self) -> bool:
        self._feed()
        return not self._pyte.cursor.hidden

    def text(self) -> str:
        """Return all rows, including those that scrolled off the top."""
        self._feed()  # one call: between two calls, a row could scroll from one list to the other and be missed
        gone = ["".join(row[at].data for at in range(self.columns)).rstrip() for row in self._pyte.history.top]
        return "\n".join([*gone, *self._shown()])

    def wait(self, pattern: str, seconds: float = 180) -> str:
        """Wait until the window matches the pattern, and return it."""
        return self.until(
            lambda: re.search(pattern, "\n".join(self.rows_now()), re.MULTILINE) is not None, pattern, seconds
        )

    def wait_for_output(self, pattern: str, seconds: float = 180) -> str:
        """Wait until the output matches the pattern, and return the window."""
        return self.until(lambda: re.search(pattern, self.output) is not None, pattern, seconds)

    def until(self, holds: Callable[[], bool], expected: str, seconds: float = 180) -> str:
        deadline = time.monotonic() + seconds
        while not holds():
            with self._news:
                if time.monotonic() > deadline:
                    raise AssertionError(f"{expected!r} never appeared; the window:\n" + "\n".join(self.rows_now()))
                self._news.wait(0.2)
        return "\n".join(self.rows_now())

    def drain(self) -> None:
        """Read the rest of what the process wrote before it ended."""
        os.close(self.slave)  # the last one: the reader reads to the end
        self.slave = -1
        self._reader.join(10)

    def close(self) -> None:
        self._reads.set()
        self.process.kill()
        self.process.wait()
        self._closed = True
        self._reader.join()
        for file in (self.slave, self._master):
            with contextlib.suppress(OSError):
                os.close(file)
