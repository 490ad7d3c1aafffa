"""The port of prompts that come from outside and are typed as slash commands: those of MCP servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from callboard.words.skills import PersonCommand
from callboard.words.values import Json


class PromptSource(Protocol):
    """Prompts by the names that a person types (`mcp__server__prompt`)."""

    def prompts(self) -> Sequence[PersonCommand]:
        """Those there are now, of kind `prompt`."""
        ...

    async def prompt(self, name: str, arguments: str) -> Sequence[Json]:
        """Its messages as content blocks (text, image), in order. `arguments`: what stands behind the name, split as a
        shell would. Raises `ToolRefused` with what is wrong, a missing argument by its name."""
        ...
