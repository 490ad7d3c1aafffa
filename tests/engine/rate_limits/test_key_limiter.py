"""Calls that share a prefix: one goes ahead, the others follow once it has begun; whatever happens, nobody hangs.

What the service's rate has to do with it stands in `test_rates.py`."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress

import anyio
import pytest
from anyio.abc import TaskGroup

from callboard.core.rate_limits.limiter import Rank
from callboard.engine.rate_limits.limiter import CallPriority, KeyLimiter, LimitedCall
from callboard.engine.rate_limits.prefix_leader import LONGEST_WAIT, SharedPrefix
from callboard.ports.model import CallFault
from callboard.testing import SteadyClock
from callboard.types.records import Fault

pytestmark = pytest.mark.anyio
PREFIX, OTHER = SharedPrefix("p", 300.0), SharedPrefix("q", 300.0)


class Calls:
    """Calls as a test drives them: each begins, ends or fails when it is told to."""

    def __init__(self, group: TaskGroup, at_once: int = 256) -> None:
        self.clock = SteadyClock()
        self.key_limiter = KeyLimiter(self.clock, at_once)
        self.group = group
        self.going: list[str] = []
        self._told: dict[str, anyio.Event] = {}
        self._fate: dict[str, str] = {}
        self._scopes: dict[str, anyio.CancelScope] = {}
        self._moved = anyio.Event()

    def start(self, *names: str, prefix: SharedPrefix | None = PREFIX) -> None:
        for name in names:
            self.group.start_soon(self._call, name, prefix)

    def tell(self, name: str, fate: str) -> None:
        """`begin`: its reply has begun, and it ends; `fail`; `end`: without a single delta."""
        self._fate[name] = fate
        self._told[name].set()

    def cancel(self, name: str) -> None:
        self._scopes[name].cancel()

    async def going_are(self, *names: str) -> None:
        """Wait until exactly these have gone, and nobody else goes. Those let go together go in any order."""
        while len(self.going) < len(names):
            await self._moved.wait()
        await anyio.wait_all_tasks_blocked()
        assert sorted(self.going) == sorted(names)

    async def _call(self, name: str, prefix: SharedPrefix | None) -> None:
        self._told[name] = anyio.Event()
        with anyio.CancelScope() as scope:
            self._scopes[name] = scope
            try:
                async with self.key_limiter.slot(prefix=prefix) as call:
                    self.going.append(name)
                    self._moved.set()
                    self._moved = anyio.Event()
                    await self._told[name].wait()
                    if self._fate[name] == "begin":
                        call.mark_reply_started()
                    if self._fate[name] == "fail":
                        raise ConnectionError
            except ConnectionError:
                return


@asynccontextmanager
async def calls(at_once: int = 256) -> AsyncGenerator[Calls]:
    async with anyio.create_task_group() as group:
        yield Calls(group, at_once)
        group.cancel_scope.cancel()


async def one_by_one(made: Calls, *names: str) -> None:
    """Start them in this order."""
    for name in names:
        made.start(name)
        await anyio.wait_all_tasks_blocked()


@pytest.mark.parametrize("fate", ["begin", "end"])
async def test_one_goes_and_the_rest_follow_when_its_reply_has_begun(fate: str) -> None:
    async with calls() as made:
        await one_by_one(made, "a", "b", "c")
        await made.going_are("a")
        made.tell("a", fate)
        await made.going_are("a", "b", "c")


async def test_a_warm_prefix_lets_everyone_through_until_it_is_cold() -> None:
    async with calls() as made:
        await one_by_one(made, "a")
        made.tell("a", "begin")
        await one_by_one(made, "b", "c")
        await made.going_are("a", "b", "c")


@pytest.mark.parametrize("anyio_backend", ["trio"], indirect=True)
async def test_a_prefix_that_went_cold_is_led_anew() -> None:
    async with calls() as made:
        await one_by_one(made, "a")
        made.tell("a", "begin")
        await anyio.sleep(PREFIX.ttl - 1)
        await one_by_one(made, "b")
        made.tell("b", "begin")  # its use keeps the prefix warm
        await anyio.sleep(PREFIX.ttl - 1)
        await one_by_one(made, "c")
        await made.going_are("a", "b", "c")
        await anyio.sleep(2)
        await one_by_one(made, "d", "e")
        await made.going_are("a", "b", "c", "d")


async def test_other_prefixes_and_calls_without_one_do_not_wait() -> None:
    async with calls() as made:
        await one_by_one(made, "a")
        made.start("b", prefix=OTHER)
        made.start("c", prefix=None)
        await anyio.wait_all_tasks_blocked()
        assert sorted(made.going) == ["a", "b", "c"]


async def test_a_leader_that_fails_hands_over_to_the_next_in_line() -> None:
    async with calls() as made:
        await one_by_one(made, "a", "b", "c", "d")
        made.tell("a", "fail")
        await made.going_are("a", "b")
        made.tell("b", "fail")
        await made.going_are("a", "b", "c")
        made.tell("c", "begin")
        await made.going_are("a", "b", "c", "d")


@pytest.mark.parametrize("cancelled", ["a", "b"])
async def test_a_cancelled_call_leaves_the_line(cancelled: str) -> None:
    """As the one that leads it, and as one that stands in it."""
    async with calls() as made:
        await one_by_one(made, "a", "b", "c")
        made.cancel(cancelled)
        await anyio.wait_all_tasks_blocked()
        expected = ["a", "b"] if cancelled == "a" else ["a"]
        assert made.going == expected
        made.tell(expected[-1], "begin")
        await made.going_are(*expected, "c")


async def test_one_that_is_cancelled_as_it_is_handed_the_lead_passes_it_on() -> None:
    async with calls() as made:
        await one_by_one(made, "a", "b", "c")
        made.tell("a", "fail")
        made.cancel("b")
        await anyio.wait_all_tasks_blocked()
        assert made.going[-1] == "c"


@pytest.mark.parametrize("anyio_backend", ["trio"], indirect=True)
async def test_nobody_waits_longer_than_the_bound() -> None:
    async with calls() as made:
        await one_by_one(made, "a", "b", "c")
        await anyio.sleep(LONGEST_WAIT - 1)
        assert made.going == ["a"]
        await anyio.sleep(2)
        assert sorted(made.going) == ["a", "b", "c"]


@pytest.mark.parametrize("anyio_backend", ["trio"], indirect=True)
async def test_a_leader_that_finds_no_slot_holds_nobody_for_ever() -> None:
    async with calls(at_once=1) as made:
        made.start("long", prefix=None)
        await anyio.wait_all_tasks_blocked()
        await one_by_one(made, "a", "b")
        made.tell("long", "end")
        await made.going_are("long", "a")
        made.tell("a", "begin")
        await made.going_are("long", "a", "b")


async def test_a_call_that_ends_leaves_no_line_behind() -> None:
    ends: list[Callable[[Calls], None]] = [lambda m: m.tell("a", "fail"), lambda m: m.cancel("a")]
    for end in ends:
        async with calls() as made:
            await one_by_one(made, "a")
            end(made)
            await one_by_one(made, "b")
            assert made.going == ["a", "b"], "at once, and not when the bound is over"


@pytest.mark.parametrize("anyio_backend", ["trio"], indirect=True)
async def test_whatever_is_cancelled_refused_or_lost_no_place_is_and_nobody_hangs() -> None:
    for seed in range(8):
        await storm(random.Random(seed))


@pytest.mark.soak
@pytest.mark.parametrize("anyio_backend", ["trio"], indirect=True)
async def test_in_many_storms_no_place_is_lost(soak: int) -> None:
    for seed in range(500 * soak):
        await storm(random.Random(seed))


class Storm:
    """Calls that end in every way, at every moment."""

    def __init__(self, rand: random.Random) -> None:
        self.key_limiter = KeyLimiter(SteadyClock(), at_once=5)
        self.rand = rand
        self.in_flight = self.most = self.ended = 0

    async def one(self) -> None:
        rank: Rank = self.rand.choice(("lead", "teammate", "background"))
        asking = CallPriority(self.rand.choice(("m", "n")), rank)
        await anyio.sleep(self.rand.random() * 5)
        with anyio.move_on_after(self.rand.choice((0.0, 0.5, 3.0, 1_000.0))), suppress(CallFault):
            async with self.key_limiter.slot(asking, self.rand.choice((PREFIX, OTHER, None))) as call:
                await self.fly(call)
        self.ended += 1

    async def fly(self, call: LimitedCall) -> None:
        limited, overloaded = Fault(kind="rate_limited", retry_after=2.0), Fault(kind="overloaded")
        fault = self.rand.choice((limited, overloaded, Fault(kind="server"), None, None))
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        try:
            await anyio.sleep(self.rand.random())
            if fault is not None:
                raise CallFault(fault)
            call.mark_reply_started()
            await anyio.sleep(self.rand.random())
        finally:
            self.in_flight -= 1


async def storm(rand: random.Random) -> None:
    """In the end the rate limiter is as good as new."""
    made = Storm(rand)
    with anyio.fail_after(3_000):
        async with anyio.create_task_group() as group:
            for _ in range(60):
                group.start_soon(made.one)
        assert (made.ended, made.in_flight) == (60, 0)
        assert made.most <= 5
        await anyio.sleep(100)  # what was parked is over
        for model in ("m", "n", "m"):
            async with made.key_limiter.slot(CallPriority(model)) as call:
                assert call.delay == 0


async def test_a_bug_in_a_call_frees_its_place() -> None:
    key_limiter = KeyLimiter(SteadyClock(), at_once=1)
    for _ in range(3):
        with anyio.fail_after(30):
            with pytest.raises(ZeroDivisionError):
                await divide(key_limiter)


async def divide(key_limiter: KeyLimiter) -> None:
    async with key_limiter.slot():
        raise ZeroDivisionError
