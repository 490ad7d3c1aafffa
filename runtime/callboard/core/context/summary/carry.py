"""What a fresh conversation is given of the one before, when that does not fit any more or is to be left. Pure.

No model is asked: the person's words stand word for word as far as they fit, the runtime says what it knows, and a
hand-off note holds the summaries and the last words of the agent, for it to read. It refuses to carry results: what
they said stands in the transcript.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from callboard.core.bus.mail import defused
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
from callboard.words.context import Message, Placed, StateBlock

LAST_WORDS = 3
"""Texts of the agent that stand in the hand-off note."""


@dataclass(frozen=True, slots=True)
class Carried:
    """The beginning of the fresh conversation, and the note for a file."""

    blocks: tuple[Placed, ...]
    note: str


@dataclass(frozen=True, slots=True)
class Left:
    """Files that hold what is left behind."""

    transcript: str
    note: str


def carry(messages: Sequence[Message], known: StateBlock, budget: int, left: Left) -> Carried:
    """The first blocks of a fresh conversation: pins, the person's words, where the note stands, the state."""
    sorted_ = split(messages, len(messages), budget, rebuild=True)
    state = state_text(known, budget)
    head = note(
        f"{COMPACTED}\nThis conversation begins anew; the one before is closed. What was found and decided in it, and "
        f"what was said last, stands in the hand-off note: {left.note}\nRead it before you go on."
    )
    # Instruction files come again when what they are about is touched again.
    stays = [one for one in sorted_.placed() if one.source != "instructions"]
    blocks = (*stays, head, *notes(sorted_, state, left.transcript))
    return Carried(blocks, "\n".join(_note(messages, state, left.transcript)))


def _note(messages: Sequence[Message], state: str, transcript: str) -> Iterator[str]:
    blocks = [block for message in messages for block in message.blocks]
    summaries = [text_of(block).removeprefix(COMPACTED).removeprefix(REACTIVE) for block in blocks if is_summary(block)]
    said = [text_of(block) for block in blocks if block.source == "assistant" and text_of(block).strip()]
    asked = [text_of(block) for block in blocks if block.source == "person"]
    parts = (("What the person said", asked), ("Summaries", summaries), ("Last words", said[-LAST_WORDS:]))
    yield "# Hand-off"
    for title, texts in parts:
        if texts:
            yield f"\n## {title}\n"
            yield "\n\n".join(defused(text.strip()) for text in texts)
    if state:
        yield f"\n## State\n\n{state}"
    yield f"\nTranscript, one message a line: {transcript}\n"
