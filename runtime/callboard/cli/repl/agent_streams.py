"""Output of each agent that is not printed: its newest lines, for the person who opens its stream.

Memory and the cost of a view have a limit: an agent keeps its newest lines, and of the ended agents the newest ones
keep theirs. This module does not draw.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import field, replace
from itertools import islice

from callboard.cli.terminal.terminal import Line, columns, plain, wrap_line
from callboard.cli.views.events import shorten
from callboard.types.lazy_dataclass import dataclass

KEPT_LINES = 400
KEPT_ENDED = 20
"""Limits of the lines of one agent, and of the ended agents whose lines are kept."""
_PARTIAL = 4_000
"""Limit of the characters of an unfinished text."""


@dataclass(slots=True)
class _Stream:
    lines: deque[Line] = field(default_factory=lambda: deque[Line](maxlen=KEPT_LINES))
    dropped: int = 0
    """Number of older lines that were dropped."""
    partial: str = ""
    """End of the text that streams now."""


class AgentStreams:
    """Newest output of the agents, by name."""

    def __init__(self) -> None:
        self._streams: dict[str, _Stream] = {}
        self._ended: deque[str] = deque()

    def add(self, agent: str, lines: Sequence[Line]) -> None:
        """Add lines of an agent. Its name is left out, because every line of its stream is its own."""
        stream = self._stream(agent)
        stream.dropped += max(len(stream.lines) + len(lines) - KEPT_LINES, 0)
        stream.lines.extend(replace(line, name="") if line.name == agent else line for line in lines)

    def add_text(self, agent: str, text: str) -> None:
        """Add a piece of a text that streams."""
        stream = self._stream(agent)
        stream.partial = (stream.partial + text)[-_PARTIAL:]

    def end_text(self, agent: str) -> None:
        """Drop the streaming text: it is complete, and was added, or it is void."""
        if agent in self._streams:
            self._streams[agent].partial = ""

    def end(self, agent: str) -> None:
        """Note that an agent has ended. The oldest ended one is forgotten if there are too many."""
        self.end_text(agent)
        self._ended.append(agent)
        if len(self._ended) > KEPT_ENDED:
            self._streams.pop(self._ended.popleft(), None)

    def rows(self, agent: str, width: int, count: int, skipped: int = 0) -> list[Line]:
        """Return the newest `count` rows of an agent's stream above the newest `skipped`.

        Each is at most `width` columns wide.
        """
        stream = self._streams.get(agent)
        if stream is None:
            return []
        needed = count + skipped
        rows: list[Line] = []
        partial = [Line(text) for text in plain(stream.partial).split("\n") if text.strip()]
        for line in (*reversed(partial), *islice(reversed(stream.lines), needed)):
            rows[:0] = _rows_of(line, width)
            if len(rows) >= needed:
                break
        else:
            if stream.dropped:
                rows.insert(0, Line(f"[{stream.dropped:,} older lines are not kept here]", "dim"))
        rows = rows[: len(rows) - skipped] if skipped else rows
        return rows[-count:]

    def height(self, agent: str, width: int) -> int:
        """Return the number of rows of an agent's whole stream."""
        return len(self.rows(agent, width, KEPT_LINES * 4))

    def _stream(self, agent: str) -> _Stream:
        return self._streams.setdefault(agent, _Stream())


def _rows_of(line: Line, width: int) -> list[Line]:
    """Break a line between words, and cut a word that is too long.

    Spans are dropped: they are laid out for the width of another screen.
    """
    name = columns(f"{line.name} ") if line.name else 0
    return [
        replace(part, text=shorten(part.text, width - (name if number == 0 else 0)))
        for number, part in enumerate(wrap_line(replace(line, spans=()), width))
    ]
