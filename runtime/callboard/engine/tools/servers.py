"""The tools of MCP servers as agents have them: what a prompt lists, what is deferred, and what agents are told later.

A prompt is composed once, from what is connected by then. What comes or goes later changes no byte of it: it is told in
a reminder, and `call_tool` reaches it. Refuses to connect anything: that is the port's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import anyio

from callboard.core.context.reminders import SERVERS_NOW
from callboard.core.mcp import catalogue
from callboard.core.mcp.catalogue import CALL, CONNECT, SEARCH
from callboard.core.mcp.rights import has_any, may_have, sees
from callboard.core.mcp.search import Found
from callboard.core.toolset import names_of
from callboard.engine.host import Host
from callboard.engine.loop import Agent
from callboard.ports.tool import Tool, ToolSpec
from callboard.words.context import Injection
from callboard.words.events import InjectionQueued
from callboard.words.mcp import ServerNow
from callboard.words.specs import AgentSpec
from callboard.words.values import Json, ToolCall


@dataclass(frozen=True, slots=True)
class Offer:
    """What a prompt is composed of: the tools that it lists, and a line on each server."""

    tools: tuple[ToolSpec, ...]
    lines: tuple[str, ...] = ()


def reaches(host: Host, me: AgentSpec) -> bool:
    """Whether there are servers, and the agent may have tools of theirs."""
    return host.ports.servers is not None and bool(host.ports.servers.now()) and has_any(me)


def has_tool(host: Host, me: AgentSpec, name: str) -> bool:
    """Whether the agent may call the tool of this name now."""
    if name not in host.ports.tools:
        return False
    if name in (SEARCH, CALL):
        return reaches(host, me)
    return name in names_of(me.tools, me.own, host.ports.own) or name in _of_servers(host, me)


def tool_names(host: Host, me: AgentSpec) -> tuple[str, ...]:
    """All that it may call now."""
    more = (SEARCH, CALL) if reaches(host, me) else ()
    return (*names_of(me.tools, me.own, host.ports.own), *more, *sorted(_of_servers(host, me)))


def _of_servers(host: Host, me: AgentSpec) -> dict[str, Tool]:
    servers = host.ports.servers
    if servers is None:
        return {}
    others = hidden_tools(host, me.name)
    return {name: tool for name, tool in servers.tools().items() if may_have(me, name) and name not in others}


def hidden_tools(host: Host, agent: str) -> frozenset[str]:
    """The tools of servers that other agents brought for themselves."""
    servers = host.ports.servers
    if servers is None or not host.private:
        return frozenset()
    return frozenset(tool for now in servers.now() if _is_others(host, now.name, agent) for tool in now.tools)


def _is_others(host: Host, server: str, agent: str) -> bool:
    return server in host.private and agent not in host.private[server]


async def bring(agent: Agent) -> None:
    """Add the servers that the agent's type writes out, for such agents alone; they go with the last of them."""
    host, me = agent.host, agent.state.me
    if host.ports.servers is None:
        return
    for entry in host.ports.brought(me):
        if entry.name in host.private:
            host.private[entry.name].add(agent.name)
        elif all(now.name != entry.name for now in host.ports.servers.now()):  # else it is everybody's already
            host.private[entry.name] = {agent.name}
            host.servers_until = None  # its prompt waits for them
            await host.ports.servers.add(entry)


async def take_along(agent: Agent) -> None:
    """Its life here is over: the servers that it alone has go with it."""
    host = agent.host
    for name in [name for name, owners in host.private.items() if agent.name in owners]:
        host.private[name].discard(agent.name)
        if not host.private[name] and host.ports.servers is not None:
            del host.private[name]
            with anyio.CancelScope(shield=True):
                await host.ports.servers.remove(name)


async def until_ready(host: Host) -> None:
    """Wait for the servers of the start, no longer than the host lets the first prompt wait."""
    servers = host.ports.servers
    if servers is None or not servers.now():
        return
    if host.servers_until is None and host.server_wait is not None:
        host.servers_until = host.clock.now() + host.server_wait
    left = None if host.servers_until is None else max(0.0, host.servers_until - host.clock.now())
    with anyio.move_on_after(left):
        await servers.ready()


