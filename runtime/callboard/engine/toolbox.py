"""Tools of a session: the fixed tools of the runtime, and the changing tools of MCP servers.

The toolbox is a live mapping, so a lookup finds the tools of this moment. A tool whose server is gone is no longer *in*
it, but a running call of that tool still gets an answer, which says that the tool is gone.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence

from callboard.core.mcp.tool_names import PREFIX
from callboard.ports.mcp import Servers
from callboard.ports.tool import CallContext, Folders, Tool, ToolOutcome, ToolSpec
from callboard.types.errors import ToolRefused
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json

Wrap = Callable[[Tool], Tool]


@dataclass(frozen=True, slots=True)
class MissingTool:
    """Replacement for a server's tool that is gone. It answers each call with that fact."""

    spec: ToolSpec

    def key(self, tool_input: Json, folders: Folders) -> str:
        return ""

    async def prepare(self, tool_input: Json, context: CallContext) -> Json:
        raise ToolRefused(self._reason)

    async def run(self, tool_input: Json, context: CallContext) -> ToolOutcome:
        raise ToolRefused(self._reason)

    async def repair(self, tool_input: Json, marks: Json, context: CallContext) -> ToolOutcome | None:
        """Answer a call that was cut off: its effect is unknown, and it does not run again."""
        raise ToolRefused(f"{self._reason}. The call was under way when the process ended: its outcome is unknown")

    @property
    def _reason(self) -> str:
        return f"{self.spec.name} is no longer available: its server is gone, or has withdrawn it"


class Toolbox(Mapping[str, Tool]):
    """All tools by name, the runtime's first. `wrap` wraps each of them."""

    def __init__(self, own: Mapping[str, Tool], servers: Servers | None = None, wrap: Wrap = lambda tool: tool) -> None:
        self._given = own
        self._servers = servers
        self._wrap = wrap
        self._own = {name: wrap(tool) for name, tool in own.items()}
        self._wrapped: dict[str, tuple[Tool, Tool]] = {}

    def wrap(self, wrap: Wrap) -> Toolbox:
        """Return the same tools, each in one more wrapper."""
        inner = self._wrap
        return Toolbox(self._given, self._servers, lambda tool: wrap(inner(tool)))

    def of_servers(self) -> Mapping[str, Tool]:
        """Return the current tools of MCP servers."""
        return self._servers.tools() if self._servers is not None else {}

    def __getitem__(self, name: str) -> Tool:
        if name in self._own:
            return self._own[name]
        tool = self.of_servers().get(name)
        if tool is not None:
            return self._wrapped_tool(name, tool)
        if name.startswith(PREFIX):
            return MissingTool(ToolSpec(name, "", {"type": "object"}, "read", "shared"))
        raise KeyError(name)

    def _wrapped_tool(self, name: str, tool: Tool) -> Tool:
        wrapped = self._wrapped.get(name)
        if wrapped is None or wrapped[0] is not tool:
            wrapped = self._wrapped[name] = (tool, self._wrap(tool))
        return wrapped[1]

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in self.of_servers()

    def __iter__(self) -> Iterator[str]:
        yield from self._own
        yield from (name for name in self.of_servers() if name not in self._own)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def wrap_tools(tools: Mapping[str, Tool], wrap: Wrap) -> Mapping[str, Tool]:
    """Return all tools in one more wrapper, as a live mapping if they are one."""
    return tools.wrap(wrap) if isinstance(tools, Toolbox) else {name: wrap(tool) for name, tool in tools.items()}


def near(name: str, names: Sequence[str]) -> str:
    """Return a hint to similar names; without any, all names if they are few."""
    similar = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    return f" Did you mean {', '.join(similar)}?" if similar else f" Your tools: {', '.join(names)}."
