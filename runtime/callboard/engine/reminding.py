"""What an agent is told of its surroundings when a turn begins. An operation: git may take a while, and the agent hears
what reaches it meanwhile. It is noted, and costs no commit of its own."""

from __future__ import annotations

from dataclasses import replace

from callboard.core.context.reminders import reminders
from callboard.core.decide import REMINDERS
from callboard.engine.guiding import at_turn, guides
from callboard.engine.loop import Agent
from callboard.engine.tools.servers import news
from callboard.words.context import Injection
from callboard.words.events import InjectionQueued


def look_round(agent: Agent) -> None:
    """Begin to look; the turn goes on when that is done."""
    ports = agent.host.ports
    if ports.surroundings is not None or ports.servers is not None or guides(agent):
        agent.start(REMINDERS, lambda: _look(agent))


async def _look(agent: Agent) -> None:
    host, state = agent.host, agent.state
    now = host.clock.now()
    due: tuple[Injection, ...] = ()
    if host.ports.surroundings is not None:
        around = await host.ports.surroundings.look(state.me, now)
        if state.me.kind == "lead":
            around = replace(around, team=host.board.agents())
        due = reminders(state.told, around, now - state.cache.used_at)
    due += (*await news(agent), *await at_turn(agent))
    if host.ports.script is not None:
        due = host.ports.script.reminders(agent.name, state.incarnation, state.turns, due)
    if due:
        await agent.note(*(InjectionQueued(at=now, injection=one) for one in due))
