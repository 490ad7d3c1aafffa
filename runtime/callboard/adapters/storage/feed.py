"""Feeds for `follow` and `watch`, and the doorbell between processes.

A feed never polls. It reads from its position until nothing is left, then sleeps until it is rung; each commit rings
the bells of the streams and keys that it changed. New data is always read from the store and never carried by the ring,
and several rings count as one. So a lost or spurious ring can delay a reader, but never give it wrong data.

A `Doorbell` carries rings between processes that share a store: a datagram socket for each process, in the store's
`run` folder. A datagram names the streams and keys that changed. Rings may get lost (a full queue, a file system
without sockets), so while a reader follows, the listener asks once a second for a check of the store. The folder
belongs to the store and is not $XDG_RUNTIME_DIR, which a scheduled process lacks: all processes must find the same
folder.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from anyio.lowlevel import checkpoint

from callboard.adapters.storage.threads import Soon, run_soon, soon_here
from callboard.ports.notifier import Notifier
from callboard.types.lazy_dataclass import dataclass

T = TypeVar("T")

Fetch = Callable[[int], Awaitable[tuple[Sequence[T], int]]]
"""Position -> the items after it, and the next position."""
EVERYTHING = b"*"
LOOK_SECONDS = 1.0
_LARGEST = 16_384  # bytes of names in one ring; beyond that a ring is for everything
_LONGEST_PATH = 100  # bytes; Linux takes 107 (man 7 unix), macOS 103
_PATH_ONLY = getattr(os, "O_PATH", os.O_RDONLY)
_FULL_QUEUE = 8  # rings found at once; the kernel holds 10 or more before it drops one
_SETTLED_SECONDS = 0.1  # seconds in which a folder may change twice within one tick of its time stamp


class Feed(AsyncIterator[T], Generic[T]):
    """Feed of everything that `fetch` returns, now and later, each item once.

    Belongs to the event loop that created it.
    """

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

    async def existing(self) -> Sequence[T]:
        """Return what there is at the feed's position, without waiting for more."""
        await checkpoint()
        items, self._position = await self._fetch(self._position)
        self._ready.extend(items)
        return self.at_hand()

    async def __anext__(self) -> T:
        # A cancellation here loses nothing: there is no await between the new position and the stored rows.
        await checkpoint()
        while not self._ready:
            if self._ended:
                raise StopAsyncIteration
            # Read before the fetch, so that a ring during the fetch repeats it instead of getting lost.
            rings = self._rings.changes
            items, self._position = await self._fetch(self._position)
            self._ready.extend(items)
            if not items:
                await self._rings.changed(rings)
        return self._ready.popleft()


