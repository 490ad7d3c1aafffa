"""Prompts of MCP servers as slash commands: `/mcp__server__prompt first "second one" name=value`.

The text after the name is split as in a shell. `name=value` sets a named argument; the others are positional.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from callboard.core.tool_access import normalised
from callboard.ports.mcp import Servers
from callboard.types.errors import ToolRefused
from callboard.types.late_pattern import late_pattern
from callboard.types.mcp import McpPrompt
from callboard.types.records import Json
from callboard.types.skills import PersonCommand

_NAMED = late_pattern(r"([A-Za-z_][\w.-]*)=(.*)", re.DOTALL)


class ServerPrompts:
    """Prompts of the connected MCP servers. Implements the port `PromptSource`."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    def prompts(self) -> Sequence[PersonCommand]:
        """Return the prompts by name. Of two with the same name the first counts."""
        return tuple(
            PersonCommand(name, _hint(prompt), " ".join(prompt.description.split()), "prompt")
            for name, prompt in sorted(self._by_command().items())
        )

    async def prompt(self, name: str, arguments: str) -> Sequence[Json]:
        """Return the prompt's messages in order."""
        prompt = self._by_command().get(name)
        if prompt is None:
            raise ToolRefused(f"there is no prompt {name!r} of an MCP server that is connected")
        return await self._servers.prompt(prompt.server, prompt.name, prompt_arguments(prompt, arguments))

    def _by_command(self) -> Mapping[str, McpPrompt]:
        prompts: dict[str, McpPrompt] = {}
        for now in self._servers.now():
            for prompt in now.prompts if now.state == "connected" else ():
                prompts.setdefault(command_name(prompt), prompt)
        return prompts


def command_name(prompt: McpPrompt) -> str:
    """Return the command that the user types, without the slash."""
    return normalised(f"mcp__{prompt.server}__{prompt.name}")


def prompt_arguments(prompt: McpPrompt, text: str) -> dict[str, str]:
    """Return the arguments of a prompt. The last one takes the rest of the text. Raises `ToolRefused`."""
    names = [name for name, _, _ in prompt.arguments]
    try:
        parts = shlex.split(text)
    except ValueError as wrong:
        raise ToolRefused(f"/{command_name(prompt)}: {wrong}") from wrong
    values: dict[str, str] = {}
    unnamed: list[str] = []
    for part in parts:
        named = _NAMED.fullmatch(part)
        if named and named[1] in names and named[1] not in values:
            values[named[1]] = named[2]
        else:
            unnamed.append(part)
    open_ = [name for name in names if name not in values]
    if unnamed and not open_:
        raise ToolRefused(f"/{command_name(prompt)}: too much is given; it takes {_hint(prompt) or 'nothing'}")
    for place, name in enumerate(open_[: len(unnamed)]):
        last = place == len(open_) - 1
        values[name] = " ".join(unnamed[place:]) if last else unnamed[place]
    if missing := [name for name, _, required in prompt.arguments if required and name not in values]:
        raise ToolRefused(f"/{command_name(prompt)}: {missing[0]} is missing; it takes {_hint(prompt)}")
    return values


def _hint(prompt: McpPrompt) -> str:
    return " ".join(f"<{name}>" if required else f"[{name}]" for name, _, required in prompt.arguments)
