"""Rules that decide which model call is sent next, and when: a pure state machine for each model of a key.

Times are arguments.

    event                          limit of calls in flight    no call before               next call
    -----------------------------  --------------------------  ---------------------------  ------------------------
    a reply                        + 1; above the threshold    -                            -
                                   + 1 / the limit
    429 with `retry-after`         half of those in flight     the end of that wait, at     one alone; after its
                                                               most 60 s                    response, all others
    a new prompt of the user       -                           2 s after the newest         its call, alone; after
    during a longer wait                                       refusal                      its response, all others
    429 without it, or             1; the threshold becomes    the end of the back-off      one alone; after its
    overloaded (529)               half of those in flight                                  response, gradually more
    the call sent alone is         as above                    as above; the back-off       one alone
    refused                                                    doubles, up to 32 s
    the call sent alone gets a     -                           -                            the others
    response, even an error
    the call sent alone fails      -                           -                            another one alone
    without a response, is
    cancelled, or gets no
    response within 30 s
    a refusal of a call that was   -                           the later of both times      one alone
    sent before the last cut
    a refusal received by          -                           the later of both times      one alone
    another process
    a rate limit has too little    -                           enough is left (`Bucket`)    as many as fit
    left

"+ 1" for each reply doubles the calls in flight in one round trip; "+ 1 / n" adds one call in one round trip. A 429
with a wait means that a limit per minute is used up: the wait solves that, so the threshold stays. A 429 without a
wait, like an overload, means that too many calls run at once. One event cuts the limit once: a refusal of a call that
was sent before the cut changes it no further.

Calls are sent in the order of their deadlines: arrival plus the allowance of their rank (`ALLOWANCE`). So a lead comes
before teammates, and teammates before background work. Within a rank, calls are sent in order of arrival. No call is
delayed by later ones for longer than the allowances differ, however many leads arrive. A call that needs fewer tokens
gets no priority.

A `Bucket` mirrors the remaining amount of a limit, from the headers of responses. Services keep limits in two shapes,
with the same headers:

    shape     refill                                        meaning of `whole_at`, from the `-reset` header
    --------  --------------------------------------------  --------------------------------------------------------
    bucket    continuous, the limit spread over 60 s        the time when it would be full; each call moves it
    window    the whole limit, when the minute is over      the end of the minute; no call moves it

The Messages API is a token bucket (its page on rate limits); proxies and the rehearsal's default are windows. A limit
counts as a bucket until its shape is known: from the change of `whole_at` between two responses, from a `whole_at` that
is sooner than a bucket can refill, or from a refusal that asks for a far longer wait than a bucket needs.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from callboard.core.frozen import replace
from callboard.core.keys import count_words
from callboard.core.recovery.retry_policy import back_off
from callboard.types.lazy_dataclass import dataclass
from callboard.types.rate_limits import PERSON_AFTER, PROBE_AFTER, RATE_KINDS, Allowance, RateKind, RateNotice, Rates
from callboard.types.records import Fault

MINUTE = 60.0
MARGIN = 1.0
"""Seconds after the reported end of a window before it counts as over, because the service rounds times to seconds."""
_MIN_MOVEMENT = 4.0
"""Seconds that `whole_at` must be expected to move before its movement shows the shape: it is rounded to a second, and
the remaining tokens to a thousand."""
_NEARLY_USED_UP = 0.05
"""Share of a limit that is left when it counts as nearly used up."""
_TOLERANCE = 1e-3
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
    """Amount per minute."""
    level: float
    """Amount left at `at`."""
    at: float
    whole_at: float
    reported_at: float
    """Arrival of the response from which `level` comes."""
    baseline: Report
    """Report with which the next ones are compared to find the shape."""
    shape: Literal["bucket", "window"] = "bucket"


def bucket_from(allowance: Allowance, now: float) -> Bucket:
    """Return the bucket of a limit that its first report describes."""
    report = Report(now, allowance.remaining, now + allowance.resets_in)
    bucket = Bucket(allowance.limit, allowance.remaining, now, report.whole_at, now, report)
    return replace(bucket, shape="window") if _whole_too_soon(allowance) else bucket


def remaining_amount(bucket: Bucket, now: float) -> float:
    """Return the amount that is left, as far as it is known."""
    if bucket.shape == "window":
        return bucket.limit if now >= _window_end(bucket) else bucket.level
    return min(bucket.limit, bucket.level + max(0.0, now - bucket.at) * bucket.limit / MINUTE)


def has_enough(bucket: Bucket, need: float, reserved: float, now: float) -> bool:
    """Return True if a call that needs this much may be sent in addition to the reservations.

    A call that needs more than the limit is sent when the whole limit is available.
    """
    return remaining_amount(bucket, now) - reserved + _TOLERANCE >= min(need, bucket.limit)


def time_of_enough(bucket: Bucket, need: float, reserved: float, now: float) -> float | None:
    """Return the time at which there will be enough without further reservations.

    None if another call must end first.
    """
    missing = min(need, bucket.limit) + reserved - remaining_amount(bucket, now)
    if min(need, bucket.limit) + reserved > bucket.limit + _TOLERANCE:
        return None
    return _window_end(bucket) if bucket.shape == "window" else now + missing * MINUTE / bucket.limit


def _window_end(bucket: Bucket) -> float:
    """Return the time at which a window counts as over.

    A window that claims to last longer than `PROBE_AFTER` is tried after that time, because only a call can show that
    the claim is true.
    """
    return min(bucket.whole_at, bucket.reported_at + PROBE_AFTER) + MARGIN


def update_from_headers(bucket: Bucket | None, allowance: Allowance, sent_at: float, now: float) -> Bucket:
    """Return the bucket updated from a response to a call that was sent at `sent_at`.

    Responses can arrive out of order. One whose call was sent after the last report always applies; an older one
    applies only if it lowers the level, so that no capacity is spent twice.
    """
    if bucket is None:
        return bucket_from(allowance, now)
    if bucket.limit != allowance.limit:
        return replace(bucket_from(allowance, now), shape=bucket.shape)
    newer = sent_at > bucket.reported_at
    if not newer and allowance.remaining >= remaining_amount(bucket, now):
        return bucket
    whole_at = now + allowance.resets_in
    if newer:
        bucket = _with_shape(bucket, Report(now, allowance.remaining, whole_at))
    if _whole_too_soon(allowance):
        bucket = replace(bucket, shape="window")
    return replace(bucket, level=allowance.remaining, at=now, whole_at=whole_at, reported_at=now)


def bucket_after_use(bucket: Bucket, amount: float, now: float) -> Bucket:
    """Return the bucket after a use that no response has reported yet."""
    return replace(bucket, level=remaining_amount(bucket, now) - amount, at=now)


def bucket_after_refusal(bucket: Bucket, need: float, retry_after: float | None, now: float) -> Bucket:
    """Return the bucket after a refusal for this limit: nothing is left."""
    level = min(0.0, bucket.level)
    bucket = replace(bucket, level=level, at=now, reported_at=now)
    if retry_after is None or retry_after <= 2 * (1.0 + need * MINUTE / bucket.limit):
        return bucket
    return replace(bucket, shape="window", whole_at=now + retry_after)


def _whole_too_soon(allowance: Allowance) -> bool:
    """Return True if a limit that is nearly used up is whole again sooner than a bucket can refill: it is a window.

    Otherwise calls would wait for the refill of a bucket although the window is over.
    """
    refill = (allowance.limit - allowance.remaining) * MINUTE / allowance.limit
    return allowance.remaining <= _NEARLY_USED_UP * allowance.limit and allowance.resets_in + _MIN_MOVEMENT < refill


def _with_shape(bucket: Bucket, report: Report) -> Bucket:
    """Return the bucket with its shape, which the movement of `whole_at` shows.

    In a bucket it moves with use and time, in a window it does not move. A report after the end of a window shows
    nothing.
    """
    before = bucket.baseline
    if report.at >= before.whole_at:
        return replace(bucket, baseline=report)
    expected = (report.at - before.at) + (before.remaining - report.remaining) * MINUTE / bucket.limit
    if abs(expected) < _MIN_MOVEMENT:
        return bucket
    moved = report.whole_at - before.whole_at
    shape = "window" if abs(moved) < abs(moved - expected) else "bucket"
    return replace(bucket, baseline=report, shape=shape)


Rank = Literal["lead", "teammate", "background"]
ALLOWANCE: Mapping[Rank, float] = {"lead": 0.0, "teammate": 90.0, "background": 150.0}
"""Seconds by which later calls of a higher rank may come before a call of this rank. A used-up limit delays a call for
a minute or two: with a smaller allowance, a lead, for which a person waits, would overtake almost no call."""
INITIAL_WINDOW = 16
"""Calls in flight before the first response: suitable for a new key with a limit of 50 a minute."""
TEST_TIMEOUT = 30.0
"""Seconds that other calls wait for the response to a call that was sent alone. After that, another one is sent alone.
"""
_LEARNING_RATE = 0.2
"""Weight of the newest call in the expected usage of calls."""


@dataclass(frozen=True, slots=True, order=True)
class WaitingCall:
    """Waiting call, ordered by deadline, then by number."""

    deadline: float
    number: int
    """Number that rises from call to call."""
    tokens: float = field(default=0.0, compare=False)
    """Estimated input tokens; only the proportion to other calls matters."""
    person: bool = field(default=False, compare=False)
    """True for a new prompt of the user, which tries a parked limiter at once."""


def waiting_call(number: int, rank: Rank, arrived: float, tokens: float = 0.0, *, person: bool = False) -> WaitingCall:
    """Return the waiting call for a call that arrives now."""
    return WaitingCall(arrived + ALLOWANCE[rank], number, tokens, person)


@dataclass(frozen=True)
class Flight:
    """Call in flight."""

    sent_at: float
    place: int
    """Position among all calls of the limiter, which orders calls that were sent at the same time."""
    estimate: float
    """Estimated input tokens, from the waiter."""
    input: float
    """Expected input tokens of the call that count towards a limit."""
    output: float
    is_reported: bool = False
    """True once the headers of its response have arrived: the remaining limits include it."""
    alone: bool = False
    """True if the call was sent alone, to test whether the service responds."""


@dataclass(frozen=True)
class ModelLimiter:
    """Limiter state for all calls of one key to one model. Services keep their limits for each model."""

    most: int
    """Most calls in flight, whatever the service allows."""
    window: float = INITIAL_WINDOW
    """Calls in flight that the service seems to allow; at least 1."""
    threshold: float = 1e9
    """Limit of calls in flight above which `window` grows slowly."""
    flights: Mapping[int, Flight] = field(default_factory=dict[int, Flight])
    waiters: tuple[WaitingCall, ...] = ()
    """Waiting calls, in order."""
    buckets: Mapping[RateKind, Bucket] = field(default_factory=dict[RateKind, Bucket])
    parked_until: float = 0.0
    """Time of the next attempt, at most `PROBE_AFTER` seconds after the newest refusal."""
    named_until: float = 0.0
    """End of the wait that the service named with the newest refusal."""
    refused_at: float = 0.0
    """Time of the newest refusal."""
    reason: str = ""
    """Reason for which calls are, or were, held back."""
    careful: bool = False
    """True if the next call is sent alone."""
    refusals: int = 0
    """Number of refusals in a row without a wait named by the service."""
    sent: int = 0
    """Number of calls sent so far."""
    cut_after: int | None = None
    """Number of calls sent before the last cut of `window`; None before the first cut."""
    share: float = 1.0
    """Share of the estimated input that counts towards limits. Cached input does not."""
    output: float = 500.0
    """Tokens of a typical reply."""


@dataclass(frozen=True, slots=True)
class DelayReason:
    """Reason for the delay of the first call in line, and the end of the delay if nothing happens.

    `until` None: only a response ends the delay.
    """

    reason: str
    until: float | None


@dataclass(frozen=True, slots=True)
class CallEnd:
    """End of a call.

    `cancelled`: its result is unknown. `input` and `output` are tokens as they count towards limits; None: unknown.
    """

    how: Literal["replied", "limited", "overloaded", "answered", "failed", "cancelled"]
    retry_after: float | None = None
    input: float | None = None
    output: float | None = None
    reason: str = ""


def end_of(fault: Fault) -> CallEnd:
    """Return the end of a call with this fault.

    `apply_reply_start`: it shows that the service responds; `failed`: it shows nothing.
    """
    reason = f"{fault.type or fault.kind}: {fault.message}".rstrip(": ")
    match fault.kind:
        case "rate_limited":
            return CallEnd("limited", fault.retry_after, reason=reason)
        case "overloaded":
            return CallEnd("overloaded", fault.retry_after, reason=reason)
        case "server" | "connection" | "silence" | "bad_reply" | "lost":
            return CallEnd("failed")
        case _:
            return CallEnd("answered")


# Waiting


def add_waiting(limiter: ModelLimiter, waiter: WaitingCall) -> ModelLimiter:
    """Add a waiting call."""
    waiters = list(limiter.waiters)
    insort(waiters, waiter)
    return replace(limiter, waiters=tuple(waiters))


def remove_waiting(limiter: ModelLimiter, number: int) -> ModelLimiter:
    """Remove a waiting call."""
    return replace(limiter, waiters=tuple(waiter for waiter in limiter.waiters if waiter.number != number))


def mark_urgent(limiter: ModelLimiter, number: int) -> ModelLimiter:
    """Let this call try a parked limiter at once, because a new prompt of the user waits for it."""
    waiters = tuple(replace(waiter, person=True) if waiter.number == number else waiter for waiter in limiter.waiters)
    return replace(limiter, waiters=waiters)


def delay_reason(limiter: ModelLimiter, now: float) -> DelayReason | None:
    """Return the reason why all waiting calls are delayed; None if one of them may be sent now.

    At least one call waits.
    """
    reason = _first_delay(limiter, now)
    if reason is None or not _is_doubtful_wait(limiter, now) or _first_for_person(limiter) is None:
        return reason
    moment = max(limiter.refused_at + PERSON_AFTER, _test_ends_at(limiter, now))
    return None if now >= moment else DelayReason(reason.reason, min(moment, limiter.parked_until))


def parked_until(limiter: ModelLimiter, now: float) -> float:
    """Return the time until which no call is sent; 0 if calls are sent.

    Also 0 if the clock was set back to a time before the refusal: an early attempt costs one call, but waiting for the
    clock could take hours.
    """
    return limiter.parked_until if now >= limiter.refused_at else 0.0


def _is_doubtful_wait(limiter: ModelLimiter, now: float) -> bool:
    """Return True while no call is sent because the service named a wait that is too long to be believed.

    A wait that long is believed only after another attempt.
    """
    return now < parked_until(limiter, now) < limiter.named_until


def _first_for_person(limiter: ModelLimiter) -> WaitingCall | None:
    """Return the first call in line that is for a new prompt of the user."""
    return next((waiter for waiter in limiter.waiters if waiter.person), None)


def _test_ends_at(limiter: ModelLimiter, now: float) -> float:
    """Return the time until which the other calls wait for a call that was sent alone; `now` if there is none."""
    return (
        max((flight.sent_at for flight in limiter.flights.values() if flight.alone), default=now - TEST_TIMEOUT)
        + TEST_TIMEOUT
    )


def _first_delay(limiter: ModelLimiter, now: float) -> DelayReason | None:
    """Return the reason why the first call in line is delayed."""
    if now < parked_until(limiter, now):
        return DelayReason(limiter.reason, limiter.parked_until)
    if limiter.careful:
        patient = _test_ends_at(limiter, now)
        if now < patient:
            return DelayReason(f"one call goes first after: {limiter.reason}", patient)
    elif len(limiter.flights) >= int(min(limiter.window, limiter.most)):
        return DelayReason(f"{count_words(len(limiter.flights), 'call')} in flight", None)
    if not limiter.buckets:
        return None
    reserved = _unreported_use(limiter)
    for kind, need in _expected_use(limiter, limiter.waiters[0]).items():
        bucket = limiter.buckets.get(kind)
        if bucket is not None and not has_enough(bucket, need, reserved[kind], now):
            reason = f"the service's limit of {bucket.limit:g} {kind.replace('-', ' ')} a minute is used up"
            return DelayReason(reason, time_of_enough(bucket, need, reserved[kind], now))
    return None


def send_first(limiter: ModelLimiter, now: float) -> tuple[ModelLimiter, WaitingCall]:
    """Send the first call in line, or the user's prompt that tries a parked limiter.

    `delay_reason` was checked before.
    """
    for_person = _first_for_person(limiter) if _first_delay(limiter, now) is not None else None
    first = for_person or limiter.waiters[0]
    alone = limiter.careful or for_person is not None
    flight = Flight(now, limiter.sent + 1, first.tokens, first.tokens * limiter.share, limiter.output, alone=alone)
    flights = {**limiter.flights, first.number: flight}
    waiters = tuple(waiter for waiter in limiter.waiters if waiter is not first)
    return replace(limiter, waiters=waiters, flights=flights, sent=limiter.sent + 1), first


# What responses and failures change


def apply_headers(limiter: ModelLimiter, number: int, rates: Rates, now: float) -> ModelLimiter:
    """Apply the remaining limits from the headers of a response."""
    flight = limiter.flights.get(number)
    if flight is None:
        return limiter
    buckets = dict(limiter.buckets)
    for kind, allowance in rates.items():
        buckets[kind] = update_from_headers(buckets.get(kind), allowance, flight.sent_at, now)
    window = limiter.window
    if limiter.cut_after is None and "requests" in buckets:  # the service states its limit: no need to find it by trial
        window = min(float(limiter.most), max(window, remaining_amount(buckets["requests"], now)))
    flights = {**limiter.flights, number: replace(flight, is_reported=True)}
    return replace(limiter, buckets=buckets, flights=flights, window=window)


def apply_reply_start(limiter: ModelLimiter, number: int) -> ModelLimiter:
    """Note that the response to this call has begun: if the call was sent alone, the others may follow.

    If it was sent after the newest refusal, its response also ends the wait, whatever wait the service named.
    """
    flight = limiter.flights.get(number)
    if flight is None or not flight.alone:
        return limiter
    limiter = replace(
        limiter, careful=False, refusals=0, flights={**limiter.flights, number: replace(flight, alone=False)}
    )
    return end_wait(limiter) if flight.sent_at >= limiter.refused_at else limiter


def end_wait(limiter: ModelLimiter) -> ModelLimiter:
    """End a wait, and forget that a limit was used up."""
    if not limiter.parked_until:
        return limiter
    buckets = {kind: bucket for kind, bucket in limiter.buckets.items() if bucket.level > 0}
    return replace(limiter, parked_until=0.0, named_until=0.0, buckets=buckets)


def apply_end(limiter: ModelLimiter, number: int, end: CallEnd, now: float) -> ModelLimiter:
    """Apply the end of a call. A call that is not in flight changes nothing."""
    flight = limiter.flights.get(number)
    if flight is None:
        return limiter
    if end.how in ("replied", "answered"):
        limiter = apply_reply_start(limiter, number)
    in_flight = len(limiter.flights)
    flights = {key: other for key, other in limiter.flights.items() if key != number}
    limiter = replace(limiter, flights=flights, buckets=_buckets_after(limiter, flight, end, now))
    match end.how:
        case "replied":
            return _with_wider_window(_with_averages(limiter, flight, end), in_flight)
        case "limited" | "overloaded":
            return _after_refusal(limiter, flight, end, in_flight=in_flight, now=now)
        case _:
            return limiter


def apply_notice(limiter: ModelLimiter, notice: RateNotice) -> ModelLimiter:
    """Apply a refusal that another process received.

    A known refusal changes nothing. A time more than `PROBE_AFTER` seconds after the refusal comes from an older
    version, which stored the whole wait.
    """
    until = min(notice.parked_until, notice.at + PROBE_AFTER)
    if until <= limiter.parked_until:
        return limiter
    named = max(notice.named_until, notice.parked_until)
    refused_at = max(limiter.refused_at, notice.at)
    return replace(
        limiter, parked_until=until, named_until=named, refused_at=refused_at, reason=notice.why, careful=True
    )


def _with_wider_window(limiter: ModelLimiter, in_flight: int) -> ModelLimiter:
    """Widen the window after a reply, if it is in full use."""
    if not limiter.waiters and 2 * in_flight < limiter.window:
        return limiter
    growth = 1.0 if limiter.window < limiter.threshold else 1.0 / limiter.window
    return replace(limiter, window=min(float(limiter.most), limiter.window + growth))


def _after_refusal(limiter: ModelLimiter, flight: Flight, end: CallEnd, *, in_flight: int, now: float) -> ModelLimiter:
    """Lower the limit of calls in flight after a refusal, and send no call for a while; then send one alone."""
    wait = end.retry_after or 0.0
    if limiter.cut_after is None or flight.place > limiter.cut_after:
        half = max(1.0, min(limiter.window, in_flight) / 2)
        if end.how == "limited" and wait:
            limiter = replace(limiter, window=half)
        else:
            wait = max(wait, back_off(limiter.refusals, 0.0))
            threshold = limiter.threshold if limiter.refusals else half
            limiter = replace(limiter, window=1.0, threshold=threshold, refusals=limiter.refusals + 1)
        limiter = replace(limiter, cut_after=limiter.sent)
    until = now + min(wait, PROBE_AFTER)
    limiter = replace(limiter, refused_at=now, careful=True)
    if until <= limiter.parked_until:
        return limiter
    return replace(limiter, parked_until=until, named_until=now + wait, reason=end.reason)


def _buckets_after(limiter: ModelLimiter, flight: Flight, end: CallEnd, now: float) -> Mapping[RateKind, Bucket]:
    """Return the limits after the end of a call, minus the usage that no headers have reported yet."""
    if not limiter.buckets:
        return limiter.buckets
    buckets = dict(limiter.buckets)
    limited = end.how == "limited"
    needs: dict[RateKind, float] = {"requests": 1.0, "tokens": flight.input, "input-tokens": flight.input}
    output = 0.0 if end.output is None else end.output
    for kind, bucket in limiter.buckets.items():
        need = needs.get(kind, 1.0)
        amount = 0.0 if flight.is_reported or limited else needs.get(kind, 0.0)
        amount += output if kind in ("tokens", "output-tokens") else 0.0
        if limited and bucket.level < max(1.0, min(need, bucket.limit)):
            buckets[kind] = bucket_after_refusal(bucket, need, end.retry_after, now)
        elif amount:
            buckets[kind] = bucket_after_use(bucket, amount, now)
    return buckets


def _with_averages(limiter: ModelLimiter, flight: Flight, end: CallEnd) -> ModelLimiter:
    share = limiter.share
    output = limiter.output
    if end.input is not None and flight.estimate > 0:
        share += _LEARNING_RATE * (end.input / flight.estimate - share)
    if end.output is not None:
        output += _LEARNING_RATE * (end.output - output)
    return replace(limiter, share=share, output=output)


def _expected_use(limiter: ModelLimiter, waiter: WaitingCall) -> Mapping[RateKind, float]:
    input_tokens = waiter.tokens * limiter.share
    return dict(zip(RATE_KINDS, (1.0, input_tokens + limiter.output, input_tokens, limiter.output), strict=True))


def _unreported_use(limiter: ModelLimiter) -> Mapping[RateKind, float]:
    """Return the expected usage of calls in flight that no response has reported yet.

    Requests and input count until the headers arrive, output until the reply ends.
    """
    requests = input_tokens = output = 0.0
    for flight in limiter.flights.values():
        output += flight.output
        if not flight.is_reported:
            requests += 1
            input_tokens += flight.input
    return dict(zip(RATE_KINDS, (requests, input_tokens + output, input_tokens, output), strict=True))
