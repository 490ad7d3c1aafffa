"""Text of a reply in parts: a cut or paused reply, and the replies that continue it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from callboard.types.lazy_dataclass import dataclass
from callboard.types.messages import Injection
from callboard.types.records import Json

GOES_ON = frozenset({"pause_turn", "compaction"})
"""Stop reasons of a reply that must be sent back to the service unchanged, so that it can continue."""
TAIL = 2_000
"""Characters of its own text that a model gets again if a compaction removed the reply that it was writing."""


@dataclass(frozen=True)
class ReplyText:
    """Text of an agent's newest reply with text, joined with the parts before it."""

    text: str = ""
    seam: str | None = None
    """Separator between the text and the reply that continues it; None: the text is whole."""

    def broken_off(self) -> ReplyText:
        """Return the text for a next reply that does not continue it, but begins a paragraph of its own."""
        return self if self.seam is None else ReplyText(self.text, "\n\n")

    def with_reply(self, blocks: Sequence[Json], stop_reason: str, trimmed: str = "") -> ReplyText:
        """Return the text with one more reply. `trimmed`: whitespace that was cut from its end."""
        new = reply_text(blocks)
        text = (new.strip() or self.text) if self.seam is None else f"{self.text}{self.seam}{new}".strip()
        if not new.strip():
            return ReplyText(text, self.seam if _is_part(stop_reason) else None)
        if not _is_part(stop_reason):
            return ReplyText(text)
        return ReplyText(text, trimmed if stop_reason == "max_tokens" else "\n")


def reply_text(blocks: Sequence[Json]) -> str:
    """Return the text of a reply. Its text blocks are separate lines, except those of one text with citations.

    The service cuts a text at each cited passage, in the middle of a sentence.
    """
    text = ""
    cited = [block.get("type") == "text" and bool(block.get("citations")) for block in blocks]
    for number, block in enumerate(blocks):
        piece = str(block.get("text") or "") if block.get("type") == "text" else ""
        after_text = number > 0 and blocks[number - 1].get("type") == "text"
        goes_on = after_text and (cited[number - 1] or cited[number])
        text += f"\n{piece}" if text and piece and not goes_on else piece
    return text


def _is_part(stop_reason: str) -> bool:
    return stop_reason == "max_tokens" or stop_reason in GOES_ON


def going_on(text: str) -> Injection:
    """Return the message for a model after a compaction removed the reply that it has to continue."""
    reminder = (
        "Your reply was cut at the output limit, and the part that you wrote was then compacted. It is kept whole, and "
        f"what you write now is joined to it. It ends with:\n\n{text[-TAIL:]}\n\n"
        "Continue exactly there. Do not begin anew, do not repeat, do not apologise."
    )
    return Injection(kind="system-reminder", text=reminder, key="continuation")
