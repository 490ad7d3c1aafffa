"""One governor for all model calls of this process: when the service says slow down, all agents do.

It parks everyone until the moment that the service named, and lets one call through first when that has passed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio

from callboard.ports.world import Clock
from callboard.words.values import Fault

CALLS_AT_ONCE = 256
"""Model calls in flight in one process."""


class Governor:
    """Bounds the calls in flight, and parks them together."""

    def __init__(self, clock: Clock, at_once: int = CALLS_AT_ONCE) -> None:
        self._clock = clock
        self._slots = anyio.CapacityLimiter(at_once)
        self.parked_until = 0.0

    @asynccontextmanager
    async def slot(self) -> AsyncGenerator[None]:
        """Hold one of the calls in flight."""
        async with self._slots:
            yield

    def heard(self, fault: Fault) -> None:
        """A call was refused for its rate: nobody calls before the wait is over."""
        if fault.kind == "rate_limited" and fault.retry_after:
            self.parked_until = max(self.parked_until, self._clock.now() + fault.retry_after)
