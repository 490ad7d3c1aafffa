"""Rate limits of the rehearsal: a window that resets at once, and a bucket that refills continuously."""

from __future__ import annotations

import pytest

from callboard.adapters.models.rehearsal.rates import KeyLimits, RateMeter
from callboard.adapters.models.rehearsal.scenario_file import load_scenario
from callboard.types.errors import SettingsError

REQUESTS = "anthropic-ratelimit-requests"
START = 1_767_225_600.0  # 2026-01-01T00:00:00Z


def test_a_window_is_whole_again_a_minute_after_its_first_request() -> None:
    meter = RateMeter(KeyLimits(requests=2))
    assert [meter.admit(1, START + at) for at in (0, 10)] == [None, None]
    refused = meter.admit(1, START + 20)
    assert refused is not None
    assert (refused.status, refused.retry_after) == (429, 40)
    assert meter.headers(START + 20)[f"{REQUESTS}-reset"] == "2026-01-01T00:01:00Z"
    assert [meter.admit(1, START + at) is None for at in (60, 61, 62)] == [True, True, False]


def test_a_bucket_is_full_at_first_and_refills_all_the_time() -> None:
    meter = RateMeter(KeyLimits(requests=6, refill="bucket"))
    assert [meter.admit(1, START) for _ in range(6)] == [None] * 6
    told = meter.headers(START)
    assert (told[f"{REQUESTS}-remaining"], told[f"{REQUESTS}-reset"]) == ("0", "2026-01-01T00:01:00Z")
    refused = meter.admit(1, START + 4)
    assert refused is not None
    assert refused.retry_after == 6, "one request is available after 10 s"
    assert meter.admit(1, START + 10) is None
    told = meter.headers(START + 15)
    assert (told[f"{REQUESTS}-remaining"], told[f"{REQUESTS}-reset"]) == ("0", "2026-01-01T00:01:10Z")
    assert meter.headers(START + 3_600)[f"{REQUESTS}-remaining"] == "6", "it never holds more than a minute's worth"


def test_a_reply_longer_than_what_was_left_is_paid_back_by_waiting() -> None:
    meter = RateMeter(KeyLimits(output_tokens=60, refill="bucket"))
    assert meter.admit(1, START) is None
    meter.spend(90)
    refused = meter.admit(1, START)
    assert refused is not None
    assert refused.retry_after == 31
    assert meter.admit(1, START + 31) is None


def test_a_scenario_says_how_its_limits_refill() -> None:
    scenario = load_scenario("rate: {requests: 2, refill: bucket}\nagents: {lead: [{reply: x}]}\n")
    assert scenario.rate == KeyLimits(requests=2, refill="bucket")
    with pytest.raises(SettingsError, match=r"rate.refill: is window or bucket, not 'slowly'"):
        load_scenario("rate: {refill: slowly}\nagents: {lead: [{reply: x}]}\n")
