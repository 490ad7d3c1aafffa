"""Rules of who may call the model service next, and when: a pure state machine for each model of a key. Times are
arguments.

    what is heard                             calls in flight, at most     nobody goes until         then
    ----------------------------------------  ---------------------------  ------------------------  ------------------
    a reply                                   + 1; above the threshold     -                         -
                                              + 1 / as many as now
    429, with retry-after                     half of those in flight      it is over, or 60 s are   one; answered: all
    a person's new prompt, while the wait     -                            2 s after the newest      that one, alone;
    is longer than that                                                    refusal                   answered: all
    429 without, overloaded (529)             1; threshold: that half      the back-off is over      one; answered:
                                                                                                     more and more
    the one that goes alone is refused again  as above                     as above; the back-off    one
                                                                           doubles, up to 32 s
    it is answered, if only with an error     -                            -                         the others
    it fails otherwise, is cancelled, or      -                            -                         another one, alone
    says nothing for 30 s
    a refusal of a call that was sent before  -                            the later of both         one
    the last cut
    another process heard a refusal           -                            the later of both         one
    what is left of a limit does not suffice  -                            it does (`Bucket`)        as many as fit

"+ 1" for each reply doubles what is in flight in a round trip, "+ 1 / n" adds one in a round trip. A 429 with a wait
says that a limit a minute is used up: that is what the wait is for, so the threshold stays. One without says, as an
overload does, that there are too many at once. A refusal cuts once: those sent before it were sent too early to know.

Order: by deadline, which is the arrival plus the allowance of the class (`ALLOWANCE`). So a lead goes before teammates
and these before the background; inside a class the first come goes first; and nobody is passed for longer than the
allowances differ, however many leads come. Nobody overtakes because it needs fewer tokens.

What is left of a limit is mirrored in a `Bucket`, from the headers of responses. Services keep limits in two ways, with
the same headers:

    shape     how it refills                               `whole_at`, the `-reset` header, says
    --------  -------------------------------------------  ----------------------------------------------------------
    bucket    all the time, the limit spread over 60 s     when it would be full: moves on with each call
    window    all at once, when the minute is over         when that is: stays where it is, whatever is used

The Messages API is a token bucket (its page on rate limits); proxies and the rehearsal's default are windows. A limit
counts as a bucket until it has shown its shape: by the change of `whole_at` between two responses, or by a refusal that
asks for a far longer wait than a bucket needs.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from callboard.core.frozen import replace
from callboard.core.keys import count_words
from callboard.core.recovery.retry_policy import back_off
from callboard.types.rate_limits import PERSON_AFTER, PROBE_AFTER, RATE_KINDS, Allowance, RateKind, RateNotice, Rates
from callboard.types.records import Fault

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


Rank = Literal["lead", "teammate", "background"]
ALLOWANCE: Mapping[Rank, float] = {"lead": 0.0, "teammate": 90.0, "background": 150.0}
"""Seconds by which later calls of a higher rank may come before one of this rank. A used-up limit delays a call for a
minute or two: with less, a lead, for which a person waits, would pass almost no call."""
AT_FIRST = 16
"""Calls in flight before the first response: suitable for a new key with a limit of 50 a minute."""
PATIENCE = 30.0
"""Seconds that other calls wait for the response to a call that goes alone. After that, another one goes alone."""
_LEARNING = 0.2
"""Weight of the newest call in the expected usage of calls."""


@dataclass(frozen=True, slots=True, order=True)
class Waiter:
    """Waiting call, ordered by deadline, then by number."""

    deadline: float
    number: int
    """Number that rises from call to call."""
    tokens: float = field(default=0.0, compare=False)
    """Estimated input tokens; only the proportion to other calls matters."""
    person: bool = field(default=False, compare=False)
    """True for a new prompt of the user, which tries a parked limiter at once."""


def waiter(number: int, rank: Rank, arrived: float, tokens: float = 0.0, *, person: bool = False) -> Waiter:
    """Return a call that arrives now."""
    return Waiter(arrived + ALLOWANCE[rank], number, tokens, person)


@dataclass(frozen=True)
class Flight:
    """Call in flight."""

    sent_at: float
    place: int
    """Position among all calls of the limiter, which orders calls that were sent at the same time."""
    estimate: float
    """Estimated input tokens, from the waiter."""
    input: float
    """Input tokens that it is expected to use of a limit."""
    output: float
    told: bool = False
    """True once the headers of its response have arrived: the remaining limits include it."""
    alone: bool = False
    """True if it goes first, to test whether the service responds."""


@dataclass(frozen=True)
class Lane:
    """Limiter state for all calls of one key to one model. Services keep their limits for each model."""

    most: int
    """Most calls in flight, whatever the service allows."""
    window: float = AT_FIRST
    """Calls in flight that the service seems to allow; at least 1."""
    threshold: float = 1e9
    """Size above which the window stops growing fast."""
    flights: Mapping[int, Flight] = field(default_factory=dict[int, Flight])
    waiters: tuple[Waiter, ...] = ()
    """Waiting calls, in order."""
    buckets: Mapping[RateKind, Bucket] = field(default_factory=dict[RateKind, Bucket])
    parked_until: float = 0.0
    """Time of the next attempt, at most `PROBE_AFTER` seconds after the newest refusal."""
    named_until: float = 0.0
    """End of the wait that the service named with the newest refusal."""
    refused_at: float = 0.0
    """Time of the newest refusal."""
    why: str = ""
    """Reason why the lane is, or was, parked."""
    careful: bool = False
    """True if the next call goes alone."""
    refusals: int = 0
    """Number of refusals in a row without a wait named by the service."""
    sent: int = 0
    """Number of calls sent so far."""
    cut_after: int | None = None
    """Number of calls let go by the last cut of the window; None before the first."""
    share: float = 1.0
    """Share of the estimated input that counts towards limits. Cached input does not."""
    output: float = 500.0
    """Tokens of a typical reply."""


@dataclass(frozen=True, slots=True)
class Held:
    """Reason for the delay of the first call in line, and its end if nothing happens (None: only a response
    ends it)."""

    why: str
    until: float | None


@dataclass(frozen=True, slots=True)
class CallEnd:
    """End of a call. `gone`: cancelled, result unknown. Tokens as they count towards limits; None: unknown."""

    how: Literal["replied", "limited", "overloaded", "answered", "failed", "gone"]
    retry_after: float | None = None
    input: float | None = None
    output: float | None = None
    why: str = ""


def end_of(fault: Fault) -> CallEnd:
    """Return the information about the service in a fault: `answered` shows that the service responds, `failed` shows
    nothing."""
    reason = f"{fault.type or fault.kind}: {fault.message}".rstrip(": ")
    match fault.kind:
        case "rate_limited":
            return CallEnd("limited", fault.retry_after, why=reason)
        case "overloaded":
            return CallEnd("overloaded", fault.retry_after, why=reason)
        case "server" | "connection" | "silence" | "bad_reply" | "lost":
            return CallEnd("failed")
        case _:
            return CallEnd("answered")


# Waiting


def join(lane: Lane, waiter: Waiter) -> Lane:
    """Add a waiting call."""
    waiters = list(lane.waiters)
    insort(waiters, waiter)
    return replace(lane, waiters=tuple(waiters))


def leave(lane: Lane, number: int) -> Lane:
    """Remove a waiting call."""
    return replace(lane, waiters=tuple(waiter for waiter in lane.waiters if waiter.number != number))


def hurry(lane: Lane, number: int) -> Lane:
    """Let this call try a parked limiter at once, because a new prompt of the user waits for it."""
    waiters = tuple(replace(waiter, person=True) if waiter.number == number else waiter for waiter in lane.waiters)
    return replace(lane, waiters=waiters)


def held(lane: Lane, now: float) -> Held | None:
    """Return the reason why all waiting calls are delayed; None if one of them may go now. There is at least one."""
    reason = _held(lane, now)
    if reason is None or not _disputed(lane, now) or _person(lane) is None:
        return reason
    moment = max(lane.refused_at + PERSON_AFTER, _patient_until(lane, now))
    return None if now >= moment else Held(reason.why, min(moment, lane.parked_until))


def parked(lane: Lane, now: float) -> float:
    """Return the time until which the limiter is parked; 0 if it is not, or the clock was set back to a time before the
    refusal: an early attempt costs one call, waiting for the clock could take hours."""
    return lane.parked_until if now >= lane.refused_at else 0.0


def _disputed(lane: Lane, now: float) -> bool:
    """Return True while the limiter is parked and the named wait is too long to be believed without another attempt."""
    return now < parked(lane, now) < lane.named_until


def _person(lane: Lane) -> Waiter | None:
    """Return the first in line of a person's new prompts."""
    return next((waiter for waiter in lane.waiters if waiter.person), None)


