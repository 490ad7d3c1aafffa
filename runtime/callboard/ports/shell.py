"""Ports for facts that the permission judge needs from outside: the syntax tree of a script, and the target of a path.

Both ports are synchronous and quick: they are called from a worker thread, or directly for short plain commands.
Neither decides anything, and neither raises: an unknown fact is a value that asks (`UnparsedScript`, `malformed`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from callboard.core.permissions.values import Parsed, PathFact, PathQuery


class ShellParser(Protocol):
    """Parser from script text to a syntax tree."""

    def parse(self, source: str) -> Parsed:
        """Return the script as bash would read it, or `UnparsedScript` with the reason.

        Input with odd characters, beyond the size limits, or on which parsers disagree is `UnparsedScript`.
        Deterministic: the same text gives an equal value. Never raises.
        """
        ...


class PathFacts(Protocol):
    """Lookup of path targets, as the kernel resolves them, for one agent's folder."""

    @property
    def root(self) -> str:
        """Return the agent's folder, absolute and without links."""
        ...

    @property
    def home(self) -> str:
        """Return the home directory for a tilde, absolute."""
        ...

    @property
    def git_quiet(self) -> bool:
        """Return True if the workspace's own git configuration runs no program."""
        ...

    def look(self, queries: Iterable[PathQuery]) -> Mapping[PathQuery, PathFact]:
        """Return one fact for each query. A path that cannot be resolved is `malformed`. Never raises."""
        ...
