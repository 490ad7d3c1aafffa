"""Waits for obstacles that the user must remove: a full disk, or a lock whose holder is stopped.

A command that hosts nothing waits for a few seconds and then reports the obstacle. A process that hosts sessions waits
without limit, and reports it, so that none of its work is lost. When such a process leaves, the wait ends at once: the
commits of its agents are shielded from cancellation and could not be ended otherwise.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

from anyio import to_thread

from callboard.types.errors import StoreFull

T = TypeVar("T")
Tell = Callable[[str], None]

LOOK = 0.25
"""Seconds between two checks of an obstacle."""
TELL_AFTER = 2.0
"""Seconds after which a wait for a lock is reported. Shorter waits are usual on a busy disk."""
LOCK_WAIT = 10.0
"""Seconds that a process that hosts nothing waits for a lock."""
ENDLESS = float("inf")
LEAVING = 0.5
"""Seconds that a process waits if it no longer hosts anything and is about to leave."""
PROCESS_ENDS = threading.Event()
"""Set once a signal has told this process to end. Its stores then wait for a server only for a moment, also while a
session is being opened, whose lease is freed under a shield."""


@contextmanager
def one_command() -> Generator[None]:
    """Clear `PROCESS_ENDS` after the block, which runs one command: a program may run several in one process."""
    try:
        yield
    finally:
        PROCESS_ENDS.clear()


class Patience:
    """Waiting rules of one open store. Thread-safe."""

    def __init__(self, notice: Tell | None = None) -> None:
        """Store `notice`. It is called, from any thread, with the reason for a wait if this process hosts nothing."""
        self._changed = threading.Condition()
        self._notice = notice
        self._listeners: list[Tell] = []
        self._has_hosted = False
        self._closing = False
        self._suspended = False

    @contextmanager
    def waiting_without_limit(self, tell: Tell) -> Generator[None]:
        """Wait without limit while the block lasts. `tell` is called from another thread."""
        with self._changed:
            self._listeners.append(tell)
            self._has_hosted = True
        try:
            yield
        finally:
            with self._changed:
                self._listeners.remove(tell)
                self._changed.notify_all()

    def suspend(self) -> None:
        """End all waiting until `resume`: what waits must fail now, because another process may act in its place."""
        with self._changed:
            self._suspended = True
            self._changed.notify_all()

    def resume(self) -> None:
        """Let writes wait again: the obstacle is gone."""
        with self._changed:
            self._suspended = False

    def close(self) -> None:
        """End all waiting: the store is about to close."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def tell(self, message: str) -> None:
        """Report a message to the host in this process, or to the opener of the store."""
        with self._changed:
            listeners = list(self._listeners) or ([self._notice] if self._notice is not None else [])
        for listener in listeners:
            listener(message)

    @property
    def closing(self) -> bool:
        """Return True once all waiting has been ended."""
        with self._changed:
            return self._closing

    @property
    def leaving(self) -> bool:
        """Return True if the store closes, or this process ends."""
        with self._changed:
            return self._closing or PROCESS_ENDS.is_set()

    def limit(self, alone: float) -> float:
        """Return the most seconds to wait; `alone`: the limit if nothing is hosted."""
        with self._changed:
            if self._closing or (self._suspended and alone != ENDLESS):
                return 0.0
            if self._listeners and not PROCESS_ENDS.is_set():
                return float("inf")
            leaves = self._has_hosted or PROCESS_ENDS.is_set()
            return min(alone, LEAVING) if leaves and alone != ENDLESS else alone

    def pause(self, seconds: float) -> None:
        """Wait for this time, or until hosting begins or ends."""
        with self._changed:
            self._changed.wait(seconds)


class ObstacleWait:
    """One wait for one obstacle. `alone`: seconds to wait if nothing is hosted. `endless`: only closing ends it."""

    def __init__(self, patience: Patience, *, alone: float, tell_after: float = 0.0, endless: bool = False) -> None:
        self._patience = patience
        self._alone = ENDLESS if endless else alone
        self._tell_after = tell_after
        self._began = time.monotonic()
        self._told = False

    def goes_on(self, message: str | Callable[[], str], *, pause: float = LOOK) -> bool:
        """Wait one more moment; return False after the time limit. Reports the message once. Blocks."""
        waited = time.monotonic() - self._began
        if waited >= self._patience.limit(self._alone):
            return False
        if not self._told and waited >= self._tell_after:
            self._told = True
            self._patience.tell(message if isinstance(message, str) else message())
        if pause:
            self._patience.pause(pause)
        return True

    def over(self, message: str) -> None:
        """End the wait, because the obstacle is gone. Report `message` if the wait was reported."""
        if self._told:
            self._patience.tell(message)


async def with_room(patience: Patience, work: Callable[[], Awaitable[T]], *, again: str) -> T:
    """Return the result of `work`. Repeat it while the disk is full and this process hosts sessions.

    `again`: report of the end of a wait that was reported. Raises `StoreFull` if this process hosts none.
    """
    wait = ObstacleWait(patience, alone=0.0)
    while True:
        try:
            result = await work()
        except StoreFull as full:
            if not await to_thread.run_sync(wait.goes_on, f"{full}. Waiting for that"):
                raise
        else:
            wait.over(again)
            return result
