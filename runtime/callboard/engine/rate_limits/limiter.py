"""I/O shell of `callboard.core.rate_limits.limiter`: calls of all sessions of a process wait here until they may go.

The core decides the order and the times of the calls; this module has the waiting tasks. Calls that a person waits for
come first. Nothing polls: a call waits for its turn, and the first in line also sleeps until the time at which it may
go. However a call ends, even cancelled, its place is freed: `slot` is the only way in and out.

The rate state of one key is shared between processes through their common store. One row for each model has the end of
a park, one for the key has a refusal. A row is written when a time changes by more than a second, so that a flood of
refusals writes one row.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
from pydantic import ValidationError

from callboard.core.agent.state import AgentState
from callboard.core.keys import RATES, count_words, rate_key
from callboard.core.rate_limits import limiter as limiter_rules
from callboard.core.rate_limits.key_state import (
    ALL_MODELS,
    COUNTS_PREFIX,
    KeyRefusal,
    count_limiter_name,
    known_fault,
    may_send,
    scope_of,
)
from callboard.core.rate_limits.limiter import CallEnd, DelayReason, ModelLimiter, Rank
from callboard.core.recovery.fallback import chain_of
from callboard.engine.rate_limits.prefix_leader import Prefixes, PrefixPlace, SharedPrefix
from callboard.ports.environment import Clock
from callboard.ports.model import CallFault, CannotCount, ModelRequest
from callboard.ports.notifier import Notifier
from callboard.ports.store import Put, Row, Store
from callboard.ports.store_reading import rows_of
from callboard.types.lazy_dataclass import dataclass
from callboard.types.rate_limits import RateNotice, Rates
from callboard.types.records import Fault, Usage

CALLS_AT_ONCE = 256
"""Most model calls in flight for one key in one process."""
JOURNALLED_WAIT = 1.0
"""Seconds after which a wait is journalled (`CallHeld`)."""


@dataclass(frozen=True, slots=True)
class CallPriority:
    """Facts of a requested call that decide its place in the order."""

    model: str = ""
    rank: Rank = "teammate"
    tokens: float = 0.0
    """Approximate input tokens; only proportions between calls matter."""
    person: bool = False
    """True for a new prompt of the user: it is sent even if the key is known to be refused or parked."""
    patience: float = math.inf
    """Most seconds to wait for a parked model. An agent that can use another model waits no longer."""


DEFAULT_PRIORITY = CallPriority()


class KeyLimiter:
    """Rate limiter of one API key: it limits the calls in flight, orders the waiting ones, and parks them together."""

    def __init__(self, clock: Clock, at_once: int = CALLS_AT_ONCE, key: str = "") -> None:
        """Create a limiter. `key`: a digest of the API key, shared by the processes of one store."""
        self.key = key
        self.prefixes = Prefixes(clock)
        self.notices: dict[str, RateNotice] = {}
        """Newest notice from the service itself, for each model and for the key."""
        self.news = Notifier()
        """Notifier of changes of `notices` and of the known end of a park."""
        self.stated: dict[str, tuple[int | None, int | None]] = {}
        """Model -> the output limit and the window that the service stated in a refusal."""
        self._clock = clock
        self._at_once = at_once
        self._limiters: dict[str, ModelLimiter] = {}
        self._waiting: dict[int, _WaitingTask] = {}
        """Waiting calls by number."""
        self._refusals: dict[str, KeyRefusal] = {}
        self._known_at: dict[str, float] = {}
        """Time of the newest notice about a model or the key, from any process."""
        self._newest = 0
        """Number of the newest call."""

    def slot(self, priority: CallPriority = DEFAULT_PRIORITY, prefix: SharedPrefix | None = None) -> LimitedCall:
        """Return a context that holds a place among the calls in flight, once it is this call's turn.

        Of calls with a common prefix that the service has not cached, the first goes and the others wait until its
        reply begins, or it fails and the next one goes, or `LONGEST_WAIT` has passed. Entering it raises `CallFault`
        with the known fault, without a call, if the key is at fault.
        """
        return LimitedCall(self, priority, prefix)

    @asynccontextmanager
    async def count_slot(self, priority: CallPriority) -> AsyncGenerator[None]:
        """Hold a place among the token counts for this model.

        Counts have a separate limiter: their refusals delay no message, and their success says nothing about messages.
        Raises `CallFault` with the known fault if the key is at fault: no count is used as a probe.
        """
        limiter = count_limiter_name(priority.model)
        # A count does not probe the key (test_no_count_goes_out_with_a_refused_key_and_none_says_that_it_is_good).
        for refusal in self._refusals_of(priority.model).values():
            raise CallFault(known_fault(refusal))
        number, _ = await self.wait(CallPriority(limiter, priority.rank, priority.tokens), self._clock.now())
        end = CallEnd("cancelled")
        try:
            yield
            end = CallEnd("replied")
        except CannotCount as no:
            end = limiter_rules.end_of(no.fault) if no.fault else CallEnd("answered")
            raise
        finally:
            self.apply_end(limiter, number, end)

    def parked_until(self, model: str) -> float:
        """Return the time until which no call goes to this model (Unix seconds); a past time: it is not parked."""
        limiter = self._limiters.get(model)
        return limiter_rules.parked_until(limiter, self._clock.now()) if limiter else 0.0

    def named_until(self, model: str) -> float:
        """Return the end of the wait that the service named for this model; a past time: none."""
        limiter = self._limiters.get(model)
        return limiter.named_until if limiter and limiter_rules.parked_until(limiter, self._clock.now()) else 0.0

    def handle_notice(self, notice: RateNotice) -> None:
        """Apply a notice from another or an earlier process.

        A notice that is not newer than the known state changes nothing.
        """
        # The watch also delivers the notices of this process.
        if notice.at <= self._known_at.get(notice.model, 0.0):
            return
        self._known_at[notice.model] = notice.at
        if notice.fault is None:
            self._refusals.pop(notice.model, None)
        else:
            self._refuse(notice.model, KeyRefusal(notice.fault, notice.at, self._newest))
        limiter = self._limiter_of(notice.model)
        parked = notice.parked_until > self._clock.now()
        self._limiters[notice.model] = (
            limiter_rules.apply_notice(limiter, notice) if parked else limiter_rules.end_wait(limiter)
        )
        self.news.notify()
        self.release_calls()

    # For `LimitedCall`

    def now(self) -> float:
        return self._clock.now()

    def known_fault(self, priority: CallPriority) -> Fault | None:
        """Return the fault with which a call is refused without being sent; None if the call may go."""
        now = self._clock.now()
        refusals = self._refusals_of(priority.model)
        for refusal in refusals.values():
            if not may_send(refusal, priority.person, now):
                return known_fault(refusal)
        for scope, refusal in refusals.items():  # this call finds out if the refusal still applies
            self._refusals[scope] = replace(refusal, tried_at=now)
        return None

    async def wait(self, priority: CallPriority, arrived: float) -> tuple[int, str]:
        """Wait in line. Return the call's number and the reason for any delay; the call is then in flight.

        Raises `CallFault` if the key turns out to be at fault in the meantime.
        """
        self._newest += 1
        waiter = limiter_rules.waiting_call(
            self._newest, priority.rank, arrived, priority.tokens, person=priority.person
        )
        limiter = self._limiters[priority.model] = limiter_rules.add_waiting(self._limiter_of(priority.model), waiter)
        now = self._clock.now()
        if not self._waiting and self._in_flight() < self._at_once and limiter_rules.delay_reason(limiter, now) is None:
            # nobody waits, and nothing holds it back
            self._limiters[priority.model], _ = limiter_rules.send_first(limiter, now)
            return waiter.number, ""
        task = self._waiting[waiter.number] = _WaitingTask(priority)
        try:
            self.release_calls()
            reason = "" if task.released else self._reason_to_wait(priority.model)
            while not task.released:
                slept_until = await task.until_changed_or_due(self._clock)
                if task.fault is not None:
                    raise CallFault(task.fault)
                if slept_until is not None:
                    self.release_calls(at_least=slept_until)
        except BaseException:
            if task.released:
                self.apply_end(priority.model, waiter.number, CallEnd("cancelled"))
            else:
                self._limiters[priority.model] = limiter_rules.remove_waiting(
                    self._limiter_of(priority.model), waiter.number
                )
            raise
        finally:
            self._waiting.pop(waiter.number, None)
            self.release_calls()
        return waiter.number, reason

    def apply_headers(self, model: str, number: int, rates: Rates) -> None:
        self._limiters[model] = limiter_rules.apply_headers(self._limiter_of(model), number, rates, self._clock.now())
        self.release_calls()

    def mark_urgent(self, priority: CallPriority) -> None:
        """Let this call try a parked model at once if it is still in line, because the user sent a new prompt."""
        for number, task in self._waiting.items():
            if task.priority is priority and not task.released:
                self._limiters[priority.model] = limiter_rules.mark_urgent(self._limiter_of(priority.model), number)
                break
        self.release_calls()

    def apply_reply_start(self, model: str, number: int) -> None:
        before = self._limiter_of(model)
        limiter = self._limiters[model] = limiter_rules.apply_reply_start(before, number)
        if before.parked_until and not limiter.parked_until:
            self._publish(RateNotice(model=model, at=self._clock.now()))
        self._clear_refusals(model, number)
        self.release_calls()

    def apply_end(self, model: str, number: int, end: CallEnd, fault: Fault | None = None) -> None:
        now = self._clock.now()
        before = self._limiter_of(model)
        limiter = self._limiters[model] = limiter_rules.apply_end(before, number, end, now)
        if limiter.parked_until > before.parked_until:
            named = limiter.named_until
            self._publish(
                RateNotice(
                    model=model, at=now, parked_until=limiter.parked_until, named_until=named, why=limiter.reason
                )
            )
            self._refuse_impatient(model, limiter, now)
        elif before.parked_until and not limiter.parked_until:
            self._publish(RateNotice(model=model, at=now))
        scope = scope_of(fault, model) if fault is not None else None
        if fault is not None and scope is not None:
            self._refuse(scope, KeyRefusal(fault, now, self._newest))
            self._publish(RateNotice(model=scope, at=now, why=end.reason, fault=known_fault(self._refusals[scope])))
        elif end.how in ("replied", "answered"):
            self._clear_refusals(model, number)
        self.release_calls()

    def release_calls(self, at_least: float = 0.0) -> None:
        """Release the calls that may go now, in order, and set how long the first in each line sleeps.

        `at_least`: a time that was slept until, and counts as now despite clock rounding.
        """
        if not self._waiting:
            return  # nobody waits: the usual case, four times in each call
        # By this clock a sleep may end just before its time. The call would then sleep again without reason.
        now = max(self._clock.now(), at_least)
        while True:
            blocked: dict[str, DelayReason | None] = {
                m: limiter_rules.delay_reason(limiter, now) for m, limiter in self._limiters.items() if limiter.waiters
            }
            free = [(self._limiters[model].waiters[0], model) for model, delay in blocked.items() if delay is None]
            if not free or self._in_flight() >= self._at_once:
                break
            model = min(free)[1]
            self._limiters[model], call = limiter_rules.send_first(self._limiters[model], now)
            self._waiting[call.number].release()
        for model, delay in blocked.items():
            self._waiting[self._limiters[model].waiters[0].number].sleep(delay.until if delay else None)

    def _in_flight(self) -> int:
        return sum(len(limiter.flights) for limiter in self._limiters.values())

    def _limiter_of(self, model: str) -> ModelLimiter:
        return self._limiters.get(model) or ModelLimiter(self._at_once)

    def _reason_to_wait(self, model: str) -> str:
        delay = limiter_rules.delay_reason(self._limiter_of(model), self._clock.now())
        return delay.reason if delay else f"{count_words(self._at_once, 'call')} in flight"

    def _refuse(self, scope: str, refusal: KeyRefusal) -> None:
        """Refuse all waiting calls of the scope at once, because the key is at fault."""
        self._refusals[scope] = refusal
        for number, task in self._waiting.items():
            if scope in (ALL_MODELS, task.priority.model) and not task.released:
                self._limiters[task.priority.model] = limiter_rules.remove_waiting(
                    self._limiter_of(task.priority.model), number
                )
                task.refuse(known_fault(refusal))

    def _refuse_impatient(self, model: str, limiter: ModelLimiter, now: float) -> None:
        """Refuse waiting calls that do not accept the wait that the service named.

        Such calls can use another model.
        """
        wait = limiter.named_until - now
        fault = Fault(kind="rate_limited", message=limiter.reason, retry_after=wait)
        for number, task in self._waiting.items():
            if task.priority.model == model and not task.released and wait > task.priority.patience:
                self._limiters[model] = limiter_rules.remove_waiting(self._limiter_of(model), number)
                task.refuse(fault)

    def _refusals_of(self, model: str) -> dict[str, KeyRefusal]:
        """Return the known refusals that concern this model, by scope."""
        if not self._refusals:
            return {}
        return {scope: refusal for scope in (ALL_MODELS, model) if (refusal := self._refusals.get(scope)) is not None}

    def _clear_refusals(self, model: str, number: int) -> None:
        """Clear known refusals, because the service accepted the key for this call. A count clears nothing."""
        if model.startswith(COUNTS_PREFIX):
            return
        for scope, refusal in self._refusals_of(model).items():
            # A call that was sent before the refusal does not disprove it
            # (test_an_answer_to_a_call_that_was_under_way_before_lifts_no_refusal).
            if refusal.outdated_by(number):
                del self._refusals[scope]
                self._publish(RateNotice(model=scope, at=self._clock.now()))

    def _publish(self, notice: RateNotice) -> None:
        self.notices[notice.model] = notice
        self._known_at[notice.model] = notice.at
        self.news.notify()


class KeyLimiters:
    """Rate limiters of a process: one for each key, shared by all sessions of the process."""

    def __init__(self, clock: Clock, at_once: int = CALLS_AT_ONCE) -> None:
        self._clock = clock
        self._at_once = at_once
        self._by_key: dict[str, KeyLimiter] = {}

    def of(self, key: str) -> KeyLimiter:
        """Return the limiter of a key, by its digest."""
        if key not in self._by_key:
            self._by_key[key] = KeyLimiter(self._clock, self._at_once, key)
        return self._by_key[key]


class LimitedCall:
    """Call in flight, or about to be sent. Its context begins when it may be sent, and ends with its reply or fault."""

    def __init__(self, key_limiter: KeyLimiter, priority: CallPriority, prefix: SharedPrefix | None) -> None:
        self.delay = 0.0
        """Seconds that the call was delayed by rate limits."""
        self.reason = ""
        self.input_tokens: float | None = None
        """Input and output tokens counted towards the limits, once known."""
        self.output_tokens: float | None = None
        self._key_limiter = key_limiter
        self._priority = priority
        self._prefix = PrefixPlace(key_limiter.prefixes, prefix)
        self._number = 0
        self._reply_started = False

    async def __aenter__(self) -> LimitedCall:
        try:
            await self._wait()
        except BaseException as error:
            self._failed(error)
            raise
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._failed(error)
            return
        self._prefix.mark_reply_started()
        self._end(CallEnd("replied", input=self.input_tokens, output=self.output_tokens))

    async def _wait(self) -> None:
        """Wait until the call may go. Raises `CallFault` if it may not go at all."""
        arrived = self._key_limiter.now()
        await self._prefix.wait()
        fault = self._key_limiter.known_fault(self._priority)
        if fault is not None:
            raise CallFault(fault)
        began = self._key_limiter.now()
        self._number, self.reason = await self._key_limiter.wait(self._priority, arrived)
        self.delay = self._key_limiter.now() - began

    def apply_headers(self, rates: Rates) -> None:
        """Apply the remaining limits from the headers of the response."""
        self._key_limiter.apply_headers(self._priority.model, self._number, rates)

    def mark_reply_started(self) -> None:
        """Note that the reply has begun. Cheap to call again."""
        if not self._reply_started:
            self._reply_started = True
            self._prefix.mark_reply_started()
            self._key_limiter.apply_reply_start(self._priority.model, self._number)

    def set_usage(self, usage: Usage) -> None:
        """Note the token usage of the call. Tokens read from the service's cache count towards no limit."""
        self.input_tokens = float(usage.input_tokens + usage.cache_creation_input_tokens)
        self.output_tokens = float(usage.output_tokens)

    def _failed(self, error: BaseException) -> None:
        self._prefix.give_up()
        if not isinstance(error, CallFault):
            self._end(CallEnd("cancelled"))
            return
        if self._number and error.rates is not None:
            self._key_limiter.apply_headers(self._priority.model, self._number, error.rates)
        self._end(limiter_rules.end_of(error.fault), error.fault)

    def _end(self, end: CallEnd, fault: Fault | None = None) -> None:
        if self._number:
            self._key_limiter.apply_end(self._priority.model, self._number, end, fault)


