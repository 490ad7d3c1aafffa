"""Context manager that a separate task holds open, so that any task of the event loop may close it.

The task that enters one of anyio's cancel scopes has to leave it. A web service opens sessions in one task (its
start-up, a request) and closes them in another, so a separate task holds the scopes of each session and does nothing
else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Generic, TypeVar

import anyio

from callboard.sdk.errors import SessionClosed, UsageError
from callboard.types.errors import heart_of

T = TypeVar("T")
R = TypeVar("R")


class ContextTask(Generic[T]):
    """Hold the result of `enter` open until `close`."""

    def __init__(self, enter: Callable[[AsyncExitStack], Awaitable[T]]) -> None:
        """Store `enter`, which opens the value on the given exit stack and returns it."""
        self._enter = enter
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[T] = self._loop.create_future()
        self._closing = asyncio.Event()
        self._ended = anyio.Event()
        self._error: BaseException | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def error(self) -> BaseException | None:
        """Return the error that ended the task before `close`, or while it closed; None if there is none."""
        return self._error

    @property
    def ended(self) -> bool:
        """Return True once the value is closed."""
        return self._ended.is_set()

    async def open(self) -> T:
        """Open the value and return it. Raises the exceptions of `enter`. If this call is cancelled, it closes the
        value first."""
        self._task = self._loop.create_task(self._keep())
        try:
            return await asyncio.shield(self._opened)
        except asyncio.CancelledError:
            self._task.cancel()
            with anyio.CancelScope(shield=True):
                await self._ended.wait()
            raise

    async def close(self) -> None:
        """Close the value and wait until it is closed, even in a cancelled task. Idempotent.

        Raises the exception that ended the task, and `UsageError` in another event loop than the one that opened the
        value.
        """
        if asyncio.get_running_loop() is not self._loop:
            raise UsageError("a session is closed in the event loop that it was opened in")
        self._closing.set()
        with anyio.CancelScope(shield=True):
            await self._ended.wait()
        if self._error is not None:
            raise self._error

    async def guard(self, work: Awaitable[R]) -> R:
        """Wait for `work`, at most until the value is closed. Raises the exception that ended the task, or
        `SessionClosed`."""
        done: list[R] = []
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._cancel_at_end, group.cancel_scope)
                done.append(await work)
                group.cancel_scope.cancel()
        except BaseExceptionGroup as failed:
            raise heart_of(failed) from failed
        if not done:
            raise self._error or SessionClosed("the session was closed meanwhile")
        return done[0]

    async def _cancel_at_end(self, scope: anyio.CancelScope) -> None:
        await self._ended.wait()
        scope.cancel()

    async def _keep(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                opened = await self._enter(stack)
                self._opened.set_result(opened)
                await self._closing.wait()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001  handed to the task that opens, uses or closes it
            if not self._opened.done():
                self._fail_opening(error)
            elif not isinstance(error, asyncio.CancelledError):
                self._error = error
        finally:
            self._ended.set()

    def _fail_opening(self, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError):
            self._opened.cancel()
            return
        self._opened.set_exception(error)
        self._opened.exception()  # retrieved: a cancelled opener never looks at it
