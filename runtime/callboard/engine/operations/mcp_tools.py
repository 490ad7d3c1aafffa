"""Tools of MCP servers for agents: tools in the prompt, deferred tools, and later changes.

A prompt is composed once, from the servers connected by then. Later changes do not alter its bytes: a reminder reports
them, and `call_tool` reaches the new tools. The port connects the servers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import anyio

from callboard.core.context.reminders import SERVERS_NOW
from callboard.core.mcp import catalog
from callboard.core.mcp.catalog import CALL, CONNECT, SEARCH
from callboard.core.mcp.tool_names import has_any, may_have, sees
from callboard.core.mcp.tool_search import DeclaredTool
from callboard.core.tool_access import names_of
from callboard.engine.agent_runtime import AgentRuntime
from callboard.engine.runtime import SessionRuntime
from callboard.ports.mcp import Servers
from callboard.ports.tool import Tool, ToolSpec
from callboard.types.agent_spec import AgentSpec
from callboard.types.events import InjectionQueued
from callboard.types.lazy_dataclass import dataclass
from callboard.types.mcp import ServerStatus
from callboard.types.messages import Injection


@dataclass(frozen=True, slots=True)
class PromptTools:
    """Tools in a prompt, and one line for each server."""

    tools: tuple[ToolSpec, ...]
    lines: tuple[str, ...] = ()


def may_reach_servers(host: SessionRuntime, me: AgentSpec) -> bool:
    """Return True if there are servers and the agent may have tools of a server."""
    return host.ports.servers is not None and bool(host.ports.servers.now()) and has_any(me)


def has_tool(host: SessionRuntime, me: AgentSpec, name: str) -> bool:
    """Return True if the agent may call the tool of this name now."""
    if name not in host.ports.tools:
        return False
    if name in (SEARCH, CALL):
        return may_reach_servers(host, me)
    return name in names_of(me.tools, me.own, host.ports.own) or name in _server_tools(host, me)


def tool_names(host: SessionRuntime, me: AgentSpec) -> tuple[str, ...]:
    """Return the names of all tools that the agent may call now."""
    access = (SEARCH, CALL) if may_reach_servers(host, me) else ()
    return (*names_of(me.tools, me.own, host.ports.own), *access, *sorted(_server_tools(host, me)))


def _server_tools(host: SessionRuntime, me: AgentSpec) -> dict[str, Tool]:
    servers = host.ports.servers
    if servers is None:
        return {}
    others = hidden_tools(servers, host.private_servers, me.name)
    return {name: tool for name, tool in servers.tools().items() if may_have(me, name) and name not in others}


def hidden_tools(servers: Servers, private: Mapping[str, Collection[str]], agent: str) -> frozenset[str]:
    """Return the server tools that only other agents may use. `private`: see `SessionRuntime.private_servers`."""
    if not private:
        return frozenset()
    return frozenset(
        tool for now in servers.now() if _belongs_to_others(private, now.name, agent) for tool in now.tools
    )


def _belongs_to_others(private: Mapping[str, Collection[str]], server: str, agent: str) -> bool:
    return server in private and agent not in private[server]


def has_own_servers(host: SessionRuntime, me: AgentSpec) -> bool:
    """Return True if the agent's type defines servers of its own."""
    return host.ports.servers is not None and bool(host.ports.own_servers(me))


async def add_own_servers(agent: AgentRuntime) -> None:
    """Add the servers that the agent's type defines, for agents of this type only.

    They end with the last of these agents.
    """
    host = agent.host
    me = agent.state.me
    if host.ports.servers is None:
        return
    for entry in host.ports.own_servers(me):
        if entry.name in host.private_servers:
            host.private_servers[entry.name].add(agent.name)
        elif all(now.name != entry.name for now in host.ports.servers.now()):  # else every agent already has it
            host.private_servers[entry.name] = {agent.name}
            host.servers_until = None  # its prompt waits for them
            await host.ports.servers.add(entry)


async def remove_own_servers(agent: AgentRuntime) -> None:
    """End the servers that only this agent uses, because its life in this process is over."""
    host = agent.host
    for name in [name for name, owners in host.private_servers.items() if agent.name in owners]:
        host.private_servers[name].discard(agent.name)
        if not host.private_servers[name] and host.ports.servers is not None:
            del host.private_servers[name]
            with anyio.CancelScope(shield=True):
                await host.ports.servers.remove(name)


