"""Where an agent stands between two edits of its view: what they cost, what they saved, what the cache holds. Pure.

Folded from the journal. It tells `economic` when the last edit has paid for itself, and `anchors` behind which message
a prefix is kept for the next edit: everything before that message was settled by the edits so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from callboard.core.context.cache.cost import prices_of
from callboard.core.context.view.blocks import is_plain, is_result
from callboard.core.context.view.messages import Messages
from callboard.core.frozen import replace
from callboard.words.context import Block, Edit
from callboard.words.specs import ModelLimits

REACH = 30
"""Steps over which it must pay to clear a result later, or the milestone moves past it."""


@dataclass(frozen=True)
class Cycle:
    """Between the newest edit and the next."""

    fixed: int = 0
    """Id of the message at whose end a prefix is remembered for the next edit; 0: none yet."""
    touched: int = 0
    """Lowest id of a message that edits changed since the newest reply; 0: none."""
    edited_at: int = 0
    """Model steps of the agent's life when it was edited last."""
    summarised_at: int = 0
    """The same, of the newest summary."""
    owed: float = 0.0
    """What edits, summaries and re-reads have cost and not yet saved (tokens x dollars for a million)."""
    freed: int = 0
    """Tokens that the newest edit took away, and those before it that had not yet paid: saved on each step."""


def edit_made(cycle: Cycle, before: Messages, after: Messages, edits: Sequence[Edit], cost: tuple[float, int]) -> Cycle:
    """After edits of the view. `cost`: what they cost beyond the next request's reading, and the step they came at."""
    first = min((edit.message for edit in edits if edit.kind != "persisted"), default=0)
    if not first:
        return cycle
    price, step = cost
    folds = any(edit.kind in ("summarised", "dropped") for edit in edits)
    return replace(
        cycle,
        touched=min(first, cycle.touched) if cycle.touched else first,
        edited_at=step,
        summarised_at=step if folds else cycle.summarised_at,
        owed=cycle.owed + price,
        freed=max(0, before.tokens - after.tokens) + (cycle.freed if cycle.owed else 0),
    )


def step_made(cycle: Cycle, messages: Messages, limits: ModelLimits, charged: float = 0.0) -> Cycle:
    """After a reply to a request of these messages. `charged`: what it cost because something was asked for again."""
    owed = max(0.0, cycle.owed - limits.price_read * cycle.freed) + charged
    return replace(
        cycle,
        fixed=milestone(cycle, messages, limits),
        touched=0,
        owed=owed,
    )


def milestone(cycle: Cycle, messages: Messages, limits: ModelLimits) -> int:
    """Id of the message at whose end the prefix for the next edit is to be remembered; 0: nowhere.

    It moves only when an edit changed the view: then what stands behind the cut is stored anew in any case.
    """
    if not cycle.touched:
        return cycle.fixed if messages.find(cycle.fixed) is not None else 0
    index = _cut(messages, limits)
    return messages[index].id if index >= 0 else 0


def _cut(messages: Messages, limits: ModelLimits) -> int:
    """The index of the user message before the oldest result that it will pay to clear; the newest without any.

    Going back over the results that stand: each further one is worth `REACH` steps of its reading, and costs the
    storing of all that stands between.
    """
    prices = prices_of(limits)
    best, found = 0.0, len(messages) - 1
    worth, behind, place = 0.0, 0, len(messages)
    for index in messages.bulky(newest_first=True):
        behind += sum(one.tokens for one in messages[index + 1 : place])
        place = index
        live = sum(block.tokens for block in messages[index].blocks if can_go(block))
        worth += REACH * prices.read * live
        behind += messages[index].tokens - live
        if live and worth - prices.rewrite * behind > best:
            best, found = worth - prices.rewrite * behind, index - 2
    return found if found >= 0 and messages[found].role == "user" else -1


def can_go(block: Block) -> bool:
    """A result that clearing may take, one day."""
    return block.compactable and not block.pinned and is_result(block) and is_plain(block)
