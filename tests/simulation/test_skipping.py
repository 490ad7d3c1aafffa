"""The clock that skips: what is only waited for takes no time, and what somebody works at takes what it takes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time

import anyio
import anyio.to_thread
from tests.simulation.skipping import run_skipping

LONG = 100_000.0


def test_a_wait_is_skipped_and_every_clock_says_so() -> None:
    async def wait() -> tuple[float, float]:
        began, at = time.time(), anyio.current_time()
        await anyio.sleep(LONG)
        return time.time() - began, anyio.current_time() - at

    real = time.time()
    passed = run_skipping(wait)
    assert all(LONG <= one < LONG + 1_000 for one in passed)
    assert time.time() - real < LONG, "outside, it is as late as it was"


def test_a_thread_that_works_is_waited_for() -> None:
    """It ends before the time-out that stands in the future, however long it takes."""

    async def race() -> bool:
        with anyio.move_on_after(LONG) as scope:
            await anyio.to_thread.run_sync(sum, range(3_000_000))
        return scope.cancelled_caught

    assert run_skipping(race) is False


def test_a_child_process_is_waited_for() -> None:
    async def race() -> bool:
        with anyio.move_on_after(LONG) as scope:
            await anyio.run_process([sys.executable, "-c", "import json"], stdout=subprocess.DEVNULL)
        return scope.cancelled_caught

    assert run_skipping(race) is False


def test_a_child_process_that_was_there_before_is_not() -> None:
    """Such as the one that other tests have their commands copied from."""

    async def wait() -> float:
        began = anyio.current_time()
        await anyio.sleep(LONG)
        return anyio.current_time() - began

    with subprocess.Popen(["sleep", str(LONG)]) as child:
        try:
            assert run_skipping(wait) >= LONG
        finally:
            child.kill()


def test_an_answer_that_a_thread_gives_at_the_last_moment_is_not_skipped() -> None:
    async def races() -> list[bool]:
        return [await race() for _ in range(30)]

    async def race() -> bool:
        come, soon = anyio.Event(), asyncio.get_running_loop().call_soon_threadsafe
        thread = threading.Thread(target=lambda: (sum(range(50_000)), soon(come.set)))
        thread.start()
        with anyio.move_on_after(LONG) as scope:
            await come.wait()
        thread.join()
        return scope.cancelled_caught

    assert run_skipping(races) == [False] * 30
