"""Prompt and tool list of an agent: composed at its start, and again when its tools have changed.

A resume renders the same bytes. A change of the list changes the beginning of every later request, so the service reads
the whole conversation again once (docs/context.md).
"""

from __future__ import annotations

from collections.abc import Sequence

from callboard.core.agent.changes import lacks_submit_plan
from callboard.core.agent.decide import PROMPT
from callboard.core.mcp.catalog import listed_tools
from callboard.core.mcp.tool_search import DeclaredTool
from callboard.engine.loop import AgentRuntime
from callboard.engine.operations.mcp_tools import offer, reaches, until_ready
from callboard.ports.environment import PromptParts
from callboard.types import steps as st
from callboard.types.errors import ValueDamaged
from callboard.types.events import PromptSet


async def renew_prompt(agent: AgentRuntime, step: st.SetPrompt) -> None:
    """Start to compose the prompt again, as an operation, because it reads files."""
    agent.start(PROMPT, lambda: _renew(agent))


async def _renew(agent: AgentRuntime) -> None:
    in_use = await _in_use(agent)
    if lacks_submit_plan(agent.state):
        await _record(agent, await _composed(agent, listed_tools(in_use[1]) if in_use is not None else None))


async def set_prompt(agent: AgentRuntime) -> None:
    """Record the prompt with which an agent starts in this process, unless it is already in use."""
    parts = None
    in_use = await _in_use(agent)
    if in_use is not None:  # as it was, if the runtime's own tools still are: servers may take their time to come
        parts = await _composed(agent, listed_tools(in_use[1]))
        if agent.state.context.tools == await agent.host.ports.store.put_blob(parts.tools):
            return
    if parts is None or reaches(agent.host, agent.state.me):
        await until_ready(agent.host)
        parts = await _composed(agent, None)
    await _record(agent, parts)


async def _record(agent: AgentRuntime, parts: PromptParts) -> None:
    store = agent.host.ports.store
    tools = await store.put_blob(parts.tools)
    system = await store.put_blob(parts.system)
    instructions = None if parts.instructions is None else dict(parts.instructions)
    now = agent.host.clock.now()
    tokens = parts.tokens
    await agent.record(PromptSet(at=now, system=system, tools=tools, overhead_tokens=tokens, instructions=instructions))
    agent.has_prompt(parts.system, parts.tools)


async def _in_use(agent: AgentRuntime) -> tuple[bytes, bytes] | None:
    """Return the prompt and the tools that the journal names; None if there are none yet, or their bytes are
    damaged."""
    if not agent.state.context.system:
        return None
    try:
        return await agent.prompt_bytes()
    except (KeyError, ValueDamaged):
        return None


async def _composed(agent: AgentRuntime, before: Sequence[DeclaredTool] | None) -> PromptParts:
    """Compose the prompt from the agent's current spec. `before`: the tools of servers that stay in the list."""
    offered = offer(agent.host, agent.state.me, before)
    return await agent.host.ports.prompts.compose(agent.state.me, offered.tools, offered.lines)
