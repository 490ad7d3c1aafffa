"""What a model service says of its rate limits, as values: what is left of each, and when it is whole again.

Times are seconds counted from the answer that said so, never the service's clock: it may be another than ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from callboard.words.values import Fault, Value

RateKind = Literal["requests", "tokens", "input-tokens", "output-tokens"]
"""As the service names them. `tokens` are input and output together."""

RATE_KINDS: tuple[RateKind, ...] = ("requests", "tokens", "input-tokens", "output-tokens")


@dataclass(frozen=True, slots=True)
class Allowance:
    """One limit as an answer tells it."""

    limit: float
    """So many a minute."""
    remaining: float
    """What is left now, this call counted."""
    resets_in: float
    """Seconds until all of it is there again, told to the second: it may be one more or less."""


Rates = dict[RateKind, Allowance]
"""What an answer's head told, by kind; a kind that it did not tell, or not in a form that is known, is not there."""


class RateNotice(Value):
    """What one process heard of a key's rate, for the others and for the next start: it is parked, or refused."""

    model: str = ""
    """The model that it concerns; empty: the key, whatever the model."""
    at: float = 0.0
    parked_until: float = 0.0
    why: str = ""
    fault: Fault | None = None
    """The key is refused with this; None: it is not, or no longer."""
