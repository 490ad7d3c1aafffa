"""Why an edit was made, in words for a person, and what of the prompt cache it voids. Pure.

Both are copied into `ContextEdited` when it is recorded, so that `callboard context explain` says years later what was
known then.
"""

from __future__ import annotations

from callboard.core.context.cache.state import CacheState
from callboard.core.context.view.conversation import Conversation, held
from callboard.words.events import ContextEdited


def why_edited(event: ContextEdited, before: Conversation, budget: int, focus: str = "") -> str:
    """The reason, where the stage has not stated one. `budget`: what the messages may take, in tokens."""
    if event.why or not event.edits:
        return event.why
    if event.trigger == "manual":
        return f"asked for, to keep: {focus}" if focus else "asked for"
    if event.trigger == "reactive":
        return "the service refused the prompt as too long"
    if event.stage == "persist_large_results":
        return "results that the model has not seen yet were large"
    share = f" ({held(before) * 100 // budget} %)" if budget else ""
    return f"the messages held {held(before):,} of the {budget:,} tokens that they may take{share}"


def rewritten(event: ContextEdited, before: Conversation, after: Conversation, cache: CacheState, ttl: float) -> int:
    """Tokens behind the first change that stand in the service's cache, and that it has to store anew. Estimated.

    `cache`: what the newest call left there; it lives `ttl` seconds, and what it left is gone then anyway: 0.
    """
    warm = bool(cache.read or cache.written) and event.at - cache.used_at < ttl
    if event.rewritten or not event.edits or not warm:
        return event.rewritten
    first = min(edit.message for edit in event.edits)
    return sum(message.tokens for message in after.messages if first <= message.id <= before.counted_upto)
