"""Progress of writing an agent's transcript. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from callboard.core.agent.state import AgentState
from callboard.types.events import ModelReplied


@dataclass(frozen=True, slots=True)
class TranscriptProgress:
    """Progress of a transcript."""

    bare: AgentState = AgentState()
    """Fold of the journal without its edits; only the newest message is kept."""
    lines: int = 0
    """Number of messages before the newest one. All of them are in the file."""
    before: int = 0
    """Id of the message before the newest one; 0 if there is none."""
    reply: ModelReplied | None = None
    """Reply of the service that contained the newest message."""
    holes: int = 0


def is_complete(state: AgentState) -> bool:
    """Return True if the newest message no longer grows: a reply that is not continued.

    User messages collect results, notes and mail until the next reply. The service may pause a reply and continue it;
    the part of a cut reply is added to it when the turn ends.
    """
    last = state.context.conversation.messages.last
    return (
        last is not None
        and last.role == "assistant"
        and not state.context.wants_reply
        and not state.model.recovery.cut_text
    )
