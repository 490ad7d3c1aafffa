"""Limits that the service states: in the headers of an answer, in the text of an error, and in `/v1/models/{id}`.

Pure. Malformed values are left out and never an error. The names and forms of headers are those of the Messages API's
page on rate limits: `-limit` and `-remaining` are whole numbers, `-reset` is an RFC 3339 time, when the limit is fully
replenished.

An error states the output limit of a model, or the size of its window. The wording differs between endpoints, so a
limit is searched for after the words that introduce one. Callers only ever lower the assumed limits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import cast

from callboard.types.agent_spec import ModelFacts
from callboard.types.late_pattern import late_pattern
from callboard.types.rate_limits import RATE_KINDS, Allowance, RateKind, Rates

_PREFIX = "anthropic-ratelimit-"
_LONGEST = 86_400.0
"""Longest time in seconds until a reset. A limit per minute does not need a day to replenish, so a longer time is a
mistake."""


def rates_of(headers: Mapping[str, str], now: float) -> Rates | None:
    """Return the rates in the headers (lower-case names); None if there are none.

    `now` (Unix seconds) is used only if the response has no `date` header.
    """
    # Times are slow to parse, and many services state no limits
    # (test_an_answer_without_limits_is_not_searched_for_times).
    stated: list[RateKind] = [kind for kind in RATE_KINDS if f"{_PREFIX}{kind}-limit" in headers]
    if not stated:
        return None
    sent = _http_date(headers.get("date", ""))
    rates: Rates = {}
    for kind in stated:
        limit, remaining = (_number(headers.get(f"{_PREFIX}{kind}-{field}", "")) for field in ("limit", "remaining"))
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
    """Return the Unix seconds of an RFC 3339 time."""
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


_SMALLEST = 1_000
"""Smallest limit of a model, in tokens, that is not a mistake."""
_N = r"(\d[\d,_]{0,11}k?)\b"
_UP_TO = (
    r"(?:at most|up to|no more than|less than or equal to|lower than|below|cannot exceed|(?:must )?not exceed|exceeds?|"
    r"supports?(?: only)?|maximum(?: allowed)?(?: value| number)?(?: of| is|:)?|max(?:imum)? (?:is|of|value)|"
    r"limit(?:ed)?(?: of| is| to|:)|<=)"
)
_ABOUT_OUTPUT = late_pattern(r"max_?\w*tokens|(?:output|completion|maximum|generated) tokens|max(?:imum)? output")
_EXCLUSIVE = (late_pattern(rf"\[\s*\d+\s*,\s*{_N}\s*\)"), late_pattern(rf"\bto {_N}\s*\(?exclusive"))
"""Patterns of ranges that exclude their last number."""
_OUTPUT = (
    late_pattern(rf"{_N}\s*>\s*{_N}"),
    late_pattern(rf"\[\s*\d+\s*,\s*{_N}\s*\]"),
    late_pattern(rf"between \d+ and {_N}"),
    late_pattern(rf"{_UP_TO}[^\d\n]{{0,40}}?{_N}"),
)
_WINDOW = (
    late_pattern(rf"context limit:?\s*{_N}\s*\+\s*{_N}\s*>\s*{_N}"),
    late_pattern(rf"prompt[^\d\n]{{0,30}}{_N}\s*(?:tokens?)?\s*>\s*{_N}"),
    late_pattern(
        rf"(?:maximum|max|available|supported|the|a)?\s*context[ _](?:length|window|size|limit)[^\d\n]{{0,40}}{_N}"
    ),
    late_pattern(rf"maximum (?:prompt|input|sequence) length[^\d\n]{{0,30}}{_N}"),
    late_pattern(rf"max_model_len\D{{0,20}}{_N}"),
    late_pattern(rf"input (?:length|tokens?)\b[^\n]{{0,40}}?exceeds?[^\d\n]{{0,60}}{_N}(?!\s*(?:char|byte|[km]i?b))"),
    late_pattern(rf"too many (?:input )?tokens[^\d\n]{{0,20}}{_N}\s*>\s*{_N}"),
)
"""Patterns in which the last number of a match is the limit."""


def stated_limits(message: str) -> tuple[int | None, int | None]:
    """Return the most output tokens and the window that an error message states.

    None for each that it does not state.
    """
    text = message.lower()
    for pattern in _WINDOW:
        if match := pattern.search(text):
            return None, _amount(match[match.lastindex or 0])
    if not _ABOUT_OUTPUT.search(text):
        return None, None
    for pattern in _EXCLUSIVE:
        if match := pattern.search(text):
            return (_amount(match[1]) or 1) - 1 or None, None
    for pattern in _OUTPUT:
        if match := pattern.search(text):
            return _amount(match[match.lastindex or 0]), None
    return None, None


def model_facts(body: object) -> ModelFacts:
    """Return the limits in a model's description. Missing and malformed values are None."""
    model: Mapping[str, object] = cast("Mapping[str, object]", body) if isinstance(body, dict) else {}
    capabilities = model.get("capabilities")
    supported: Mapping[str, object] = {}
    if isinstance(capabilities, dict):
        supported = cast("Mapping[str, object]", capabilities)
    return ModelFacts(
        window=_limit(model.get("max_input_tokens")),
        max_output=_limit(model.get("max_tokens")),
        thinking=_is_supported(supported.get("thinking")),
        effort=_is_supported(supported.get("effort")),
    )


def _limit(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= _SMALLEST else None


def _is_supported(capability: object) -> bool | None:
    value = cast("Mapping[str, object]", capability).get("supported") if isinstance(capability, dict) else None
    return value if isinstance(value, bool) else None


def _amount(digits: str) -> int | None:
    thousands = 1000 if digits.endswith("k") else 1
    return int(re.sub(r"[,_k]", "", digits)) * thousands or None
