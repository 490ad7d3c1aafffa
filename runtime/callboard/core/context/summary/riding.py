"""Whether a summary is asked for at the end of the agent's own conversation, or as a request of its own. Pure.

The agent's own model may be asked behind its own tools, system prompt and messages: what the service has cached of
them is read at a tenth of the price. A small model is cheaper by itself, but must read everything anew. The cheaper is
taken.
`tool_choice` is not sent, though it would forbid calls: the service caches messages apart for each of its values.

It refuses to ride where the request could not be the same as the newest call's: after an edit, once the cache is cold,
when the prompt was refused as too long, or for a part of the conversation.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import takewhile

from callboard.core.context.cache.anchors import with_anchor
from callboard.core.context.cache.cost import is_warm, prices_of, summary_price
from callboard.core.context.cache.state import CacheState
from callboard.core.context.stages.summarizing import FROM_THE_START
from callboard.core.context.view.conversation import Conversation, size
from callboard.words.context import SummaryWanted
from callboard.words.specs import ModelLimits

ASKING = 600
"""Tokens of the instructions of one call, counted high."""
DATA_SHARE = 80
"""Per cent of a model's window that the data of one call may take: estimates of foreign text err."""
MOST_KEPT = 20
"""Replies that a summary at the end of the conversation may leave out: of more, a model loses count."""
MOST_DATA = 100_000
"""Tokens of data in one call, whatever the window: a longer text is summarised worse in one go."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What the choice is made by."""

    own: ModelLimits
    """Of the model that the agent works with."""
    small: ModelLimits | None
    """Of the model that summarises, if it is another."""
    cache: CacheState
    now: float
    """Unix seconds."""


def rides(conv: Conversation, wanted: SummaryWanted, choice: Choice) -> bool:
    """Whether the summary rides on the cached prefix: it can, and it is cheaper."""
    return may_ride(conv, wanted, choice) and riding_price(conv, wanted, choice) < plain_price(conv, wanted, choice)


def may_ride(conv: Conversation, wanted: SummaryWanted, choice: Choice) -> bool:
    """Whether the prefix of the newest call still stands, is warm, and holds all that is to be summarised."""
    own, cache = choice.own, choice.cache
    whole = conv.messages and FROM_THE_START < wanted.message <= conv.messages[0].id and wanted.input == "all"
    if not whole or wanted.trigger == "reactive" or newest_sent(conv) is None:
        return False
    if replies_behind(conv, wanted.last) > MOST_KEPT:
        return False
    if cache.revision != conv.revision or not is_warm(cache.used_at, choice.now, own.cache_ttl):
        return False
    return cached(cache) >= max(1, own.cache_minimum) and size(conv) + ASKING + wanted.max_tokens <= own.window


def replies_behind(conv: Conversation, last: int) -> int:
    """How many of the newest replies are not summarised: the model is told to leave them out."""
    behind = takewhile(lambda message: message.id > last, reversed(conv.messages))
    return sum(message.role == "assistant" for message in behind)


def cached(cache: CacheState) -> int:
    """Tokens of the prefix that the newest call left in the cache."""
    return cache.read + cache.written


def riding_price(conv: Conversation, wanted: SummaryWanted, choice: Choice) -> float:
    """What the call costs that rides, its answer at full length."""
    record = size(conv) + ASKING
    read = min(cached(choice.cache), record)
    return summary_price(prices_of(choice.own), record, wanted.max_tokens, cached=read)


def plain_price(conv: Conversation, wanted: SummaryWanted, choice: Choice) -> float:
    """What the calls cost that do not: all that is summarised is read anew, by the model that summarises."""
    limits = choice.small or choice.own
    data = sum(message.tokens for message in conv.messages if message.id <= wanted.last)
    parts = -(-data // chunk_tokens(limits, wanted))
    told = data + parts * ASKING + (parts - 1) * wanted.max_tokens  # all but the first are told the summary so far
    return summary_price(prices_of(limits), told, parts * wanted.max_tokens)


def chunk_tokens(limits: ModelLimits, wanted: SummaryWanted) -> int:
    """Tokens of data that one call of a model is given: room for instructions, the summary so far and the answer."""
    room = limits.window - ASKING - 2 * wanted.max_tokens
    return max(1, min(MOST_DATA, room * DATA_SHARE // 100))


def newest_sent(conv: Conversation) -> int | None:
    """The index of the newest user message that a reply has followed: there the cached prefix ends."""
    for back in range(1, len(conv.messages)):
        if conv.messages[-back].role == "assistant":
            before = len(conv.messages) - back - 1
            return before if conv.messages[before].role == "user" else None
    return None


def riding(conv: Conversation, text: str, reader: str = "") -> list[bytes]:
    """The messages of the newest request to the model `reader` with what came since, and `text` last; marked where the
    cached prefix ends.

    The one mark reads; none is set behind it, since what it wrote to the cache would never be read.
    """
    block = json.dumps({"type": "text", "text": text}, ensure_ascii=False, separators=(",", ":"))
    asked = block.encode("utf-8", "replace")
    sent, last = newest_sent(conv), len(conv.messages) - 1
    marked = {} if sent is None else {sent: with_anchor(conv.messages[sent].wire)}
    if conv.messages[last].role == "assistant":
        return [*conv.messages.pieces(marked, reader), b'{"role":"user","content":[%s]}' % asked]
    marked[last] = conv.messages[last].wire[:-2] + b"," + asked + b"]}"
    return conv.messages.pieces(marked, reader)
