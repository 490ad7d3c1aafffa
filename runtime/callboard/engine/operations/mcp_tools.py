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


def may_reach_servers(runtime: SessionRuntime, me: AgentSpec) -> bool:
    """Return True if there are servers and the agent may have tools of a server."""
    return runtime.services.servers is not None and bool(runtime.services.servers.now()) and has_any(me)


def has_tool(runtime: SessionRuntime, me: AgentSpec, name: str) -> bool:
    """Return True if the agent may call the tool of this name now."""
    if name not in runtime.services.tools:
        return False
    if name in (SEARCH, CALL):
        return may_reach_servers(runtime, me)
    return name in names_of(me.tools, me.own, runtime.services.own) or name in _server_tools(runtime, me)


def tool_names(runtime: SessionRuntime, me: AgentSpec) -> tuple[str, ...]:
    """Return the names of all tools that the agent may call now."""
    access = (SEARCH, CALL) if may_reach_servers(runtime, me) else ()
    return (*names_of(me.tools, me.own, runtime.services.own), *access, *sorted(_server_tools(runtime, me)))


def _server_tools(runtime: SessionRuntime, me: AgentSpec) -> dict[str, Tool]:
    servers = runtime.services.servers
    if servers is None:
        return {}
    others = hidden_tools(servers, runtime.private_servers, me.name)
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


def has_own_servers(runtime: SessionRuntime, me: AgentSpec) -> bool:
    """Return True if the agent's type defines servers of its own."""
    return runtime.services.servers is not None and bool(runtime.services.own_servers(me))


async def add_own_servers(agent: AgentRuntime) -> None:
    """Add the servers that the agent's type defines, for agents of this type only.

    They end with the last of these agents.
    """
    runtime = agent.runtime
    me = agent.state.me
    if runtime.services.servers is None:
        return
    for entry in runtime.services.own_servers(me):
        if entry.name in runtime.private_servers:
            runtime.private_servers[entry.name].add(agent.name)
        elif all(now.name != entry.name for now in runtime.services.servers.now()):  # else every agent already has it
            runtime.private_servers[entry.name] = {agent.name}
            runtime.servers_until = None  # its prompt waits for them
            await runtime.services.servers.add(entry)


async def remove_own_servers(agent: AgentRuntime) -> None:
    """End the servers that only this agent uses, because its life in this process is over."""
    runtime = agent.runtime
    for name in [name for name, owners in runtime.private_servers.items() if agent.name in owners]:
        runtime.private_servers[name].discard(agent.name)
        if not runtime.private_servers[name] and runtime.services.servers is not None:
            del runtime.private_servers[name]
            with anyio.CancelScope(shield=True):
                await runtime.services.servers.remove(name)


async def wait_for_servers(runtime: SessionRuntime) -> None:
    """Wait for the servers of the start, at most as long as the first prompt may wait."""
    servers = runtime.services.servers
    if servers is None or not servers.now():
        return
    if runtime.servers_until is None and runtime.server_wait is not None:
        runtime.servers_until = runtime.clock.now() + runtime.server_wait
    remaining = None if runtime.servers_until is None else max(0.0, runtime.servers_until - runtime.clock.now())
    with anyio.move_on_after(remaining):
        await servers.ready()


def tools_for_prompt(runtime: SessionRuntime, me: AgentSpec, before: Sequence[DeclaredTool] | None) -> PromptTools:
    """Return the tools and server lines for the agent's prompt now.

    `before`: the server tools in its list in an earlier process, which it keeps; None: it had no list.
    """
    services = runtime.services
    own = [services.tools[name].spec for name in names_of(me.tools, me.own, services.own) if name in services.tools]
    if not may_reach_servers(runtime, me):
        return PromptTools(tuple(tool_spec for tool_spec in own if tool_spec.name != CONNECT))
    by_name = _server_tools(runtime, me)
    if before is None:
        tools = [
            DeclaredTool(name, tool.spec.description, tool.spec.input_schema) for name, tool in sorted(by_name.items())
        ]
        always = {tool for now in _server_states(runtime) if now.always_load for tool in now.tools}
        always |= {name for name, tool in by_name.items() if tool.spec.always_load}
        window = me.limits_of(me.model).window
        names = catalog.prompt_tool_names(tools, always, window, runtime.deferral)
        before = [tool for tool in tools if tool.name in names]
    listed = {tool.name for tool in before}
    access = [services.tools[name].spec for name in (SEARCH, CALL) if name in services.tools]
    specs = [ToolSpec(tool.name, tool.description, tool.input_schema, "read") for tool in before]
    return PromptTools((*own, *access, *specs), tuple(_server_lines(runtime, me, by_name, listed).values()))


def _server_states(runtime: SessionRuntime) -> Sequence[ServerStatus]:
    return runtime.services.servers.now() if runtime.services.servers is not None else ()


def _server_lines(runtime: SessionRuntime, me: AgentSpec, by_name: dict[str, Tool], listed: set[str]) -> dict[str, str]:
    connects = CONNECT in me.tools
    lines: dict[str, str] = {}
    for now in _server_states(runtime):
        if sees(me, now.name) and not _belongs_to_others(runtime.private_servers, now.name, me.name):
            own = [name for name in now.tools if name in by_name]
            lines[now.name] = catalog.server_line(now, own, listed, connects=connects)
    return lines


async def remind_of_changes(agent: AgentRuntime) -> None:
    """Queue a reminder during a turn if the servers have changed since the agent was last informed.

    In a recording this happens at the start of the next turn, as in its replay.
    """
    services = agent.runtime.services
    if services.servers is None or services.script is not None or agent.servers_seen == services.servers.revision:
        return
    if due := await server_reminder(agent):
        await agent.note(*(InjectionQueued(at=agent.runtime.clock.now(), injection=injection) for injection in due))


async def server_reminder(agent: AgentRuntime) -> tuple[Injection, ...]:
    """Return a reminder of differences between the agent's prompt and the current servers.

    None if nothing differs, or the newest reminder has the differences.
    """
    servers = agent.runtime.services.servers
    previous = agent.state.context.reminders.get(SERVERS_NOW, "")
    if servers is None or not agent.state.context.system:
        return ()
    agent.servers_seen = servers.revision
    text = await _changes_text(agent, previous)
    return (Injection(kind="system-reminder", text=text, key=SERVERS_NOW),) if text and text != previous else ()


async def _changes_text(agent: AgentRuntime, previous: str) -> str:
    runtime = agent.runtime
    me = agent.state.me
    shared, tools = await agent.prompt_bytes()
    in_prompt = catalog.lines_in_prompt(shared)
    listed = {tool.name for tool in catalog.listed_tools(tools)}
    if not in_prompt and not may_reach_servers(runtime, me):
        return ""
    by_name = _server_tools(runtime, me)
    gone = sorted(listed - set(by_name))
    lines = _server_lines(runtime, me, by_name, listed) if has_any(me) else {}
    return catalog.news(lines, in_prompt, gone, previous)
