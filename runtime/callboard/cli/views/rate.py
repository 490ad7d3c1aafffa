"""Known rates of API keys, for people: parks and refusals. Pure: values in, lines out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from callboard.cli.terminal.terminal import Block, Line
from callboard.types.rate_limits import PROBE_AFTER, RateNotice

RESET = "`callboard rate reset` tries it at once"


def in_force(notices: Sequence[RateNotice], now: float) -> list[RateNotice]:
    """Return the parks and refusals that still block calls, or still select fallback models."""
    return [
        notice for notice in notices if notice.fault is not None or max(notice.parked_until, notice.named_until) > now
    ]


def rate_block(notices: Sequence[RateNotice], now: float) -> Block:
    """Return a line for each park and refusal, with how to resolve it."""
    lines = [Line(rate_words(notice, now), "warn") for notice in in_force(notices, now)]
    if not lines:
        return Block((Line("no model is parked, and no key is refused", "dim"),))
    return Block((*lines, Line(RESET)))


def rate_words(notice: RateNotice, now: float) -> str:
    """Return one park or refusal in a line: the model, the service's message, and the next attempt."""
    subject = notice.model or "the API key"
    reason = f" ({notice.why})" if notice.why else ""
    if notice.fault is not None:
        return f"{subject} is refused{reason}; {_next_try(notice.at + PROBE_AFTER, now)}"
    named = max(notice.named_until, notice.parked_until)
    wait = f"the service asks for a wait of {named - notice.at:,.0f} s, until {_local_time(named, now)}"
    return f"{subject} is parked: {wait}{reason}; {_next_try(notice.parked_until, now)}"


def rate_brief(notice: RateNotice, now: float) -> str:
    """Return one park or refusal in a line that fits a screen."""
    wait = max(notice.named_until, notice.parked_until) - notice.at
    state = "is refused" if notice.fault is not None else f"is parked ({wait:,.0f} s)"
    at = notice.at + PROBE_AFTER if notice.fault is not None else notice.parked_until
    when = f"next try at {_local_time(at, now)}" if at > now else "the next call tries it"
    return f"{notice.model or 'the API key'} {state}; {when}; see `callboard rate`"


def rate_json(notice: RateNotice) -> dict[str, object]:
    """Return one park or refusal for programs. Times are Unix seconds; `model` is empty for the key itself."""
    return {
        "model": notice.model,
        "state": "refused" if notice.fault is not None else "parked",
        "since": notice.at,
        "next_try": notice.at + PROBE_AFTER if notice.fault is not None else notice.parked_until,
        "named_until": notice.named_until or notice.parked_until,
        "reason": notice.why,
    }


def _next_try(at: float, now: float) -> str:
    if at <= now:
        return "the next call tries it"
    return f"the next try is at {_local_time(at, now)}, or with your next prompt"


def _local_time(at: float, now: float) -> str:
    """Return a time of the day, with the date if it is another day."""
    local = datetime.fromtimestamp(min(at, now + 3e9)).astimezone()
    same_day = local.date() == datetime.fromtimestamp(now).astimezone().date()
    return f"{local:%H:%M:%S}" if same_day else f"{local:%Y-%m-%d %H:%M}"
