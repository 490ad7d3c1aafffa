"""Hooks that run in the background: nobody waits for them, they decide nothing, and what they say comes late.

They live in one task group, which somebody tends for as long as the session is hosted; when that ends, they do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio
import structlog
from anyio.abc import TaskGroup

from callboard.core.hooks.rules import capped
from callboard.core.hooks.wire import event_json
from callboard.ports.hooks import HookHandler, Late
from callboard.words.hooks import AddContext, HandlerResult, HookEvent

MOST = 64
"""Hooks in the background at once; a further one is refused, and told."""

log = structlog.get_logger("callboard.hooks")


@dataclass(slots=True)
class _Tended:
    group: TaskGroup
    tell: Callable[[Late], Awaitable[None]]


class Background:
    """All background hooks of a session."""

    def __init__(self) -> None:
        self._tended: _Tended | None = None
        self._running = 0

    async def tend(self, tell: Callable[[Late], Awaitable[None]]) -> None:
        """Run what is begun until cancelled."""
        async with anyio.create_task_group() as group:
            self._tended = _Tended(group, tell)
            try:
                await anyio.sleep_forever()
            finally:
                self._tended = None
                group.cancel_scope.cancel()

    def begin(self, by: str, handler: HookHandler, event: HookEvent, timeout: float, *, wakes: bool) -> str:
        """Start it. Returns why not; empty when it runs."""
        if self._tended is None:
            return "nothing runs in the background here"
        if self._running >= MOST:
            return f"{MOST} hooks run in the background already"
        self._running += 1
        self._tended.group.start_soon(self._run, self._tended, by, _Begun(handler, event, timeout, wakes))
        return ""

    async def _run(self, tended: _Tended, by: str, begun: _Begun) -> None:
        try:
            result = await begun.result()
        finally:
            self._running -= 1
        late = _late(by, begun, result)
        if late.context or late.notices:
            await tended.tell(late)


@dataclass(frozen=True, slots=True)
class _Begun:
    handler: HookHandler
    event: HookEvent
    timeout: float
    wakes: bool

    async def result(self) -> HandlerResult:
        try:
            return await self.handler.run(event_json(self.event), self.timeout)
        except Exception as error:  # noqa: BLE001 - as in the registry: whatever it raises is its fault
            return HandlerResult(fault=f"{type(error).__name__}: {error}")


def _late(by: str, begun: _Begun, result: HandlerResult) -> Late:
    """What is told of a result: texts for the model, messages and faults for the person. Decisions are dropped."""
    context = tuple(answer.text for answer in result.answers if isinstance(answer, AddContext))
    notices = (*result.notices, *([f"failed: {capped(result.fault)}"] if result.fault else []))
    if begun.wakes and result.blocked:
        return Late(by, begun.event.by, (result.blocked,), notices, wake=True)
    return Late(by, begun.event.by, context, notices)
