"""What a project says about working on it, and what was noted in earlier sessions: both come as data into a turn.

Neither gives a permission. Both ports never raise: what cannot be read is told in the log and left out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from callboard.words.context import Injection
from callboard.words.specs import AgentSpec


class Instructions(Protocol):
    """Instruction files beside those of the prompt: nested ones, rules for certain files, and what has changed."""

    async def touched(
        self, spec: AgentSpec, root: str, paths: Sequence[str], known: Mapping[str, str]
    ) -> tuple[Injection, ...]:
        """What an agent is to be told now that it has read or written these files (absolute paths).

        `root`: the folder that its file tools run in; `known`: path of an instruction file as it is shown -> digest of
        the text that the agent knows.
        """
        ...

    async def changed(self, spec: AgentSpec, root: str, known: Mapping[str, str]) -> tuple[Injection, ...]:
        """What of the files that it knows, or would know if it began now, is another text than it was told."""
        ...


class Remembered(Protocol):
    """Notes of memory that may matter now."""

    async def relevant(self, spec: AgentSpec, words: str, standing: Collection[str]) -> tuple[Injection, ...]:
        """The notes (five at most) that these words are about. `standing`: keys of those that it sees already."""
        ...

    async def handed_off(self, spec: AgentSpec, life: int, text: str, path: str) -> None:
        """Keep what a closed conversation hands on as a note of the session. `path`: the file that holds all of it."""
        ...
