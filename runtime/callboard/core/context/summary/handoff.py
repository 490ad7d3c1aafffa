"""Content that a fresh conversation takes over from the previous one, when the previous one no longer fits or is ended.

Pure. No model is called. The person's texts stay verbatim as far as they fit, the runtime adds its state, and a
hand-off note contains the summaries and the last texts of the agent. Results are not taken over: they are in the
transcript.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from callboard.core.context.summary.folding import (
    COMPACTED,
    REACTIVE,
    is_summary,
    note,
    notes,
    split,
    state_text,
    text_of,
)
from callboard.core.messaging.envelopes import defuse_tags
from callboard.types.lazy_dataclass import dataclass
from callboard.types.messages import Placed, StateBlock, ViewMessage

LAST_WORDS = 3
"""Number of the agent's last texts in the hand-off note."""


@dataclass(frozen=True, slots=True)
class Handoff:
    """Beginning of the fresh conversation, and the note for a file."""

    blocks: tuple[Placed, ...]
    note: str


@dataclass(frozen=True, slots=True)
class HandoffFiles:
    """Files with the previous conversation."""

    transcript: str
    note: str


def carry(messages: Sequence[ViewMessage], state_block: StateBlock, budget: int, paths: HandoffFiles) -> Handoff:
    """Return the first blocks of a fresh conversation: pins, the person's texts, the path of the note, the state."""
    sorted_ = split(messages, len(messages), budget, rebuild=True)
    state = state_text(state_block, budget)
    head = note(
        f"{COMPACTED}\nThis conversation begins anew; the one before is closed. What was found and decided in it, and "
        f"what was said last, stands in the hand-off note: {paths.note}\nRead it before you go on."
    )
    # Instruction files are injected again when the files that they concern are used again.
    stays = [block for block in sorted_.placed_blocks() if block.source != "instructions"]
    blocks = (*stays, head, *notes(sorted_, state, paths.transcript))
    return Handoff(blocks, "\n".join(_note(messages, state, paths.transcript)))


def _note(messages: Sequence[ViewMessage], state: str, transcript: str) -> Iterator[str]:
    blocks = [block for message in messages for block in message.blocks]
    summaries = [text_of(block).removeprefix(COMPACTED).removeprefix(REACTIVE) for block in blocks if is_summary(block)]
    replies = [text_of(block) for block in blocks if block.source == "assistant" and text_of(block).strip()]
    prompts = [text_of(block) for block in blocks if block.source == "person"]
    parts = (("What the person said", prompts), ("Summaries", summaries), ("Last words", replies[-LAST_WORDS:]))
    yield "# Hand-off"
    for title, texts in parts:
        if texts:
            yield f"\n## {title}\n"
            yield "\n\n".join(defuse_tags(text.strip()) for text in texts)
    if state:
        yield f"\n## State\n\n{state}"
    yield f"\nTranscript, one message a line: {transcript}\n"
