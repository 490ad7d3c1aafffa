"""The I/O shell of `callboard.core.rate.lane`: calls of all sessions of a process wait here until they may go.

Who may go, and when, is decided there; here are the tasks that wait, and what they hear. Nothing polls: a call waits
for its turn, and the first in line also sleeps until the moment at which time alone lets it go. However a call ends,
cancelled at whatever point, its place is free: `slot` is the one way in and out.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import anyio

from callboard.core.rate import lane as rate
from callboard.core.rate.key import ALL_MODELS, COUNTS, Refusal, counts_of, known_fault, may_go, scope_of
from callboard.core.rate.lane import End, Held, Lane, Rank
from callboard.engine.governor.prefixes import Prefix, Prefixes, PrefixPlace
from callboard.ports.model import CallFault, CannotCount
from callboard.ports.world import Clock
from callboard.words.rates import RateNotice, Rates
from callboard.words.values import Fault, Usage

CALLS_AT_ONCE = 256
"""Model calls in flight of one key in one process."""
HELD = 1.0
"""Seconds after which a wait is told in the journal (`CallHeld`)."""


@dataclass(frozen=True, slots=True)
class Asking:
    """A call that is wanted, as far as its order goes."""

    model: str = ""
    rank: Rank = "teammate"
    tokens: float = 0.0
    """About as many input tokens; only the proportion to other calls counts."""
    person: bool = False
    """A person's new prompt: it goes out even when the key is known to be refused."""


ANY = Asking()