def _patient_until(lane: Lane, now: float) -> float:
    """Return the time until which the call that goes alone may take for its response; `now` if there is none."""
    return max((flight.sent_at for flight in lane.flights.values() if flight.alone), default=now - PATIENCE) + PATIENCE


def _held(lane: Lane, now: float) -> Held | None:
    """Return the reason why the first call in line is delayed."""
    if now < parked(lane, now):
        return Held(lane.why, lane.parked_until)
    if lane.careful:
        patient = _patient_until(lane, now)
        if now < patient:
            return Held(f"one call goes first after: {lane.why}", patient)
    elif len(lane.flights) >= int(min(lane.window, lane.most)):
        return Held(f"{count_words(len(lane.flights), 'call')} in flight", None)
    if not lane.buckets:
        return None
    reserved = _reserved(lane)
    for kind, need in _needs(lane, lane.waiters[0]).items():
        bucket = lane.buckets.get(kind)
        if bucket is not None and not enough(bucket, need, reserved[kind], now):
            reason = f"the service's limit of {bucket.limit:g} {kind.replace('-', ' ')} a minute is used up"
            return Held(reason, enough_at(bucket, need, reserved[kind], now))
    return None


def let_go(lane: Lane, now: float) -> tuple[Lane, Waiter]:
    """Send the first call in line, or the user's prompt that tries a parked limiter. The caller has checked `held`."""
    tries = _person(lane) if _held(lane, now) is not None else None
    first = tries or lane.waiters[0]
    alone = lane.careful or tries is not None
    flight = Flight(now, lane.sent + 1, first.tokens, first.tokens * lane.share, lane.output, alone=alone)
    flights = {**lane.flights, first.number: flight}
    waiters = tuple(waiter for waiter in lane.waiters if waiter is not first)
    return replace(lane, waiters=waiters, flights=flights, sent=lane.sent + 1), first


