"""Threads that read. Each has its own connection, and sends all waiting reads in one round trip."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

import psycopg

from callboard.adapters.storage.patience import LOCK_WAIT, TELL_AFTER, ObstacleWait, Patience
from callboard.adapters.storage.postgres.address import Connection, ServerAddress, connect
from callboard.adapters.storage.postgres.faults import translated
from callboard.adapters.storage.postgres.queries import Query
from callboard.adapters.storage.threads import AnswerWaiter, ClosableQueue, wake
from callboard.types.errors import StoreBusy
from callboard.types.lazy_dataclass import dataclass

T = TypeVar("T")

TOGETHER = 64
"""Most reads in one round trip."""


@dataclass(eq=False)
class _Look(Generic[T]):
    query: Query[T]
    waiter: AnswerWaiter[T] | None


@dataclass(eq=False)
class _LateLook:
    """A statement that is made when a thread takes it, with everything that it has to say by then."""

    make: Callable[[], Query[Any]]


class PostgresReaders:
    """Threads for reads, and for statements that may be repeated without harm."""

    def __init__(self, address: ServerAddress, patience: Patience, count: int) -> None:
        self._address = address
        self._patience = patience
        self._queue = ClosableQueue[_Look[Any] | _LateLook | None]()
        self._threads = [
            threading.Thread(target=self._run, name=f"callboard-store-reader-{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    async def do(self, query: Query[T]) -> T:
        """Return or raise the result. Cancelling the caller does not stop the read."""
        waiter = AnswerWaiter[T]()
        self._queue.put(_Look(query, waiter))
        return await waiter.wait()

    def tell(self, make: Callable[[], Query[Any]]) -> None:
        """Run the statement that `make` returns soon; nobody waits for its result. Called from any thread.

        `make` and the query's `decode` are called in a reader's thread.
        """
        with suppress(RuntimeError):  # the store is closing: nobody needs it any more
            self._queue.put(_LateLook(make))

    def stop(self) -> None:
        """Finish the queued reads, close the connections, and end the threads. Blocks until they have ended."""
        self._queue.close(*(None for _ in self._threads))
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        connection: Connection | None = None
        ended = False
        while not ended:
            looks, ended = self._take()
            if looks:
                connection = self._read(looks, connection)
                wake(look.waiter for look in looks if look.waiter is not None)
        if connection is not None:
            connection.close()

    def _take(self) -> tuple[list[_Look[Any]], bool]:
        looks: list[_Look[Any]] = []
        entry = self._queue.get()
        while entry is not None:
            looks.append(_Look(entry.make(), None) if isinstance(entry, _LateLook) else entry)
            if len(looks) == TOGETHER:
                return looks, False
            try:
                entry = self._queue.get_nowait()
            except queue.Empty:
                return looks, False
        return looks, True

    def _read(self, looks: Sequence[_Look[Any]], connection: Connection | None) -> Connection | None:
        """Give each read its result or error. Return the connection for the next ones."""
        wait = ObstacleWait(self._patience, alone=LOCK_WAIT, tell_after=TELL_AFTER)
        while True:
            try:
                connection = connection or connect(self._address.url)
                results = _all(looks, connection)
                break
            except Exception as error:  # noqa: BLE001 - the callers get any exception: a name that no table can hold
                if connection is not None:
                    connection.close()
                    connection = None
                failure = translated(error, self._address) if isinstance(error, psycopg.Error) else error
            if isinstance(failure, StoreBusy) and wait.goes_on(f"{failure}. Waiting for that"):
                continue
            if len(looks) > 1 and not isinstance(failure, StoreBusy):
                return self._read_each(looks)
            _fail(looks, failure)
            return None
        wait.over(f"the server of the store {self._address} can be used again")
        for look, rows in zip(looks, results, strict=True):
            _answer(look, rows)
        return connection

    def _read_each(self, looks: Sequence[_Look[Any]]) -> Connection | None:
        """Read one by one, because one of them is wrong, and the others are not."""
        connection: Connection | None = None
        for look in looks:
            connection = self._read([look], connection)
        return connection


def _all(looks: Sequence[_Look[Any]], connection: Connection) -> list[list[tuple[Any, ...]]]:
    with connection.pipeline():
        cursors = [connection.execute(look.query.sql, look.query.parameters, binary=True) for look in looks]
    return [cursor.fetchall() if cursor.description is not None else [] for cursor in cursors]


def _fail(looks: Sequence[_Look[Any]], failure: Exception) -> None:
    for look in looks:
        if look.waiter is not None:
            look.waiter.error = failure


def _answer(look: _Look[Any], rows: list[tuple[Any, ...]]) -> None:
    if look.waiter is None:
        look.query.decode(rows)
        return
    try:
        look.waiter.result = look.query.decode(rows)
    except Exception as error:  # noqa: BLE001 - the caller gets any exception
        look.waiter.error = error
