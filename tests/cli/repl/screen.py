"""`callboard` in a terminal of the tests: what a person types there, by the names of keys, and what they see.

The process is a copy of a warm one, so that it starts at once. `tmux.py` is the same in a terminal of another program.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cli.commands.command import Command
from tests.cli.repl.pty_screen import PtyScreen

KEYS = {
    **{f"C-{letter}": chr(ord(letter) - ord("a") + 1) for letter in "cdu"},
    "Enter": "\r",
    "Left": "\x1b[D",
    "BTab": "\x1b[Z",
}
"""Bytes of keys by the names that tmux has for them; any other name is text."""


class Screen:
    """A terminal of 100 by 40 with `callboard` in it. Its last row says with which exit code that left."""

    def __init__(self, command: Command, *args: str) -> None:
        self._pty = PtyScreen(command, *args, columns=100, rows=40)

    def type(self, *keys: str) -> None:
        self._pty.type("".join(KEYS.get(key, key) for key in keys))

    def text(self) -> str:
        """Return all rows, also those that have left the window at its top."""
        code = self._pty.process.poll()
        rows = self._pty.text().rstrip("\n")
        return rows if code is None else f"{rows}\nleft with {code}"

    def wait(self, pattern: str, seconds: float = 180) -> str:
        """Return the text once it shows the pattern."""
        self._pty.until(lambda: re.search(pattern, self.text(), re.MULTILINE) is not None, pattern, seconds)
        return self.text()

    def close(self) -> None:
        self._pty.close()


@contextmanager
def talking(command: Command, scenario: str) -> Iterator[Screen]:
    """Open a terminal whose prompt line is there; the model plays the scenario."""
    screen = Screen(command, "--model", command.scenario(scenario))
    try:
        screen.wait(r"^> ?$")
        yield screen
    finally:
        screen.close()