class _WaitingTask:
    """Waiting task."""

    def __init__(self, priority: CallPriority) -> None:
        self.priority = priority
        self.released = False
        self.fault: Fault | None = None
        self.until: float | None = None
        """Time of the next check, for the first in line."""
        self._changed = Notifier()
        self._seen = 0
        """Number of changes that the task has seen."""

    def release(self) -> None:
        self.released = True
        self._changed.notify()

    def refuse(self, fault: Fault) -> None:
        self.fault = fault
        self._changed.notify()

    def sleep(self, until: float | None) -> None:
        """Set the time at which the first in line may go at the latest."""
        if until != self.until:
            self.until = until
            self._changed.notify()

    async def until_changed_or_due(self, clock: Clock) -> float | None:
        """Wait for a change and return None, or until the set time and return it."""
        until = self.until
        if until is None or self._changed.changes != self._seen:
            self._seen = await self._changed.changed(self._seen)
            return None
        async with anyio.create_task_group() as group:
            group.start_soon(_cancel_at, until, clock, group.cancel_scope)
            await self._changed.changed(self._seen)
            group.cancel_scope.cancel()
        if self._changed.changes != self._seen:
            self._seen = self._changed.changes
            return None
        self.until = None
        return until


async def _cancel_at(when: float, clock: Clock, scope: anyio.CancelScope) -> None:
    await clock.sleep_until(when)
    scope.cancel()


