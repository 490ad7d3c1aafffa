"""Who goes next, and when: the table of `callboard.core.rate_limits.limiter`, row by row."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from callboard.core.rate_limits import limiter as rate
from callboard.core.rate_limits.key_state import ALL_MODELS, TEST_INTERVAL, KeyRefusal, known_fault, may_send, scope_of
from callboard.core.rate_limits.limiter import INITIAL_WINDOW, TEST_TIMEOUT, CallEnd, ModelLimiter, Rank, end_of
from callboard.types.rate_limits import Allowance, RateNotice, Rates
from callboard.types.records import Fault, Usage

NOW = 1_800_000_000.0
SLOW = CallEnd("limited", 50.0, reason="slow")
OVERLOADED = CallEnd("overloaded", reason="overloaded")
REPLIED = CallEnd("replied")


@dataclass
class Calls:
    """A lane as a test drives it: numbers of calls, and seconds since the beginning."""

    limiter: ModelLimiter = field(default_factory=lambda: ModelLimiter(256))
    now: float = 0.0
    asked: int = 0

    def ask(self, *ranks: Rank, tokens: float = 0.0) -> None:
        for rank in ranks:
            self.asked += 1
            self.limiter = rate.add_waiting(self.limiter, rate.waiting_call(self.asked, rank, NOW + self.now, tokens))

    def go(self) -> list[int]:
        """All who may go now, in order."""
        gone: list[int] = []
        while self.limiter.waiters and rate.delay_reason(self.limiter, NOW + self.now) is None:
            self.limiter, one = rate.send_first(self.limiter, NOW + self.now)
            gone.append(one.number)
        return gone

    def mates(self, count: int) -> None:
        for _ in range(count):
            self.ask("teammate")

    def many(self, count: int) -> list[int]:
        self.mates(count)
        return self.go()

    def ends(self, number: int, end: CallEnd = REPLIED) -> None:
        self.limiter = rate.apply_end(self.limiter, number, end, NOW + self.now)

    def says(self, number: int, remaining: float, resets_in: float, limit: float = 600) -> None:
        told: Rates = {"requests": Allowance(limit, remaining, resets_in)}
        self.limiter = rate.apply_headers(self.limiter, number, told, NOW + self.now)

    def held(self) -> tuple[str, float | None]:
        found = rate.delay_reason(self.limiter, NOW + self.now)
        assert found is not None
        return found.reason, None if found.until is None else round(found.until - NOW, 3)


@pytest.mark.parametrize(("later", "holds"), [(0.0, True), (19.0, True), (21.0, False), (-3_600.0, False)])
def test_a_park_ends_where_the_clock_is_set_back_to_before_the_refusal(later: float, holds: bool) -> None:
    limiter = rate.apply_notice(
        rate.ModelLimiter(4), RateNotice(at=NOW, parked_until=NOW + 20.0, why="told by another")
    )
    assert (rate.parked_until(limiter, NOW + later) > NOW + later) is holds


def opened(window: float = 64.0) -> Calls:
    """A lane that has seen some traffic."""
    return Calls(ModelLimiter(256, window=window))


# What is heard


def test_a_new_key_is_asked_with_care() -> None:
    calls = Calls()
    assert calls.many(100) == list(range(1, INITIAL_WINDOW + 1))
    assert calls.held() == (f"{INITIAL_WINDOW} calls in flight", None)


def test_a_service_that_says_what_it_bears_is_believed() -> None:
    calls = Calls()
    calls.many(100)
    calls.says(1, remaining=599, resets_in=1)
    assert len(calls.go()) == 100 - INITIAL_WINDOW


def test_each_reply_lets_one_more_go_beside() -> None:
    calls = opened(window=2.0)
    assert calls.many(10) == [1, 2]
    calls.ends(1)
    assert calls.go() == [3, 4]
    calls.ends(2)
    assert calls.go() == [5, 6]


def test_above_the_threshold_a_round_trip_lets_one_more_go() -> None:
    calls = Calls(ModelLimiter(256, window=4.0, threshold=4.0))
    assert calls.many(10) == [1, 2, 3, 4]
    for number in (1, 2, 3, 4):
        calls.ends(number)
    assert calls.go() == [5, 6, 7, 8]
    calls.ends(5)
    assert calls.go() == [9, 10]


def test_a_window_that_is_not_used_does_not_grow() -> None:
    calls = opened(window=10.0)
    calls.many(1)
    calls.ends(1)
    assert calls.limiter.window == 10.0


def test_never_more_than_the_setting_allows() -> None:
    calls = Calls(ModelLimiter(3))
    assert calls.many(10) == [1, 2, 3]
    calls.ends(1)
    assert calls.go() == [4]


def test_a_429_with_a_wait_parks_all_until_then_and_one_goes_first() -> None:
    calls = opened()
    calls.many(20)
    calls.ends(1, SLOW)
    calls.mates(5)
    assert calls.go() == []
    assert calls.held() == ("slow", 50.0)
    for number in range(2, 21):
        calls.ends(number)  # they were sent before: they show nothing
    calls.now = 50.0
    assert calls.go() == [21]
    assert calls.held() == ("one call goes first after: slow", 50.0 + TEST_TIMEOUT)
    calls.limiter = rate.apply_reply_start(calls.limiter, 21)
    assert calls.go() == [22, 23, 24, 25]
    assert calls.limiter.window < 64.0


@pytest.mark.parametrize("end", [OVERLOADED, CallEnd("limited"), CallEnd("limited", 0.0)])
def test_without_a_wait_one_goes_after_the_back_off_and_then_more_and_more(end: CallEnd) -> None:
    calls = opened()
    calls.many(40)
    for number in range(1, 41):
        calls.ends(number, end)
    assert calls.many(10) == []
    assert calls.held()[1] == 0.5, "forty refusals of one moment are one"
    calls.now = 0.5
    assert calls.go() == [41]
    calls.ends(41)
    assert calls.go() == [42, 43]
    calls.ends(42)
    calls.ends(43)
    assert calls.go() == [44, 45, 46, 47]
    assert calls.limiter.threshold == 20.0, "half of what was in flight"


def test_the_back_off_doubles_while_the_one_that_goes_is_refused() -> None:
    calls = opened()
    calls.many(2)
    calls.ends(1, OVERLOADED)
    calls.ends(2, OVERLOADED)
    calls.mates(9)
    expected = 0.5
    for probe in range(3, 10):
        calls.now = calls.limiter.parked_until - NOW
        assert calls.go() == [probe]
        calls.ends(probe, OVERLOADED)
        expected = min(2 * expected, 32.0)
        assert calls.limiter.parked_until == NOW + calls.now + expected
    assert expected == 32.0
    calls.now += expected
    assert calls.go() == [10]
    calls.ends(10, CallEnd("answered"))
    assert calls.go() == [11], "an error that the service gave shows that it is there"


@pytest.mark.parametrize("end", [CallEnd("failed"), CallEnd("gone")])
def test_when_it_shows_nothing_another_one_goes_alone(end: CallEnd) -> None:
    calls = opened()
    calls.many(1)
    calls.ends(1, SLOW)
    calls.now = 50.0
    assert calls.many(3) == [2]
    calls.ends(2, end)
    assert calls.go() == [3]
    assert calls.go() == []


def test_one_that_hears_nothing_for_long_holds_nobody_for_ever() -> None:
    calls = opened()
    calls.many(1)
    calls.ends(1, SLOW)
    calls.now = 50.0
    assert calls.many(3) == [2]
    calls.now += TEST_TIMEOUT - 1
    assert calls.go() == []
    calls.now += 1
    assert calls.go() == [3]
    assert calls.go() == []


def test_a_refusal_that_was_on_its_way_cuts_no_second_time_but_its_wait_counts() -> None:
    calls = opened()
    calls.many(20)
    calls.ends(1, SLOW)
    window = calls.limiter.window
    calls.ends(2, CallEnd("limited", 55.0, reason="slower"))
    calls.many(1)
    assert calls.limiter.window == window
    assert calls.held() == ("slower", 55.0)
    calls.ends(3, CallEnd("limited", 10.0))
    assert calls.held() == ("slower", 55.0)


def test_what_another_process_heard_counts_here() -> None:
    calls = opened()
    news = RateNotice(at=NOW, parked_until=NOW + 20.0, why="told by another")
    calls.limiter = rate.apply_notice(calls.limiter, news)
    assert calls.many(3) == []
    assert calls.held() == ("told by another", 20.0)
    calls.now = 20.0
    assert calls.go() == [1]
    known = calls.limiter
    assert rate.apply_notice(known, news) == known


def test_a_stored_park_of_any_length_is_tried_a_minute_after_the_refusal() -> None:
    calls = opened()
    calls.limiter = rate.apply_notice(calls.limiter, RateNotice(at=NOW, parked_until=NOW + 31_536_000.0, why="a year"))
    assert calls.many(3) == []
    assert calls.held() == ("a year", 60.0)


@pytest.mark.parametrize("wait", [61.0, 3_600.0, 31_536_000.0])
def test_however_long_a_wait_the_service_names_one_call_a_minute_goes(wait: float) -> None:
    calls = opened()
    calls.says(calls.many(1)[0], remaining=0, resets_in=wait)
    calls.ends(1, CallEnd("limited", wait, reason="slow"))
    assert calls.many(3) == []
    gone: list[float] = []
    for second in range(1, 200):
        calls.now = float(second)
        for number in calls.go():
            gone.append(calls.now)
            calls.ends(number, CallEnd("limited", wait, reason="slow"))
        calls.ask("teammate")
    assert gone == [61.0, 122.0, 183.0]
    assert calls.limiter.named_until == NOW + 183.0 + wait


def test_a_prompt_for_a_call_that_waits_already_lets_it_try_a_parked_key() -> None:
    calls = opened()
    calls.many(1)
    calls.now = 10.0
    calls.ends(1, CallEnd("limited", 3_600.0, reason="slow"))
    calls.ask("lead", "teammate")
    calls.now = 12.0
    assert calls.go() == []
    calls.limiter = rate.mark_urgent(calls.limiter, 3)
    assert calls.go() == [3]


def test_a_persons_prompt_tries_a_parked_key_at_once_and_its_answer_lifts_the_park() -> None:
    calls = opened()
    calls.many(12)
    calls.now = 10.0
    for number in range(1, 13):
        calls.ends(number, CallEnd("limited", 3_600.0, reason="slow"))
    calls.ask("lead")
    assert calls.go() == []
    for number in (14, 15):
        calls.limiter = rate.add_waiting(calls.limiter, rate.waiting_call(number, "teammate", NOW + 10.0, person=True))
    assert calls.go() == []
    assert calls.held() == ("slow", 12.0), "not in the moment of the refusal itself"
    calls.now = 12.0
    assert calls.go() == [14], "one of them, and alone"
    calls.limiter = rate.apply_reply_start(calls.limiter, 14)
    assert calls.go() == [13, 15]
    assert calls.limiter.parked_until == 0.0


def test_a_persons_prompt_that_is_refused_holds_the_others_for_another_minute() -> None:
    calls = opened()
    calls.many(1)
    calls.ends(1, CallEnd("limited", 3_600.0, reason="slow"))
    calls.now = 30.0
    calls.limiter = rate.add_waiting(calls.limiter, rate.waiting_call(4, "lead", NOW + 30.0, person=True))
    assert calls.go() == [4]
    calls.ends(4, CallEnd("limited", 3_600.0, reason="slow"))
    assert calls.many(1) == []
    assert calls.held() == ("slow", 90.0)


def test_what_is_left_of_a_limit_is_what_may_go() -> None:
    calls = opened()
    calls.many(1)
    calls.says(1, remaining=3, resets_in=59.7)
    calls.ends(1)
    assert calls.many(10) == [2, 3, 4]
    assert calls.held() == ("the service's limit of 600 requests a minute is used up", 0.1)
    calls.now = 0.1
    assert calls.go() == [5], "a bucket refills all the time"


@pytest.mark.parametrize(("resets_in", "until"), [(3.0, 4.0), (0.0, 1.0), (57.0, 12.0)])
def test_a_used_up_limit_that_is_whole_again_soon_is_a_window(resets_in: float, until: float) -> None:
    calls = opened()
    calls.many(1)
    calls.says(1, remaining=0, resets_in=resets_in, limit=5)
    calls.ends(1)
    calls.ask("lead", "lead")
    assert calls.go() == []
    assert calls.held() == ("the service's limit of 5 requests a minute is used up", until)
    calls.now = until
    assert calls.go() == ([2] if resets_in == 57.0 else [2, 3]), "a bucket needs a minute to be full again"


def test_a_call_that_needs_more_than_there_ever_is_goes_when_all_is_there() -> None:
    calls = opened()
    calls.many(1)
    told: Rates = {"input-tokens": Allowance(1_000, 400, 36)}
    calls.limiter = rate.apply_headers(calls.limiter, 1, told, NOW)
    calls.ends(1)
    calls.ask("teammate", tokens=9_999)
    assert calls.go() == []
    assert calls.held() == ("the service's limit of 1000 input tokens a minute is used up", 36.0)
    calls.now = 36.0
    assert calls.go() == [2]


def test_what_calls_use_is_learned() -> None:
    """What is read from the prompt cache counts towards no limit: an estimate of all input would hold for nothing."""
    calls = opened()
    for number in range(1, 41):
        calls.ask("teammate", tokens=100_000)
        calls.go()
        calls.ends(number, CallEnd("replied", input=2_000, output=100))
    assert calls.limiter.share == pytest.approx(0.02, rel=0.02)
    assert calls.limiter.output == pytest.approx(100, rel=0.01)


# Order


def test_the_lead_goes_first_then_teammates_then_the_background() -> None:
    calls = Calls(ModelLimiter(1))
    calls.many(1)
    calls.ask("background", "teammate", "background", "lead", "teammate", "lead")
    order: list[int] = []
    while calls.limiter.waiters:
        calls.ends(max(calls.limiter.flights))
        order += calls.go()
    assert order == [5, 7, 3, 6, 2, 4]


def test_the_background_is_not_passed_for_ever() -> None:
    calls = Calls(ModelLimiter(1))
    calls.many(1)
    calls.ask("background")
    passed = 0
    while 2 in [one.number for one in calls.limiter.waiters]:
        calls.now += 1.0
        calls.ask("lead")
        calls.ends(max(calls.limiter.flights))
        passed += len(calls.go())
    assert passed == rate.ALLOWANCE["background"], "the leads that came in that time, one a second, then itself"


def test_who_leaves_is_not_let_go() -> None:
    calls = Calls(ModelLimiter(1))
    calls.many(3)
    calls.limiter = rate.remove_waiting(calls.limiter, 2)
    calls.ends(1)
    assert calls.go() == [3]


# Faults


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("rate_limited", "limited"),
        ("overloaded", "overloaded"),
        ("server", "failed"),
        ("connection", "failed"),
        ("silence", "failed"),
        ("bad_reply", "failed"),
        ("lost", "failed"),
        ("too_long", "answered"),
        ("invalid", "answered"),
        ("not_found", "answered"),
        ("credentials", "answered"),
        ("spend_limit", "answered"),
        ("payment", "answered"),
    ],
)
def test_what_a_fault_says_of_the_service(kind: str, how: str) -> None:
    assert end_of(Fault.model_validate({"kind": kind})).how == how


# The key


@pytest.mark.parametrize(
    ("kind", "status", "scope"),
    [
        ("credentials", 401, ALL_MODELS),
        ("credentials", 403, "large"),
        ("payment", 402, ALL_MODELS),
        ("spend_limit", 429, ALL_MODELS),
        ("not_found", 404, None),
        ("rate_limited", 429, None),
        ("invalid", 400, None),
    ],
)
def test_whom_a_fault_of_the_key_concerns(kind: str, status: int, scope: str | None) -> None:
    assert scope_of(Fault.model_validate({"kind": kind, "status": status}), "large") == scope


def test_a_refused_key_is_tried_once_a_minute_and_by_a_person_at_once() -> None:
    refusal = KeyRefusal(Fault(kind="credentials", request_id="req_1", usage=Usage(input_tokens=3)), NOW)
    assert may_send(None, False, NOW)
    assert not may_send(refusal, False, NOW + TEST_INTERVAL - 1)
    assert may_send(refusal, True, NOW)
    assert may_send(refusal, False, NOW + TEST_INTERVAL)
    assert known_fault(refusal) == Fault(kind="credentials"), "a call that was not made used nothing and has no name"
