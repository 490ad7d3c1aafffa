"""Clock for time limits. It stops while the machine sleeps, and setting the system clock does not change it.

Journals hold wall-clock times. Only a process that ran all the time knows how long the machine was awake, so this clock
starts at the wall-clock time at which a process opens a session, and then advances with the steady clock. The age of
earlier events comes from the wall clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from callboard.ports.environment import Clock
from callboard.types.records import Request


class AwakeTime:
    """Wall clock that ignores sleep of the machine and changes of the clock since the session was opened."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead = clock.now() - clock.steady()

    def now(self) -> float:
        """Return the time now, in Unix seconds."""
        return self._clock.steady() + self._ahead

    def at(self, moment: float) -> float:
        """Return this clock's time at a wall-clock time that has just passed, or that an earlier process recorded.

        A time in the future, recorded before the clock was set back, counts as now, so that no limit becomes longer.
        """
        return self.now() - max(0.0, self._clock.now() - moment)


class Deadlines:
    """Deadlines of pending requests on this clock. Setting the system clock back extends none."""

    def __init__(self, clock: Clock, awake: AwakeTime) -> None:
        self._clock = clock
        self._awake = awake
        self._ends: dict[tuple[str, float], float] = {}
        """(request, deadline in its row) -> deadline on this clock."""

    def of(self, requests: Iterable[Request]) -> Mapping[str, float]:
        """Return the deadlines of pending requests. Each stays as this process first computed it."""
        ends: dict[str, float] = {}
        for request in requests:
            if request.status != "pending" or request.expires_at is None:
                continue
            key = (request.id, request.expires_at)
            if key not in self._ends:
                since = max(self._clock.now(), request.created_at)  # created in the future: the clock was set back
                self._ends[key] = self._awake.now() + request.expires_at - since
            ends[request.id] = self._ends[key]
        return ends
