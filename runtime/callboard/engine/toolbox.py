"""The tools of a session: those of the runtime, which stay, and those of MCP servers, which come and go.

A live mapping: what is looked up is what there is now. A tool that a server had a moment ago is no longer *in* it, but
who is in the middle of a call of it still gets an answer: that it is gone.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from callboard.core.mcp.rights import PREFIX
from callboard.ports.mcp import Servers
from callboard.ports.tool import Tool, ToolContext, ToolOutcome, ToolSpec
from callboard.words.errors import ToolRefused
from callboard.words.values import Json

Wrap = Callable[[Tool], Tool]


@dataclass(frozen=True, slots=True)
class GoneTool:
    """Stands where a server's tool was; what is asked of it is told that it is not there."""

    spec: ToolSpec

    def key(self, given: Json) -> str:
        return ""

    async def prepare(self, given: Json, context: ToolContext) -> Json:
        raise ToolRefused(self._why)

    async def run(self, given: Json, context: ToolContext) -> ToolOutcome:
        raise ToolRefused(self._why)

    async def repair(self, given: Json, marks: Json, context: ToolContext) -> ToolOutcome | None:
        """It may have done what it was asked for: nobody knows, and it is not run again."""
        raise ToolRefused(f"{self._why}. The call was under way when the process ended: its outcome is unknown")

    @property
    def _why(self) -> str:
        return f"{self.spec.name} is not there any more: its server has gone, or has taken it back"


class Toolbox(Mapping[str, Tool]):
    """All tools by name, the runtime's own first. `wrap` is put round each."""

    def __init__(self, own: Mapping[str, Tool], servers: Servers | None = None, wrap: Wrap = lambda tool: tool) -> None:
        self._given, self._servers, self._wrap = own, servers, wrap
        self._own = {name: wrap(tool) for name, tool in own.items()}
        self._wrapped: dict[str, tuple[Tool, Tool]] = {}

    def wrapped(self, wrap: Wrap) -> Toolbox:
        """The same tools, each in one more wrapping."""
        inner = self._wrap
        return Toolbox(self._given, self._servers, lambda tool: wrap(inner(tool)))

    def of_servers(self) -> Mapping[str, Tool]:
        """Those of MCP servers as they stand now."""
        return self._servers.tools() if self._servers is not None else {}

    def __getitem__(self, name: str) -> Tool:
        if name in self._own:
            return self._own[name]
        found = self.of_servers().get(name)
        if found is not None:
            return self._kept(name, found)
        if name.startswith(PREFIX):
            return GoneTool(ToolSpec(name, "", {"type": "object"}, "read", "shared"))
        raise KeyError(name)

    def _kept(self, name: str, tool: Tool) -> Tool:
        kept = self._wrapped.get(name)
        if kept is None or kept[0] is not tool:
            kept = self._wrapped[name] = (tool, self._wrap(tool))
        return kept[1]

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in self.of_servers()

    def __iter__(self) -> Iterator[str]:
        yield from self._own
        yield from (name for name in self.of_servers() if name not in self._own)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def wrapped(tools: Mapping[str, Tool], wrap: Wrap) -> Mapping[str, Tool]:
    """All tools in one more wrapping, live where they are."""
    return tools.wrapped(wrap) if isinstance(tools, Toolbox) else {name: wrap(tool) for name, tool in tools.items()}


def near(name: str, names: Sequence[str]) -> str:
    """A hint to names that look like this one; else all names, where they are few."""
    found = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return f" Did you mean {', '.join(found)}?" if found else f" Your tools: {', '.join(names)}."