_BYTES_PER_TOKEN = 4
"""Approximate bytes per token. The limiter learns the real counts; only proportions between calls matter."""


def priority_of(state: AgentState, request: ModelRequest) -> CallPriority:
    """Return the place of an agent's call in the order.

    A subagent ranks with teammates, because its caller waits for it.
    """
    size = len(request.shared_system) + len(request.own_blocks) + len(request.tools) + sum(map(len, request.messages))
    person = request.purpose == "turn" and state.model.recovery.prompted
    chain = chain_of(state.me)
    patient = request.purpose == "turn" and request.model == chain[-1]
    patience = math.inf if patient else state.me.max_wait
    return CallPriority(request.model, _rank(state, request), size / _BYTES_PER_TOKEN, person, patience)


def _rank(state: AgentState, request: ModelRequest) -> Rank:
    """Return the rank. Summaries and turns of schedules are in the background."""
    wakes = state.turn.wakes if state.turn is not None else ()
    if request.purpose == "summary" or state.me.charged_to or set(wakes) == {"scheduled"}:
        return "background"
    return "lead" if state.me.kind == "lead" else "teammate"


LEAST_CHANGE = 1.0
"""Seconds by which a time must change to be written again."""


async def catch_up(key_limiter: KeyLimiter, store: Store) -> None:
    """Apply the notices in the store, from before a restart or from other processes."""
    for row in await rows_of(store, rate_key(key_limiter.key, "")):
        _apply_notice(key_limiter, row)


