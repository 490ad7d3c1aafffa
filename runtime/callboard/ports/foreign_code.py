"""Results of code that others wrote (tools, hooks, approvers), awaited on either event loop.

Such code may await a task of its program that the program cancels. The cancellation then looks like one of the agent:
its operation would end without a result, and its task group without an error.

Functions of a program run in tasks of their own: one may cancel its current task, or enter a cancel scope of anyio that
it never leaves, such as a client that it keeps for the next call. In an agent's task, either would crash the agent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar, cast

import anyio
import structlog
from anyio.lowlevel import checkpoint_if_cancelled

T = TypeVar("T")

GRACE = 5.0
"""Seconds that a cancelled function of a program may take to clean up. Then it is left to itself."""

log = structlog.get_logger("callboard.foreign_code")


class AwaitedTaskCancelled(Exception):
    """The code was not cancelled from outside, but ended with a cancellation: of itself, or of what it awaited."""


def error_text(error: BaseException) -> str:
    """Return the type and the message of an exception of others' code, whose `str` may raise."""
    try:
        message = str(error)
    except Exception as bug:  # noqa: BLE001 - any exception means that there is no message
        message = f"its message is missing: its __str__ raised {type(bug).__name__}"
    return f"{type(error).__name__}: {message}"


async def result_of_foreign(work: Awaitable[T]) -> T:
    """Return the result of others' code.

    Raises its exceptions, and `AwaitedTaskCancelled` for a cancellation that is not one of the calling task.
    """
    earlier = _native_cancellations()
    try:
        return await work
    # On trio, too, code may raise the exception of asyncio.
    except (asyncio.CancelledError, anyio.get_cancelled_exc_class()) as cancelled:
        await checkpoint_if_cancelled()  # raises if a cancel scope around the call is cancelled
        if _native_cancellations() > earlier:
            raise
        raise AwaitedTaskCancelled("it was cancelled, or a task that it awaited") from cancelled


async def result_of_own_task(work: Awaitable[T]) -> T:
    """Return the result of a program's coroutine, which runs in a task of its own.

    Raises its exceptions, also a cancellation. If the calling task is cancelled, the coroutine is cancelled once, as by
    asyncio, and may take `GRACE` seconds to clean up. On trio, the coroutine runs in the calling task.
    """
    if anyio.get_cancelled_exc_class() is not asyncio.CancelledError:
        return await work
    task = asyncio.create_task(_outcome(work))
    try:
        await asyncio.wait((task,))
    except asyncio.CancelledError:
        task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait((task,), timeout=GRACE)
        if not task.done():
            log.warning("a function goes on although it was cancelled", function=repr(work), seconds=GRACE)
        if not task.done() or task.cancelled():
            raise
    made, error = task.result()
    if error is not None:
        raise error
    return cast("T", made)


async def _outcome(work: Awaitable[T]) -> tuple[T | None, BaseException | None]:
    """Return the result or the exception. An exit that leaves a task of asyncio would end the event loop at once."""
    try:
        return await work, None
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - raised again in the calling task
        return None, error


def _native_cancellations() -> int:
    """Return the number of `Task.cancel` calls for the current task. The event loop cancels its tasks so at its end."""
    if anyio.get_cancelled_exc_class() is not asyncio.CancelledError:
        return 0
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0
