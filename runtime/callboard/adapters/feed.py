"""How `follow` and `watch` wait: a feed reads what there is, then sleeps until its bell rings.

A feed never polls. It reads from its position until nothing is left and then waits; whoever commits rings the bells of
the streams and keys that he touched. A bell may ring for nothing, and many rings count as one: what is new is always
read from the store, never carried by the bell. So a lost or spurious ring can delay a reader, never mislead it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Generic, TypeVar

import anyio
from anyio.lowlevel import checkpoint

T = TypeVar("T")

Fetch = Callable[[int], Awaitable[tuple[Sequence[T], int]]]
"""From a position to what lies after it, and the position to go on from."""


class Feed(AsyncIterator[T], Generic[T]):
    """Everything that `fetch` finds, now and later, each once. Belongs to the event loop that made it."""

    def __init__(self, fetch: Fetch[T], position: int) -> None:
        self._fetch = fetch
        self._position = position
        self._ready: deque[T] = deque()
        self._rung = anyio.Event()
        self._ended = False

    def ring(self) -> None:
        """Say that there may be more. Called in the feed's own event loop."""
        self._rung.set()

    def end(self) -> None:
        """Let the reader finish what it has, then stop. Called in the feed's own event loop."""
        self._ended = True
        self._rung.set()

    def at_hand(self) -> Sequence[T]:
        """What was found with the last one that was given, all of it."""
        found = tuple(self._ready)
        self._ready.clear()
        return found

    async def __anext__(self) -> T:
        # Cancelled here, nothing is lost: the position moves and the rows are kept in one go, without an await between.
        await checkpoint()
        while not self._ready:
            if self._ended:
                raise StopAsyncIteration
            self._rung = anyio.Event()
            found, self._position = await self._fetch(self._position)
            self._ready.extend(found)
            if not found:
                await self._rung.wait()
        return self._ready.popleft()


class Bells(Generic[T]):
    """Who is to be woken by which stream or key: for anything that can be woken. May be used from any thread."""

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
        """Wake it no more. Idempotent."""
        with self._lock:
            for table in (self._streams, self._prefixes):
                _take_out(sleeper, table)

    def touched(self, streams: Iterable[str], keys: Iterable[str]) -> set[T]:
        """Those to be woken when these streams and keys changed."""
        found: set[T] = set()
        with self._lock:
            for stream in streams:
                found |= self._streams.get(stream, set())
            if self._prefixes:
                for key in keys:
                    found.update(*(who for prefix, who in self._prefixes.items() if key.startswith(prefix)))
        return found

    def everyone(self) -> set[T]:
        """All who wait."""
        with self._lock:
            return set[T]().union(*self._streams.values(), *self._prefixes.values())

    def __bool__(self) -> bool:
        return bool(self._streams or self._prefixes)


def _take_out(sleeper: T, table: dict[str, set[T]]) -> None:
    for name in [name for name, sleepers in table.items() if sleeper in sleepers]:
        table[name].discard(sleeper)
        if not table[name]:
            del table[name]
