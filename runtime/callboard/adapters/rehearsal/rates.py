"""Rate limits as the API keeps and shows them: so much a minute, told in headers, refused with a 429.

Two ways to keep them: a window, which begins with the first request after the last one ended and is whole again at its
end; and a bucket, which is full at first and refills all the time, as the real service's. Tokens read from the cache
do not count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from callboard.adapters.rehearsal.api import ApiError

_WINDOW_S = 60.0
_CLOSE = 1e-6
"""What a sum of floats may be off."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one key may use in a minute."""

    requests: int = 50_000
    input_tokens: int = 80_000_000
    output_tokens: int = 16_000_000
    refill: Literal["window", "bucket"] = "window"


class RateMeter:
    """Counts one key's use. Times are Unix seconds."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._most = (limits.requests, limits.input_tokens, limits.output_tokens)
        self._left = [float(most) for most in self._most]
        """Requests, input and output tokens; below 0 when a reply was longer than what was left."""
        self._at = 0.0
        self._ends = 0.0
        """Of the window."""

    def admit(self, input_tokens: int, now: float) -> ApiError | None:
        """Count a request in, or say why not and how long to wait."""
        self._refill(now)
        names = ("requests", "input tokens", "output tokens")
        needs = (1.0 - _CLOSE, _CLOSE, _CLOSE)
        over = next((which for which, left in enumerate(self._left) if left < needs[which]), None)
        if over is not None:
            words = f"This request would exceed your organization's rate limit of {names[over]} per minute"
            return ApiError("rate_limit_error", words, 429, retry_after=self._wait(over, needs[over], now))
        self._left[0] -= 1
        self._left[1] -= input_tokens
        return None

    def spend(self, output_tokens: int) -> None:
        """Count what a reply cost."""
        self._left[2] -= output_tokens

    def _refill(self, now: float) -> None:
        if self._limits.refill == "window":
            if now >= self._ends:
                self._ends = now + _WINDOW_S
                self._left = [float(most) for most in self._most]
            return
        passed, self._at = max(0.0, now - self._at), now
        pairs = zip(self._left, self._most, strict=True)
        self._left = [min(most, left + passed * most / _WINDOW_S) for left, most in pairs]

    def _wait(self, which: int, need: float, now: float) -> float:
        """Whole seconds, as the service says them."""
        if self._limits.refill == "window":
            return max(1.0, round(self._ends - now))
        return max(1.0, math.ceil((need - self._left[which]) * _WINDOW_S / self._most[which]))

    def headers(self, now: float) -> Mapping[str, str]:
        """The twelve headers that tell limits, what remains, and when it starts anew."""
        self._look(now)
        limits, left = self._limits, self._left
        rows = {
            "requests": (limits.requests, left[0]),
            "tokens": (limits.input_tokens + limits.output_tokens, left[1] + left[2]),
            "input-tokens": (limits.input_tokens, left[1]),
            "output-tokens": (limits.output_tokens, left[2]),
        }
        headers: dict[str, str] = {}
        for name, (limit, remaining) in rows.items():
            whole = self._ends if limits.refill == "window" else now + (limit - remaining) * _WINDOW_S / limit
            reset = datetime.fromtimestamp(max(whole, now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            headers[f"anthropic-ratelimit-{name}-limit"] = str(limit)
            headers[f"anthropic-ratelimit-{name}-remaining"] = str(max(0, math.floor(remaining + _CLOSE)))
            headers[f"anthropic-ratelimit-{name}-reset"] = reset
        return headers

    def _look(self, now: float) -> None:
        """A bucket refills while one looks; a window begins with a request only."""
        if self._limits.refill == "bucket":
            self._refill(now)
