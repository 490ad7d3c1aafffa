"""Notifier for every layer that waits until something changes.

It and `foreign_code.py` are the only code in this package that is no contract.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio
from anyio.lowlevel import checkpoint


class Notifier:
    """Count of the changes of something, and the wait for the next one.

    No change is lost between a check and a wait: a waiter reads `changes`, then checks the state, then waits with that
    number, and `changed` returns at once if there was a change since. A change costs one addition while nothing waits.
    Belongs to one event loop; the notifier itself may be created without one.
    """

    __slots__ = ("_changes", "_next")

    def __init__(self) -> None:
        self._changes = 0
        self._next: anyio.Event | None = None
        """Event of the next change; None while nothing waits for it."""

    @property
    def changes(self) -> int:
        """Return the number of changes so far. Read it before you check the state."""
        return self._changes

    def notify(self) -> None:
        """Count a change, and wake all waiters. Call it after the change."""
        self._changes += 1
        if self._next is not None:
            self._next.set()
            self._next = None

    async def changed(self, since: int) -> int:
        """Wait until there are other changes than `since`, and return their number. Several changes count as one."""
        if self._changes != since:
            await checkpoint()  # a loop that causes changes itself must let others run
        while self._changes == since:
            if self._next is None:
                self._next = anyio.Event()
            await self._next.wait()
        return self._changes

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return when the condition is true: at once, or after a change."""
        while not condition():
            await self.changed(self._changes)


class Latch:
    """Event that is set once, as `anyio.Event`. It costs little while nobody waits for it."""

    __slots__ = ("_is_set", "_waiters")

    def __init__(self) -> None:
        self._is_set = False
        self._waiters = Notifier()

    def is_set(self) -> bool:
        """Return True once the event has happened."""
        return self._is_set

    def set(self) -> None:
        """Note that the event has happened, and wake all waiters."""
        self._is_set = True
        self._waiters.notify()

    async def wait(self) -> None:
        """Return once the event has happened."""
        await self._waiters.until(self.is_set)