class Governor:
    """Bounds the calls in flight of one API key, orders those that wait, and parks them together."""

    def __init__(self, clock: Clock, at_once: int = CALLS_AT_ONCE, key: str = "") -> None:
        """`key`: a digest of the API key, by which the processes that share a store know it."""
        self.key = key
        self.prefixes = Prefixes(clock)
        self.notices: dict[str, RateNotice] = {}
        """The newest that was heard from the service itself, of each model and of the key."""
        self.news = anyio.Event()
        """Set at the next change of `notices`, and then another one."""
        self._clock = clock
        self._at_once = at_once
        self._lanes: dict[str, Lane] = {}
        self._places: dict[int, _Place] = {}
        """Those who wait, by number."""
        self._refusals: dict[str, Refusal] = {}
        self._known_at: dict[str, float] = {}
        """When that was heard which is known of a model, or of the key, from whomever."""
        self._newest = 0
        """The number of the newest call."""

    @asynccontextmanager
    async def slot(self, asking: Asking = ANY, prefix: Prefix | None = None) -> AsyncGenerator[Call]:
        """Hold one of the calls in flight, once it is this one's turn.

        Of calls with one prefix that the service does not know yet, the first goes and the others wait: until its reply
        has begun, or it failed and the next one goes, or `LONGEST_WAIT` is over. Raises `CallFault` with the known
        fault where the key is at fault, without a call.
        """
        call = Call(self, asking, prefix)
        try:
            await call.wait()
            yield call
        except CallFault as failed:
            call.ended(rate.end_of(failed.fault), failed.rates, failed.fault)
            raise
        except BaseException:
            call.ended(End("gone"))
            raise
        call.ended(End("replied", input=call.given, output=call.made))

    @asynccontextmanager
    async def counting(self, asking: Asking) -> AsyncGenerator[None]:
        """Hold a place among the counts of tokens for this model, which have a lane of their own: what they are refused
        holds no message, and their success says nothing of what messages are refused for. Raises `CallFault` with the
        known fault where the key is at fault: no count goes to see whether it is good again.
        """
        lane = counts_of(asking.model)
        for refusal in self._refused(asking.model).values():
            raise CallFault(known_fault(refusal))
        number, _ = await self.wait(Asking(lane, asking.rank, asking.tokens), self._clock.now())
        end = End("gone")
        try:
            yield
            end = End("replied")
        except CannotCount as no:
            end = rate.end_of(no.fault) if no.fault else End("answered")
            raise
        finally:
            self.ended(lane, number, end)

    def parked_until(self, model: str) -> float:
        """Until when nobody calls this model (Unix seconds); a moment that is past: nobody is held."""
        lane = self._lanes.get(model)
        return lane.parked_until if lane else 0.0

    def heed(self, notice: RateNotice) -> None:
        """What another process, or an earlier one, heard. What is known already, or was since, changes nothing."""
        if notice.at <= self._known_at.get(notice.model, 0.0):
            return
        self._known_at[notice.model] = notice.at
        if notice.fault is None:
            self._refusals.pop(notice.model, None)
        else:
            self._refuse(notice.model, Refusal(notice.fault, notice.at, self._newest))
        if notice.parked_until > self._clock.now():
            self._lanes[notice.model] = rate.heed(self._lane(notice.model), notice.parked_until, notice.why)
        self.turn()

    # For `Call`

    def now(self) -> float:
        return self._clock.now()

    def known_fault(self, asking: Asking) -> Fault | None:
        """What a call is refused with that does not go out; None for one that may."""
        now = self._clock.now()
        found = self._refused(asking.model)
        for refusal in found.values():
            if not may_go(refusal, asking.person, now):
                return known_fault(refusal)
        for scope, refusal in found.items():  # this one sees whether it is still so
            self._refusals[scope] = replace(refusal, tried_at=now)
        return None

    async def wait(self, asking: Asking, arrived: float) -> tuple[int, str]:
        """Stand in line until it is this one's turn: its number, and what held it, if anything. It is in flight then.
        Raises `CallFault` when the key turns out to be at fault meanwhile."""
        self._newest += 1
        one = rate.waiter(self._newest, asking.rank, arrived, asking.tokens)
        self._lanes[asking.model] = rate.join(self._lane(asking.model), one)
        place = self._places[one.number] = _Place(asking.model)
        try:
            self.turn()
            why = "" if place.went else self._why(asking.model)
            while not place.went:
                slept_until = await place.stirring(self._clock)
                if place.fault is not None:
                    raise CallFault(place.fault)
                if slept_until is not None:
                    self.turn(at_least=slept_until)
        except BaseException:
            if place.went:
                self.ended(asking.model, one.number, End("gone"))
            else:
                self._lanes[asking.model] = rate.leave(self._lane(asking.model), one.number)
            raise
        finally:
            self._places.pop(one.number, None)
            self.turn()
        return one.number, why

    def headed(self, model: str, number: int, rates: Rates) -> None:
        self._lanes[model] = rate.headed(self._lane(model), number, rates, self._clock.now())
        self.turn()

    def answered(self, model: str, number: int) -> None:
        self._lanes[model] = rate.answered(self._lane(model), number)
        self._is_good(model, number)
        self.turn()

    def ended(self, model: str, number: int, end: End, fault: Fault | None = None) -> None:
        now = self._clock.now()
        before = self._lane(model)
        lane = self._lanes[model] = rate.ended(before, number, end, now)
        if lane.parked_until > before.parked_until:
            self._tell(RateNotice(model=model, at=now, parked_until=lane.parked_until, why=lane.why))
        scope = scope_of(fault, model) if fault is not None else None
        if fault is not None and scope is not None:
            self._refuse(scope, Refusal(fault, now, self._newest))
            self._tell(RateNotice(model=scope, at=now, why=end.why, fault=known_fault(self._refusals[scope])))
        elif end.how in ("replied", "answered"):
            self._is_good(model, number)
        self.turn()

    def turn(self, at_least: float = 0.0) -> None:
        """Let go whoever may go now, in order, and tell the first in each line how long to sleep. `at_least`: a moment
        that was slept until, and is now by any clock's rounding."""
        now = max(self._clock.now(), at_least)
        while True:
            blocked: dict[str, Held | None] = {m: rate.held(one, now) for m, one in self._lanes.items() if one.waiters}
            room = sum(len(lane.flights) for lane in self._lanes.values()) < self._at_once
            free = [(self._lanes[model].waiters[0], model) for model, held in blocked.items() if held is None]
            if not room or not free:
                break
            model = min(free)[1]
            self._lanes[model], gone = rate.let_go(self._lanes[model], now)
            self._places[gone.number].go()
        for model, held in blocked.items():
            self._places[self._lanes[model].waiters[0].number].sleep(held.until if held else None)

    def _lane(self, model: str) -> Lane:
        return self._lanes.get(model) or Lane(self._at_once)

    def _why(self, model: str) -> str:
        held = rate.held(self._lane(model), self._clock.now())
        return held.why if held else f"{self._at_once} calls are in flight"

    def _refuse(self, scope: str, refusal: Refusal) -> None:
        """The key is at fault: everyone whom it concerns is refused at once, and no call goes out."""
        self._refusals[scope] = refusal
        for number, place in self._places.items():
            if scope in (ALL_MODELS, place.model) and not place.went:
                self._lanes[place.model] = rate.leave(self._lane(place.model), number)
                place.refuse(known_fault(refusal))

    def _refused(self, model: str) -> dict[str, Refusal]:
        """What is known to be refused of this model, by scope."""
        return {scope: one for scope in (ALL_MODELS, model) if (one := self._refusals.get(scope)) is not None}

    def _is_good(self, model: str, number: int) -> None:
        """The service took the key for this call: whatever it was refused for before is mended. A count is free: it
        proves nothing."""
        if model.startswith(COUNTS):
            return
        for scope, refusal in self._refused(model).items():
            if refusal.outdated_by(number):
                del self._refusals[scope]
                self._tell(RateNotice(model=scope, at=self._clock.now()))

    def _tell(self, notice: RateNotice) -> None:
        self.notices[notice.model] = notice
        self._known_at[notice.model] = notice.at
        self.news.set()
        self.news = anyio.Event()