async def wait_for_servers(host: SessionRuntime) -> None:
    """Wait for the servers of the start, at most as long as the first prompt may wait."""
    servers = host.ports.servers
    if servers is None or not servers.now():
        return
    if host.servers_until is None and host.server_wait is not None:
        host.servers_until = host.clock.now() + host.server_wait
    remaining = None if host.servers_until is None else max(0.0, host.servers_until - host.clock.now())
    with anyio.move_on_after(remaining):
        await servers.ready()


def tools_for_prompt(host: SessionRuntime, me: AgentSpec, before: Sequence[DeclaredTool] | None) -> PromptTools:
    """Return the tools and server lines for the agent's prompt now.

    `before`: the server tools in its list in an earlier process, which it keeps; None: it had no list.
    """
    ports = host.ports
    own = [ports.tools[name].spec for name in names_of(me.tools, me.own, ports.own) if name in ports.tools]
    if not may_reach_servers(host, me):
        return PromptTools(tuple(tool_spec for tool_spec in own if tool_spec.name != CONNECT))
    by_name = _server_tools(host, me)
    if before is None:
        tools = [
            DeclaredTool(name, tool.spec.description, tool.spec.input_schema) for name, tool in sorted(by_name.items())
        ]
        always = {tool for now in _server_states(host) if now.always_load for tool in now.tools}
        always |= {name for name, tool in by_name.items() if tool.spec.always_load}
        window = me.limits_of(me.model).window
        names = catalog.listed(tools, always, window, host.deferral)
        before = [tool for tool in tools if tool.name in names]
    listed = {tool.name for tool in before}
    access = [ports.tools[name].spec for name in (SEARCH, CALL) if name in ports.tools]
    specs = [ToolSpec(tool.name, tool.description, tool.input_schema, "read") for tool in before]
    return PromptTools((*own, *access, *specs), tuple(_server_lines(host, me, by_name, listed).values()))


def _server_states(host: SessionRuntime) -> Sequence[ServerStatus]:
    return host.ports.servers.now() if host.ports.servers is not None else ()


def _server_lines(host: SessionRuntime, me: AgentSpec, by_name: dict[str, Tool], listed: set[str]) -> dict[str, str]:
    connects = CONNECT in me.tools
    lines: dict[str, str] = {}
    for now in _server_states(host):
        if sees(me, now.name) and not _belongs_to_others(host.private_servers, now.name, me.name):
            own = [name for name in now.tools if name in by_name]
            lines[now.name] = catalog.server_line(now, own, listed, connects=connects)
    return lines


async def remind_of_changes(agent: AgentRuntime) -> None:
    """Queue a reminder during a turn if the servers have changed since the agent was last informed.

    In a recording this happens at the start of the next turn, as in its replay.
    """
    ports = agent.host.ports
    if ports.servers is None or ports.script is not None or agent.servers_seen == ports.servers.revision:
        return
    if due := await server_reminder(agent):
        await agent.note(*(InjectionQueued(at=agent.host.clock.now(), injection=injection) for injection in due))


async def server_reminder(agent: AgentRuntime) -> tuple[Injection, ...]:
    """Return a reminder of differences between the agent's prompt and the current servers.

    None if nothing differs, or the newest reminder has the differences.
    """
    servers = agent.host.ports.servers
    previous = agent.state.context.reminders.get(SERVERS_NOW, "")
    if servers is None or not agent.state.context.system:
        return ()
    agent.servers_seen = servers.revision
    text = await _changes_text(agent, previous)
    return (Injection(kind="system-reminder", text=text, key=SERVERS_NOW),) if text and text != previous else ()


async def _changes_text(agent: AgentRuntime, previous: str) -> str:
    host = agent.host
    me = agent.state.me
    shared, tools = await agent.prompt_bytes()
    in_prompt = catalog.lines_in_prompt(shared)
    listed = {tool.name for tool in catalog.listed_tools(tools)}
    if not in_prompt and not may_reach_servers(host, me):
        return ""
    by_name = _server_tools(host, me)
    gone = sorted(listed - set(by_name))
    lines = _server_lines(host, me, by_name, listed) if has_any(me) else {}
    return catalog.news(lines, in_prompt, gone, previous)
