"""Real sockets, threads and files, on a clock that skips what everybody only waits for.

An asyncio loop of its own: when nothing is ready, no thread works and no child process lives, its time jumps to the
next thing that is due. So a back-off of 32 s, or a silence of 15 minutes, takes no time, and nobody's time-out runs out
because the machine was slow. `time.time` goes along, since what is journalled goes by it.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import TypeVar
from unittest import mock

import anyio

T = TypeVar("T")

GRACE = 0.001
"""Seconds for which other threads may have the interpreter before one looks at them."""
LOOKS = 3
"""Looks in a row that find nobody at work: one that had to wait for the interpreter in the first works in the next."""
_THREADS = "/proc/self/task"


class _Selector(selectors.DefaultSelector):
    """Waits for real while anything works, and skips the rest of a wait."""

    skipped = 0.0

    def __init__(self) -> None:
        super().__init__()
        self._before = frozenset(_children())
        """Processes that others started, and that nobody waits for here."""

    def select(
        self, timeout: float | None = None
    ) -> list[tuple[selectors.SelectorKey, int]]:  # what BaseSelector declares
        if timeout is None or timeout <= GRACE:
            return super().select(timeout)
        ends, quiet = time.monotonic() + timeout, 0
        while True:
            ready = super().select(GRACE if quiet < LOOKS else 0)
            left = ends - time.monotonic()
            if ready or left <= 0:
                return ready
            if quiet == LOOKS:
                self.skipped += left
                return []
            quiet = 0 if somebody_works(self._before) else quiet + 1


class SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop whose time skips."""

    def __init__(self) -> None:
        self._skipping = _Selector()
        super().__init__(self._skipping)

    def time(self) -> float:
        return time.monotonic() + self.skipped

    @property
    def skipped(self) -> float:
        """Seconds that were skipped so far."""
        return self._skipping.skipped


def somebody_works(but: frozenset[str]) -> bool:
    """Whether another thread of this process runs or waits for a disk, or a child process lives that is none of
    those."""
    me = str(threading.get_native_id())
    for thread in os.listdir(_THREADS):
        try:
            if not but.issuperset(_children_of(thread)):
                return True
            if thread != me and _read(f"{_THREADS}/{thread}/stat").rpartition(")")[2].split(None, 1)[0] in "RD":
                return True
        except (FileNotFoundError, ProcessLookupError):  # it has just ended, and may have told us something
            return True
    return False


def _children() -> Iterator[str]:
    """The pids of this process's children."""
    for thread in os.listdir(_THREADS):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended: its children are the next thread's
            yield from _children_of(thread)


def _children_of(thread: str) -> list[str]:
    return _read(f"{_THREADS}/{thread}/children").split()


def _read(path: str) -> str:
    """Return a file of /proc. Looks are frequent: `Path` and a buffered file take ten times as long."""
    file = os.open(path, os.O_RDONLY)
    try:
        return b"".join(iter(lambda: os.read(file, 4_096), b"")).decode("utf-8", "replace")
    finally:
        os.close(file)


def run_skipping(main: Callable[..., Awaitable[T]], *args: object) -> T:
    """Run `main(*args)` to its end on such a loop."""
    loops: list[SkippingLoop] = []
    results: list[T] = []
    real = time.time

    def loop() -> SkippingLoop:
        loops.append(SkippingLoop())
        return loops[-1]

    def now() -> float:
        return real() + (loops[-1].skipped if loops else 0.0)

    async def keep_result() -> None:
        # A task with a result spells it out several times when asyncio takes its signal handler away.
        results.append(await main(*args))

    with mock.patch.object(time, "time", now):
        anyio.run(keep_result, backend="asyncio", backend_options={"loop_factory": loop})
    return results[0]
