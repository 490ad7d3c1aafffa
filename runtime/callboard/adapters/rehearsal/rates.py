"""Rate limits as the API keeps and shows them: so much a minute, told in headers, refused with a 429.

A minute begins with the first request after the last one ended. Tokens read from the cache do not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from callboard.adapters.rehearsal.api import ApiError

_WINDOW_S = 60.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What one key may use in a minute."""

    requests: int = 50_000
    input_tokens: int = 80_000_000
    output_tokens: int = 16_000_000


class RateMeter:
    """Counts one key's use. Times are Unix seconds."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._ends = 0.0
        self._requests = self._input = self._output = 0

    def admit(self, input_tokens: int, now: float) -> ApiError | None:
        """Count a request in, or say why not and how long to wait."""
        if now >= self._ends:
            self._ends = now + _WINDOW_S
            self._requests = self._input = self._output = 0
        over = (
            "requests"
            if self._requests >= self._limits.requests
            else "input tokens"
            if self._input >= self._limits.input_tokens
            else "output tokens"
            if self._output >= self._limits.output_tokens
            else None
        )
        if over is not None:
            words = f"This request would exceed your organization's rate limit of {over} per minute"
            return ApiError("rate_limit_error", words, 429, retry_after=max(1.0, round(self._ends - now)))
        self._requests += 1
        self._input += input_tokens
        return None

    def spend(self, output_tokens: int) -> None:
        """Count what a reply cost."""
        self._output += output_tokens

    def headers(self, now: float) -> Mapping[str, str]:
        """The twelve headers that tell limits, what remains, and when it starts anew."""
        reset = datetime.fromtimestamp(max(self._ends, now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        limits = self._limits
        rows = {
            "requests": (limits.requests, self._requests),
            "tokens": (limits.input_tokens + limits.output_tokens, self._input + self._output),
            "input-tokens": (limits.input_tokens, self._input),
            "output-tokens": (limits.output_tokens, self._output),
        }
        headers: dict[str, str] = {}
        for name, (limit, used) in rows.items():
            headers[f"anthropic-ratelimit-{name}-limit"] = str(limit)
            headers[f"anthropic-ratelimit-{name}-remaining"] = str(max(0, limit - used))
            headers[f"anthropic-ratelimit-{name}-reset"] = reset
        return headers
