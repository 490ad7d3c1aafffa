"""The rate machine under everything that may happen, and beside services that keep their limits in either way."""

from __future__ import annotations

import heapq
import os
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.adapters.models.anthropic.stated_limits import rates_of
from callboard.adapters.models.rehearsal.rates import KeyLimits, RateMeter
from callboard.core.rate_limits import limiter as rate
from callboard.core.rate_limits.limiter import ALLOWANCE, CallEnd, ModelLimiter, Rank, WaitingCall

SOAK = int(os.environ.get("SOAK", "1"))
NOW = 1_800_000_000.0
RANKS: tuple[Rank, ...] = ("lead", "teammate", "background")


@dataclass
class World:
    """One lane, whatever happens to it, and what must be so all the time."""

    limiter: ModelLimiter = field(default_factory=lambda: ModelLimiter(8))
    now: float = NOW
    asked: dict[int, tuple[Rank, float]] = field(default_factory=dict[int, tuple[Rank, float]])
    gone: list[int] = field(default_factory=list[int])
    numbers: int = 0

    def act(self, draw: int) -> None:
        flights = sorted(self.limiter.flights)
        waiting = [one.number for one in self.limiter.waiters]
        ends = (
            CallEnd("replied", input=5, output=7),
            CallEnd("limited", draw % 7 * 0.5),
            CallEnd("limited"),
            CallEnd("overloaded"),
            CallEnd("failed"),
            CallEnd("answered"),
            CallEnd("gone"),
        )
        match draw % 6:
            case 0 | 1:
                self.numbers += 1
                rank = RANKS[draw // 6 % 3]
                self.asked[self.numbers] = rank, self.now
                self.limiter = rate.add_waiting(
                    self.limiter, rate.waiting_call(self.numbers, rank, self.now, draw % 100)
                )
            case 2 if flights:
                self.limiter = rate.apply_end(
                    self.limiter, flights[draw // 6 % len(flights)], ends[draw // 36 % 7], self.now
                )
            case 3 if flights:
                told = rates_of(METER.headers(self.now), self.now) if draw % 5 else None
                number = flights[draw // 6 % len(flights)]
                self.limiter = rate.apply_headers(self.limiter, number, told or {}, self.now)
                self.limiter = rate.apply_reply_start(self.limiter, number)
            case 4 if waiting and draw % 4 == 0:
                self.limiter = rate.remove_waiting(self.limiter, waiting[draw // 6 % len(waiting)])
            case 5 if draw % 9 == 0:
                self.limiter = rate.apply_notice(self.limiter, self.now + draw % 30, "another")
            case _:
                self.now += draw % 50 / 10
        self.let_go()

    def let_go(self) -> None:
        while self.limiter.waiters and rate.delay_reason(self.limiter, self.now) is None:
            before = self.limiter
            self.limiter, one = rate.send_first(self.limiter, self.now)
            self.gone.append(one.number)
            self.check(before, one)

    def check(self, before: ModelLimiter, one: WaitingCall) -> None:
        alone = [flight for flight in before.flights.values() if flight.alone and flight.sent_at > self.now - 30]
        assert self.now >= before.parked_until, "nobody goes while all are parked"
        assert not (before.careful and alone), "one goes alone, not a herd"
        assert before.careful or len(before.flights) < max(1, int(before.window)), "never more than the window"
        assert len(before.flights) < before.most or before.careful
        rank, arrived = self.asked[one.number]
        passed = [number for number in (other.number for other in before.waiters) if self.before(number, rank, arrived)]
        assert passed == [], "who comes first by the allowances goes first"

    def before(self, number: int, rank: Rank, arrived: float) -> bool:
        """That other one should have gone before."""
        other, since = self.asked[number]
        return since + ALLOWANCE[other] < arrived + ALLOWANCE[rank]


METER = RateMeter(KeyLimits(requests=30, refill="bucket"))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 10_000), max_size=120))
def test_whatever_happens_the_window_the_order_and_the_park_hold_and_all_go_in_the_end(draws: list[int]) -> None:
    check_all(draws)


@pytest.mark.soak
@settings(max_examples=10_000 * SOAK, deadline=None)
@given(st.lists(st.integers(0, 10_000), max_size=200))
def test_in_very_many_lives_of_a_lane_the_same_holds(draws: list[int]) -> None:
    check_all(draws)


def check_all(draws: list[int]) -> None:
    """The invariants while all this happens, and that nobody is left behind when it is over."""
    world = World()
    for draw in draws:
        world.act(draw)
    waiting = len(world.limiter.waiters)
    for _ in range(4 * (waiting + len(world.limiter.flights)) + 4):  # each goes, is told of, and ends
        for number in sorted(world.limiter.flights):
            world.limiter = rate.apply_end(world.limiter, number, CallEnd("replied"), world.now)
        world.let_go()
        if not world.limiter.waiters:
            break
        held = rate.delay_reason(world.limiter, world.now)
        if held is not None:
            assert held.until is not None or world.limiter.flights, "somebody waits for what never comes"
            world.now = max(world.now, held.until or world.now)
            world.let_go()
    assert world.limiter.waiters == ()
    assert len(world.gone) == len(set(world.gone)), "nobody goes twice"


# Beside a service


@dataclass
class Run:
    """What a team got out of a service in some minutes of simulated time."""

    useful: int = 0
    refused: int = 0
    calls: Counter[int] = field(default_factory=Counter[int])


def simulate(refill: Literal["window", "bucket"], seed: int, limit: int, agents: int = 100, minutes: int = 3) -> Run:
    """Agents that always want a call, beside a service that keeps its limit in one of the two ways; answers take their
    time, and overtake each other."""
    rand, meter, run = random.Random(seed), RateMeter(KeyLimits(requests=limit, refill=refill)), Run()
    limiter, now, number, look = ModelLimiter(256), NOW + rand.random(), 0, 0.0
    agent_of: dict[int, int] = {}
    refused_by: dict[int, float | None] = {}
    due: list[tuple[float, int, str, int]] = [(now + rand.random(), n, "ask", n) for n in range(agents)]
    heapq.heapify(due)
    while due and due[0][0] < NOW + 60 * minutes:
        now, _, what, which = heapq.heappop(due)
        if what == "ask":
            number += 1
            agent_of[number] = which
            limiter = rate.add_waiting(limiter, rate.waiting_call(number, "lead" if which == 0 else "teammate", now))
        elif what == "head":
            limiter = rate.apply_headers(limiter, which, rates_of(meter.headers(now), now) or {}, now)
            if refused_by[which] is not None:
                limiter = rate.apply_end(limiter, which, CallEnd("limited", refused_by[which]), now)
                run.refused += 1
                heapq.heappush(due, (now + (refused_by[which] or 1), which, "ask", agent_of[which]))
            else:
                limiter = rate.apply_reply_start(limiter, which)
                heapq.heappush(due, (now + 0.2 + rand.random(), which, "end", which))
        elif what == "end":
            limiter = rate.apply_end(limiter, which, CallEnd("replied"), now)
            run.useful += 1
            heapq.heappush(due, (now + 0.05, which, "ask", agent_of[which]))
        while limiter.waiters and rate.delay_reason(limiter, now) is None:
            limiter, one = rate.send_first(limiter, now)
            run.calls[agent_of[one.number]] += 1
            error = meter.admit(1, now)
            refused_by[one.number] = None if error is None else error.retry_after
            heapq.heappush(due, (now + 0.05 + 0.1 * rand.random(), one.number, "head", one.number))
        held = rate.delay_reason(limiter, now) if limiter.waiters else None
        if held is not None and held.until is not None and held.until != look:
            look = held.until
            heapq.heappush(due, (look, 0, "look", 0))
    return run


@pytest.mark.slow(keep=1)
@pytest.mark.parametrize("refill", ["window", "bucket"])
@pytest.mark.parametrize("limit", [50, 600])
def test_a_team_gets_what_the_service_allows_and_is_hardly_ever_refused(
    refill: Literal["window", "bucket"], limit: int
) -> None:
    for seed in range(2):
        run = simulate(refill, seed, limit)
        allowed = limit * 3 + (limit if refill == "bucket" else 0)
        assert run.useful >= 0.95 * allowed - 3, (seed, run.useful, allowed)
        # The 16 calls that a new key is asked with before it has said anything are fewer than any limit.
        assert run.refused <= 0.02 * (run.useful + run.refused) + 1, (seed, run.refused)
        mates = [run.calls[agent] for agent in range(1, 100)]
        assert max(mates) <= 1.5 * min(mates) + 2, (seed, run.calls)
        # Within an open window of 600 nobody waits, so that the calls of agents differ by chance.
        assert run.calls[0] + 2 >= sorted(mates)[len(mates) // 2], "the lead does not wait for longer than they do"
