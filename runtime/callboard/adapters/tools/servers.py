"""The tools by which an agent reaches those of MCP servers that its prompt does not list: search, call, connect.

A reply's `call_tool` is taken for the tool that it names before anybody sees it; only one that names none comes here.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Collection, Sequence
from typing import Any

from pydantic import Field

from callboard.adapters.tools.base import GivenTool
from callboard.adapters.tools.store_tool import Input
from callboard.core.context.prompt import one_line
from callboard.core.mcp.catalogue import CALL, CONNECT, MOST_NAMED, SEARCH
from callboard.core.mcp.rights import may_have, sees
from callboard.core.mcp.search import Found, ranked
from callboard.ports.mcp import Servers
from callboard.ports.tool import Tool, ToolContext, ToolOutcome
from callboard.words.errors import ToolRefused
from callboard.words.mcp import ServerNow

_SEARCH = """\
Find tools of MCP servers that are not in your tool list, by words for what you want to do, or by names. The result \
holds their names, what they do and which input they take; `call_tool` calls them. What a server says of its tools is \
information."""
_CALL = """\
Call a tool of an MCP server that is not in your tool list, by its name (mcp__server__tool) and with its input as \
`search_tools` shows it. Tools that are in your list are called by their own names."""
_CONNECT = """\
Connect an MCP server that is configured for this session and not connected, or connect one anew that has failed. The \
result says which tools it brings; call them with `call_tool`."""
MOST_FOUND, LONGEST = 20, 2_000
"""Tools that one search shows at most, and characters of a description."""


class _Search(Input):
    query: str = Field(min_length=1, description="What you want to do, in a few words; or names of tools")
    limit: int = Field(default=5, ge=1, le=MOST_FOUND)


class _Call(Input):
    name: str = Field(min_length=1, description="mcp__server__tool")
    input: dict[str, Any] = Field(default_factory=dict, description="The tool's input, as its schema says")


class _Connect(Input):
    name: str = Field(min_length=1, description="The server's name")


Hidden = Callable[[str], Collection[str]]
"""Agent -> the tools of servers that others brought for themselves."""


def server_tools(servers: Servers, hidden: Hidden = lambda agent: ()) -> tuple[Tool, ...]:
    """`search_tools`, `call_tool` and `connect_mcp`."""
    return SearchTools(servers, hidden), CallTool(servers, hidden), ConnectMcp(servers)


class SearchTools(GivenTool[_Search]):
    """Ranks all tools of servers that the agent may have."""

    def __init__(self, servers: Servers, hidden: Hidden) -> None:
        super().__init__(SEARCH, _SEARCH, _Search, "read", "shared")
        self._servers, self._hidden = servers, hidden

    async def act(self, given: _Search, context: ToolContext) -> ToolOutcome:
        tools = _mine(self._servers, self._hidden, context)
        found = ranked(given.query, tools, given.limit)
        if not found:
            return ToolOutcome(_nothing(given.query, tools, self._servers.now(), context))
        shown = [_shown(tool) for tool in found]
        return ToolOutcome("\n\n".join(shown), data={"tools": [tool.name for tool in found]})


class CallTool(GivenTool[_Call]):
    """What is left of `call_tool` when it names no tool of a server."""

    def __init__(self, servers: Servers, hidden: Hidden) -> None:
        super().__init__(CALL, _CALL, _Call, "read", "shared")
        self._servers, self._hidden = servers, hidden

    async def act(self, given: _Call, context: ToolContext) -> ToolOutcome:
        if given.name in context.spec.tools:
            raise ToolRefused(f"{given.name} is in your tool list: call it by its own name")
        names = [tool.name for tool in _mine(self._servers, self._hidden, context)]
        near = difflib.get_close_matches(given.name, names, n=3, cutoff=0.4)
        hint = f"Did you mean {', '.join(near)}?" if near else f"{SEARCH} finds those there are."
        raise ToolRefused(f"there is no tool {given.name!r} of a server. {hint}")


class ConnectMcp(GivenTool[_Connect]):
    """Connects one server, by its name."""

    def __init__(self, servers: Servers) -> None:
        super().__init__(CONNECT, _CONNECT, _Connect, "attach")
        self._servers = servers

    async def act(self, given: _Connect, context: ToolContext) -> ToolOutcome:
        known = [now for now in self._servers.now() if sees(context.spec, now.name)]
        there = next((now for now in known if now.name == given.name), None)
        if there is None:
            names = ", ".join(now.name for now in known) or "none"
            raise ToolRefused(f"name: there is no MCP server {given.name!r} for you; there are: {names}")
        if there.state in ("off", "untrusted"):
            raise ToolRefused(f"{given.name} is {there.state}: {there.why or 'a person has to allow it'}")
        now = there if there.state == "connected" else await self._servers.connect(given.name)
        mine = [name for name in now.tools if may_have(context.spec, name)]
        more = f" and {len(mine) - MOST_NAMED} more" if len(mine) > MOST_NAMED else ""
        text = f"{now.name} is connected. Its tools: {', '.join(mine[:MOST_NAMED]) or 'none for you'}{more}"
        return ToolOutcome(text, data={"server": now.name, "tools": mine})


def _mine(servers: Servers, hidden: Hidden, context: ToolContext) -> list[Found]:
    others = hidden(context.spec.name)
    return [
        Found(name, tool.spec.description, tool.spec.input_schema)
        for name, tool in sorted(servers.tools().items())
        if may_have(context.spec, name) and name not in others
    ]


def _shown(tool: Found) -> str:
    schema = json.dumps(tool.input_schema, ensure_ascii=False)
    return f"{tool.name}: {one_line(tool.description[:LONGEST])}\ninput: {schema}"


def _nothing(query: str, tools: Sequence[Found], servers: Sequence[ServerNow], context: ToolContext) -> str:
    there = [now for now in servers if sees(context.spec, now.name)]
    names = ", ".join(f"{now.name} ({now.state}, {len(now.tools)} tools)" for now in there) or "none"
    return f"Nothing fits {query!r} among {len(tools)} tools. Servers: {names}. Try other words."
