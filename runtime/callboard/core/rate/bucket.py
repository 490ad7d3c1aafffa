"""One rate limit as the service keeps it, mirrored from what its answers say. Pure; times are Unix seconds, given.

Services keep limits in two ways, and their headers look the same:

    shape     how it refills                               `whole_at`, the `-reset` header, says
    --------  -------------------------------------------  ----------------------------------------------------------
    bucket    all the time, the limit spread over 60 s     when it would be full: moves on with each call
    window    all at once, when the minute is over         when that is: stays where it is, whatever is used

The Messages API is a token bucket (its page on rate limits); proxies and the rehearsal's default are windows. Until it
has shown what it is, a limit counts as a bucket. It shows it by the way `whole_at` moves between two answers, and by
a refusal that asks for far longer a wait than a bucket needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from callboard.core.frozen import replace
from callboard.words.rates import Allowance

MINUTE = 60.0
MARGIN = 1.0
"""Seconds after the told end of a window before it counts as over: both ends of the span are told to the second."""
_TELLING = 4.0
"""Seconds that `whole_at` must have been expected to move before its moving tells the shape (it is told to the
second, and remaining tokens to the thousand)."""
_CLOSE = 1e-3
"""Parts of a call by which a sum of floats may be off."""


@dataclass(frozen=True, slots=True)
class Report:
    """What an answer said, and when it came."""

    at: float
    remaining: float
    whole_at: float


@dataclass(frozen=True)
class Bucket:
    """One limit of one key and model."""

    limit: float
    """So many a minute."""
    level: float
    """What was left at `at`."""
    at: float
    whole_at: float
    heard_at: float
    """When the answer came that `level` is from."""
    judged: Report
    """The report that the next ones are held against, to tell the shape."""
    shape: Literal["bucket", "window"] = "bucket"


def first_told(told: Allowance, now: float) -> Bucket:
    """A limit that nothing was known of."""
    report = Report(now, told.remaining, now + told.resets_in)
    return Bucket(told.limit, told.remaining, now, report.whole_at, now, report)


def left(bucket: Bucket, now: float) -> float:
    """What is left of it, as far as is known."""
    if bucket.shape == "window":
        return bucket.limit if now >= bucket.whole_at + MARGIN else bucket.level
    return min(bucket.limit, bucket.level + max(0.0, now - bucket.at) * bucket.limit / MINUTE)


def enough(bucket: Bucket, need: float, reserved: float, now: float) -> bool:
    """Whether a call that needs this much may go beside those that have reserved that much. One that needs more than
    there ever is goes when all of it is there."""
    return left(bucket, now) - reserved + _CLOSE >= min(need, bucket.limit)


def enough_at(bucket: Bucket, need: float, reserved: float, now: float) -> float | None:
    """When that will be, if nobody reserves more; None when it takes the end of another call."""
    missing = min(need, bucket.limit) + reserved - left(bucket, now)
    if min(need, bucket.limit) + reserved > bucket.limit + _CLOSE:
        return None
    return bucket.whole_at + MARGIN if bucket.shape == "window" else now + missing * MINUTE / bucket.limit


def told(bucket: Bucket | None, told: Allowance, sent_at: float, now: float) -> Bucket:
    """After an answer to a call that was sent at `sent_at`.

    Answers overtake each other. One whose call was sent after the last report had come is newer for certain and counts
    as it is; of the others only the lower count, so that nothing is spent twice.
    """
    if bucket is None:
        return first_told(told, now)
    if bucket.limit != told.limit:
        return replace(first_told(told, now), shape=bucket.shape)
    newer = sent_at > bucket.heard_at
    if not newer and told.remaining >= left(bucket, now):
        return bucket
    whole_at = now + told.resets_in
    if newer:
        bucket = _judged(bucket, Report(now, told.remaining, whole_at))
    return replace(bucket, level=told.remaining, at=now, whole_at=whole_at, heard_at=now)


def spent(bucket: Bucket, amount: float, now: float) -> Bucket:
    """After a use that no answer has told yet."""
    return replace(bucket, level=left(bucket, now) - amount, at=now)


def refused(bucket: Bucket, need: float, retry_after: float | None, now: float) -> Bucket:
    """After a call was refused for this limit: nothing is left, whatever was thought."""
    level = min(0.0, bucket.level)
    bucket = replace(bucket, level=level, at=now, heard_at=now)
    if retry_after is None or retry_after <= 2 * (1.0 + need * MINUTE / bucket.limit):
        return bucket
    return replace(bucket, shape="window", whole_at=now + retry_after)


def _judged(bucket: Bucket, report: Report) -> Bucket:
    """The shape by how `whole_at` has moved: a bucket's by what was used and by the time that passed, a window's not
    at all. Over the end of a window nothing can be told."""
    before = bucket.judged
    if report.at >= before.whole_at:
        return replace(bucket, judged=report)
    expected = (report.at - before.at) + (before.remaining - report.remaining) * MINUTE / bucket.limit
    if abs(expected) < _TELLING:
        return bucket
    moved = report.whole_at - before.whole_at
    shape = "window" if abs(moved) < abs(moved - expected) else "bucket"
    return replace(bucket, judged=report, shape=shape)
