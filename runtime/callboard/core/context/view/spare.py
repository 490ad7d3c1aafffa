"""What a person took back is left alone: which stretches are spared, and when a stage keeps off them. Pure.

An undo marks what it restores as not compactable, so that stages which choose single results pass it over. A stage that
folds a whole stretch - a summary, a snip - is kept off a spared one for as long as the view is within the budget. Over
the budget it may act again: what does not fit must go. `/compact`, the `compact` tool and a prompt that the service
refused ask for the fold itself, and are not kept off.
"""

from __future__ import annotations

from collections.abc import Sequence

from callboard.words.context import Edit, SummaryWanted
from callboard.words.events import ContextEdited

Spared = tuple[tuple[int, int], ...]
"""First and last message id of each stretch."""

_FOLDS = frozenset({"summarised", "dropped", "snipped"})


def spared_after(spared: Spared, event: ContextEdited) -> Spared:
    """The spared stretches after an edit: an undo adds what it restored, a fold over one ends its sparing."""
    for edit in event.edits:
        if edit.kind == "restored" and event.undoes:
            ids = [edit.message, edit.last, *(message.id for message in edit.messages)]
            spared = (*spared, (min(ids), max(ids)))
        elif edit.kind in _FOLDS:
            spared = tuple(one for one in spared if not _meet(one, (edit.message, edit.last)))
    return spared


def is_spared(found: Sequence[Edit] | SummaryWanted | None, spared: Spared) -> bool:
    """Whether what a stage wants would fold a spared stretch."""
    if not found or not spared:
        return False
    if isinstance(found, SummaryWanted):
        wanted = [(found.message, found.last)]
    else:
        wanted = [(edit.message, edit.last) for edit in found if edit.kind in _FOLDS]
    return any(_meet(stretch, one) for stretch in wanted for one in spared)


def _meet(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]
