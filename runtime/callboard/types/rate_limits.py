"""Rate limits that a model service reports: the remaining amount of each limit, and the time until it is full again.

Times are seconds since the response, never times of the service's clock, which may differ from the local one.
"""

from typing import Literal

from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Fault, Value

RateKind = Literal["requests", "tokens", "input-tokens", "output-tokens"]
"""Kinds of limits, as the service names them. `tokens` are input and output together."""

RATE_KINDS: tuple[RateKind, ...] = ("requests", "tokens", "input-tokens", "output-tokens")


@dataclass(frozen=True, slots=True)
class Allowance:
    """One limit as reported by a response."""

    limit: float
    """Amount per minute."""
    remaining: float
    """Remaining amount after this call."""
    resets_in: float
    """Seconds until the limit is full again, rounded to a second: the real value may be one more or less."""


PROBE_AFTER = 60.0
"""Seconds after which one call tries a parked or refused key again, whatever wait the service named. A named wait can
be wrong by any factor (milliseconds sent as seconds), and only a call can show that."""
PERSON_AFTER = 2.0
"""Seconds after a refusal from which a new prompt of the user tries a key that is parked for a long time."""

Rates = dict[RateKind, Allowance]
"""Allowances from the headers of a response, by kind. A kind that is absent or has an unknown form is left out."""


class RateNotice(Value):
    """Notice about a key from one process to the others and to the next start: parked, refused, or good."""

    model: str = ""
    """Model of the notice; empty: the whole key."""
    at: float = 0.0
    parked_until: float = 0.0
    """Time of the next attempt (Unix seconds), at most `PROBE_AFTER` seconds after the refusal; 0: no wait."""
    named_until: float = 0.0
    """End of the wait that the service named (Unix seconds). It is displayed, and it selects fallbacks."""
    why: str = ""
    fault: Fault | None = None
    """Fault with which the key is refused; None: it is not refused."""

    @property
    def holds(self) -> bool:
        """Return True if calls are held or refused by this notice, False if it announces that the key is good again."""
        return self.parked_until > 0 or self.fault is not None
