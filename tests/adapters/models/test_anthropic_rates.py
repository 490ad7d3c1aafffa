"""Rate headers in the API's formats; malformed ones are ignored, and nothing raises."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.adapters.models.anthropic import stated_limits
from callboard.adapters.models.anthropic.stated_limits import rates_of
from callboard.types.rate_limits import RATE_KINDS, Allowance

NOW = 1_767_225_600.0  # 2026-01-01T00:00:00Z


def headers_for(
    kind: str, limit: str = "50", remaining: str = "49", reset: str = "2026-01-01T00:00:20Z"
) -> dict[str, str]:
    name = f"anthropic-ratelimit-{kind}"
    return {f"{name}-limit": limit, f"{name}-remaining": remaining, f"{name}-reset": reset}


def test_each_kind_is_read() -> None:
    headers = {name: value for kind in RATE_KINDS for name, value in headers_for(kind).items()}
    assert rates_of(headers, NOW) == dict.fromkeys(RATE_KINDS, Allowance(50, 49, 20))


def test_the_answers_own_date_counts_not_our_clock() -> None:
    ahead = {**headers_for("requests"), "date": "Thu, 01 Jan 2026 00:00:05 GMT"}
    assert rates_of(ahead, NOW + 86_400) == {"requests": Allowance(50, 49, 15)}


@pytest.mark.parametrize(
    ("reset", "seconds"),
    [
        ("2026-01-01T00:00:20.5Z", 20.5),
        ("2026-01-01T01:00:20+01:00", 20),
        ("2025-12-31T23:00:00Z", 0),  # already full
    ],
)
def test_a_reset_is_any_rfc_3339_time(reset: str, seconds: float) -> None:
    assert rates_of(headers_for("tokens", reset=reset), NOW) == {"tokens": Allowance(50, 49, seconds)}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"anthropic-ratelimit-requests-remaining": "3"},
        headers_for("requests", limit="many"),
        headers_for("requests", limit="0"),
        headers_for("requests", limit="nan"),
        headers_for("requests", limit="inf"),
        headers_for("requests", remaining="-1"),
        headers_for("requests", remaining=""),
        headers_for("requests", reset="soon"),
        headers_for("requests", reset="60"),
        headers_for("requests", reset="2030-01-01T00:00:00Z"),
        headers_for("requests-per-day"),
    ],
)
def test_what_is_malformed_is_left_out(headers: dict[str, str]) -> None:
    assert rates_of(headers, NOW) is None
    beside = {**headers, **headers_for("input-tokens")}
    assert rates_of(beside, NOW) == {"input-tokens": Allowance(50, 49, 20)}


def test_an_answer_without_limits_is_not_searched_for_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stated_limits, "parsedate_to_datetime", None)
    assert rates_of({"date": "Thu, 01 Jan 2026 00:00:05 GMT", "request-id": "req_1"}, NOW) is None


@given(
    st.dictionaries(
        st.sampled_from([*headers_for("requests"), *headers_for("tokens"), "date"]),
        st.one_of(st.text(max_size=30), st.integers().map(str), st.floats().map(str), st.datetimes().map(str)),
    )
)
def test_no_header_raises(headers: dict[str, str]) -> None:
    for one in (rates_of(headers, NOW) or {}).values():
        assert one.limit > 0
        assert 0 <= one.remaining <= one.limit
        assert one.resets_in >= 0
