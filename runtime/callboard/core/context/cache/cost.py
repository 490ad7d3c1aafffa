"""Cost of requests under prompt caching, in its own unit: prices times tokens. Pure.

A service that caches prompts bills three kinds of input: tokens read from its cache, tokens stored in it, and the rest.
A request reads the longest cached prefix that one of its marks finds within 20 blocks, stores the blocks between that
prefix and its last mark, and pays in full for the rest (prices and rules: the Messages API's page on prompt caching).
An edit invalidates everything after its first change: this costs once and saves on each later step.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from callboard.types.agent_spec import ModelLimits
from callboard.types.lazy_dataclass import dataclass

LOOK_BACK = 20
"""Blocks that the service checks for each mark; the marked block is the first."""
MOST_MARKS = 4
"""Maximum number of `cache_control` marks in a request."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices in US dollars per million tokens. Only their ratio matters here."""

    input: float
    write: float
    read: float
    output: float

    @property
    def rewrite(self) -> float:
        """Return the extra cost of storing a token again instead of reading it."""
        return max(0.0, self.write - self.read)


@dataclass(frozen=True, slots=True)
class InputBill:
    """The input of one request, in tokens."""

    uncached: int
    written: int
    read: int

    def price(self, prices: Prices, output: int = 0) -> float:
        """Return the price of the request with a reply of `output` tokens."""
        prompt_cost = self.uncached * prices.input + self.written * prices.write + self.read * prices.read
        return prompt_cost + output * prices.output


def prices_of(limits: ModelLimits) -> Prices:
    """Return the prices of a model."""
    return Prices(limits.price_input, limits.price_write, limits.price_read, limits.price_output)


def is_warm(used_at: float, now: float, ttl: float) -> bool:
    """Return True if a prefix that was used at `used_at` is still cached at `now` (seconds)."""
    return used_at > 0 and now - used_at < ttl


def bill(ends: Sequence[int], marks: Collection[int], cached_blocks: Collection[int], smallest: int) -> InputBill:
    """Return the bill of a request, block by block.

    `ends`: tokens of the prompt up to the end of each block. `marks`: numbers of the blocks with a mark.
    `cached_blocks`: numbers of the blocks at whose end a prefix is cached. `smallest`: tokens of the smallest prefix
    that is cached; a mark on less has no effect.
    """
    total = ends[-1] if ends else 0
    standing = [mark for mark in marks if ends[mark] >= smallest]
    hits = [
        block for mark in standing for block in range(max(0, mark - LOOK_BACK + 1), mark + 1) if block in cached_blocks
    ]
    read = max((ends[block] for block in hits), default=0)
    stored = max((ends[mark] for mark in standing), default=read)
    written = max(0, stored - read)
    return InputBill(uncached=total - read - written, written=written, read=read)


def step_price(prices: Prices, size: int, hit: int) -> float:
    """Return the price of the input of a well-marked request of `size` tokens, of which `hit` are cached."""
    return prices.read * hit + prices.write * (size - hit)


def edit_price(prices: Prices, behind: int, *, warm: bool) -> float:
    """Return the price of an edit with `behind` tokens after its first change; 0 if the cache is cold."""
    return prices.rewrite * behind if warm else 0.0


def summary_price(prices: Prices, record: int, answer: int, *, cached: int = 0) -> float:
    """Return the price of the call that makes a summary of `answer` tokens.

    `record`: tokens sent. `cached`: the part of them that is read from the cache, if the call shares the prefix of the
    conversation.
    """
    return prices.input * (record - cached) + prices.read * cached + prices.output * answer
