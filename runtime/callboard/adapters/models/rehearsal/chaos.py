"""Faults drawn from a seed: the same seed gives the same faults for the same calls, in any order. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType

from callboard.adapters.models.rehearsal.replies import SimulatedFault
from callboard.types.choices import choose
from callboard.types.lazy_dataclass import dataclass

KINDS: Mapping[str, SimulatedFault] = MappingProxyType(
    {
        "overloaded": SimulatedFault(status=529),
        "server_error": SimulatedFault(status=500),
        "rate_limit": SimulatedFault(status=429, retry_after=0.05),
        "refused_connection": SimulatedFault(drop="before_headers"),
        "lost_before": SimulatedFault(drop="after_headers"),
        "lost_mid_stream": SimulatedFault(drop="mid_stream"),
        "truncated": SimulatedFault(drop="before_stop"),
        "error_event": SimulatedFault(error_event="overloaded_error"),
        "bad_json": SimulatedFault(bad_json=True),
        "html": SimulatedFault(html=502),
        "slow": SimulatedFault(slow_s=0.05),
    }
)
"""Every fault that chaos can draw."""

DEFAULT_RATES: Mapping[str, float] = MappingProxyType(dict.fromkeys(KINDS, 0.02))


@dataclass(frozen=True, slots=True)
class Chaos:
    """Generator of faults. `rates` is the probability of each kind for one attempt, at most 1 in total."""

    seed: int | str
    rates: Mapping[str, float] = field(default_factory=lambda: dict(DEFAULT_RATES))
    at_most: int = 2
    """Most faults in a row for one call. After so many attempts it succeeds, so that every run ends."""

    def __post_init__(self) -> None:
        unknown = sorted(set(self.rates) - set(KINDS))
        if unknown:
            raise ValueError(f"unknown faults {', '.join(map(repr, unknown))}: {choose(KINDS)}")
        if any(rate < 0 for rate in self.rates.values()) or sum(self.rates.values()) > 1:
            raise ValueError("the rates of all faults are chances: from 0 up, together at most 1")

    def draw(self, agent: str, ordinal: str, attempt: int) -> SimulatedFault | None:
        """Return the fault of this attempt (from 1) at this call, or None."""
        if attempt > self.at_most:
            return None
        point = random.Random(f"{self.seed}/{agent}/{ordinal}/{attempt}").random()  # noqa: S311 - not for secrets: the seed must determine every fault
        for name, rate in self.rates.items():
            if point < rate:
                return KINDS[name]
            point -= rate
        return None
