"""Live text for a follower: its order with the journal, and the part that a reader has not seen yet.

Text and journal arrive by ways of their own, so either may be early.

The journal decides: text of a reply is shown only after everything that was in the journal when its call began, and
before the event of its end. Then a whole reply never appears twice, and text never appears after its reply. The event
of the call itself does not help: it is written with the reply (decision 0007).
"""

from __future__ import annotations

from typing import NamedTuple

from callboard.core.live.frames import FrameKind, LiveFrame, LiveReply
from callboard.types.events import CallFailed, Event, ModelReplied, ReplyDropped, ReplyInterrupted
from callboard.types.lazy_dataclass import dataclass

_MOST_HELD = 1_000_000
"""Most characters that wait for the journal."""


class CallProgress:
    """Position up to which an agent's journal was read, and the last end of a model call in it."""

    def __init__(self, position: int = 0) -> None:
        self._position = position
        self._ended = 0

    def handle_event(self, position: int, event: Event) -> None:
        """Process an event of the journal."""
        self._position = max(position, self._position)
        match event:
            case ModelReplied() | ReplyDropped() | ReplyInterrupted() | CallFailed(purpose="turn"):
                self._ended = max(position, self._ended)
            case _:
                return

    def is_past(self, reply: LiveReply) -> bool:
        """Return True if the reply has ended."""
        return reply.position < self._ended

    def is_open(self, reply: LiveReply) -> bool:
        """Return True if what comes before the reply was read, and its end was not."""
        return self._ended <= reply.position <= self._position


class LiveGate:
    """Live text of one life of an agent, let through when its journal was read so far."""

    def __init__(self, position: int = 0) -> None:
        self._progress = CallProgress(position)
        self._held: list[LiveFrame] = []
        self._visible: LiveReply | None = None

    def take(self, frame: LiveFrame) -> list[LiveFrame]:
        """Return the frames to show now."""
        if self._progress.is_past(frame.reply):
            return []
        if self._progress.is_open(frame.reply):
            self._visible = frame.reply
            return [frame]
        self._held.append(frame)
        if sum(len(held.text) for held in self._held) > _MOST_HELD:
            self._held = [LiveFrame(frame.reply, "lost")]
        return []

    def handle_event(self, position: int, event: Event) -> list[LiveFrame]:
        """Process an event of the journal, and return the frames to show after it."""
        self._progress.handle_event(position, event)
        waiting = self._held
        self._held = []
        return [visible for frame in waiting for visible in self.take(frame)]

    def void_reason(self, event: Event) -> str:
        """Return why the text that was shown is void, before `handle_event` gets the event; empty if it is not."""
        if self._visible is None or self._progress.is_past(self._visible):
            return ""
        match event:
            case CallFailed(purpose="turn"):
                return f"{event.fault.kind}: {event.fault.message}"
            case ReplyDropped():
                return event.why
            case _:
                return ""


class LivePart(NamedTuple):
    """Part of a reply: a text, thinking, or a call with its input."""

    kind: FrameKind
    text: str


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """Part of a reply that a reader has seen. Kept by the reader."""

    reply: LiveReply | None = None
    parts: int = 0
    """Parts of which it has seen something."""
    characters: int = 0
    """Characters of the last of them."""


class LiveText:
    """Newest reply of one life of an agent."""

    def __init__(self) -> None:
        self.reply: LiveReply | None = None
        self._kinds: list[FrameKind] = []
        self._texts: list[list[str]] = []
        """Pieces of each part."""
        self._lengths: list[int] = []

    def take(self, frame: LiveFrame) -> None:
        """Add a piece. One of a later reply begins anew; one of an earlier reply is left out."""
        if self.reply is not None and frame.reply < self.reply:
            return
        if frame.reply != self.reply:
            self.clear()
            self.reply = frame.reply
        if not self._kinds or self._kinds[-1] != frame.kind or frame.kind in ("call", "lost"):
            self._kinds.append(frame.kind)
            self._texts.append([])
            self._lengths.append(0)
        self._texts[-1].append(frame.text)
        self._lengths[-1] += len(frame.text)

    def clear(self) -> None:
        """Forget the reply, because no more of it will come."""
        self.reply = None
        self._kinds.clear()
        self._texts.clear()
        self._lengths.clear()

    def since(self, seen: ReadPosition) -> tuple[list[LivePart], bool, ReadPosition]:
        """Return the parts that a reader has not seen, whether the first continues one that it has, and its position.

        A reader that has seen nothing of this reply gets all of it.
        """
        if seen.reply != self.reply:
            seen = ReadPosition(self.reply)
        news: list[LivePart] = []
        continues = seen.parts > 0 and self._lengths[seen.parts - 1] > seen.characters
        if continues:
            news.append(LivePart(self._kinds[seen.parts - 1], self._text_after(seen.parts - 1, seen.characters)))
        news += [LivePart(self._kinds[at], "".join(self._texts[at])) for at in range(seen.parts, len(self._kinds))]
        last = self._lengths[-1] if self._lengths else 0
        return news, continues, ReadPosition(self.reply, len(self._kinds), last)

    def _text_after(self, part: int, after: int) -> str:
        """Return the text of a part after a number of characters. Walks only the pieces at its end."""
        pieces = self._texts[part]
        missing = self._lengths[part] - after
        taken = len(pieces)
        length = 0
        while length < missing:
            taken -= 1
            length += len(pieces[taken])
        return "".join(pieces[taken:])[length - missing :]
