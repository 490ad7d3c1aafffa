"""After a summary: the texts of the skills that were loaded come back."""

from __future__ import annotations

from callboard.core.recovery.turns import model_in_use
from callboard.core.skills.carrying import carried, lost
from callboard.engine.loop import Agent
from callboard.words.events import InjectionQueued


async def carry_skills(agent: Agent) -> None:
    """Queue what a summary took away, for the next user message."""
    state, store = agent.state, agent.host.ports.store
    names = lost(state.skill_texts, state.conversation.messages) if state.skill_texts else []
    texts = [(await store.get_blob(state.skill_texts[name])).decode("utf-8", "replace") for name in names]
    window = state.me.limits_of(model_in_use(state.recovery, state.me)).window
    injection = carried(texts, window) if texts else None
    if injection is not None:
        await agent.note(InjectionQueued(at=agent.host.clock.now(), injection=injection))
