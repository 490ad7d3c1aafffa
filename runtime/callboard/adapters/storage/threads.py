"""Bridge between event loops and threads: a caller waits in its loop while a thread works for it.

`anyio.to_thread` would need a thread switch and a limiter for each call, and could not put the calls of many tasks into
one transaction. Here a call is one entry in a queue, and the results of a whole batch wake a loop once.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar, cast

import anyio
from anyio.lowlevel import current_token

from callboard.types.lazy_dataclass import dataclass

T = TypeVar("T")


class _Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=_Closable)

Soon = Callable[..., object]
"""Function that runs another function with arguments in an event loop, from any thread."""


def soon_here() -> Soon:
    """Return a function that schedules calls in the event loop that is running now.

    anyio's own (`from_thread.run_sync`) blocks the calling thread until the loop has run the function, so one busy loop
    would delay every other caller of the store. The backend's own function is used instead; both are documented for
    this purpose.
    """
    native: Any = current_token().native_token
    return native.call_soon_threadsafe if hasattr(native, "call_soon_threadsafe") else native.run_sync_soon


def run_soon(soon: Soon, function: Callable[..., object], *arguments: object) -> None:
    """Run the function in that loop, if the loop still runs."""
    try:
        soon(function, *arguments)
    except RuntimeError:
        return  # the loop has ended, and with it every caller that waited there


class AnswerWaiter(Generic[T]):
    """One caller that waits for one result. Created in the caller's loop, completed in a thread, woken by `wake`."""

    __slots__ = ("_event", "error", "result", "soon")

    def __init__(self) -> None:
        self.soon = soon_here()
        self.error: BaseException | None = None
        self.result: T | None = None
        self._event = anyio.Event()

    def set(self) -> None:
        """Wake the caller. Called in the caller's loop."""
        self._event.set()

    async def wait(self, *, shielded: bool = False) -> T:
        """Return the result. Cancelling the wait does not stop the work; a shielded one goes on."""
        if shielded:
            with anyio.CancelScope(shield=True):
                await self._event.wait()
        else:
            await self._event.wait()
        if self.error is not None:
            raise self.error
        return cast("T", self.result)  # set before the event


async def in_own_thread(work: Callable[[], T]) -> T:
    """Return the result of `work`, run in a thread for which neither a cancelled caller nor the process's end waits."""
    waiter = AnswerWaiter[T]()

    def run() -> None:
        try:
            waiter.result = work()
        except BaseException as error:  # noqa: BLE001 - the caller gets any exception
            waiter.error = error
        wake([waiter])

    threading.Thread(target=run, name="callboard-store-work", daemon=True).start()
    return await waiter.wait()


def _set_all(waiters: list[AnswerWaiter[Any]]) -> None:
    for waiter in waiters:
        waiter.set()


def wake(waiters: Iterable[AnswerWaiter[Any]]) -> None:
    """Wake the callers, each loop once."""
    loops: dict[Soon, list[AnswerWaiter[Any]]] = {}
    for waiter in waiters:
        loops.setdefault(waiter.soon, []).append(waiter)
    for soon, those in loops.items():
        run_soon(soon, _set_all, those)


class ClosableQueue(Generic[T]):
    """Queue that can be closed, so that no entry is added after the last one and waits forever."""

    def __init__(self) -> None:
        self._entries: queue.SimpleQueue[T] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self.get = self._entries.get
        self.get_nowait = self._entries.get_nowait

    def put(self, entry: T) -> None:
        """Add an entry. Raises `RuntimeError` after the last one."""
        with self._lock:
            if self._closed:
                raise RuntimeError("the store is closed")
            self._entries.put(entry)

    def close(self, *last: T) -> None:
        """Add the last entries."""
        with self._lock:
            # Under the lock of `put`, because the caller of an entry after the last one would wait forever.
            self._closed = True
            for entry in last:
                self._entries.put(entry)


@dataclass(eq=False)
class _Work(Generic[T]):
    work: Callable[[], T]
    waiter: AnswerWaiter[T]


class Workers:
    """Threads for blocking work of one kind. Each of the first calls starts one."""

    def __init__(self, name: str, count: int, *, shielded: bool = False) -> None:
        """`shielded`: a cancelled caller waits for the end of its work."""
        self._queue = ClosableQueue[_Work[Any] | None]()
        self._name = name
        self._count = count
        self._shielded = shielded
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    async def do(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread and return or raise its result. Cancelling the caller does not stop it."""
        waiter = AnswerWaiter[T]()
        with self._lock:
            self._queue.put(_Work(work, waiter))
            if len(self._threads) < self._count:
                name = f"callboard-store-{self._name}-{len(self._threads)}"
                self._threads.append(threading.Thread(target=self._run, name=name, daemon=True))
                self._threads[-1].start()
        return await waiter.wait(shielded=self._shielded)

    def stop(self) -> None:
        """Finish the queued work and end the threads. Blocks until they have ended."""
        with self._lock:
            self._queue.close(*(None for _ in self._threads))
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (entry := self._queue.get()) is not None:
            try:
                entry.waiter.result = entry.work()
            except BaseException as error:  # noqa: BLE001 - the caller gets any exception
                entry.waiter.error = error
            wake([entry.waiter])


class Readers(Generic[C]):
    """Threads for reads, each with its own connection, so that reads never wait for a commit's fsync."""

    def __init__(self, connect: Callable[[], C], count: int) -> None:
        self._workers = Workers("reader", count)
        self._connect = connect
        self._connections: dict[int, C] = {}
        """Thread -> its connection."""

    async def do(self, work: Callable[[C], T]) -> T:
        """Run `work` in a reader's thread and return or raise its result. Cancelling the caller does not stop it."""
        return await self._workers.do(lambda: work(self._connection()))

    def stop(self) -> None:
        """Finish the queued work, end the threads, and close the connections. Blocks until the threads have ended."""
        self._workers.stop()
        for connection in self._connections.values():
            connection.close()

    def _connection(self) -> C:
        thread = threading.get_ident()
        if thread not in self._connections:
            self._connections[thread] = self._connect()
        return self._connections[thread]