# What is heard


def headed(lane: Lane, number: int, rates: Rates, now: float) -> Lane:
    """Apply the remaining limits from the headers of a response."""
    flight = lane.flights.get(number)
    if flight is None:
        return lane
    buckets = dict(lane.buckets)
    for kind, allowance in rates.items():
        buckets[kind] = update_from_headers(buckets.get(kind), allowance, flight.sent_at, now)
    window = lane.window
    if lane.cut_after is None and "requests" in buckets:  # it says how much it bears: no need to feel for it
        window = min(float(lane.most), max(window, remaining(buckets["requests"], now)))
    flights = {**lane.flights, number: replace(flight, told=True)}
    return replace(lane, buckets=buckets, flights=flights, window=window)


def answered(lane: Lane, number: int) -> Lane:
    """Note that the response to this call has begun: if it went alone, the others may follow. For a call sent after the
    newest refusal it also ends the wait, whatever the service named."""
    flight = lane.flights.get(number)
    if flight is None or not flight.alone:
        return lane
    lane = replace(lane, careful=False, refusals=0, flights={**lane.flights, number: replace(flight, alone=False)})
    return lift(lane) if flight.sent_at >= lane.refused_at else lane


def lift(lane: Lane) -> Lane:
    """End a park, and forget that a limit was used up."""
    if not lane.parked_until:
        return lane
    buckets = {kind: bucket for kind, bucket in lane.buckets.items() if bucket.level > 0}
    return replace(lane, parked_until=0.0, named_until=0.0, buckets=buckets)


def ended(lane: Lane, number: int, end: CallEnd, now: float) -> Lane:
    """Apply the end of a call. A call that is not in flight changes nothing."""
    flight = lane.flights.get(number)
    if flight is None:
        return lane
    if end.how in ("replied", "answered"):
        lane = answered(lane, number)
    in_flight = len(lane.flights)
    flights = {key: other for key, other in lane.flights.items() if key != number}
    lane = replace(lane, flights=flights, buckets=_used(lane, flight, end, now))
    match end.how:
        case "replied":
            return _grown(_learned(lane, flight, end), in_flight)
        case "limited" | "overloaded":
            return _cut(lane, flight, end, in_flight=in_flight, now=now)
        case _:
            return lane


