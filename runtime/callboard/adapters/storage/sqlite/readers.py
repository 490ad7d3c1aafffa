"""Threads that read the database, each with its own connection."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import apsw

from callboard.adapters.storage.threads import AnswerWaiter, ClosableQueue, wake
from callboard.types.lazy_dataclass import dataclass

T = TypeVar("T")


@dataclass(eq=False)
class _Look(Generic[T]):
    work: Callable[[apsw.Connection], T]
    waiter: AnswerWaiter[T]


class Readers:
    """Threads for reads, each with its own connection, so that reads never wait for a commit's fsync."""

    def __init__(self, connect: Callable[[], apsw.Connection], count: int) -> None:
        self._queue = ClosableQueue[_Look[Any] | None]()
        self._connect = connect
        self._threads = [
            threading.Thread(target=self._run, name=f"callboard-store-reader-{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    async def do(self, work: Callable[[apsw.Connection], T]) -> T:
        """Run `work` in a reader's thread and return or raise its result. Cancelling the caller does not stop it."""
        waiter = AnswerWaiter[T]()
        self._queue.put(_Look(work, waiter))
        return await waiter.wait()

    def stop(self) -> None:
        """Finish the queued work, close the connections, and end the threads. Blocks until they have ended."""
        self._queue.close(*(None for _ in self._threads))
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        connection: apsw.Connection | None = None
        while (look := self._queue.get()) is not None:
            try:
                connection = connection or self._connect()
                look.waiter.result = look.work(connection)
            except BaseException as error:  # noqa: BLE001 - the caller gets any exception
                look.waiter.error = error
            wake([look.waiter])
        if connection is not None:
            connection.close()
