"""Prompt and tool list of an agent, and the reminders at the beginning of a turn.

The prompt is composed at the agent's start, and again when its tools have changed. A resume renders the same bytes. A
change of the list changes the beginning of every later request, so the service reads the whole conversation again once
(docs/context.md).

Reminders are changes in the surroundings, instruction files, and notes from memory. Reading the surroundings is an
operation, because git may be slow and the agent still receives mail. Its result is noted and needs no separate commit.
Instruction files and notes are injected at the beginning of a turn; `tool_call.py` queues the instructions for the
files that a tool touches. Injections are journalled, so that a resume repeats none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from callboard.core.agent.changes import lacks_submit_plan
from callboard.core.agent.decide import PROMPT, REMINDERS
from callboard.core.context.reminders import reminders
from callboard.core.mcp.catalog import CALL, listed_tools
from callboard.core.mcp.tool_search import DeclaredTool
from callboard.engine.agent_runtime import AgentRuntime
from callboard.engine.operations.mcp_tools import may_reach_servers, server_reminder, tools_for_prompt, wait_for_servers
from callboard.engine.runtime import SessionRuntime
from callboard.ports.environment import PromptParts
from callboard.types import steps as st
from callboard.types.agent_spec import AgentSpec
from callboard.types.errors import ValueDamaged
from callboard.types.events import InjectionQueued, PromptSet
from callboard.types.messages import Injection


async def renew_prompt(agent: AgentRuntime, step: st.SetPrompt) -> None:
    """Start to compose the prompt again, as an operation, because it reads files."""
    agent.start(PROMPT, lambda: _compose_again(agent))


async def _compose_again(agent: AgentRuntime) -> None:
    in_use = await _prompt_in_use(agent)
    if lacks_submit_plan(agent.state):
        before = listed_tools(in_use[1]) if in_use is not None else None
        await _record_prompt(agent, await _compose(agent.runtime, agent.state.me, before))


async def set_prompt(agent: AgentRuntime) -> None:
    """Record the prompt with which an agent starts in this process, unless it is already in use."""
    parts = None
    in_use = await _prompt_in_use(agent)
    if in_use is not None:  # unchanged if the runtime's own tools are: servers may need time to connect
        parts = await _compose(agent.runtime, agent.state.me, listed_tools(in_use[1]))
        if not agent.runtime.moved and agent.state.context.tools == await agent.runtime.services.store.put_blob(
            parts.tools
        ):
            return
    if parts is None or may_reach_servers(agent.runtime, agent.state.me):
        parts = await compose_first_prompt(agent.runtime, agent.state.me)
    await _record_prompt(agent, parts)


async def compose_first_prompt(runtime: SessionRuntime, me: AgentSpec) -> PromptParts:
    """Compose the prompt of an agent that has none, once the servers are ready."""
    await wait_for_servers(runtime)
    return await _compose(runtime, me, None)


async def store_prompt(runtime: SessionRuntime, parts: PromptParts) -> PromptSet:
    """Store the parts of a prompt, and return the record that they are in use."""
    store = runtime.services.store
    in_memory = runtime.prompt_bytes
    tools = in_memory.digest_of(parts.tools) or await store.put_blob(parts.tools)
    system = in_memory.digest_of(parts.system) or await store.put_blob(parts.system)
    instructions = None if parts.instructions is None else dict(parts.instructions)
    return PromptSet(
        at=runtime.clock.now(),
        system=system,
        tools=tools,
        own_blocks=parts.own_blocks,
        overhead_tokens=parts.tokens,
        instructions=instructions,
    )


async def _record_prompt(agent: AgentRuntime, parts: PromptParts) -> None:
    prompt = await store_prompt(agent.runtime, parts)
    if agent.begins_alone:
        await agent.note(prompt)
    else:
        await agent.record(prompt)
    agent.cache_prompt(parts.system, parts.tools)


async def _prompt_in_use(agent: AgentRuntime) -> tuple[bytes, bytes] | None:
    """Return the prompt and the tools that the journal names; None if it names none yet, or their bytes are damaged."""
    if not agent.state.context.system:
        return None
    try:
        return await agent.prompt_bytes()
    except (KeyError, ValueDamaged):
        return None


async def _compose(runtime: SessionRuntime, me: AgentSpec, before: Sequence[DeclaredTool] | None) -> PromptParts:
    """Compose the prompt from the agent's current spec. `before`: the tools of servers that stay in the list."""
    offered = tools_for_prompt(runtime, me, before)
    return await runtime.services.prompts.compose(me, offered.tools, offered.lines)


