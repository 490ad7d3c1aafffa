"""Undone edits, and the ranges that stages spare after an undo.

An undo is an edit too: its event contains the messages that it restores. Pure.

The effective edits follow from the journal alone: an edit is effective unless an effective undo reverts it, so an undo
can itself be undone. The view after an undo is rendered from the history and the effective edits; content added after
an undone edit stays. The following are refused with the reason: a position that is not an edit, an edit that was
already undone, and an undo that changes nothing, would not fit, or would violate an invariant of the view.

An undo marks the restored messages as not compactable, so that stages which choose single results skip them. A stage
that folds a whole range - a summary, a snip - skips a spared range while the view is within the budget. Over the budget
it may act again. `/compact`, the `compact` tool and a prompt that the service refused request the fold itself, and may
act on spared ranges.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from callboard.core.context.view.conversation import Conversation, apply_edits, message_tokens, render, restored_from
from callboard.core.context.view.invariants import edit_faults, invariants
from callboard.core.context.view.messages import Messages
from callboard.types.events import ContextEdited
from callboard.types.messages import Edit, Spared, SummaryWanted, ViewMessage

Edits = Sequence[tuple[int, ContextEdited]]
"""All `ContextEdited` of a journal with their positions, in order; refused undos and stages without edits may be
included."""


def undo_positions(text: str) -> tuple[int, ...]:
    """Return the journal positions that a person's command names."""
    return tuple(dict.fromkeys(int(word) for word in text.split() if word.isdecimal()))


def remaining_edits(edits: Edits, without: Collection[int] = ()) -> list[Edit]:
    """Return the effective edits, in order, without undos.

    The view is `render(history, standing(edits))`. `without`: positions of edits to treat as undone as well.
    """
    off = _undone_positions(edits, without)
    return [edit for seq, event in edits if seq not in off and not event.undoes for edit in event.edits]


def take_back(
    view: Conversation,
    history: Sequence[ViewMessage],
    edits: Edits,
    *,
    positions: Sequence[int],
    budget: int,
    images: int,
) -> Edit | str:
    """Return the edit that makes the view what it would be without the edits at `positions`.

    Return the reason if that is impossible.

    `view` is the current conversation, `history` the same without any edits, `budget` the tokens for the messages, and
    `images` the most images of a request. The edit restores the smallest range that differs. It is valid only for this
    view: record it before the view changes.
    """
    refused = _refused(edits, positions)
    if refused:
        return refused
    target = render(history, remaining_edits(edits, positions))
    edit = _restoring(view.messages, target)
    if edit is None:
        return "undoing it would change nothing: later edits contain its changes"
    after = apply_edits(view, [edit])
    if message_tokens(after) > budget:
        return (
            f"it does not fit: the messages would be {message_tokens(after):,} tokens, and there is room for {budget:,}"
        )
    if after.messages.images > max(images, view.messages.images):
        return f"it does not fit: there would be {after.messages.images} images, and a request may have {images}"
    sent = bool(history) and history[-1].role == "user"
    faults = [*invariants(after.messages, sent=sent), *edit_faults(view, after, history)]
    return f"the conversation could not be sent: {faults[0]}" if faults else edit


def _undone_positions(edits: Edits, extra: Collection[int] = ()) -> set[int]:
    """Return the positions of edits that are not effective.

    Works from newest to oldest: an undo that is itself undone reverts nothing.
    """
    off = set(extra)
    for seq, event in reversed(edits):
        if event.undoes and event.edits and seq not in off:
            off |= set(event.undoes)
    return off


def _refused(edits: Edits, positions: Sequence[int]) -> str:
    edit_positions = {seq for seq, event in edits if event.edits}
    off = _undone_positions(edits)
    for seq in positions:
        if seq not in edit_positions:
            return f"#{seq} is no edit"
        if seq in off:
            return f"#{seq} was undone already"
    return _later_block_edit(edits, positions, off) if positions else "no edit is named"


def _later_block_edit(edits: Edits, positions: Sequence[int], off: Collection[int]) -> str:
    """Return the refusal of an undo if a later edit changed a block of a message that the undone edit made.

    The numbers of its blocks belong to that message: in the restored one they are those of other blocks.
    """
    folds = {
        edit.message: seq for seq, event in edits if seq in positions for edit in event.edits if edit.kind in _FOLDS
    }
    for seq, event in edits:
        if seq in off or seq in positions:
            continue
        for edit in event.edits:
            if edit.block is not None and folds.get(edit.message, seq) < seq:
                return f"#{seq} changed a block of the message that #{folds[edit.message]} made: undo #{seq} as well"
    return ""


def _restoring(view: Messages, target: Messages) -> Edit | None:
    """Return the edit that makes `view` equal to `target`; None if it already is."""
    now = tuple(view)
    then = tuple(target)
    start = next((n for n, (a, b) in enumerate(zip(now, then, strict=False)) if not _alike(a, b)), None)
    if start is None:
        if len(now) == len(then):
            return None
        start = min(len(now), len(then))
    room = min(len(now), len(then)) - start
    back = zip(reversed(now), reversed(then), strict=False)
    same = next((n for n, (a, b) in enumerate(back) if n == room or not _alike(a, b)), room)
    end = len(now) - same
    upto = len(then) - same
    if start == end:  # an edit names existing messages, so a neighbor is restored unchanged
        start, end, upto = (start - 1, end, upto) if start else (start, end + 1, upto + 1)
    current = {message.id: message for message in now[start:end]}
    messages = [
        message if not (old := current.get(message.id)) or not _alike(old, message) else old
        for message in then[start:upto]
    ]
    return Edit(
        kind="restored",
        message=now[start].id,
        last=now[end - 1].id,
        messages=tuple(restored_from(message) for message in messages),
    )


def _alike(message: ViewMessage, other: ViewMessage) -> bool:
    """Return True if both messages have the same content, even if stages may treat them differently.

    Stages skip restored content.
    """
    return message is other or (
        (message.id, message.role, message.turn, message.wire) == (other.id, other.role, other.turn, other.wire)
        and all(
            (a.source, a.pinned, a.at) == (b.source, b.pinned, b.at)
            for a, b in zip(message.blocks, other.blocks, strict=True)
        )
    )


_FOLDS = frozenset({"summarised", "dropped", "snipped"})


def spared_after(spared: Spared, event: ContextEdited) -> Spared:
    """Return the spared ranges after an edit.

    An undo adds the range that it restored, and a fold over a range removes it.
    """
    for edit in event.edits:
        if edit.kind == "restored" and event.undoes:
            ids = [edit.message, edit.last, *(message.id for message in edit.messages)]
            spared = (*spared, (min(ids), max(ids)))
        elif edit.kind in _FOLDS:
            spared = tuple(stretch for stretch in spared if not _meet(stretch, (edit.message, edit.last)))
    return spared


def is_spared(result: Sequence[Edit] | SummaryWanted | None, spared: Spared) -> bool:
    """Return True if the stage's result would fold a spared range."""
    if not result or not spared:
        return False
    if isinstance(result, SummaryWanted):
        folded = [(result.message, result.last)]
    else:
        folded = [(edit.message, edit.last) for edit in result if edit.kind in _FOLDS]
    return any(_meet(stretch, spared_stretch) for stretch in folded for spared_stretch in spared)


def _meet(stretch: tuple[int, int], other: tuple[int, int]) -> bool:
    return stretch[0] <= other[1] and other[0] <= stretch[1]
