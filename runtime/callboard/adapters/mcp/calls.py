"""One call of a server's tool: its two clocks, its progress, and what the server asks the person meanwhile.

A call ends by its hard time-out or after a silence, whichever comes first; a word of progress ends a silence, and the
time that a person takes to answer counts for neither.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import anyio

from callboard.core.mcp.texts import one_line
from callboard.ports.tool import ToolContext
from callboard.words.mcp import AnsweredBack, Asked

A_WORD = 0.1
"""Seconds between two words of progress that are shown."""


@dataclass(slots=True)
class CallInFlight:
    """A call that a server is at work on."""

    server: str
    context: ToolContext
    most: float
    """Seconds that it may take."""
    silence: float
    """Seconds without a word."""
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    _ends: float = math.inf
    _told: float = -math.inf
    _asking: int = 0

    def begin(self) -> anyio.CancelScope:
        """Start the clocks. The scope to make the request in."""
        self._ends = anyio.current_time() + self.most
        self._wind()
        return self.scope

    @property
    def why(self) -> str:
        """Which clock ended it."""
        if anyio.current_time() >= self._ends:
            return f"it took longer than {self.most:g} s"
        return f"the server said nothing for {self.silence:g} s"

    async def progressed(self, progress: float, total: float | None, message: str | None) -> None:
        """Tell whoever looks on, and go on waiting."""
        self._wind()
        if anyio.current_time() < self._told + A_WORD:
            return
        self._told = anyio.current_time()
        counted = f"{progress:g}" if total is None else f"{progress:g}/{total:g}"
        self.context.progress(f"{counted} {one_line(message)}".strip())

    async def ask(self, asked: Asked) -> AnsweredBack:
        """Put a question of the server to the person; the clocks stand still until it is answered."""
        began = anyio.current_time()
        self._asking += 1
        self._wind()
        try:
            return await self.context.elicit(replace(asked, server=self.server))
        finally:
            self._asking -= 1
            self._ends += anyio.current_time() - began
            self._wind()

    def _wind(self) -> None:
        self.scope.deadline = math.inf if self._asking else min(self._ends, anyio.current_time() + self.silence)
