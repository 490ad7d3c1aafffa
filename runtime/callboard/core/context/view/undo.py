"""Edits that are taken back. An undo is an edit too: the messages that it restores stand in its event. Pure.

What stands is a matter of the journal alone: an edit stands unless an undo that stands takes it back, so that an undo
can itself be undone. The view after an undo is what the history and the standing edits render to; what came after an
edit that is taken back stays. Refused, with the reason: what is no edit, what was taken back already, what changes
nothing any more, what would not fit, what would break a law of the view.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from callboard.core.context.view.conversation import Conversation, edited, held, render, restored_from
from callboard.core.context.view.laws import edit_faults, invariants
from callboard.core.context.view.messages import Messages
from callboard.words.context import Edit, Message
from callboard.words.events import ContextEdited

Edits = Sequence[tuple[int, ContextEdited]]
"""All `ContextEdited` of a journal with their positions, in order; refused undos and stages without edits may be in."""


def standing(edits: Edits, without: Collection[int] = ()) -> list[Edit]:
    """The edits that stand, in order, undos left out: `render(history, standing(edits))` is the view.

    `without`: as if these, by their positions, were taken back as well.
    """
    off = _taken_back(edits, without)
    return [edit for seq, event in edits if seq not in off and not event.undoes for edit in event.edits]


def take_back(
    view: Conversation, history: Sequence[Message], edits: Edits, wanted: Sequence[int], budget: int
) -> Edit | str:
    """The edit that makes the view what it would be without the edits at the positions `wanted`; or why not.

    `view` is the conversation as it stands now, `history` the same as if nothing had ever been edited, `budget` the
    tokens that messages may take. The edit restores the smallest range that differs. It holds for this view: record it
    before anything else changes that.
    """
    refused = _refused(edits, wanted)
    if refused:
        return refused
    target = render(history, standing(edits, wanted))
    edit = _restoring(view.messages, target)
    if edit is None:
        return "taking it back would change nothing: later edits took in what it had reduced"
    after = edited(view, [edit])
    if held(after) > budget:
        return f"it does not fit: the messages would be {held(after):,} tokens, and there is room for {budget:,}"
    sent = bool(history) and history[-1].role == "user"
    faults = [*invariants(after.messages, sent=sent), *edit_faults(view, after, history)]
    return f"the conversation could not be sent: {faults[0]}" if faults else edit


def _taken_back(edits: Edits, more: Collection[int] = ()) -> set[int]:
    """Positions of what does not stand. From the newest to the oldest: an undo that is taken back takes nothing."""
    off = set(more)
    for seq, event in reversed(edits):
        if event.undoes and event.edits and seq not in off:
            off |= set(event.undoes)
    return off


def _refused(edits: Edits, wanted: Sequence[int]) -> str:
    known = {seq for seq, event in edits if event.edits}
    off = _taken_back(edits)
    for seq in wanted:
        if seq not in known:
            return f"#{seq} is no edit"
        if seq in off:
            return f"#{seq} was taken back already"
    return "" if wanted else "no edit is named"


def _restoring(view: Messages, target: Messages) -> Edit | None:
    """The edit that makes `view` read like `target`; None where it does."""
    now, then = tuple(view), tuple(target)
    start = next((n for n, (a, b) in enumerate(zip(now, then, strict=False)) if not _alike(a, b)), None)
    if start is None:
        if len(now) == len(then):
            return None
        start = min(len(now), len(then))
    room = min(len(now), len(then)) - start
    back = zip(reversed(now), reversed(then), strict=False)
    same = next((n for n, (a, b) in enumerate(back) if n == room or not _alike(a, b)), room)
    end, upto = len(now) - same, len(then) - same
    if start == end:  # an edit names messages that stand: a neighbour is restored as it is
        start, end, upto = (start - 1, end, upto) if start else (start, end + 1, upto + 1)
    kept = {message.id: message for message in now[start:end]}
    messages = [one if not (old := kept.get(one.id)) or not _alike(old, one) else old for one in then[start:upto]]
    return Edit(
        kind="restored",
        message=now[start].id,
        last=now[end - 1].id,
        messages=tuple(restored_from(message) for message in messages),
    )


def _alike(one: Message, other: Message) -> bool:
    """They read the same, whatever stages may do with them: what was taken back before is left alone by stages."""
    return one is other or (
        (one.id, one.role, one.turn, one.wire) == (other.id, other.role, other.turn, other.wire)
        and all(
            (a.source, a.pinned, a.at) == (b.source, b.pinned, b.at)
            for a, b in zip(one.blocks, other.blocks, strict=True)
        )
    )
