"""Real time and real randomness, for the ports `Clock` and `Dice`."""

from __future__ import annotations

import random
import time

import anyio

LOOK_AGAIN = 30.0
"""Most seconds of one sleep, so that a changed clock, or a machine that slept, is noticed."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        return time.time()

    def steady(self) -> float:
        return time.monotonic()  # CLOCK_MONOTONIC: Linux stops it in a suspend (man 2 clock_gettime)

    async def sleep_until(self, when: float) -> None:
        """Sleep in parts: setting the clock forward ends the sleep, setting it back does not lengthen it."""
        end = self.steady() + when - self.now()
        while (remaining := min(when - self.now(), end - self.steady())) > 0:  # noqa: ASYNC110 - a changed clock causes no event
            await anyio.sleep(min(remaining, LOOK_AGAIN))


class SystemDice:
    """Random numbers for jitter and the like, not for secrets."""

    def __init__(self) -> None:
        # `SystemRandom` makes a system call for each number, and passes the interpreter's lock to other threads.
        self._random = random.Random()  # noqa: S311 - not for secrets

    def draw(self) -> float:
        return self._random.random()