class Governors:
    """The governors of a process: one for each key, shared by all sessions that the process hosts."""

    def __init__(self, clock: Clock, at_once: int = CALLS_AT_ONCE) -> None:
        self._clock, self._at_once = clock, at_once
        self._by_key: dict[str, Governor] = {}

    def of(self, key: str) -> Governor:
        """That of a key, by its digest."""
        if key not in self._by_key:
            self._by_key[key] = Governor(self._clock, self._at_once, key)
        return self._by_key[key]


class Call:
    """A call in flight, or about to be."""

    def __init__(self, governor: Governor, asking: Asking, prefix: Prefix | None) -> None:
        self.held = 0.0
        """Seconds that it was held for the service's rate."""
        self.why = ""
        self.given: float | None = None
        """Tokens that it used of the limits, once they are known: input, and output."""
        self.made: float | None = None
        self._governor, self._asking = governor, asking
        self._prefix = PrefixPlace(governor.prefixes, prefix)
        self._number = 0
        self._answered = False

    async def wait(self) -> None:
        """Until it may go. Raises `CallFault` for one that may not at all."""
        arrived = self._governor.now()
        await self._prefix.wait()
        known = self._governor.known_fault(self._asking)
        if known is not None:
            raise CallFault(known)
        began = self._governor.now()
        self._number, self.why = await self._governor.wait(self._asking, arrived)
        self.held = self._governor.now() - began

    def headed(self, rates: Rates) -> None:
        """The head of its answer said what is left of the limits."""
        self._governor.headed(self._asking.model, self._number, rates)

    def begun(self) -> None:
        """Its reply has begun. Cheap when called again."""
        if not self._answered:
            self._answered = True
            self._prefix.begun()
            self._governor.answered(self._asking.model, self._number)

    def used(self, usage: Usage) -> None:
        """What it used, in tokens. What the service read from its cache counts towards no limit."""
        self.given = float(usage.input_tokens + usage.cache_creation_input_tokens)
        self.made = float(usage.output_tokens)

    def ended(self, end: End, rates: Rates | None = None, fault: Fault | None = None) -> None:
        """It is over."""
        if end.how == "replied":
            self._prefix.begun()
        else:
            self._prefix.failed()
        if self._number and rates is not None:
            self._governor.headed(self._asking.model, self._number, rates)
        if self._number:
            self._governor.ended(self._asking.model, self._number, end, fault)


class _Place:
    """A task that waits."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.went = False
        self.fault: Fault | None = None
        self.until: float | None = None
        """When to look again, for the first in line."""
        self._news = False
        """Something has changed for it that it has not heard."""
        self._stirred: anyio.Event | None = None
        """Set at the next change; most go at once, and there is none then."""

    def go(self) -> None:
        self.went = True
        self._stir()

    def refuse(self, fault: Fault) -> None:
        self.fault = fault
        self._stir()

    def sleep(self, until: float | None) -> None:
        """It stands first, and may go then at the latest."""
        if until != self.until:
            self.until = until
            self._stir()

    def _stir(self) -> None:
        self._news = True
        if self._stirred is not None:
            self._stirred.set()

    async def stirring(self, clock: Clock) -> float | None:
        """Return when something has changed for this one: None; or its moment has come: the moment."""
        stirred = self._stirred = anyio.Event()
        until = self.until
        if self._news:
            stirred.set()
        if until is None or self._news:
            await stirred.wait()
            self._news = False
            return None
        async with anyio.create_task_group() as group:
            group.start_soon(_cancel_at, until, clock, group.cancel_scope)
            await stirred.wait()
            group.cancel_scope.cancel()
        if self._news:
            self._news = False
            return None
        self.until = None
        return until


async def _cancel_at(when: float, clock: Clock, scope: anyio.CancelScope) -> None:
    await clock.sleep_until(when)
    scope.cancel()