class Sleepers(Generic[T]):
    """Sleepers to wake, by stream or key. A sleeper may be of any type. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # followers come and go in event loops while a writer thread looks them up
        self._streams: dict[str, set[T]] = {}
        self._prefixes: dict[str, set[T]] = {}
        self._names: dict[T, set[tuple[str, bool]]] = {}
        """Names that wake each sleeper, and True for a stream: with 1,000 agents, a search of all streams takes long.
        """

    def add(self, sleeper: T, *, stream: str | None = None, prefix: str | None = None) -> None:
        """Wake `sleeper` for this stream, or for keys with this prefix."""
        with self._lock:
            for table, name in ((self._streams, stream), (self._prefixes, prefix)):
                if name is not None:
                    table.setdefault(name, set()).add(sleeper)
                    self._names.setdefault(sleeper, set()).add((name, table is self._streams))

    def remove(self, sleeper: T) -> None:
        """Stop waking the sleeper. Idempotent."""
        with self._lock:
            for name, is_stream in self._names.pop(sleeper, ()):
                table = self._streams if is_stream else self._prefixes
                table[name].discard(sleeper)
                if not table[name]:
                    del table[name]

    def sleepers_of(self, streams: Iterable[str], keys: Iterable[str]) -> set[T]:
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

    def streams(self) -> tuple[str, ...]:
        """Return the streams that have sleepers."""
        with self._lock:
            return tuple(self._streams)

    def all_sleepers(self) -> set[T]:
        """Return all sleepers."""
        with self._lock:
            return set[T]().union(*self._streams.values(), *self._prefixes.values())

    def __bool__(self) -> bool:
        return bool(self._streams or self._prefixes)


@dataclass(frozen=True)
class _LoopFeed:
    """Feed and the event loop in which it waits."""

    soon: Soon
    feed: Feed[Any]


class DurableFeeds:
    """Open feeds of a durable store, whose changes come from threads and from other processes. Thread-safe."""

    def __init__(self) -> None:
        self._sleepers = Sleepers[_LoopFeed]()
        self._closed = False

    @contextlib.asynccontextmanager
    async def open(
        self,
        fetch: Fetch[T],
        position: int,
        *,
        listen: Callable[[bool], None],
        stream: str | None = None,
        prefix: str | None = None,
    ) -> AsyncGenerator[Feed[T], None]:
        """Keep a feed that is woken for this stream, or for keys with this prefix.

        `listen`: called with True when there is a feed, and with False when the last one is gone.
        """

        async def fetch_if_open(position: int) -> tuple[Sequence[T], int]:
            # Rung just before the store closes: return nothing, so that the reader ends instead of failing.
            return ([], position) if self._closed else await fetch(position)

        sleeper = _LoopFeed(soon_here(), Feed(fetch_if_open, position))
        self._sleepers.add(sleeper, stream=stream, prefix=prefix)
        listen(True)
        try:
            yield sleeper.feed
        finally:
            self._sleepers.remove(sleeper)
            if not self._sleepers:
                listen(False)

    def streams(self) -> tuple[str, ...]:
        """Return the streams that have feeds."""
        return self._sleepers.streams()

    def wake(self, streams: Iterable[str], keys: Iterable[str]) -> None:
        """Wake the feeds of these streams and keys."""
        self._wake(self._sleepers.sleepers_of(streams, keys))

    def handle_ring(self, names: Collection[str] | None) -> None:
        """Wake the feeds of a ring's names (`s` and a stream, `k` and a key), or all of them."""
        if names is None:
            self._wake(self._sleepers.all_sleepers())
            return
        streams = [name[1:] for name in names if name.startswith("s")]
        self.wake(streams, [name[1:] for name in names if name.startswith("k")])

    def close(self) -> None:
        """End all feeds."""
        self._closed = True
        for sleeper in self._sleepers.all_sleepers():
            run_soon(sleeper.soon, sleeper.feed.end)

    def _wake(self, sleepers: Iterable[_LoopFeed]) -> None:
        for sleeper in sleepers:
            run_soon(sleeper.soon, sleeper.feed.ring)


