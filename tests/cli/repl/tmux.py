"""`callboard` in a terminal of tmux: what a person types there, and what they see. `screen.py` is cheaper."""

from __future__ import annotations

import re
import shlex
import subprocess
import time
from collections.abc import Iterator
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
        """The screen once it shows the pattern."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            shown = self.text()
            if re.search(pattern, shown, re.MULTILINE):
                return shown
            time.sleep(0.05)  # a terminal has no event for "it shows this now"
        raise AssertionError(f"the screen never showed {pattern!r}:\n{self.text()}")

    def close(self) -> None:
        subprocess.run([*self._tmux, "kill-server"], check=False)


@contextmanager
def talking(command: Command, scenario: str) -> Iterator[Screen]:
    """A terminal whose prompt line is there; the model plays the scenario."""
    screen = Screen(command, "--model", command.scenario(scenario))
    try:
        screen.wait(r"^> ?$")
        yield screen
    finally:
        screen.close()
