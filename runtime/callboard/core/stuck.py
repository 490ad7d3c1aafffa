"""Whether an agent repeats itself: what it does and gets, looked at after every reply and every result. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stuck:
    """What a turn has shown of repetition so far."""

    nudged: bool = False
    """It was told once in this turn."""