class Doorbell:
    """Rings other processes, and calls `rung(names)` in its thread when it is rung (`None`: anything may have changed).

    `look()` is called once a second while a reader follows, as set by `listen`.
    """

    def __init__(self, folder: Path, rung: Callable[[set[str] | None], None], look: Callable[[], None]) -> None:
        self._folder = folder
        self._rung = rung
        self._look = look
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        # Non-blocking, because the queue of a stopped process is full and would stop every writer.
        self._out = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        # a socket pair wakes its thread, because the named socket may be deleted or missing
        self._wakes, self._woken = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        for channel in (self._socket, self._out, self._wakes, self._woken):
            channel.setblocking(False)
        self._directory = os.open(folder, _PATH_ONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._name = f"{os.getpid()}-{os.urandom(4).hex()}.sock"  # containers that share a folder may have equal pids
        self._bound = False
        self._listening = self._stopped = False
        self._thread: threading.Thread | None = None
        self._others: tuple[str, ...] = ()
        self._others_at = -1

    def listen(self, active: bool) -> None:
        """Set whether a reader follows. The first time, the socket gets its name and the thread starts."""
        begins = active and not self._listening
        self._listening = active
        if not begins or self._stopped:
            return
        if self._thread is None:
            with contextlib.suppress(OSError):  # no sockets here, or no space: the checks once a second remain
                self._socket.bind(self._address(self._name))
                self._bound = True
            self._thread = threading.Thread(target=self._run, name="callboard-store-doorbell", daemon=True)
            self._thread.start()
        else:
            self._nudge()

    def ring(self, streams: Iterable[str], keys: Iterable[str]) -> None:
        """Tell the other processes what changed. Never blocks, and never raises for a process that is gone."""
        others = self._registered()
        if not others:
            return
        names = [f"s{stream}" for stream in streams] + [f"k{key}" for key in keys]
        message = "\0".join(names).encode("utf-8", "surrogatepass")
        if len(message) > _LARGEST or any("\0" in name for name in names):
            message = EVERYTHING
        for other in others:
            self._send(message, other)

    def close(self) -> None:
        """Remove the socket's name and end the thread. Idempotent."""
        if self._stopped:
            return
        self._stopped = True
        self._nudge()
        if self._thread is not None:
            self._thread.join()
        if self._bound:
            (self._folder / self._name).unlink(missing_ok=True)
        for channel in (self._socket, self._out, self._wakes, self._woken):
            channel.close()
        os.close(self._directory)

    def _address(self, name: str) -> str:
        path = str(self._folder / name)
        if len(os.fsencode(path)) <= _LONGEST_PATH:
            return path
        if not sys.platform.startswith("linux"):
            return path  # too long: the checks once a second remain
        # The path of a socket may have 107 bytes. Through the open folder any folder can be used
        # (test_a_folder_with_a_very_long_path_has_a_doorbell_too).
        return f"/proc/self/fd/{self._directory}/{name}"

    def _registered(self) -> tuple[str, ...]:
        """Return the socket names of other processes. The folder is read again only after it changed."""
        try:
            changed_at = self._folder.stat().st_mtime_ns
            if changed_at != self._others_at:
                settled = time.time_ns() - changed_at > _SETTLED_SECONDS * 1e9
                names = {path.name for path in self._folder.iterdir() if path.suffix == ".sock"}
                self._others = tuple(names - {self._name})
                self._others_at = changed_at if settled else -1
        except OSError:
            return ()  # the folder is gone: no process can be rung, and the checks remain
        return self._others

    def _send(self, message: bytes, other: str) -> None:
        try:
            self._out.sendto(message, self._address(other))
        except ConnectionRefusedError:
            with contextlib.suppress(OSError):  # its process is dead; another process may have deleted it already
                # Killed processes leave their names (test_sockets_of_the_dead_are_swept_up).
                (self._folder / other).unlink()
        except OSError:
            return  # its queue is full, so it wakes anyway, or it just left

    def _nudge(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the thread was woken often enough
            self._wakes.send(b"")

    def _run(self) -> None:
        with selectors.DefaultSelector() as ready:
            ready.register(self._socket, selectors.EVENT_READ)
            ready.register(self._woken, selectors.EVENT_READ)
            looked = time.monotonic()
            while not self._stopped:
                # Without followers it sleeps until it is woken: an idle process costs nothing.
                wait = max(0.0, looked + LOOK_SECONDS - time.monotonic()) if self._listening else None
                ready.select(wait)
                self._receive(self._woken)
                self._listen(self._receive(self._socket))
                if not self._listening:
                    looked = time.monotonic()
                elif time.monotonic() - looked >= LOOK_SECONDS:
                    looked = time.monotonic()
                    # Rings can get lost, and the folder's names can be deleted
                    # (test_a_follower_hears_even_where_the_doorbell_is_broken).
                    self._look()

    def _receive(self, bell: socket.socket) -> list[bytes]:
        """Return all waiting datagrams, up to a limit. Remaining ones wake the thread again."""
        rings: list[bytes] = []
        with contextlib.suppress(BlockingIOError):
            while len(rings) < 10 * _FULL_QUEUE:
                rings.append(bell.recv(2 * _LARGEST))
        return rings

    def _listen(self, rings: list[bytes]) -> None:
        if EVERYTHING in rings or len(rings) >= _FULL_QUEUE:
            self._rung(None)
            return
        names = {name for ring in rings if ring for name in ring.decode("utf-8", "surrogatepass").split("\0")}
        if names:
            self._rung(names)
