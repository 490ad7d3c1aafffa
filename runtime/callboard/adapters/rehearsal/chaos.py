"""Faults drawn from a seed: one seed gives the same faults for the same calls, in whatever order they come. Pure."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from callboard.adapters.rehearsal.replies import Fault

KINDS: Mapping[str, Fault] = MappingProxyType(
    {
        "overloaded": Fault(status=529),
        "server_error": Fault(status=500),
        "rate_limit": Fault(status=429, retry_after=0.05),
        "refused_connection": Fault(drop="before_headers"),
        "lost_before": Fault(drop="after_headers"),
        "lost_mid_stream": Fault(drop="mid_stream"),
        "truncated": Fault(drop="before_stop"),
        "error_event": Fault(error_event="overloaded_error"),
        "bad_json": Fault(bad_json=True),
        "html": Fault(html=502),
        "slow": Fault(slow_s=0.05),
    }
)
"""Every fault that chaos can draw."""

DEFAULT_RATES: Mapping[str, float] = MappingProxyType(dict.fromkeys(KINDS, 0.02))


@dataclass(frozen=True, slots=True)
class Chaos:
    """Draws faults. `rates` is the chance of each kind for one attempt, together at most 1."""

    seed: int | str
    rates: Mapping[str, float] = field(default_factory=lambda: dict(DEFAULT_RATES))
    at_most: int = 2
    """Faults in a row for one call: after so many attempts it goes through, so that every run ends."""

    def __post_init__(self) -> None:
        unknown = sorted(set(self.rates) - set(KINDS))
        if unknown:
            raise ValueError(f"no such faults: {', '.join(unknown)}; there are: {', '.join(KINDS)}")
        if any(rate < 0 for rate in self.rates.values()) or sum(self.rates.values()) > 1:
            raise ValueError("the rates of all faults are chances: from 0 up, together at most 1")

    def draw(self, agent: str, ordinal: str, attempt: int) -> Fault | None:
        """The fault of this attempt (from 1) at this call, if any."""
        if attempt > self.at_most:
            return None
        # Not for secrets: the point of this generator is that a seed says everything.
        point = random.Random(f"{self.seed}/{agent}/{ordinal}/{attempt}").random()  # noqa: S311
        for name, rate in self.rates.items():
            if point < rate:
                return KINDS[name]
            point -= rate
        return None