def apply_notice(lane: Lane, notice: RateNotice) -> Lane:
    """Apply a refusal that another process received. Known ones change nothing. A time beyond `PROBE_AFTER` seconds
    after the refusal comes from an older version, which stored the whole wait."""
    until = min(notice.parked_until, notice.at + PROBE_AFTER)
    if until <= lane.parked_until:
        return lane
    named = max(notice.named_until, notice.parked_until)
    refused_at = max(lane.refused_at, notice.at)
    return replace(lane, parked_until=until, named_until=named, refused_at=refused_at, why=notice.why, careful=True)


def _grown(lane: Lane, in_flight: int) -> Lane:
    """Widen the window after a reply, if it is in full use."""
    if not lane.waiters and 2 * in_flight < lane.window:
        return lane
    growth = 1.0 if lane.window < lane.threshold else 1.0 / lane.window
    return replace(lane, window=min(float(lane.most), lane.window + growth))


def _cut(lane: Lane, flight: Flight, end: CallEnd, *, in_flight: int, now: float) -> Lane:
    """Narrow the window after a refusal, and send nothing for a while; then one call goes alone."""
    wait = end.retry_after or 0.0
    if lane.cut_after is None or flight.place > lane.cut_after:
        half = max(1.0, min(lane.window, in_flight) / 2)
        if end.how == "limited" and wait:
            lane = replace(lane, window=half)
        else:
            wait = max(wait, back_off(lane.refusals, 0.0))
            threshold = lane.threshold if lane.refusals else half
            lane = replace(lane, window=1.0, threshold=threshold, refusals=lane.refusals + 1)
        lane = replace(lane, cut_after=lane.sent)
    until = now + min(wait, PROBE_AFTER)
    lane = replace(lane, refused_at=now, careful=True)
    if until <= lane.parked_until:
        return lane
    return replace(lane, parked_until=until, named_until=now + wait, why=end.why)


def _used(lane: Lane, flight: Flight, end: CallEnd, now: float) -> Mapping[RateKind, Bucket]:
    """Return the limits after the end of a call, minus the usage that no headers have reported yet."""
    buckets = dict(lane.buckets)
    limited = end.how == "limited"
    needs: dict[RateKind, float] = {"requests": 1.0, "tokens": flight.input, "input-tokens": flight.input}
    output = 0.0 if end.output is None else end.output
    for kind, bucket in lane.buckets.items():
        need = needs.get(kind, 1.0)
        amount = 0.0 if flight.told or limited else needs.get(kind, 0.0)
        amount += output if kind in ("tokens", "output-tokens") else 0.0
        if limited and bucket.level < max(1.0, min(need, bucket.limit)):
            buckets[kind] = refused(bucket, need, end.retry_after, now)
        elif amount:
            buckets[kind] = spent(bucket, amount, now)
    return buckets


def _learned(lane: Lane, flight: Flight, end: CallEnd) -> Lane:
    share = lane.share
    output = lane.output
    if end.input is not None and flight.estimate > 0:
        share += _LEARNING * (end.input / flight.estimate - share)
    if end.output is not None:
        output += _LEARNING * (end.output - output)
    return replace(lane, share=share, output=output)


def _needs(lane: Lane, waiter: Waiter) -> Mapping[RateKind, float]:
    input_tokens = waiter.tokens * lane.share
    return dict(zip(RATE_KINDS, (1.0, input_tokens + lane.output, input_tokens, lane.output), strict=True))


def _reserved(lane: Lane) -> Mapping[RateKind, float]:
    """Return the expected usage of calls in flight that no response has reported yet: requests and input until the
    headers, output until the end."""
    requests = input_tokens = output = 0.0
    for flight in lane.flights.values():
        output += flight.output
        if not flight.told:
            requests += 1
            input_tokens += flight.input
    return dict(zip(RATE_KINDS, (requests, input_tokens + output, input_tokens, output), strict=True))
