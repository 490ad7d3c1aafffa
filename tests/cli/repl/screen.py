"""`callboard` in a terminal of the tests: a person's keys, by name, and the text that they see.

The process is a copy of a warm one, so it starts at once. `tmux.py` is the same in the terminal of another program.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cli.commands.command import Command
from tests.cli.repl.pty_screen import PtyScreen

KEYS = {
    **{f"C-{letter}": chr(ord(letter) - ord("a") + 1) for letter in "bcdu"},
    "Enter": "\r",
    "Left": "\x1b[D",
    "BTab": "\x1b[Z",
}
"""Bytes of keys by tmux's names for them; any other name is text."""


class Screen:
    """A terminal of 100 by 40 with `callboard` in it. The last row shows the exit code."""

    def __init__(self, command: Command, *args: str) -> None:
        self._pty = PtyScreen(command, *args, columns=100, rows=40)

    def type(self, *keys: str) -> None:
        self._pty.type("".join(KEYS.get(key, key) for key in keys))

    def text(self) -> str:
        """Return all rows, including those that scrolled off the top."""
        code = self._pty.process.poll()
        rows = self._pty.text().rstrip("\n")
        return rows if code is None else f"{rows}\nleft with {code}"

    def wait(self, pattern: str, seconds: float = 180) -> str:
        """Wait until the text matches the pattern, and return it."""
        self._pty.until(lambda: re.search(pattern, self.text(), re.MULTILINE) is not None, pattern, seconds)
        return self.text()

    def close(self) -> None:
        self._pty.close()


@contextmanager
def open_screen(command: Command, scenario: str) -> Iterator[Screen]:
    """Open a terminal that shows the prompt line; the model plays the scenario."""
    screen = Screen(command, "--model", command.scenario(scenario))
    try:
        screen.wait(r"^> ?$")
        yield screen
    finally:
        screen.close()
