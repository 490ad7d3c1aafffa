"""Rate limits as in the API: amounts per minute, reported in headers and enforced with a 429.

Two kinds exist. A window begins with the first request after the previous one ended, and is full again at its end. A
bucket is full at first and refills continuously, as in the real service. Tokens read from the cache do not count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal

from callboard.adapters.models.rehearsal.api import ApiError
from callboard.types.lazy_dataclass import dataclass

_WINDOW_S = 60.0
_CLOSE = 1e-6
"""Tolerance for a sum of floats."""


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """Limits of one key per minute."""

    requests: int = 50_000
    input_tokens: int = 80_000_000
    output_tokens: int = 16_000_000
    refill: Literal["window", "bucket"] = "window"


class RateMeter:
    """Counter of one key's use. Times are Unix seconds."""

    def __init__(self, limits: KeyLimits) -> None:
        self._limits = limits
        self._most = (limits.requests, limits.input_tokens, limits.output_tokens)
        self._left = [float(most) for most in self._most]
        """Remaining requests, input and output tokens; below 0 after a reply that was longer than the rest."""
        self._at = 0.0
        self._ends = 0.0
        """End of the window."""

    def admit(self, input_tokens: int, now: float) -> ApiError | None:
        """Count a request, or return the refusal with the time to wait."""
        self._refill(now)
        names = ("requests", "input tokens", "output tokens")
        needs = (1.0 - _CLOSE, _CLOSE, _CLOSE)
        over = next((which for which, available in enumerate(self._left) if available < needs[which]), None)
        if over is not None:
            message = f"This request would exceed your organization's rate limit of {names[over]} per minute"
            return ApiError("rate_limit_error", message, 429, retry_after=self._wait(over, needs[over], now))
        self._left[0] -= 1
        self._left[1] -= input_tokens
        return None

    def spend(self, output_tokens: int) -> None:
        """Count the output tokens of a reply."""
        self._left[2] -= output_tokens

    def _refill(self, now: float) -> None:
        if self._limits.refill == "window":
            if now >= self._ends:
                self._ends = now + _WINDOW_S
                self._left = [float(most) for most in self._most]
            return
        passed, self._at = max(0.0, now - self._at), now
        pairs = zip(self._left, self._most, strict=True)
        self._left = [min(most, amount + passed * most / _WINDOW_S) for amount, most in pairs]

    def _wait(self, which: int, need: float, now: float) -> float:
        """Return the time to wait in whole seconds, as the service does."""
        if self._limits.refill == "window":
            return max(1.0, round(self._ends - now))
        return max(1.0, math.ceil((need - self._left[which]) * _WINDOW_S / self._most[which]))

    def headers(self, now: float) -> Mapping[str, str]:
        """Return the twelve headers with the limits, the remaining amounts, and the reset times."""
        self._look(now)
        limits = self._limits
        amounts = self._left
        rows = {
            "requests": (limits.requests, amounts[0]),
            "tokens": (limits.input_tokens + limits.output_tokens, amounts[1] + amounts[2]),
            "input-tokens": (limits.input_tokens, amounts[1]),
            "output-tokens": (limits.output_tokens, amounts[2]),
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
        """Refill a bucket up to now. A window begins only with a request."""
        if self._limits.refill == "bucket":
            self._refill(now)
