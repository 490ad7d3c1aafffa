"""Tools for tools of MCP servers that an agent's prompt does not list: search, call, connect; and prompts of servers.

The `call_tool` in a reply is replaced by the tool that it names before the reply is processed; only a call without a
valid name is handled here.

Prompts are slash commands: `/mcp__server__prompt first "second one" name=value`. The text after the name is split as in
a shell. `name=value` sets a named argument; the others are positional.
"""

from __future__ import annotations

import difflib
import json
import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from pydantic import Field

from callboard.adapters.tools.base import ToolInput, TypedTool
from callboard.core.context.system_prompt import one_line
from callboard.core.mcp.catalog import CALL, CONNECT, MOST_NAMED, SEARCH
from callboard.core.mcp.tool_names import may_have, sees
from callboard.core.mcp.tool_search import DeclaredTool, rank_tools
from callboard.core.tool_access import normalise_name
from callboard.ports.mcp import Servers
from callboard.ports.tool import CallContext, Tool, ToolOutcome
from callboard.types.choices import unknown
from callboard.types.errors import ToolRefused
from callboard.types.late_pattern import late_pattern
from callboard.types.mcp import McpPrompt, ServerStatus
from callboard.types.records import Json
from callboard.types.skills import PersonCommand

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
MOST_FOUND = 20
LONGEST = 2_000
"""Most tools that one search shows, and most characters of a description."""


class _Search(ToolInput):
    query: str = Field(min_length=1, description="What you want to do, in a few words; or names of tools")
    limit: int = Field(default=5, ge=1, le=MOST_FOUND)


class _Call(ToolInput):
    name: str = Field(min_length=1, description="mcp__server__tool")
    input: dict[str, Any] = Field(default_factory=dict, description="The tool's input, as its schema says")


class _Connect(ToolInput):
    name: str = Field(min_length=1, description="The server's name")


Hidden = Callable[[str], Collection[str]]
"""Agent -> the tools of servers that only other agents may use."""


def server_tools(servers: Servers, hidden: Hidden = lambda agent: ()) -> tuple[Tool, ...]:
    """Return `search_tools`, `call_tool` and `connect_mcp`."""
    return SearchTools(servers, hidden), CallTool(servers, hidden), ConnectMcp(servers)


class SearchTools(TypedTool[_Search]):
    """Tool that ranks all tools of servers that the agent may use."""

    def __init__(self, servers: Servers, hidden: Hidden) -> None:
        super().__init__(SEARCH, _SEARCH, _Search, effect="read", concurrency="shared")
        self._servers = servers
        self._hidden = hidden

    async def act(self, arguments: _Search, context: CallContext) -> ToolOutcome:
        tools = _visible_tools(self._servers, self._hidden, context)
        matches = rank_tools(arguments.query, tools, arguments.limit)
        if not matches:
            return ToolOutcome(_nothing(arguments.query, tools, self._servers.now(), context))
        texts = [_description(tool) for tool in matches]
        return ToolOutcome("\n\n".join(texts), data={"tools": [tool.name for tool in matches]})


class CallTool(TypedTool[_Call]):
    """Fallback of `call_tool` for calls that name no tool of a server."""

    def __init__(self, servers: Servers, hidden: Hidden) -> None:
        super().__init__(CALL, _CALL, _Call, effect="read", concurrency="shared")
        self._servers = servers
        self._hidden = hidden

    async def act(self, arguments: _Call, context: CallContext) -> ToolOutcome:
        if arguments.name in context.spec.tools:
            raise ToolRefused(f"{arguments.name} is in your tool list: call it by its own name")
        names = [tool.name for tool in _visible_tools(self._servers, self._hidden, context)]
        near = difflib.get_close_matches(arguments.name, names, n=3, cutoff=0.4)
        hint = f"Did you mean {', '.join(near)}?" if near else f"{SEARCH} finds those there are."
        raise ToolRefused(f"there is no tool {arguments.name!r} of a server. {hint}")


class ConnectMcp(TypedTool[_Connect]):
    """Tool that connects one server by its name."""

    def __init__(self, servers: Servers) -> None:
        super().__init__(CONNECT, _CONNECT, _Connect, effect="attach")
        self._servers = servers

    async def act(self, arguments: _Connect, context: CallContext) -> ToolOutcome:
        servers = [now for now in self._servers.now() if sees(context.spec, now.name)]
        server = next((now for now in servers if now.name == arguments.name), None)
        if server is None:
            names = [now.name for now in servers]
            raise ToolRefused(f"name: {unknown('MCP server', arguments.name, names, where='for you')}")
        if server.state in ("off", "untrusted"):
            raise ToolRefused(f"{arguments.name} is {server.state}: {server.why or 'a person has to allow it'}")
        now = server if server.state == "connected" else await self._servers.connect(arguments.name)
        tools = [name for name in now.tools if may_have(context.spec, name)]
        suffix = f" and {len(tools) - MOST_NAMED} more" if len(tools) > MOST_NAMED else ""
        text = f"{now.name} is connected. Its tools: {', '.join(tools[:MOST_NAMED]) or 'none for you'}{suffix}"
        return ToolOutcome(text, data={"server": now.name, "tools": tools})


def _visible_tools(servers: Servers, hidden: Hidden, context: CallContext) -> list[DeclaredTool]:
    others = hidden(context.spec.name)
    return [
        DeclaredTool(name, tool.spec.description, tool.spec.input_schema)
        for name, tool in sorted(servers.tools().items())
        if may_have(context.spec, name) and name not in others
    ]


def _description(tool: DeclaredTool) -> str:
    schema = json.dumps(tool.input_schema, ensure_ascii=False)
    return f"{tool.name}: {one_line(tool.description[:LONGEST])}\ninput: {schema}"


def _nothing(query: str, tools: Sequence[DeclaredTool], servers: Sequence[ServerStatus], context: CallContext) -> str:
    visible = [now for now in servers if sees(context.spec, now.name)]
    names = ", ".join(f"{now.name} ({now.state}, {len(now.tools)} tools)" for now in visible) or "none"
    return f"Nothing fits {query!r} among {len(tools)} tools. Servers: {names}. Try other words."


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
    return normalise_name(f"mcp__{prompt.server}__{prompt.name}")


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
