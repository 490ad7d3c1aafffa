"""Reminders at the beginning of a turn: changes in an agent's surroundings, instruction files, and notes from memory.

Reading the surroundings is an operation, because git may be slow and the agent still receives mail. Its result is noted
and needs no separate commit. Instruction files and notes are injected at the beginning of a turn, and when the agent's
file tools touch files that they are about. Injections are journalled, so that a resume repeats none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from callboard.core.agent.decide import REMINDERS
from callboard.core.context.reminders import reminders
from callboard.engine.loop import AgentRuntime
from callboard.engine.operations.mcp_tools import news
from callboard.ports.tool import ToolOutcome
from callboard.types.events import Event, FileSeen, InjectionQueued
from callboard.types.messages import Injection


def look_round(agent: AgentRuntime) -> None:
    """Start to read the surroundings. The turn continues when that is done."""
    ports = agent.host.ports
    if ports.surroundings is not None or ports.servers is not None or guides(agent):
        agent.start(REMINDERS, lambda: _look(agent))


async def _look(agent: AgentRuntime) -> None:
    host = agent.host
    state = agent.state
    now = host.clock.now()
    due: tuple[Injection, ...] = ()
    if host.ports.surroundings is not None:
        around = await host.ports.surroundings.look(state.me, now)
        if state.me.kind == "lead":
            around = replace(around, team=host.board.agents())
        due = reminders(state.context.reminders, around, now - state.costs.cache.used_at)
    due += (*await news(agent), *await at_turn(agent))
    if host.ports.script is not None:
        due = host.ports.script.reminders(agent.name, state.identity.incarnation, state.turns.count, due)
    if due:
        await agent.note(*(InjectionQueued(at=now, injection=injection) for injection in due))


_HEARD = frozenset({"prompt", "scheduled", "message", "broadcast", "result", "question", "answer"})
"""Types of envelopes whose text selects notes."""
_MOST_WORDS = 20_000
"""Most characters of that text to examine."""


def guides(agent: AgentRuntime) -> bool:
    """Return True if there are instruction files or notes to read for the agent."""
    return agent.host.ports.instructions is not None or agent.host.ports.remembered is not None


async def at_turn(agent: AgentRuntime) -> tuple[Injection, ...]:
    """Return the injections for the beginning of a turn: changed instruction files, then notes relevant to the agent's
    mail."""
    ports = agent.host.ports
    state = agent.state
    injections: tuple[Injection, ...] = ()
    if ports.instructions is not None and state.context.instructions is not None:
        injections += await ports.instructions.changed(state.me, _root(agent), state.context.instructions)
    if ports.remembered is not None:
        text = "\n".join(envelope.content for envelope in state.inbox.mail if envelope.type in _HEARD)[:_MOST_WORDS]
        injections += await ports.remembered.relevant(state.me, text, state.context.notes) if text.strip() else ()
    return injections


async def touched(agent: AgentRuntime, outcome: ToolOutcome) -> tuple[Event, ...]:
    """Return records that queue the instructions about the files that a tool call touched. They commit with its
    result.
    """
    port = agent.host.ports.instructions
    instructed = agent.state.context.instructions
    paths = [event.path for event in outcome.events if isinstance(event, FileSeen)]
    if port is None or instructed is None or not paths:
        return ()
    return _queued(agent, await port.touched(agent.state.me, _root(agent), paths, instructed))


def _root(agent: AgentRuntime) -> str:
    return str(agent.host.ports.archive.folders(agent.state.me).root)


def _queued(agent: AgentRuntime, injections: Sequence[Injection]) -> tuple[Event, ...]:
    now = agent.host.clock.now()
    return tuple(InjectionQueued(at=now, injection=injection) for injection in injections)
