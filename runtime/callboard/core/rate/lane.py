"""Who may call the model service next, and when: a pure state machine for each model of a key. Times are given.

    what is heard                             calls in flight, at most     nobody goes until         then
    ----------------------------------------  ---------------------------  ------------------------  ------------------
    a reply                                   + 1; above the threshold     -                         -
                                              + 1 / as many as now
    429, with retry-after                     half of those in flight      it is over                one; answered: all
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
    what is left of a limit does not suffice  -                            it does (`rate_bucket`)   as many as fit

"+ 1" for each reply doubles what is in flight in a round trip, "+ 1 / n" adds one in a round trip. A 429 with a wait
says that a limit a minute is used up: that is what the wait is for, so the threshold stays. One without says, as an
overload does, that there are too many at once. A refusal cuts once: those sent before it were sent too early to know.

Order: by deadline, which is the arrival plus the allowance of the class (`ALLOWANCE`). So a lead goes before teammates
and these before the background; inside a class the first come goes first; and nobody is passed for longer than the
allowances differ, however many leads come. Nobody overtakes because it needs fewer tokens.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from callboard.core.frozen import replace
from callboard.core.rate.bucket import Bucket, enough, enough_at, left, refused, spent, told
from callboard.core.recovery.turns import back_off
from callboard.words.rates import RATE_KINDS, RateKind, Rates
from callboard.words.values import Fault

Rank = Literal["lead", "teammate", "background"]
ALLOWANCE: Mapping[Rank, float] = {"lead": 0.0, "teammate": 90.0, "background": 150.0}
"""Seconds that later calls of a higher rank may come before one of this rank. A used-up limit holds a call for a minute
or two: less would let a lead, for which a person waits, pass hardly anybody then."""
AT_FIRST = 16
"""Calls in flight before the service has said anything: what a new key's limit of 50 a minute bears."""
PATIENCE = 30.0
"""Seconds that the others wait for the answer to the one that goes alone; then another one goes alone."""
_LEARNING = 0.2
"""Weight of the newest call in what calls are expected to use."""


@dataclass(frozen=True, slots=True, order=True)
class Waiter:
    """A call that wants to go. Ordered by deadline, then by number."""

    deadline: float
    number: int
    """Rises from call to call."""
    tokens: float = field(default=0.0, compare=False)
    """An estimate of its input; only its proportion to that of other calls matters."""


def waiter(number: int, rank: Rank, arrived: float, tokens: float = 0.0) -> Waiter:
    return Waiter(arrived + ALLOWANCE[rank], number, tokens)


@dataclass(frozen=True)
class Flight:
    """A call that was let go."""

    sent_at: float
    place: int
    """The how-manieth call of the lane it is: what was sent at one moment has an order, too."""
    estimate: float
    """Input tokens by the waiter's estimate."""
    input: float
    """Input tokens that it is expected to use up of a limit."""
    output: float
    told: bool = False
    """The head of its answer has come: what is left of the limits counts it."""
    alone: bool = False
    """It is the one that goes first, to see whether the service answers."""


@dataclass(frozen=True)
class Lane:
    """All calls of one key to one model. Services keep their limits for each model."""

    most: int
    """Calls in flight, whatever the service bears."""
    window: float = AT_FIRST
    """Calls in flight, as far as the service seems to bear them; at least 1."""
    threshold: float = 1e9
    """Where the window stops growing fast."""
    flights: Mapping[int, Flight] = field(default_factory=dict[int, Flight])
    waiters: tuple[Waiter, ...] = ()
    """In the order in which they go."""
    buckets: Mapping[RateKind, Bucket] = field(default_factory=dict[RateKind, Bucket])
    parked_until: float = 0.0
    why: str = ""
    """Why it is, or was, parked."""
    careful: bool = False
    """The next one goes alone."""
    refusals: int = 0
    """In a row, without a wait that the service named."""
    sent: int = 0
    """Calls let go so far."""
    cut_after: int | None = None
    """How many had been let go at the last cut; None before the first."""
    share: float = 1.0
    """Of the estimate of a call's input: what counts towards limits. What the prompt cache holds does not."""
    output: float = 500.0
    """Tokens of a usual reply."""


@dataclass(frozen=True, slots=True)
class Held:
    """Why the first in line does not go, and when that ends if nothing happens (None: only something heard ends it)."""

    why: str
    until: float | None


@dataclass(frozen=True, slots=True)
class End:
    """How a call ended. `gone`: cancelled, nothing is known. Tokens as they count towards limits; None: not known."""

    how: Literal["replied", "limited", "overloaded", "answered", "failed", "gone"]
    retry_after: float | None = None
    input: float | None = None
    output: float | None = None
    why: str = ""


def end_of(fault: Fault) -> End:
    """What a fault says of the service: `answered` shows that it is there, `failed` shows nothing."""
    why = f"{fault.type or fault.kind}: {fault.message}".rstrip(": ")
    match fault.kind:
        case "rate_limited":
            return End("limited", fault.retry_after, why=why)
        case "overloaded":
            return End("overloaded", fault.retry_after, why=why)
        case "server" | "connection" | "silence" | "bad_reply" | "lost":
            return End("failed")
        case _:
            return End("answered")


# Waiting


def join(lane: Lane, one: Waiter) -> Lane:
    """It wants to go."""
    waiters = list(lane.waiters)
    insort(waiters, one)
    return replace(lane, waiters=tuple(waiters))


