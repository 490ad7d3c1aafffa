"""Two texts that follow the state of the session: the person's own status line, and the title of the window.

The status line comes from a command that receives the state as JSON and prints a line. The title is the session's name
or its first words, with a mark while agents work.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping

import anyio
import anyio.to_thread

from callboard.adapters.processes.programs import clean_environment, environment_outside, find_program, run_program
from callboard.cli.terminal.terminal import Terminal, plain
from callboard.cli.views.status import status_json, window_title
from callboard.config.settings import LoadedSettings
from callboard.sessions.base import OpenSession
from callboard.types.records import Json

_PAUSE_S = 0.3
_LONGEST_S = 5.0
_MOST_BYTES = 16_384


class StatusCommand:
    """The command of the setting `status_line`, and its newest line.

    It runs after a change of the session's state, at most once in `_PAUSE_S` seconds, and again after `refresh` seconds
    if the settings say so. While it runs, the line before stays: the screen never waits for it. It is ended after
    `_LONGEST_S` seconds; then, or if it fails, Callboard's own line is shown.
    """

    def __init__(self, session: OpenSession, redraw: Callable[[], None]) -> None:
        """`redraw`: called when there is another line."""
        self._session = session
        self._redraw = redraw
        self._active = False
        self._state: Json = {}
        self._changed = anyio.Event()
        self._line = ""

    def line(self) -> str:
        """Return the newest line, with its colors; empty if the command has printed none.

        Let the command run again if the state of the session has changed.
        """
        if self._active and (now := status_json(self._session)) != self._state:
            self._state = now
            self._changed.set()
        return self._line

    async def run(self) -> None:
        """Run the command after each change, until cancelled. Return at once if the settings have none."""
        loaded = await anyio.to_thread.run_sync(self._session.configuration)
        settings = loaded.settings.status_line
        self._active = bool(settings.command)
        self._redraw()
        while self._active:
            with anyio.move_on_after(settings.refresh):
                await self._changed.wait()
            self._changed = anyio.Event()
            # The time is no part of the state: a line that shows it would change it, and so run the command forever.
            elapsed = {"total_duration_ms": round((time.time() - self._session.row.created_at) * 1000)}
            cost = {**self._state.get("cost", {}), **elapsed}
            line = await self._printed(loaded, {**self._state, "cost": cost})
            if line != self._line:
                self._line = line
                self._redraw()
            await anyio.sleep(_PAUSE_S)  # a bound on how often the command runs

    async def _printed(self, loaded: LoadedSettings, state: Json) -> str:
        workspace = self._session.workspace
        environment = environment_outside(clean_environment(loaded.environment, loaded.variables), workspace)
        shell = find_program("bash", workspace, environment.get("PATH")) or "/bin/sh"
        argv = [shell, "-c", loaded.settings.status_line.command]
        stdin = json.dumps(state).encode()
        try:
            ended = await run_program(argv, environment, stdin=stdin, timeout=_LONGEST_S, most=_MOST_BYTES)
        except (OSError, ValueError):
            return ""
        if ended.code != 0:
            return ""
        lines = (line for line in ended.out.decode("utf-8", "replace").splitlines() if plain(line).strip())
        return next(lines, "")


_OFF = "CLAUDE_CODE_DISABLE_TERMINAL_TITLE"
"""Variable of Claude Code that switches the title off; Callboard's own is the setting `terminal_title`."""
_NO_TITLE = frozenset({"", "dumb", "linux"})
"""Terminals without a title; the console of Linux would print a part of the sequence."""


class WindowTitle:
    """Title of the window of one session. It changes at most once in `_PAUSE_S` seconds, and only with its text."""

    def __init__(self, session: OpenSession, terminal: Terminal) -> None:
        self._session = session
        self._terminal = terminal
        self._changed = anyio.Event()

    def note_change(self) -> None:
        """Note that the state of the session may have changed."""
        self._changed.set()

    async def run(self) -> None:
        """Set the title until cancelled, then restore the earlier one. Return at once where there is none to set."""
        if not self._terminal.out_is_tty or os.environ.get("TERM", "") in _NO_TITLE:
            return
        loaded = await anyio.to_thread.run_sync(self._session.configuration)
        if not loaded.settings.terminal_title or is_switched_off(loaded.environment):
            return
        shown = ""
        try:
            while True:
                self._changed = anyio.Event()
                if (title := window_title(self._session)) != shown:
                    self._terminal.set_title(title, first=not shown)
                    shown = title
                await self._changed.wait()
                await anyio.sleep(_PAUSE_S)  # a bound on how often the title changes
        finally:
            if shown:
                self._terminal.restore_title()


def is_switched_off(environment: Mapping[str, str]) -> bool:
    """Return True if the variable of Claude Code switches the title off."""
    return environment.get(_OFF, "").strip().lower() not in {"", "0", "false", "no", "off"}
