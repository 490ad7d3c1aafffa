"""Progress of writing an agent's transcript. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from callboard.core.agent.state import AgentState
from callboard.core.context.view.messages import Messages
from callboard.core.context.view.transcript import Origin, transcript_lines
from callboard.core.frozen import replace
from callboard.types.events import ModelReplied
from callboard.types.lazy_dataclass import dataclass
from callboard.types.messages import ViewMessage


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


def next_lines(
    written: TranscriptProgress,
    bare: AgentState,
    messages: Sequence[ViewMessage],
    *,
    replies: Mapping[int, ModelReplied],
    origin: Origin,
    holes: int = 0,
) -> tuple[TranscriptProgress, list[bytes]]:
    """Return the new progress, and the lines of the messages that are now complete.

    `messages`: from the newest message of `written` on, all unedited. Its line comes first, and may already be in the
    file.
    """
    newest = messages[-1] if messages else None
    older = messages[:-1]
    first = written.bare.context.conversation.messages.last
    if first is not None and written.reply is not None:
        replies = {first.id: written.reply, **replies}
    lines = transcript_lines(messages if is_complete(bare) else older, origin, written.before, replies)
    conversation = replace(bare.context.conversation, messages=Messages.of(messages[-1:]))
    progress = TranscriptProgress(
        replace(bare, context=replace(bare.context, conversation=conversation)),
        written.lines + len(older),
        older[-1].id if older else written.before,
        replies.get(newest.id) if newest is not None else None,
        holes,
    )
    return progress, lines
