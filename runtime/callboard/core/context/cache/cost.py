"""What requests cost under prompt caching, in a currency of its own: prices times tokens. Pure.

A service that caches prompts bills three kinds of input: what it reads from its cache, what it stores in it, and the
rest. A request reads the longest remembered prefix that one of its marks finds within 20 blocks, stores what stands
between that and its last mark, and pays in full for what follows (prices and rules: the Messages API's page on prompt
caching). An edit makes everything behind its first change unknown: it is paid for once, and saves on each step after.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from callboard.words.specs import ModelLimits

LOOK_BACK = 20
"""Blocks that the service looks at for each mark, the marked one being the first."""
MOST_MARKS = 4
"""`cache_control` marks that a request may bear."""


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars for a million tokens; only what they are to each other counts here."""

    input: float
    write: float
    read: float
    output: float

    @property
    def rewrite(self) -> float:
        """What a token costs more that has to be stored anew instead of being read."""
        return max(0.0, self.write - self.read)


@dataclass(frozen=True, slots=True)
class Bill:
    """The input of one request, in tokens."""

    uncached: int
    written: int
    read: int

    def price(self, prices: Prices, output: int = 0) -> float:
        """What it costs with a reply of `output` tokens."""
        given = self.uncached * prices.input + self.written * prices.write + self.read * prices.read
        return given + output * prices.output


def prices_of(limits: ModelLimits) -> Prices:
    """The prices of a model."""
    return Prices(limits.price_input, limits.price_write, limits.price_read, limits.price_output)


def is_warm(used_at: float, now: float, ttl: float) -> bool:
    """Whether a prefix that was used at `used_at` is still remembered at `now` (seconds)."""
    return used_at > 0 and now - used_at < ttl


def bill(ends: Sequence[int], marks: Collection[int], known: Collection[int], smallest: int) -> Bill:
    """What a request costs, block by block.

    `ends`: tokens of the prompt up to the end of each block. `marks`: numbers of the blocks that bear a mark. `known`:
    numbers of the blocks at whose end a prefix is remembered. `smallest`: tokens of the smallest prefix that is cached;
    a mark on less does nothing.
    """
    total = ends[-1] if ends else 0
    standing = [mark for mark in marks if ends[mark] >= smallest]
    found = [block for mark in standing for block in range(max(0, mark - LOOK_BACK + 1), mark + 1) if block in known]
    read = max((ends[block] for block in found), default=0)
    stored = max((ends[mark] for mark in standing), default=read)
    written = max(0, stored - read)
    return Bill(uncached=total - read - written, written=written, read=read)


def step_price(prices: Prices, size: int, hit: int) -> float:
    """The input of a request of `size` tokens, well marked, of which `hit` are remembered."""
    return prices.read * hit + prices.write * (size - hit)


def edit_price(prices: Prices, behind: int, *, warm: bool) -> float:
    """What an edit costs that leaves `behind` tokens behind its first change; nothing where the cache is cold."""
    return prices.rewrite * behind if warm else 0.0


def summary_price(prices: Prices, record: int, answer: int, *, cached: int = 0) -> float:
    """What the call costs that makes a summary of `answer` tokens.

    `record`: tokens that it is sent. `cached`: those of them that it reads from the cache, if it rides on the prefix
    of the conversation.
    """
    return prices.input * (record - cached) + prices.read * cached + prices.output * answer