async def share(key_limiter: KeyLimiter, store: Store, changed: Callable[[], None] = lambda: None) -> None:
    """Apply notices of other processes and write those of this one, until cancelled. Call `changed` after each."""
    async with anyio.create_task_group() as group:
        group.start_soon(_publish, key_limiter, store, changed)
        async with store.watch(rate_key(key_limiter.key, "")) as rows:
            async for row in rows:
                _apply_notice(key_limiter, row)
        group.cancel_scope.cancel()  # the store was closed


def _apply_notice(key_limiter: KeyLimiter, row: Row) -> None:
    notice = _notice(row)
    if notice is not None:
        key_limiter.handle_notice(notice)


def _notice(row: Row) -> RateNotice | None:
    """Return the notice of a row; None if a newer version or another program wrote it.

    No call waits because of such a row.
    """
    if row.value is None:
        return None
    try:
        return RateNotice.model_validate_json(row.value)
    except ValidationError:
        return None


async def _publish(key_limiter: KeyLimiter, store: Store, changed: Callable[[], None]) -> None:
    written: dict[str, RateNotice] = {}
    while True:
        changes = key_limiter.news.changes
        changed()
        for model, notice in list(key_limiter.notices.items()):
            # Each refused call moves the time by a little (test_a_flood_of_refusals_writes_few_rows).
            if _differs(written.get(model), notice):
                written[model] = notice
                await store.commit(Put(rate_key(key_limiter.key, model), notice.encode()))
        await key_limiter.news.changed(changes)


def _differs(before: RateNotice | None, after: RateNotice) -> bool:
    """Return True if the notice differs from the row. The end of a park or refusal is always written, once."""
    if before is None or (before.fault is None) != (after.fault is None) or not after.parked_until:
        return after is not before
    return after.parked_until > before.parked_until + LEAST_CHANGE


async def rates_of(store: Store) -> list[RateNotice]:
    """Return the newest notice for each key and model in this store."""
    rows = [_notice(row) for row in await store.keys(RATES)]
    return [notice for notice in rows if notice is not None]


async def reset_rates(store: Store, now: float) -> list[RateNotice]:
    """Remove parks and refusals in this store and in every process that uses it. Return the removed notices."""
    forgotten: list[RateNotice] = []
    for row in await store.keys(RATES):
        notice = _notice(row)
        if notice is None or not notice.holds:
            continue
        forgotten.append(notice)
        await store.commit(Put(row.key, RateNotice(model=notice.model, at=now).encode()))
    return forgotten
