"""Choice of the way to request a summary: at the end of the agent's own conversation, or as a separate request. Pure.

The agent's own model can be called after its own tools, system prompt and messages: their cached part is read at a
tenth of the price. A small model is cheaper by itself, but must read everything again. The cheaper way is chosen.
`tool_choice` is not sent, although it would forbid calls: the service caches messages separately for each of its
values. Thinking and effort are those of the agent's calls, for the same reason.

The summary cannot use the cached prefix if its request could not equal the newest call: after an edit, once the cache
is cold, when the prompt was refused as too long, or for a part of the conversation.
"""

from __future__ import annotations

import json
from itertools import takewhile

from callboard.core.context.cache.breakpoints import with_anchor
from callboard.core.context.cache.cost import is_warm, prices_of, summary_price
from callboard.core.context.cache.tracker import CacheState
from callboard.core.context.view.conversation import Conversation, size
from callboard.types.agent_spec import ModelLimits
from callboard.types.lazy_dataclass import dataclass
from callboard.types.messages import FROM_THE_START, SummaryWanted

ASKING = 600
"""Tokens of the instructions of one call, estimated high."""
DATA_SHARE = 80
"""Percentage of a model's window for the data of one call: estimates of foreign text are inexact."""
MOST_KEPT = 20
"""Maximum number of replies that a summary at the end of the conversation may leave out: a model miscounts more."""
MOST_DATA = 100_000
"""Maximum tokens of data in one call, regardless of the window: a longer text is summarised worse in one call."""


@dataclass(frozen=True, slots=True)
class SharingFacts:
    """Facts that the choice depends on."""

    own: ModelLimits
    """Limits of the agent's model."""
    small: ModelLimits | None
    """Limits of the model that makes summaries, if it is a different one."""
    cache: CacheState
    now: float
    """Time in Unix seconds."""
    thinking: int = 0
    """Most tokens that the agent's model thinks before its answer, as it does in the agent's own calls."""


def should_share_prefix(conv: Conversation, request: SummaryWanted, facts: SharingFacts) -> bool:
    """Return True if the summary can use the cached prefix, and that is cheaper."""
    if not may_share_prefix(conv, request, facts):
        return False
    return shared_prefix_price(conv, request, facts) < separate_price(conv, request, facts)


def may_share_prefix(conv: Conversation, request: SummaryWanted, facts: SharingFacts) -> bool:
    """Return True if the prefix of the newest call is unchanged and warm, and contains everything to be summarised."""
    own = facts.own
    cache = facts.cache
    whole = conv.messages and FROM_THE_START < request.message <= conv.messages[0].id and request.input == "all"
    if not whole or request.trigger == "reactive" or newest_sent(conv) is None:
        return False
    if unsummarized_replies(conv, request.last) > MOST_KEPT:
        return False
    if cache.revision != conv.revision or not is_warm(cache.used_at, facts.now, own.cache_ttl):
        return False
    return (
        cached_tokens(cache) >= max(1, own.cache_minimum)
        and size(conv) + ASKING + facts.thinking + request.max_tokens <= own.window
    )


def unsummarized_replies(conv: Conversation, last: int) -> int:
    """Return the number of newest replies that are not summarised. The prompt tells the model to leave them out."""
    behind = takewhile(lambda message: message.id > last, reversed(conv.messages))
    return sum(message.role == "assistant" for message in behind)


def cached_tokens(cache: CacheState) -> int:
    """Return the tokens of the prefix that the newest call left in the cache."""
    return cache.read + cache.written


def shared_prefix_price(conv: Conversation, request: SummaryWanted, facts: SharingFacts) -> float:
    """Return the price of the call that uses the cached prefix, with an answer of full length."""
    record = size(conv) + ASKING
    read = min(cached_tokens(facts.cache), record)
    return summary_price(prices_of(facts.own), record, facts.thinking + request.max_tokens, cached=read)


def separate_price(conv: Conversation, request: SummaryWanted, facts: SharingFacts) -> float:
    """Return the price of separate calls: the model that makes the summary reads everything again."""
    limits = facts.small or facts.own
    data = sum(message.tokens for message in conv.messages if message.id <= request.last)
    parts = -(-data // chunk_tokens(limits, request))
    # All calls but the first also get the summary so far.
    input_tokens = data + parts * ASKING + (parts - 1) * request.max_tokens
    return summary_price(prices_of(limits), input_tokens, parts * request.max_tokens)


def chunk_tokens(limits: ModelLimits, request: SummaryWanted) -> int:
    """Return the tokens of data in one call of a model.

    The rest is for instructions, the summary so far and the answer.
    """
    room = limits.window - ASKING - 2 * request.max_tokens
    return max(1, min(MOST_DATA, room * DATA_SHARE // 100))


def newest_sent(conv: Conversation) -> int | None:
    """Return the index of the newest user message with a later reply: the cached prefix ends there."""
    for back in range(1, len(conv.messages)):
        if conv.messages[-back].role == "assistant":
            before = len(conv.messages) - back - 1
            return before if conv.messages[before].role == "user" else None
    return None


def shared_prefix_messages(conv: Conversation, text: str, reader: str = "") -> list[bytes]:
    """Return the messages of the newest request to the model `reader`, the messages since then, and `text` last.

    A mark is set where the cached prefix ends. It only reads. No mark is set after it, since nothing would ever read
    the cached entry.
    """
    block = json.dumps({"type": "text", "text": text}, ensure_ascii=False, separators=(",", ":"))
    encoded = block.encode("utf-8", "replace")
    sent = newest_sent(conv)
    last = len(conv.messages) - 1
    marked = {} if sent is None else {sent: with_anchor(conv.messages[sent].wire)}
    if conv.messages[last].role == "assistant":
        return [*conv.messages.pieces(marked, reader), b'{"role":"user","content":[%s]}' % encoded]
    marked[last] = conv.messages[last].wire[:-2] + b"," + encoded + b"]}"
    return conv.messages.pieces(marked, reader)
