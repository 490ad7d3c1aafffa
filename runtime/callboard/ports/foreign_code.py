"""Results of code that others wrote (tools, hooks, approvers), awaited on either event loop.

Such code may await a task of its program that the program cancels. The cancellation then looks like one of the agent:
its operation would end without a result, and its task group without an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import anyio
from anyio.lowlevel import checkpoint_if_cancelled

T = TypeVar("T")


class AwaitedTaskCancelled(Exception):
    """The code was not cancelled, but ended with a cancellation: something that it awaited was cancelled."""


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
        raise AwaitedTaskCancelled("a task that it awaited was cancelled") from cancelled


def _native_cancellations() -> int:
    """Return the number of `Task.cancel` calls for the current task. The event loop cancels its tasks so at its end."""
    if anyio.get_cancelled_exc_class() is not asyncio.CancelledError:
        return 0
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0
