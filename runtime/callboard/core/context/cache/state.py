"""What is known of the service's prompt cache for one agent: when it was used last, and how well. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from callboard.core.frozen import replace
from callboard.words.values import Usage


@dataclass(frozen=True)
class CacheState:
    """Folded from the usage of each reply."""

    used_at: float = 0.0
    """When the newest reply came (Unix seconds): the prefix it wrote or read is warm for the cache's time to live."""
    read: int = 0
    """Tokens that the newest call read from the cache."""
    written: int = 0
    """Tokens that it wrote to it."""
    misses: int = 0
    """Replies in a row that read nothing from it."""
    revision: int = 0
    """The view's, as that call was sent: an edit since then may have changed the prefix."""


def cache_seen(cache: CacheState, usage: Usage, at: float, revision: int = 0) -> CacheState:
    """The cache after a reply."""
    return replace(
        cache,
        used_at=at,
        revision=revision,
        read=usage.cache_read_input_tokens,
        written=usage.cache_creation_input_tokens,
        misses=0 if usage.cache_read_input_tokens else cache.misses + 1,
    )
