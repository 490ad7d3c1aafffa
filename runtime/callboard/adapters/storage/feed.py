"""Waiting for `follow` and `watch`: a feed reads what exists, then sleeps until it is rung.

A feed never polls. It reads from its position until nothing is left and then waits; each commit rings the bells of the
streams and keys that it changed. A ring may be spurious, and several rings count as one: new data is always read from
the store and never carried by the ring. So a lost or spurious ring can delay a reader, but never give it wrong data.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Generic, TypeVar

from anyio.lowlevel import checkpoint

from callboard.ports.notifier import Notifier

T = TypeVar("T")

Fetch = Callable[[int], Awaitable[tuple[Sequence[T], int]]]
"""Position -> the items after it, and the next position."""


class Feed(AsyncIterator[T], Generic[T]):
    """Everything that `fetch` returns, now and later, each item once. Belongs to the event loop that created it."""

    def __init__(self, fetch: Fetch[T], position: int) -> None:
        self._fetch = fetch
        self._position = position
        self._ready: deque[T] = deque()
        self._rings = Notifier()
        self._ended = False

    def ring(self) -> None:
        """Signal that there may be more. Called in the feed's own event loop."""
        self._rings.notify()

    def end(self) -> None:
        """Let the reader process the remaining items, then stop. Called in the feed's own event loop."""
        self._ended = True
        self._rings.notify()

    def at_hand(self) -> Sequence[T]:
        """Return all items that were fetched together with the last returned item."""
        ready = tuple(self._ready)
        self._ready.clear()
        return ready

    async def __anext__(self) -> T:
        # Cancelled here, nothing is lost: the position moves and the rows are kept in one go, without an await between.
        await checkpoint()
        while not self._ready:
            if self._ended:
                raise StopAsyncIteration
            # Read before the fetch: a ring that comes during it makes the loop look again instead of getting lost.
            rings = self._rings.changes
            items, self._position = await self._fetch(self._position)
            self._ready.extend(items)
            if not items:
                await self._rings.changed(rings)
        return self._ready.popleft()


class Bells(Generic[T]):
    """Sleepers to wake, by stream or key. A sleeper may be of any type. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # followers come and go in event loops while a writer thread looks them up
        self._streams: dict[str, set[T]] = {}
        self._prefixes: dict[str, set[T]] = {}

    def hang(self, sleeper: T, *, stream: str | None = None, prefix: str | None = None) -> None:
        """Wake `sleeper` for this stream, or for keys with this prefix."""
        with self._lock:
            if stream is not None:
                self._streams.setdefault(stream, set()).add(sleeper)
            if prefix is not None:
                self._prefixes.setdefault(prefix, set()).add(sleeper)

    def remove(self, sleeper: T) -> None:
        """Stop waking it. Idempotent."""
        with self._lock:
            for table in (self._streams, self._prefixes):
                _take_out(sleeper, table)

    def touched(self, streams: Iterable[str], keys: Iterable[str]) -> set[T]:
        """Return the sleepers to wake after changes to these streams and keys."""
        followers: set[T] = set()
        with self._lock:
            for stream in streams:
                followers |= self._streams.get(stream, set())
            if self._prefixes:
                for key in keys:
                    followers.update(
                        *(followers_of for prefix, followers_of in self._prefixes.items() if key.startswith(prefix))
                    )
        return followers

    def everyone(self) -> set[T]:
        """Return all sleepers."""
        with self._lock:
            return set[T]().union(*self._streams.values(), *self._prefixes.values())

    def __bool__(self) -> bool:
        return bool(self._streams or self._prefixes)


def _take_out(sleeper: T, table: dict[str, set[T]]) -> None:
    for name in [name for name, sleepers in table.items() if sleeper in sleepers]:
        table[name].discard(sleeper)
        if not table[name]:
            del table[name]
