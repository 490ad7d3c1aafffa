"""Instruction files and notes of memory come into a conversation as injections: at the beginning of a turn, and when an
agent's file tools touched something that they are about. What came is journalled, so that a resume repeats nothing."""

from __future__ import annotations

from collections.abc import Sequence

from callboard.engine.loop import Agent
from callboard.ports.tool import ToolOutcome
from callboard.words.context import Injection
from callboard.words.events import Event, FileSeen, InjectionQueued

_HEARD = frozenset({"prompt", "scheduled", "message", "broadcast", "result", "question", "answer"})
"""Envelopes whose words choose notes."""
_MOST_WORDS = 20_000
"""Characters of them that are looked at."""


def guides(agent: Agent) -> bool:
    """Whether there is anything that could be told."""
    return agent.host.ports.instructions is not None or agent.host.ports.remembered is not None


async def at_turn(agent: Agent) -> tuple[Injection, ...]:
    """What is told when a turn begins: instruction files that have changed, then notes that its mail is about."""
    ports, state = agent.host.ports, agent.state
    found: tuple[Injection, ...] = ()
    if ports.instructions is not None and state.instructed is not None:
        found += await ports.instructions.changed(state.me, _root(agent), state.instructed)
    if ports.remembered is not None:
        words = "\n".join(one.content for one in state.mail if one.type in _HEARD)[:_MOST_WORDS]
        found += await ports.remembered.relevant(state.me, words, state.noted) if words.strip() else ()
    return found


async def touched(agent: Agent, outcome: ToolOutcome) -> tuple[Event, ...]:
    """What a tool call touched, as records that queue the instructions about it. They commit with its result."""
    port, known = agent.host.ports.instructions, agent.state.instructed
    paths = [event.path for event in outcome.events if isinstance(event, FileSeen)]
    if port is None or known is None or not paths:
        return ()
    return _queued(agent, await port.touched(agent.state.me, _root(agent), paths, known))


def _root(agent: Agent) -> str:
    return str(agent.host.ports.archive.folders(agent.state.me).root)


def _queued(agent: Agent, found: Sequence[Injection]) -> tuple[Event, ...]:
    now = agent.host.clock.now()
    return tuple(InjectionQueued(at=now, injection=one) for one in found)
