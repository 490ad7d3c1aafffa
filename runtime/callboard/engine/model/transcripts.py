"""What stands round a compaction: the transcript before it, and its size in tokens."""

from __future__ import annotations

from callboard.core.apply import apply
from callboard.core.context.compacting import transcript_path
from callboard.core.context.counting import room
from callboard.core.context.summary.check import repaired
from callboard.core.context.told.why import rewritten, why_edited
from callboard.core.context.view.conversation import size
from callboard.core.context.view.transcript import transcript_lines
from callboard.core.recovery.turns import model_in_use
from callboard.core.state import AgentState
from callboard.engine.loop import Agent
from callboard.engine.memory import history
from callboard.words.context import StateBlock
from callboard.words.events import ContextEdited


async def write(agent: Agent) -> str:
    """Write the full history of this moment to a file; its path. Written once for each journal position."""
    await agent.flush()
    state = agent.state
    path = transcript_path(state, agent.facts())
    messages = await history(agent.host.ports.store, state)
    await agent.host.ports.archive.keep(path, transcript_lines(messages).decode())
    return path


def measured(state: AgentState, event: ContextEdited) -> ContextEdited:
    """The event with the tokens before and after it, why it came, and what of the cache it voids."""
    spec, before, after = state.me, state.conversation, apply(state, event).conversation
    limits = spec.limits_of(model_in_use(state.recovery, spec))
    update = {
        "tokens_before": size(before),
        "tokens_after": size(after),
        "why": why_edited(event, before, room(state), state.summary.focus if state.summary else ""),
        "rewritten": rewritten(event, before, after, state.cache, limits.cache_ttl),
    }
    return event.model_copy(update=update)


def checked(agent: Agent, event: ContextEdited, known: StateBlock | None = None) -> ContextEdited:
    """The event, measured, with what its edits must not lose put back. Without edits where that left nothing to win.

    `known`: what the runtime knows, where that was found out for the edits themselves.
    """
    state = agent.state
    if event.edits:
        edits, names = repaired(state.conversation, event.edits, known or agent.host.known(state), state.tasks)
        event = event.model_copy(update={"edits": edits, "repaired": names if edits else ()})
    return measured(state, event)