def leave(lane: Lane, number: int) -> Lane:
    """It no longer wants to."""
    return replace(lane, waiters=tuple(one for one in lane.waiters if one.number != number))


def held(lane: Lane, now: float) -> Held | None:
    """What holds the first in line; None when it may go now. There is one."""
    if now < lane.parked_until:
        return Held(lane.why, lane.parked_until)
    if lane.careful:
        patient = max((one.sent_at for one in lane.flights.values() if one.alone), default=now - PATIENCE) + PATIENCE
        if now < patient:
            return Held(f"one call goes first after: {lane.why}", patient)
    elif len(lane.flights) >= int(min(lane.window, lane.most)):
        return Held(f"{len(lane.flights)} calls are in flight", None)
    if not lane.buckets:
        return None
    reserved = _reserved(lane)
    for kind, need in _needs(lane, lane.waiters[0]).items():
        bucket = lane.buckets.get(kind)
        if bucket is not None and not enough(bucket, need, reserved[kind], now):
            why = f"the service's limit of {bucket.limit:g} {kind.replace('-', ' ')} a minute is used up"
            return Held(why, enough_at(bucket, need, reserved[kind], now))
    return None


def let_go(lane: Lane, now: float) -> tuple[Lane, Waiter]:
    """The first in line goes; `held` said that it may."""
    first = lane.waiters[0]
    flight = Flight(now, lane.sent + 1, first.tokens, first.tokens * lane.share, lane.output, alone=lane.careful)
    flights = {**lane.flights, first.number: flight}
    return replace(lane, waiters=lane.waiters[1:], flights=flights, sent=lane.sent + 1), first


# What is heard


def headed(lane: Lane, number: int, rates: Rates, now: float) -> Lane:
    """The head of an answer says what is left of the limits."""
    flight = lane.flights.get(number)
    if flight is None:
        return lane
    buckets = dict(lane.buckets)
    for kind, allowance in rates.items():
        buckets[kind] = told(buckets.get(kind), allowance, flight.sent_at, now)
    window = lane.window
    if lane.cut_after is None and "requests" in buckets:  # it says how much it bears: no need to feel for it
        window = min(float(lane.most), max(window, left(buckets["requests"], now)))
    flights = {**lane.flights, number: replace(flight, told=True)}
    return replace(lane, buckets=buckets, flights=flights, window=window)


def answered(lane: Lane, number: int) -> Lane:
    """The service has begun to answer this call: if it went alone, the others may follow."""
    flight = lane.flights.get(number)
    if flight is None or not flight.alone:
        return lane
    return replace(lane, careful=False, refusals=0, flights={**lane.flights, number: replace(flight, alone=False)})


def ended(lane: Lane, number: int, end: End, now: float) -> Lane:
    """A call is over. One that is not in flight changes nothing."""
    flight = lane.flights.get(number)
    if flight is None:
        return lane
    if end.how in ("replied", "answered"):
        lane = answered(lane, number)
    in_flight = len(lane.flights)
    flights = {one: other for one, other in lane.flights.items() if one != number}
    lane = replace(lane, flights=flights, buckets=_used(lane, flight, end, now))
    match end.how:
        case "replied":
            return _grown(_learned(lane, flight, end), in_flight)
        case "limited" | "overloaded":
            return _cut(lane, flight, end, in_flight, now)
        case _:
            return lane


def heed(lane: Lane, until: float, why: str) -> Lane:
    """Another process was told to wait. What is known already changes nothing."""
    return lane if until <= lane.parked_until else replace(lane, parked_until=until, why=why, careful=True)


def _grown(lane: Lane, in_flight: int) -> Lane:
    """A reply: more may be in flight, if what may be is used at all."""
    if not lane.waiters and 2 * in_flight < lane.window:
        return lane
    more = 1.0 if lane.window < lane.threshold else 1.0 / lane.window
    return replace(lane, window=min(float(lane.most), lane.window + more))


def _cut(lane: Lane, flight: Flight, end: End, in_flight: int, now: float) -> Lane:
    """A refusal: fewer may be in flight, and nobody goes for a while; then one goes alone."""
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
    until = now + wait
    if until <= lane.parked_until:
        return replace(lane, careful=True)
    return replace(lane, parked_until=until, why=end.why, careful=True)


def _used(lane: Lane, flight: Flight, end: End, now: float) -> Mapping[RateKind, Bucket]:
    """The limits after a call that ended: what no head has told yet is taken off."""
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


def _learned(lane: Lane, flight: Flight, end: End) -> Lane:
    share, output = lane.share, lane.output
    if end.input is not None and flight.estimate > 0:
        share += _LEARNING * (end.input / flight.estimate - share)
    if end.output is not None:
        output += _LEARNING * (end.output - output)
    return replace(lane, share=share, output=output)


def _needs(lane: Lane, one: Waiter) -> Mapping[RateKind, float]:
    given = one.tokens * lane.share
    return dict(zip(RATE_KINDS, (1.0, given + lane.output, given, lane.output), strict=True))


def _reserved(lane: Lane) -> Mapping[RateKind, float]:
    """What calls in flight will use that no answer has told yet: requests and input until the head, output to the
    end."""
    requests = given = output = 0.0
    for flight in lane.flights.values():
        output += flight.output
        if not flight.told:
            requests += 1
            given += flight.input
    return dict(zip(RATE_KINDS, (requests, given + output, given, output), strict=True))
