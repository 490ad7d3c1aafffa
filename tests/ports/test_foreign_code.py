"""Code of others that ends with a cancellation although nobody has cancelled the task that runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import anyio
import anyio.to_thread
import pytest

from callboard.ports.foreign_code import AwaitedTaskCancelled, result_of_foreign, result_of_own_task


async def raising() -> None:
    raise asyncio.CancelledError


async def awaiting_a_cancelled_task() -> None:
    task = asyncio.create_task(asyncio.sleep(60))
    task.cancel()
    await task


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_cancellation_of_something_else_is_an_error_of_the_code(backend: str) -> None:
    async def go() -> None:
        for code in (raising, awaiting_a_cancelled_task)[: 2 if backend == "asyncio" else 1]:
            with pytest.raises(AwaitedTaskCancelled):
                await result_of_foreign(code())

    anyio.run(go, backend=backend)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("code", [anyio.sleep_forever, raising])
def test_a_cancelled_caller_is_cancelled(backend: str, code: Callable[[], Awaitable[None]]) -> None:
    async def go() -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await result_of_foreign(code())
        assert scope.cancelled_caught

    anyio.run(go, backend=backend)


def test_a_caller_that_the_event_loop_cancels_is_cancelled() -> None:
    async def go() -> None:
        caller = asyncio.create_task(result_of_foreign(anyio.sleep_forever()))
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller

    asyncio.run(go())


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_task_of_its_own_returns_raises_and_is_cancelled_with_its_caller(backend: str) -> None:
    ends: list[str] = []

    async def working() -> str:
        try:
            await anyio.sleep_forever()
        finally:
            ends.append("cancelled")
        return ""

    async def failing() -> None:
        raise SystemExit(3)

    async def go() -> None:
        assert await result_of_own_task(anyio.to_thread.run_sync(lambda: 7)) == 7
        with pytest.raises(SystemExit):
            await result_of_own_task(failing())
        with anyio.move_on_after(0.01) as scope:
            await result_of_own_task(working())
        assert (scope.cancelled_caught, ends) == (True, ["cancelled"])

    anyio.run(go, backend=backend)


def test_a_cancelled_function_may_clean_up_and_return(monkeypatch: pytest.MonkeyPatch) -> None:
    async def cleaning_up(seconds: float) -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(seconds)  # as the rollback of a database
        return "partly done"

    async def go() -> None:
        with anyio.move_on_after(0.01):
            assert await result_of_own_task(cleaning_up(0.01)) == "partly done"
        monkeypatch.setattr("callboard.ports.foreign_code.GRACE", 0.01)
        with anyio.move_on_after(0.01) as scope:
            await result_of_own_task(cleaning_up(30))
        assert scope.cancelled_caught

    asyncio.run(go())
