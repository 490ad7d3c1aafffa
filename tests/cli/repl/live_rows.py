"""Shared by tests of the live screen: a terminal that records text, and the events of a lead that speaks."""

from __future__ import annotations

import io
import re

from callboard.cli.repl.live_screen import LiveScreen
from callboard.cli.terminal.terminal import Terminal
from callboard.ports.model import Delta
from callboard.types import events as ev


class LiveOutput:
    """A live screen and its output."""

    def __init__(
        self, *, color: str = "never", quiet: bool = False, verbose: bool = False, lists_agents: bool = False
    ) -> None:
        self._err = io.StringIO()
        self.terminal = Terminal(io.StringIO(), self._err, color=color, quiet=quiet)
        self.screen = LiveScreen(self.terminal, verbose=verbose, lists_agents=lambda: lists_agents)
        self._seq = 0

    def event(self, event: ev.Event, agent: str = "lead") -> None:
        self._seq += 1
        self.screen.on_event(agent, self._seq, event)

    def stream(self, text: str, size: int = 7) -> None:
        for at in range(0, len(text), size):
            self.screen.on_delta("lead", Delta("text", text[at : at + size]))

    def text(self) -> str:
        self.terminal.flush()
        return self._err.getvalue()

    def plain_text(self) -> str:
        return re.sub(r"\x1b\[[0-9;]*m", "", self.text())


def replied(*texts: str) -> ev.ModelReplied:
    blocks = tuple({"type": "text", "text": text} for text in texts)
    return ev.ModelReplied(at=0, ordinal=1, model="m", stop_reason="end_turn", blocks=blocks)
