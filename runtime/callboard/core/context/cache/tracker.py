"""State of an agent between two edits of its view: their cost, their savings, and the service's prompt cache.

Pure; folded from the journal.

The state shows when the last edit has paid for itself (for `economic`), and after which message a prefix is kept for
the next edit: the edits so far do not change anything before that message. For the cache, the time and the success of
its last use are recorded.
"""

from __future__ import annotations

from collections.abc import Sequence

from callboard.core.context.cache.cost import prices_of
from callboard.core.context.view.messages import Messages, is_plain, is_result
from callboard.core.frozen import replace
from callboard.types.agent_spec import ModelLimits
from callboard.types.lazy_dataclass import dataclass
from callboard.types.messages import Edit, ViewBlock
from callboard.types.records import Usage

REACH = 30
"""Steps within which clearing a result later must pay. Otherwise the milestone moves past the result."""


@dataclass(frozen=True)
class EditCycle:
    """State between the newest edit and the next."""

    fixed: int = 0
    """Id of the message at whose end a prefix is cached for the next edit; 0: none yet."""
    touched: int = 0
    """Lowest id of a message that was edited since the newest reply; 0 if there is none."""
    edited_at: int = 0
    """Model steps of the agent's life at the newest edit."""
    summarised_at: int = 0
    """Model steps of the agent's life at the newest summary."""
    owed: float = 0.0
    """Cost of edits, summaries and re-reads that is not yet saved (tokens x dollars per million)."""
    freed: int = 0
    """Tokens saved on each step: removed by the newest edit, and by earlier edits that had not yet paid for
    themselves."""


def after_edit(
    cycle: EditCycle, before: Messages, after: Messages, *, edits: Sequence[Edit], cost: tuple[float, int]
) -> EditCycle:
    """Return the cycle after edits of the view.

    `cost`: their cost beyond reading the next request, and the step at which they happened.
    """
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
        # The savings of an earlier edit still pay for its cost.
        freed=max(0, before.tokens - after.tokens) + (cycle.freed if cycle.owed else 0),
    )


def after_reply(cycle: EditCycle, messages: Messages, limits: ModelLimits, charged: float = 0.0) -> EditCycle:
    """Return the cycle after a reply to a request of these messages.

    `charged`: cost of content that was requested again.
    """
    owed = max(0.0, cycle.owed - limits.price_read * cycle.freed) + charged
    fixed = milestone(cycle, messages, limits)
    if not cycle.touched and fixed == cycle.fixed and owed == cycle.owed:
        return cycle
    return replace(cycle, fixed=fixed, touched=0, owed=owed)


def milestone(cycle: EditCycle, messages: Messages, limits: ModelLimits) -> int:
    """Return the id of the message at whose end to store the prefix for the next edit; 0: none.

    It moves only when an edit changed the view: then everything after the cut is stored again in any case.
    """
    if not cycle.touched:
        return cycle.fixed if cycle.fixed and messages.find(cycle.fixed) is not None else 0
    index = _cut(messages, limits)
    return messages[index].id if index >= 0 else 0


def _cut(messages: Messages, limits: ModelLimits) -> int:
    """Return the index of the user message before the oldest result that pays to clear.

    If no result pays, the index is that of the newest user message. Goes back over the uncleared results: each one
    saves reading it for `REACH` steps, and costs storing everything in between.
    """
    prices = prices_of(limits)
    best = 0.0
    best_index = len(messages) - 1
    worth = 0.0
    behind = 0
    place = len(messages)
    for index in messages.bulky(newest_first=True):
        behind += sum(message.tokens for message in messages[index + 1 : place])
        place = index
        live = sum(block.tokens for block in messages[index].blocks if can_go(block))
        worth += REACH * prices.read * live
        behind += messages[index].tokens - live
        if live and worth - prices.rewrite * behind > best:
            best = worth - prices.rewrite * behind
            best_index = index - 2
    return best_index if best_index >= 0 and messages[best_index].role == "user" else -1


def can_go(block: ViewBlock) -> bool:
    """Return True for a result that clearing may remove later."""
    return block.compactable and not block.pinned and is_result(block) and is_plain(block)


@dataclass(frozen=True)
class CacheState:
    """Cache state, folded from the usage of each reply."""

    used_at: float = 0.0
    """Arrival of the newest reply (Unix seconds). The prefix that it wrote or read stays warm for the cache's time to
    live."""
    read: int = 0
    """Tokens that the newest call read from the cache."""
    written: int = 0
    """Tokens that the newest call wrote to the cache."""
    misses: int = 0
    """Replies in a row that read nothing from the cache."""
    revision: int = 0
    """Revision of the view when that call was sent. An edit since then may have changed the prefix."""


def cache_seen(cache: CacheState, usage: Usage, at: float, revision: int = 0) -> CacheState:
    """Return the cache state after a reply."""
    return replace(
        cache,
        used_at=at,
        revision=revision,
        read=usage.cache_read_input_tokens,
        written=usage.cache_creation_input_tokens,
        misses=0 if usage.cache_read_input_tokens else cache.misses + 1,
    )