def start_reminders(agent: AgentRuntime) -> None:
    """Start to read the surroundings. The turn continues when that is done."""
    if _may_have_reminders(agent):
        agent.start(REMINDERS, lambda: _queue_reminders(agent))


async def queue_first_reminders(agent: AgentRuntime) -> None:
    """Read the surroundings of a new subagent, before its first decision and its mail: no git runs for it."""
    if _may_have_reminders(agent):
        await _queue_reminders(agent)


def _may_have_reminders(agent: AgentRuntime) -> bool:
    services = agent.runtime.services
    return services.surroundings is not None or services.servers is not None or has_guidance(agent)


async def _queue_reminders(agent: AgentRuntime) -> None:
    await _offer_first_servers(agent)
    runtime = agent.runtime
    state = agent.state
    now = runtime.clock.now()
    due: tuple[Injection, ...] = ()
    if runtime.services.surroundings is not None:
        around = await runtime.services.surroundings.look(state.me, now)
        if state.me.kind == "lead":
            around = replace(around, team=runtime.rows.agents())
        due = reminders(state.context.reminders, around, now - state.costs.cache.used_at)
    due += (*await server_reminder(agent), *await guidance_for_turn(agent))
    if runtime.services.script is not None:
        due = runtime.services.script.reminders(agent.name, state.identity.incarnation, state.turns.count, due)
    if due:
        await agent.note(*(InjectionQueued(at=now, injection=injection) for injection in due))


async def _offer_first_servers(agent: AgentRuntime) -> None:
    """Compose the prompt again if it was composed before the session had any server: it cannot reach their tools."""
    if agent.runtime.services.script is not None or not may_reach_servers(agent.runtime, agent.state.me):
        return
    in_use = await _prompt_in_use(agent)
    if in_use is not None and f'"{CALL}"'.encode() not in in_use[1]:
        await _record_prompt(agent, await _compose(agent.runtime, agent.state.me, None))


_SELECTING_TYPES = frozenset({"prompt", "scheduled", "message", "broadcast", "result", "question", "answer"})
"""Types of envelopes whose text selects notes."""
_MOST_WORDS = 20_000
"""Most characters of that text to examine."""


def has_guidance(agent: AgentRuntime) -> bool:
    """Return True if there are instruction files or notes to read for the agent."""
    return agent.runtime.services.instructions is not None or agent.runtime.services.remembered is not None


async def guidance_for_turn(agent: AgentRuntime) -> tuple[Injection, ...]:
    """Return the injections for the beginning of a turn.

    The injections are changed instruction files, then notes relevant to the agent's mail.
    """
    services = agent.runtime.services
    state = agent.state
    injections: tuple[Injection, ...] = ()
    if services.instructions is not None and state.context.instructions is not None:
        injections += await services.instructions.changed(state.me, _tool_folder(agent), state.context.instructions)
    if services.remembered is not None:
        text = "\n".join(envelope.content for envelope in state.inbox.mail if envelope.type in _SELECTING_TYPES)[
            :_MOST_WORDS
        ]
        injections += await services.remembered.relevant(state.me, text, state.context.notes) if text.strip() else ()
    return injections


def _tool_folder(agent: AgentRuntime) -> str:
    return str(agent.runtime.services.archive.folders(agent.state.me).root)
