"""What stands round a compaction: the transcript before it, and its size in tokens."""

from __future__ import annotations

from callboard.core.apply import apply
from callboard.core.context.summary import transcript_lines
from callboard.core.context.view import size
from callboard.core.decide import transcript_path
from callboard.core.state import AgentState
from callboard.engine.loop import Agent
from callboard.engine.memory import history
from callboard.words.events import ContextEdited


async def write(agent: Agent) -> str:
    """Write the full history of this moment to a file; its path. Written once for each journal position."""
    await agent.flush()
    path = transcript_path(agent.state, agent.facts())
    messages = await history(agent.host.ports.store, agent.state)
    await agent.host.ports.archive.keep(path, transcript_lines(messages).decode())
    return path


def measured(state: AgentState, event: ContextEdited) -> ContextEdited:
    """The event with the tokens before and after it."""
    after = size(apply(state, event).conversation)
    return event.model_copy(update={"tokens_before": size(state.conversation), "tokens_after": after})
