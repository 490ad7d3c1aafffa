"""Read the `anthropic-ratelimit-*` headers of an answer. Pure; what is malformed is left out, never an error.

The names and forms are those of the Messages API's page on rate limits: `-limit` and `-remaining` are whole numbers,
`-reset` is an RFC 3339 time, when the limit is fully replenished.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from callboard.words.rates import RATE_KINDS, Allowance, Rates

_PREFIX = "anthropic-ratelimit-"
_LONGEST = 86_400.0
"""Seconds. A limit a minute is not a day away from being whole: such a time is a mistake."""


def rates_of(headers: Mapping[str, str], now: float) -> Rates | None:
    """What the headers (lower-case names) tell; None when they tell nothing. `now` (Unix seconds) counts only where
    the answer has no `date` of its own."""
    sent = _http_date(headers.get("date", ""))
    rates: Rates = {}
    for kind in RATE_KINDS:
        limit, remaining = (_number(headers.get(f"{_PREFIX}{kind}-{what}", "")) for what in ("limit", "remaining"))
        reset = _time(headers.get(f"{_PREFIX}{kind}-reset", ""))
        if not limit or remaining is None or reset is None:
            continue
        resets_in = reset - (now if sent is None else sent)
        if abs(resets_in) <= _LONGEST:
            rates[kind] = Allowance(limit, min(remaining, limit), max(0.0, resets_in))
    return rates or None


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _time(text: str) -> float | None:
    """Unix seconds of an RFC 3339 time."""
    try:
        when = datetime.fromisoformat(text.strip())
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def _http_date(text: str) -> float | None:
    try:
        when = parsedate_to_datetime(text)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
