"""Conversion of failed model calls to a `Fault`: by the error's type, then its status, then the transport. Pure.

The text of an error decides only in three cases, in which the API provides nothing better: a prompt that is too long
(400 and 413), a budget that is used up (400 and 429), and limits of the model that a refusal states (`stated_limits`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import cast

from callboard.adapters.models.anthropic.stated_limits import stated_limits
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Fault, FaultKind, Json

_BY_TYPE: dict[str, FaultKind] = {
    "overloaded_error": "overloaded",
    "rate_limit_error": "rate_limited",
    "api_error": "server",
    "timeout_error": "server",
    "authentication_error": "credentials",
    "permission_error": "credentials",
    "billing_error": "payment",
    "not_found_error": "not_found",
    "request_too_large": "too_long",
    "invalid_request_error": "invalid",
}
_BY_STATUS: dict[int, FaultKind] = {
    401: "credentials",
    402: "payment",
    403: "credentials",
    404: "not_found",
    408: "server",
    409: "server",
    413: "too_long",
    429: "rate_limited",
    529: "overloaded",
}
_SPEND_CODES = ("spend_limit", "billing", "credit", "quota", "budget")
"""Parts of error codes that mean a spending limit, not a rate limit."""
_STATES = (400, 413, 422)
"""Statuses of refusals that may state a limit of the model."""
_SHOULD_RETRY = {"true": True, "false": False}
_LONGEST_WAIT = 31_536_000.0
"""A year in seconds. A longer wait is a mistake."""
_LONGEST = 500
"""Most characters of a message that are kept."""


@dataclass(frozen=True, slots=True)
class FaultTexts:
    """Lower-case texts by which two faults are recognized. Settable, because other endpoints use other texts."""

    too_long: tuple[str, ...] = (
        "prompt is too long",
        "prompt_too_long",
        "too many tokens",
        "context_length_exceeded",
        "exceed context limit",
        # More images than a service takes, whose limit may be lower than the vendor's: a compaction drops old ones.
        "too much media",
        "too many images",
    )
    spend_limit: tuple[str, ...] = ("credit balance is too low", "api usage limits", "spend limit")


@dataclass(frozen=True, slots=True)
class ErrorResponse:
    """Error as received: the status, the headers (lower-case names), and the body, parsed if it is JSON."""

    status: int
    headers: Mapping[str, str]
    body: object
    now: float
    """Unix seconds, to read a `retry-after` that is a date."""


def fault_of_answer(answer: ErrorResponse, wording: FaultTexts) -> Fault:
    """Return the fault for an HTTP error."""
    body = _object(answer.body)
    error: object = body.get("error")
    fields = _object(error)
    kind = _kind(answer.status, fields, wording)
    output, window = (
        stated_limits(_text(fields.get("message")) or _text(error)) if answer.status in _STATES else (None, None)
    )
    if window is not None and kind == "invalid":
        kind = "too_long"
    request_id = body.get("request_id") or answer.headers.get("request-id")
    return Fault(
        kind=kind,
        message=_message(answer, fields, error),
        status=answer.status,
        type=_text(fields.get("type")),
        retry_after=retry_after(answer.headers, answer.now),
        request_id=request_id if isinstance(request_id, str) else None,
        retry=_SHOULD_RETRY.get(answer.headers.get("x-should-retry", "").strip().lower()),
        max_output=output,
        window=window,
    )


def fault_of_event(error: Json, request_id: str | None, wording: FaultTexts) -> Fault:
    """Return the fault for an error event in a stream that began with a 200."""
    return Fault(
        kind=_kind(200, error, wording),
        message=_text(error.get("message"))[:_LONGEST] or "the service ended the stream with an error",
        status=200,
        type=_text(error.get("type")),
        request_id=request_id,
        may_bill=True,
    )


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds to wait that the service requested; None without a request.

    The service states milliseconds, seconds or a date.
    """
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        raw = headers.get(name)
        if raw is None:
            continue
        try:
            seconds = float(raw) * unit
        except ValueError:
            seconds = _until(raw, now)
        if seconds is not None and math.isfinite(seconds):
            # A date far in the future, or a mistake, must not cause an endless wait
            # (test_a_huge_retry_after_is_told_and_not_obeyed).
            return min(max(0.0, seconds), _LONGEST_WAIT)
    return None


def _until(date: str, now: float) -> float | None:
    try:
        when = parsedate_to_datetime(date)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() - now
    except (ValueError, OverflowError):
        return None


def _kind(status: int, error: Json, wording: FaultTexts) -> FaultKind:
    message = _text(error.get("message")).lower()
    # Before the type: a spending limit has the type of a rate limit, but waiting does not help
    # (test_a_spend_limit_is_not_a_rate_limit).
    if _means_money(status, error, message, wording):
        return "spend_limit"
    # Before the type, which is only `invalid_request_error` for a prompt that is too long.
    if status in (400, 413) and any(phrase in _searched(error, message) for phrase in wording.too_long):
        return "too_long"
    by_type = _BY_TYPE.get(_text(error.get("type")))
    if by_type is not None:
        return by_type
    return _BY_STATUS.get(status) or ("server" if status >= 500 or status < 300 else "invalid")


def _means_money(status: int, error: Json, message: str, wording: FaultTexts) -> bool:
    if status not in (400, 403, 429):
        return False
    code = _code(error).lower()
    return any(part in code for part in _SPEND_CODES) or any(phrase in message for phrase in wording.spend_limit)


def _searched(error: Json, message: str) -> str:
    return f"{message} {_code(error).lower()} {_text(error.get('type')).lower()}"


def _code(error: Json) -> str:
    return (
        _text(_object(error.get("details")).get("error_code"))
        or _text(error.get("code"))
        or _text(error.get("error_code"))
    )


def _message(answer: ErrorResponse, fields: Json, error: object) -> str:
    """Return one line for the user. A body that is not an error of the API is described, not quoted at length."""
    text = _text(fields.get("message")) or _text(error)
    if text:
        return text[:_LONGEST]
    raw = answer.body if isinstance(answer.body, str) else ""
    # A web page of a proxy does not help the reader of an error
    # (test_a_proxys_web_page_is_a_server_fault_and_is_not_quoted).
    if raw.lstrip()[:1] == "<":
        return f"HTTP {answer.status} with a web page instead of the API's answer (a proxy, or a wrong base URL)"
    if 300 <= answer.status < 400:
        return f"HTTP {answer.status}: the service points elsewhere; state the final base URL"
    return f"HTTP {answer.status}: {' '.join(raw.split())[:200] or 'no explanation'}"


def _object(value: object) -> Json:
    return cast("Json", value) if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
