"""`callboard` in a tmux terminal: a person's keys, and the text that they see. `screen.py` is cheaper."""

from __future__ import annotations

import re
import shlex
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager

from tests.cli.commands.command import Command


class Screen:
    """A terminal of 100 by 40 with `callboard` in it."""

    def __init__(self, command: Command, *args: str) -> None:
        self._tmux = ["tmux", "-S", str(command.workspace.parent / "tmux"), "-f", "/dev/null"]
        env = [part for name, value in command.env.items() for part in ("-e", f"{name}={value}")]
        line = f"{shlex.join([*command.argv, *args])}; echo left with $?; exec cat"
        start = ["new-session", "-d", "-x", "100", "-y", "40", "-c", str(command.workspace), *env, "sh", "-c", line]
        subprocess.run([*self._tmux, *start], check=True, env=command.env)

    def type(self, *keys: str) -> None:
        subprocess.run([*self._tmux, "send-keys", *keys], check=True)

    def text(self) -> str:
        return subprocess.run(
            [*self._tmux, "capture-pane", "-p", "-S", "-200"], capture_output=True, text=True, check=True
        ).stdout

    def wait(self, pattern: str, seconds: float = 180) -> str:
        """Wait until the screen matches the pattern, and return it."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            shown = self.text()
            if re.search(pattern, shown, re.MULTILINE):
                return shown
            time.sleep(0.05)  # tmux has no event for a change of the screen
        raise AssertionError(f"the screen never showed {pattern!r}:\n{self.text()}")

    def resize(self, columns: int, rows: int) -> None:
        """Resize the window. Rows that are too long for it are broken, as in most terminals."""
        subprocess.run([*self._tmux, "resize-window", "-x", str(columns), "-y", str(rows)], check=True)

    def close(self) -> None:
        subprocess.run([*self._tmux, "kill-server"], check=False)


@contextmanager
def open_screen(command: Command, scenario: str) -> Generator[Screen]:
    """Open a terminal that shows the prompt line; the model plays the scenario."""
    screen = Screen(command, "--model", command.scenario(scenario))
    try:
        screen.wait(r"^> ?$")
        yield screen
    finally:
        screen.close()
