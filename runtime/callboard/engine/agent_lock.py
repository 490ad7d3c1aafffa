"""The right to run an agent. Only the holder of an agent's lock runs the agent and shows its output.

1. Each life of an agent has one `AgentLock`, made by the supervisor, and at most one holder at a time.
2. The loop (`engine/loop.py`) holds it from the first step of a turn to the last. Between turns it is free, except
   while something is recorded in the agent's journal.
3. Output of an agent leaves the engine through `SessionRuntime.report_events` and `SessionRuntime.report_output`,
   which refuse an object without the lock. So a screen gets blocks only from the object that runs the agent now.
4. Taking a lock never waits. A second holder is a bug in the runtime and raises `AgentLockError`. Printing takes no
   lock and a lock waits for no screen, so they cannot deadlock.

All methods are called in the thread of the event loop.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self


class AgentLockError(RuntimeError):
    """Bug in the runtime: output of an agent without its lock, or a second holder."""


class AgentLock:
    """Lock of one life of an agent."""

    __slots__ = ("agent", "holder")

    def __init__(self, agent: str) -> None:
        self.agent = agent
        self.holder: AgentLockHolder | None = None
        """Object that has the lock now; None while the lock is free."""


class AgentLockHolder:
    """One object that runs an agent: the runtime of its life, or the record of its crash.

    `with holder:` takes the lock, and may be nested: the lock is free again at the end of the last block.
    """

    __slots__ = ("_depth", "_lock")

    def __init__(self, lock: AgentLock) -> None:
        self._lock = lock
        self._depth = 0

    @property
    def holds(self) -> bool:
        """Return True if this object has the lock."""
        return self._lock.holder is self

    def acquire(self) -> None:
        """Take the lock, or count one more use of it. Raises `AgentLockError` if another object has it."""
        lock = self._lock
        if lock.holder is not self:
            if lock.holder is not None:
                raise AgentLockError(f"{lock.agent} runs already: its lock has another holder")
            lock.holder = self
        self._depth += 1

    def release(self) -> None:
        """End one use of the lock; the last one frees it."""
        self._depth -= 1
        if self._depth == 0:
            self.give_up()

    def give_up(self) -> None:
        """Free the lock at once, because the agent was killed.

        An operation that cannot be cancelled shows nothing from now on.
        """
        if self._lock.holder is self:
            self._lock.holder = None

    def open_block(self) -> str:
        """Return the name of the agent whose output follows. Raises `AgentLockError` without the lock."""
        if self._lock.holder is not self:
            raise AgentLockError(f"{self._lock.agent} shows output without its agent_lock: take the lock first")
        return self._lock.agent

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()
