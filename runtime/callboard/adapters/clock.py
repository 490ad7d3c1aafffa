"""Real time and real randomness, for the ports `Clock` and `Dice`."""

from __future__ import annotations

import random
import time

import anyio

LOOK_AGAIN = 30.0
"""Seconds of sleep at most, so that a clock that was set, or a machine that slept, is noticed."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        return time.time()

    async def sleep_until(self, when: float) -> None:
        """Sleep in pieces: the wall clock decides, not the time that a sleep was asked to take."""
        while (left := when - time.time()) > 0:  # noqa: ASYNC110  # no event tells that a clock was set
            await anyio.sleep(min(left, LOOK_AGAIN))


class SystemDice:
    """Jitter and the like; nothing secret is drawn here."""

    def __init__(self) -> None:
        self._random = random.SystemRandom()

    def draw(self) -> float:
        return self._random.random()
