"""Mirror of one rate limit of the service, updated from its responses. Pure; times are arguments in Unix seconds.

Services keep limits in two ways, with the same headers:

    shape     how it refills                               `whole_at`, the `-reset` header, says
    --------  -------------------------------------------  ----------------------------------------------------------
    bucket    all the time, the limit spread over 60 s     when it would be full: moves on with each call
    window    all at once, when the minute is over         when that is: stays where it is, whatever is used

The Messages API is a token bucket (its page on rate limits); proxies and the rehearsal's default are windows. A limit
counts as a bucket until it has shown its shape: by the change of `whole_at` between two responses, or by a refusal that
asks for a far longer wait than a bucket needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from callboard.core.frozen import replace
from callboard.types.rate_limits import PROBE_AFTER, Allowance

MINUTE = 60.0
MARGIN = 1.0
"""Seconds after the reported end of a window before it counts as over, because the service rounds times to seconds."""
_TELLING = 4.0
"""Seconds that `whole_at` must be expected to move before its movement shows the shape (it is rounded to a second, and
remaining tokens to a thousand)."""
_CLOSE = 1e-3
"""Tolerance for sums of floats, in calls."""


@dataclass(frozen=True, slots=True)
class Report:
    """Content and arrival time of a report in a response."""

    at: float
    remaining: float
    whole_at: float


@dataclass(frozen=True)
class Bucket:
    """One limit of one key and model."""

    limit: float
    """Amount for each minute."""
    level: float
    """Amount left at `at`."""
    at: float
    whole_at: float
    heard_at: float
    """Arrival of the response from which `level` comes."""
    judged: Report
    """Report with which the next ones are compared, to find the shape."""
    shape: Literal["bucket", "window"] = "bucket"


def bucket_from(allowance: Allowance, now: float) -> Bucket:
    """Return a limit without earlier knowledge."""
    report = Report(now, allowance.remaining, now + allowance.resets_in)
    return Bucket(allowance.limit, allowance.remaining, now, report.whole_at, now, report)


def remaining(bucket: Bucket, now: float) -> float:
    """Return the known rest of the bucket."""
    if bucket.shape == "window":
        return bucket.limit if now >= _window_end(bucket) else bucket.level
    return min(bucket.limit, bucket.level + max(0.0, now - bucket.at) * bucket.limit / MINUTE)


def enough(bucket: Bucket, need: float, reserved: float, now: float) -> bool:
    """Return True if a call that needs this much may go in addition to the reservations. A call that needs more than
    the limit goes when the whole limit is available."""
    return remaining(bucket, now) - reserved + _CLOSE >= min(need, bucket.limit)


def enough_at(bucket: Bucket, need: float, reserved: float, now: float) -> float | None:
    """Return the time at which there will be enough without further reservations; None if another call must end
    first."""
    missing = min(need, bucket.limit) + reserved - remaining(bucket, now)
    if min(need, bucket.limit) + reserved > bucket.limit + _CLOSE:
        return None
    return _window_end(bucket) if bucket.shape == "window" else now + missing * MINUTE / bucket.limit


def _window_end(bucket: Bucket) -> float:
    """Return the time at which a window counts as over. A window that claims to last longer than `PROBE_AFTER` is tried
    then, because only a call can show whether the claim is true."""
    return min(bucket.whole_at, bucket.heard_at + PROBE_AFTER) + MARGIN


def update_from_headers(bucket: Bucket | None, allowance: Allowance, sent_at: float, now: float) -> Bucket:
    """Return the bucket updated from a response to a call that was sent at `sent_at`.

    Responses can arrive out of order. One whose call was sent after the last report always applies; an older one
    applies only if it lowers the level, so that no capacity is spent twice.
    """
    if bucket is None:
        return bucket_from(allowance, now)
    if bucket.limit != allowance.limit:
        return replace(bucket_from(allowance, now), shape=bucket.shape)
    newer = sent_at > bucket.heard_at
    if not newer and allowance.remaining >= remaining(bucket, now):
        return bucket
    whole_at = now + allowance.resets_in
    if newer:
        bucket = _judged(bucket, Report(now, allowance.remaining, whole_at))
    return replace(bucket, level=allowance.remaining, at=now, whole_at=whole_at, heard_at=now)


def spent(bucket: Bucket, amount: float, now: float) -> Bucket:
    """Return the bucket after a use that no response has reported yet."""
    return replace(bucket, level=remaining(bucket, now) - amount, at=now)


def refused(bucket: Bucket, need: float, retry_after: float | None, now: float) -> Bucket:
    """Return the bucket after a refusal for this limit: nothing is left."""
    level = min(0.0, bucket.level)
    bucket = replace(bucket, level=level, at=now, heard_at=now)
    if retry_after is None or retry_after <= 2 * (1.0 + need * MINUTE / bucket.limit):
        return bucket
    return replace(bucket, shape="window", whole_at=now + retry_after)


def _judged(bucket: Bucket, report: Report) -> Bucket:
    """Return the bucket with its shape, by the movement of `whole_at`: a bucket's moves with use and time, a window's
    not at all. The end of a window shows nothing."""
    before = bucket.judged
    if report.at >= before.whole_at:
        return replace(bucket, judged=report)
    expected = (report.at - before.at) + (before.remaining - report.remaining) * MINUTE / bucket.limit
    if abs(expected) < _TELLING:
        return bucket
    moved = report.whole_at - before.whole_at
    shape = "window" if abs(moved) < abs(moved - expected) else "bucket"
    return replace(bucket, judged=report, shape=shape)
