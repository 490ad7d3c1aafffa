"""Facts that the permission judge needs from the world: how a script parses, and where a path leads.

Both ports are synchronous and quick: they are called from a worker thread, or directly for short plain commands.
Neither decides anything, and neither raises: what cannot be found out is a value that asks (`Unparsed`, `malformed`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from callboard.core.permissions.values import Parsed, PathFact, PathQuery


class ShellParser(Protocol):
    """Turns script text into its syntax tree."""

    def parse(self, source: str) -> Parsed:
        """Return the script as bash would read it, or `Unparsed` with the reason.

        Input with odd characters, beyond the size limits, or on which parsers disagree is `Unparsed`.
        Deterministic: the same text gives an equal value. Never raises.
        """
        ...


class PathFacts(Protocol):
    """Says where paths lead, as the kernel resolves them, for one agent's folder."""

    @property
    def root(self) -> str:
        """Return the agent's folder, absolute and without links."""
        ...

    @property
    def home(self) -> str:
        """The home directory that a tilde stands for, absolute."""
        ...

    @property
    def git_quiet(self) -> bool:
        """Return True if the workspace's own git configuration runs no program."""
        ...

    def look(self, queries: Iterable[PathQuery]) -> Mapping[PathQuery, PathFact]:
        """Return one fact for each query. A path that cannot be resolved is `malformed`. Never raises."""
        ...
