"""One call goes ahead of others that begin with the same prefix, so that the service's cache has it when they come.

Why: docs/decisions/0010-shared-prefixes.md. Nobody waits here for longer than `LONGEST_WAIT`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import anyio

from callboard.ports.world import Clock

LONGEST_WAIT = 10.0
"""Seconds that a call waits for another one that begins with the same prefix. Then a second write costs less than the
wait does."""
_KNOWN = 1_000
"""Warm prefixes that are remembered before those that went cold are forgotten."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """The beginning of a request, as far as others may share it."""

    key: str
    """A digest of all of it, the model included."""
    ttl: float
    """Seconds for which the service remembers it after it was used."""


class PrefixPlace:
    """A call's place among those that begin alike: before it goes, and until its reply has begun."""

    def __init__(self, prefixes: Prefixes, prefix: Prefix | None) -> None:
        self._prefixes, self._prefix = prefixes, prefix
        self._led: _Line | None = None

    async def wait(self) -> None:
        """Until it may go."""
        if self._prefix is not None:
            self._led = await self._prefixes.join(self._prefix)

    def begun(self) -> None:
        """Its reply has begun: the service knows the prefix. Cheap when called again."""
        if self._prefix is not None:
            self._prefixes.warmed(self._prefix)
            self._prefix = self._led = None

    def failed(self) -> None:
        """It ended before its reply began: whoever is next in line goes in its place."""
        if self._prefix is not None and self._led is not None:
            self._prefixes.hand_over(self._prefix.key, self._led)
        self._prefix = self._led = None


@dataclass(slots=True, eq=False)
class _Place:
    """A call that stands in line."""

    called: anyio.Event = field(default_factory=anyio.Event)
    leads: bool = False


_Line = deque[_Place]
"""Those behind the call that goes first, in the order in which they came."""


class Prefixes:
    """Which prefixes the service knows by now, and who waits for one that it does not."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._warm: dict[str, float] = {}
        """Until when (Unix seconds)."""
        self._lines: dict[str, _Line] = {}
        """Cold prefixes of which one call is on its way."""

    async def join(self, prefix: Prefix) -> _Line | None:
        """Return when the call may go: with the line that it leads, or None when it leads none."""
        key = prefix.key
        if self._warm.get(key, 0.0) > self._clock.now():
            return None
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = deque()
            return line
        place = _Place()
        line.append(place)
        try:
            with anyio.move_on_after(LONGEST_WAIT):
                await place.called.wait()
        except BaseException:
            if place.leads:
                self.hand_over(key, line)
            raise
        finally:
            if not place.called.is_set():
                line.remove(place)
        return line if place.leads else None

    def warmed(self, prefix: Prefix) -> None:
        """The service knows it: all who stand in line go."""
        now = self._clock.now()
        if len(self._warm) >= _KNOWN:
            self._warm = {key: until for key, until in self._warm.items() if until > now}
        self._warm[prefix.key] = now + prefix.ttl
        for place in self._lines.pop(prefix.key, ()):
            place.called.set()

    def hand_over(self, key: str, line: _Line) -> None:
        """Who led this line is gone: the next one leads it."""
        if self._lines.get(key) is not line:
            return  # it went on its way in the meantime
        if not line:
            del self._lines[key]
            return
        place = line.popleft()
        place.leads = True
        place.called.set()
