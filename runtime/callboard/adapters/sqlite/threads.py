"""Between event loops and threads: a caller waits in its loop while a thread works for it.

`anyio.to_thread` would take a thread hop and a limiter's turn for each call, and could not put the calls of many tasks
into one transaction. Here a call is one entry in a queue, and the answers to a whole batch wake a loop once.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import anyio
import apsw
from anyio.lowlevel import current_token

T = TypeVar("T")

Soon = Callable[..., object]
"""Runs a function with arguments in an event loop, from any thread."""


def soon_here() -> Soon:
    """The way back into the event loop that is running now.

    anyio's own (`from_thread.run_sync`) blocks the calling thread until the loop has run the function: one busy loop
    would hold up every other caller of the store. So the backend's own entry is used; both are documented for this.
    """
    native: Any = current_token().native_token
    return native.call_soon_threadsafe if hasattr(native, "call_soon_threadsafe") else native.run_sync_soon


def run_soon(soon: Soon, function: Callable[..., object], *arguments: object) -> None:
    """Run the function in that loop, if it still runs."""
    try:
        soon(function, *arguments)
    except RuntimeError:
        return  # the loop has ended, and whoever waited there with it: nobody is left to be told


class Waiter(Generic[T]):
    """One caller waiting for one answer. Made in the caller's loop, answered in a thread, woken by `wake`."""

    __slots__ = ("_event", "error", "result", "soon")

    def __init__(self) -> None:
        self.soon = soon_here()
        self.error: BaseException | None = None
        self.result: T | None = None
        self._event = anyio.Event()

    def set(self) -> None:
        """Wake the caller. In the caller's loop."""
        self._event.set()

    async def wait(self) -> T:
        """The answer. Cancelling the wait does not stop the work."""
        await self._event.wait()
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]  # set before the event, by whoever answered


def _set_all(waiters: list[Waiter[Any]]) -> None:
    for waiter in waiters:
        waiter.set()


def wake(waiters: Iterable[Waiter[Any]]) -> None:
    """Wake the callers, each loop once."""
    loops: dict[Soon, list[Waiter[Any]]] = {}
    for waiter in waiters:
        loops.setdefault(waiter.soon, []).append(waiter)
    for soon, those in loops.items():
        run_soon(soon, _set_all, those)


class Gate(Generic[T]):
    """A queue that can be closed: nobody's entry can slip in behind the last one, to be waited for for ever."""

    def __init__(self) -> None:
        self._entries: queue.SimpleQueue[T] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self.get, self.get_nowait = self._entries.get, self._entries.get_nowait

    def put(self, entry: T) -> None:
        """Add an entry. Raises `RuntimeError` after the last one."""
        with self._lock:
            if self._closed:
                raise RuntimeError("the store is closed")
            self._entries.put(entry)

    def close(self, *last: T) -> None:
        """Add the last entries."""
        with self._lock:
            self._closed = True
            for entry in last:
                self._entries.put(entry)


@dataclass(eq=False)
class _Look(Generic[T]):
    work: Callable[[apsw.Connection], T]
    waiter: Waiter[T]


class Readers:
    """Threads that answer reads, each with a connection of its own, so that reads never wait for a commit's fsync."""

    def __init__(self, connect: Callable[[], apsw.Connection], count: int) -> None:
        self._queue = Gate[_Look[Any] | None]()
        self._connect = connect
        self._threads = [
            threading.Thread(target=self._run, name=f"callboard-store-reader-{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    async def do(self, work: Callable[[apsw.Connection], T]) -> T:
        """What `work` returns or raises, run in a reader's thread. Cancelling the caller leaves it to finish."""
        waiter = Waiter[T]()
        self._queue.put(_Look(work, waiter))
        return await waiter.wait()

    def stop(self) -> None:
        """Finish what was asked, close the connections, end the threads. Blocks until they ended."""
        self._queue.close(*(None for _ in self._threads))
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        connection: apsw.Connection | None = None
        while (look := self._queue.get()) is not None:
            try:
                connection = connection or self._connect()
                look.waiter.result = look.work(connection)
            except BaseException as error:  # noqa: BLE001 - it is raised in the caller, whatever it is
                look.waiter.error = error
            wake([look.waiter])
        if connection is not None:
            connection.close()
