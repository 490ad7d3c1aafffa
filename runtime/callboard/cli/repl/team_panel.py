"""Live area above the prompt line: the agents at work, or, after a key, the tree of the team or one agent's stream.

    keys               effect
    -----------------  ---------------------------------------------------------
    Ctrl-T             open the tree; close the tree or the stream
    Ctrl-O             open the stream of the first agent at work; then the next
    PageUp, PageDown   scroll an open stream

The panel is part of the prompt line: the same writer draws it, output still appears above it, and the draft stays. This
module returns lines, and does not draw.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from callboard.cli.repl.agent_streams import AgentStreams
from callboard.cli.terminal.terminal import Line, Style, plain
from callboard.cli.views.agents import MOST, agent_lines, is_at_work, working_agents
from callboard.cli.views.events import shorten
from callboard.cli.views.team import tree_lines
from callboard.sessions.base import OpenSession
from callboard.types.choices import unknown
from callboard.types.errors import UsageError

PanelKey = Literal["team", "agent", "up", "down", "suspend"]
"""Keys by effect. `suspend` is not a key of the panel: a suspended process would stop the agents."""
NARROW = 40
LOW = 10
"""Columns and rows below which a screen has no list of agents."""
_RULE = "─"
_STYLES: Mapping[Style, str] = {
    "plain": "",
    "dim": "dim",
    "strong": "bold",
    "good": "ansigreen",
    "warn": "ansired",
    "bad": "ansired",
    "name": "ansicyan",
}
"""Styles of lines above the prompt, in the words of the library that draws it."""


def has_list(width: int, rows: int) -> bool:
    """Return True if a screen of this size lists the agents at work."""
    return width >= NARROW and rows >= LOW


class TeamPanel:
    """Content of the live area for one session."""

    def __init__(self, session: OpenSession, streams: AgentStreams, now: Callable[[], float] = time.time) -> None:
        self._session = session
        self._streams = streams
        self._now = now
        self._tree = False
        self._agent = ""
        """Agent whose stream is open; empty if none is."""
        self._skipped = 0
        """Number of rows below the lowest visible one."""
        self._rows = 1
        """Rows of the stream that were visible last."""
        self._width = NARROW

    @property
    def is_open(self) -> bool:
        """Return True if the tree or a stream is open."""
        return self._tree or bool(self._agent)

    @property
    def moves(self) -> bool:
        """Return True while agents work, so that the seconds in the list change."""
        return any(map(is_at_work, self._session.living_agents()))

    def press(self, key: PanelKey) -> None:
        """Handle a key."""
        match key:
            case "team":
                self._tree = not self.is_open
                self._agent = ""
            case "agent":
                self._next_agent()
            case "up" if self._agent:
                most = max(self._streams.height(self._agent, self._width) - self._rows, 0)
                self._skipped = min(self._skipped + self._rows, most)
            case "down" if self._agent:
                self._skipped = max(self._skipped - self._rows, 0)
            case _:
                pass

    def open_tree(self) -> None:
        """Open the tree of the team."""
        self._tree = True
        self._agent = ""

    def open_agent(self, label: str) -> None:
        """Open the stream of the agent with this name or id. Raises `UsageError` if there is none."""
        name = self._session.agent_named(label)
        names = [row.name for row in self._session.living_agents()]
        if name is None:
            raise UsageError(unknown("agent", label, [self._session.label(agent) for agent in names]))
        self._open(name)

    def lines(self, width: int, rows: int) -> list[Line]:
        """Return the lines of the live area for a screen of this size."""
        if not has_list(width, rows):
            return []
        if self._agent:
            return self._stream_lines(width, rows * 2 // 3)
        if self._tree:
            return self._tree_lines(width, rows * 2 // 3)
        agents, others = working_agents(self._session, min(MOST, rows // 3))
        return agent_lines(agents, others, width - 1, self._now())

    def _next_agent(self) -> None:
        """Open the stream of the first agent at work, or of the one after the open one; after the last, close it."""
        names = [row.name for row in self._session.living_agents() if row.kind != "lead" and is_at_work(row)]
        place = names.index(self._agent) + 1 if self._agent in names else 0
        if place < len(names):
            self._open(names[place])
        elif not names and not self._agent:
            self.open_tree()  # it shows that no other agent works
        else:
            self._agent = ""

    def _open(self, name: str) -> None:
        self._tree = False
        self._agent = name
        self._skipped = 0

    def _tree_lines(self, width: int, rows: int) -> list[Line]:
        lines = tree_lines(self._session.overview(), width - 1, labels=True)
        room = max(rows - 1, 2)
        if len(lines) > room:
            hidden = len(lines) - room + 1
            lines = [*lines[: room - 1], Line(f"and {hidden} more: `callboard team` lists them", "dim")]
        return [_head("the team", "Ctrl-O an agent, Ctrl-T close", width), *lines]

    def _stream_lines(self, width: int, rows: int) -> list[Line]:
        self._rows = max(rows - 1, 1)
        self._width = width - 1
        lines = self._streams.rows(self._agent, width - 1, self._rows, self._skipped)
        label = self._session.label(self._agent)
        state = f", {self._skipped} rows below" if self._skipped else self._state_words()
        head = _head(f"{label}{state}", "PageUp, Ctrl-O next agent, Ctrl-T close", width)
        if not lines:
            lines = [Line("nothing yet on this screen", "dim")]
        return [head, *lines]

    def _state_words(self) -> str:
        row = next((row for row in self._session.living_agents() if row.name == self._agent), None)
        return ", has ended" if row is None else "" if is_at_work(row) else f", {row.life}"


def _head(title: str, keys: str, width: int) -> Line:
    """Return a title and the keys, between short rules."""
    return Line(shorten(f"{_RULE * 2} {title} {_RULE * 2} {keys} {_RULE * 2}", width - 1), "strong")


def fragments(lines: Sequence[Line], *, color: bool) -> list[tuple[str, str]]:
    """Return the lines as styled texts, each ended by a line break."""
    parts: list[tuple[str, str]] = []
    for line in lines:
        if line.name:
            parts.append((_STYLES["name"] if color else "", f"{plain(line.name)} "))
        parts.append((_STYLES[line.style] if color else "", plain(line.text).replace("\n", " ").expandtabs(4) + "\n"))
    return parts
