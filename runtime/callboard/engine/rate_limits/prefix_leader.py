"""Order of calls with a common prefix: one goes first, so that the service's cache has the prefix for the others.

Reason: docs/decisions/0010-shared-prefixes.md. No call waits here longer than `LONGEST_WAIT`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import field

import anyio

from callboard.ports.environment import Clock
from callboard.types.lazy_dataclass import dataclass

LONGEST_WAIT = 10.0
"""Most seconds that a call waits for another with the same prefix. A longer wait costs more than a second cache write.
"""
_MOST_CACHED = 1_000
"""Most warm prefixes to remember. Beyond that, cold ones are removed."""


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """Beginning of a request that other requests may share."""

    key: str
    """Digest of the prefix, including the model."""
    ttl: float
    """Seconds that the service caches it after its last use."""


class PrefixPlace:
    """Place of a call among those with the same prefix, until its reply begins."""

    def __init__(self, prefixes: Prefixes, prefix: SharedPrefix | None) -> None:
        self._prefixes = prefixes
        self._prefix = prefix
        self._own_line: _Line | None = None

    async def wait(self) -> None:
        """Wait until the call may go."""
        if self._prefix is not None:
            self._own_line = await self._prefixes.join(self._prefix)

    def mark_reply_started(self) -> None:
        """Note that the reply has begun, so the service has cached the prefix. Cheap to call again."""
        if self._prefix is not None:
            self._prefixes.mark_cached(self._prefix)
            self._prefix = self._own_line = None

    def give_up(self) -> None:
        """Note that the call ended before its reply began: the next in line goes first."""
        if self._prefix is not None and self._own_line is not None:
            self._prefixes.hand_over(self._prefix.key, self._own_line)
        self._prefix = self._own_line = None


@dataclass(slots=True, eq=False)
class _WaitingCall:
    """Call in line."""

    released: anyio.Event = field(default_factory=anyio.Event)
    leads: bool = False


_Line = deque[_WaitingCall]
"""Calls behind the one that goes first, in order of arrival."""


class Prefixes:
    """Prefixes that the service has cached, and calls that wait for others."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._warm: dict[str, float] = {}
        """Warm prefix -> time until which it is cached (Unix seconds)."""
        self._lines: dict[str, _Line] = {}
        """Cold prefixes for which one call is in progress."""

    async def join(self, prefix: SharedPrefix) -> _Line | None:
        """Wait until the call may go. Return the line that it leads, or None."""
        key = prefix.key
        if self._warm.get(key, 0.0) > self._clock.now():
            return None
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = deque()
            return line
        call = _WaitingCall()
        line.append(call)
        try:
            with anyio.move_on_after(LONGEST_WAIT):
                await call.released.wait()
        except BaseException:
            if call.leads:
                self.hand_over(key, line)
            raise
        finally:
            if not call.released.is_set():
                line.remove(call)
        return line if call.leads else None

    def mark_cached(self, prefix: SharedPrefix) -> None:
        """Release all calls in line, because the service has cached the prefix."""
        now = self._clock.now()
        if len(self._warm) >= _MOST_CACHED:
            self._warm = {key: until for key, until in self._warm.items() if until > now}
        self._warm[prefix.key] = now + prefix.ttl
        for call in self._lines.pop(prefix.key, ()):
            call.released.set()

    def hand_over(self, key: str, line: _Line) -> None:
        """Let the next call lead this line, because its leader has gone."""
        if self._lines.get(key) is not line:
            return  # it was released meanwhile
        if not line:
            del self._lines[key]
            return
        call = line.popleft()
        call.leads = True
        call.released.set()