def offer(host: Host, me: AgentSpec, before: Sequence[Found] | None) -> Offer:
    """What the agent's prompt is composed of now. `before`: the tools of servers that its list held in an earlier
    process, which it keeps; None: it has had none."""
    ports = host.ports
    own = [ports.tools[one].spec for one in names_of(me.tools, me.own, ports.own) if one in ports.tools]
    if not reaches(host, me):
        return Offer(tuple(one for one in own if one.name != CONNECT))
    found = _of_servers(host, me)
    if before is None:
        tools = [Found(name, tool.spec.description, tool.spec.input_schema) for name, tool in sorted(found.items())]
        always = {tool for now in _servers(host) if now.always_load for tool in now.tools}
        always |= {name for name, tool in found.items() if tool.spec.always_load}
        window = me.limits_of(me.model).window
        names = catalogue.listed(tools, always, window, host.deferral)
        before = [tool for tool in tools if tool.name in names]
    listed = {tool.name for tool in before}
    more = [ports.tools[name].spec for name in (SEARCH, CALL) if name in ports.tools]
    theirs = [ToolSpec(tool.name, tool.description, tool.input_schema, "read") for tool in before]
    return Offer((*own, *more, *theirs), tuple(_lines(host, me, found, listed).values()))


def _servers(host: Host) -> Sequence[ServerNow]:
    return host.ports.servers.now() if host.ports.servers is not None else ()


def _lines(host: Host, me: AgentSpec, found: dict[str, Tool], listed: set[str]) -> dict[str, str]:
    connects = CONNECT in me.tools
    lines: dict[str, str] = {}
    for now in _servers(host):
        if sees(me, now.name) and not _is_others(host, now.name, me.name):
            mine = [name for name in now.tools if name in found]
            lines[now.name] = catalogue.server_line(now, mine, listed, connects=connects)
    return lines


async def tell_news(agent: Agent) -> None:
    """In mid-turn: queue a reminder where the servers have changed since the agent was last told. In a recording the
    beginning of the next turn tells, as its replay does."""
    ports = agent.host.ports
    if ports.servers is None or ports.script is not None or agent.servers_seen == ports.servers.revision:
        return
    if due := await news(agent):
        await agent.note(*(InjectionQueued(at=agent.host.clock.now(), injection=one) for one in due))


async def news(agent: Agent) -> tuple[Injection, ...]:
    """A reminder of what the agent's prompt does not say of the servers as they stand now; none, where it says all, or
    the newest one does."""
    servers, told = agent.host.ports.servers, agent.state.told.get(SERVERS_NOW, "")
    if servers is None or not agent.state.system:
        return ()
    agent.servers_seen = servers.revision
    text = await _news(agent, told)
    return (Injection(kind="system-reminder", text=text, key=SERVERS_NOW),) if text and text != told else ()


async def _news(agent: Agent, told: str) -> str:
    host, me = agent.host, agent.state.me
    system, tools = await agent.prompt_bytes()
    in_prompt = catalogue.lines_in_prompt(system)
    listed = {tool.name for tool in catalogue.kept(tools)}
    if not in_prompt and not reaches(host, me):
        return ""
    found = _of_servers(host, me)
    gone = sorted(listed - set(found))
    lines = _lines(host, me, found, listed) if has_any(me) else {}
    return catalogue.news(lines, in_prompt, gone, told)


def unwrapped(call: ToolCall) -> ToolCall:
    """What `call_tool` calls: everybody behind the model's reply sees the real name and its input. As it is, where it
    names no tool of a server."""
    found = None if call.bad_input is not None else catalogue.inner_call(call.name, call.input)
    if found is None:
        return call
    name, given = found
    inner = cast("Json", given) if isinstance(given, dict) else {}
    wrong = None if isinstance(given, dict) else "`input` is not a JSON object"
    return call.model_copy(update={"name": name, "input": inner, "bad_input": wrong})
