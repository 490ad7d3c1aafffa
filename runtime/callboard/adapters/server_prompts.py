"""Prompts of MCP servers as slash commands: `/mcp__server__prompt first "second one" name=value`.

What stands behind the name is split as a shell would; `name=value` names an argument, the others fill them in order.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from callboard.core.toolset import normalised
from callboard.ports.mcp import Servers
from callboard.words.errors import ToolRefused
from callboard.words.mcp import McpPrompt
from callboard.words.skills import PersonCommand
from callboard.words.values import Json

_NAMED = re.compile(r"([A-Za-z_][\w.-]*)=(.*)", re.DOTALL)


class ServerPrompts:
    """The port `PromptSource`."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    def prompts(self) -> Sequence[PersonCommand]:
        """By name; of two that come to one name the first counts."""
        return tuple(
            PersonCommand(name, _hint(one), " ".join(one.description.split()), "prompt")
            for name, one in sorted(self._found().items())
        )

    async def prompt(self, name: str, arguments: str) -> Sequence[Json]:
        """The prompt's messages, in order."""
        one = self._found().get(name)
        if one is None:
            raise ToolRefused(f"there is no prompt {name!r} of an MCP server that is connected")
        return await self._servers.prompt(one.server, one.name, given(one, arguments))

    def _found(self) -> Mapping[str, McpPrompt]:
        found: dict[str, McpPrompt] = {}
        for now in self._servers.now():
            for one in now.prompts if now.state == "connected" else ():
                found.setdefault(command_name(one), one)
        return found


def command_name(prompt: McpPrompt) -> str:
    """What a person types, without the slash."""
    return normalised(f"mcp__{prompt.server}__{prompt.name}")


def given(prompt: McpPrompt, words: str) -> dict[str, str]:
    """The arguments of a prompt. The last one takes what is left. Raises `ToolRefused`."""
    names = [name for name, _, _ in prompt.arguments]
    try:
        parts = shlex.split(words)
    except ValueError as wrong:
        raise ToolRefused(f"/{command_name(prompt)}: {wrong}") from wrong
    found: dict[str, str] = {}
    rest: list[str] = []
    for part in parts:
        named = _NAMED.fullmatch(part)
        if named and named[1] in names and named[1] not in found:
            found[named[1]] = named[2]
        else:
            rest.append(part)
    open_ = [name for name in names if name not in found]
    if rest and not open_:
        raise ToolRefused(f"/{command_name(prompt)}: too much is given; it takes {_hint(prompt) or 'nothing'}")
    for place, name in enumerate(open_[: len(rest)]):
        last = place == len(open_) - 1
        found[name] = " ".join(rest[place:]) if last else rest[place]
    if missing := [name for name, _, required in prompt.arguments if required and name not in found]:
        raise ToolRefused(f"/{command_name(prompt)}: {missing[0]} is missing; it takes {_hint(prompt)}")
    return found


def _hint(prompt: McpPrompt) -> str:
    return " ".join(f"<{name}>" if required else f"[{name}]" for name, _, required in prompt.arguments)
