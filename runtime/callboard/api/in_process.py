"""A Python function as the engine's tool: arguments checked, time kept, whatever it returns made a result.

Functions that are not async run in worker threads. One that outlives its time is left alone there: its call ends.
"""

from __future__ import annotations

import base64
import dataclasses
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import anyio
import anyio.from_thread
import anyio.to_thread
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from callboard.api.tools import AnyTool, Image, ToolContext, ToolResult
from callboard.ports.tool import Effect, ToolOutcome, ToolSpec
from callboard.ports.tool import ToolContext as EngineContext
from callboard.words.errors import ToolRefused
from callboard.words.values import Json

THREADS = 40
"""Calls of functions that are not async, at once in one session; the others wait."""
_EFFECTS: Mapping[str, Effect] = {"read": "read", "again": "reconcile", "unknown": "unknown"}


@dataclass(frozen=True, slots=True)
class InProcessTool:
    """A function of the program that opened the session. The port `Tool`."""

    tool: AnyTool
    threads: anyio.CapacityLimiter

    @property
    def spec(self) -> ToolSpec:
        """What the model is told, and how the engine may run it."""
        one = self.tool
        return ToolSpec(
            one.name,
            one.description,
            one.input_schema,
            _EFFECTS[one.effect],
            one.concurrency,
            destructive=one.destructive,
            seconds=one.timeout,
        )

    def key(self, given: Json) -> str:
        """No two calls of it touch one thing: it is shared or exclusive."""
        return ""

    async def prepare(self, given: Json, context: EngineContext) -> Json:
        """Refuse an input that does not fit before the start is recorded. Raises `ToolRefused`."""
        self._bound(given, None)
        return {}

    async def run(self, given: Json, context: EngineContext) -> ToolOutcome:
        """Call the function. What it raises is the engine's to tell."""
        function = self.tool.function
        threaded = not _is_async(function)
        args, kwargs = self._bound(given, _told(context, threaded=threaded))
        with anyio.move_on_after(self.tool.timeout):
            try:
                call = partial(function, *args, **kwargs)
                value: Any = await self._in_thread(call) if threaded else await cast("Awaitable[Any]", call())
                if inspect.isawaitable(value):
                    value = await value
            except SystemExit as left:
                return ToolOutcome(f"{self.tool.name} tried to end the program: SystemExit({left.code!r})", True)
            return outcome_of(value)
        words = f"{self.tool.name} took longer than {self.tool.timeout:g} s: what it has done until then is not known"
        return ToolOutcome(words, is_error=True)

    async def _in_thread(self, call: partial[Any]) -> Any:
        return await anyio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=self.threads)

    async def repair(self, given: Json, marks: Json, context: EngineContext) -> ToolOutcome | None:
        """A call that was cut off with its process: never run again where its effect is unknown."""
        if self.tool.effect != "unknown":
            return None
        words = (
            f"The program ended while {self.tool.name} ran. Whether it had its effect is not known, and it was not run "
            "again: look before you call it again"
        )
        return ToolOutcome(words, is_error=True)

    def _bound(self, given: Json, context: ToolContext | None) -> tuple[list[Any], dict[str, Any]]:
        try:
            return self.tool.taken.bind(given, context)
        except ValueError as wrong:
            raise ToolRefused(str(wrong)) from wrong


def _is_async(function: Callable[..., Any]) -> bool:
    called: object = type(function).__call__
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def _told(context: EngineContext, *, threaded: bool) -> ToolContext:
    """What the function may know of its call."""
    tell = context.progress
    return ToolContext(
        session=context.session,
        agent=context.spec.name,
        agent_type=context.spec.agent_type,
        call=context.call,
        folder=context.folders.root,
        progress=(lambda text: anyio.from_thread.run_sync(tell, text)) if threaded else tell,
    )


def outcome_of(value: object) -> ToolOutcome:
    """What a function returned as a result. Raises `ToolRefused` for what is no JSON."""
    if isinstance(value, ToolResult):
        content = value.content if isinstance(value.content, str) else _blocks(value.content)
        return ToolOutcome(content, value.is_error, data=value.data, ends_turn=value.ends_turn)
    if isinstance(value, str):
        return ToolOutcome(value)
    if value is None:
        return ToolOutcome("Done.")
    if isinstance(value, Image):
        return ToolOutcome(_blocks([value]))
    if isinstance(value, list | tuple) and any(isinstance(one, Image) for one in cast("Sequence[object]", value)):
        return ToolOutcome(_blocks(cast("Sequence[str | Image]", value)))
    plain = _plain(cast("object", value))
    data = cast("Json", plain) if isinstance(plain, dict) else {"result": plain}
    return ToolOutcome(json.dumps(plain, ensure_ascii=False, indent=2), data=data)


def _blocks(content: Sequence[str | Image]) -> list[Json]:
    return [_block(one) for one in content]


def _block(one: object) -> Json:
    if isinstance(one, Image):
        source = {"type": "base64", "media_type": one.media_type, "data": base64.b64encode(one.data).decode()}
        return {"type": "image", "source": source}
    return {"type": "text", "text": one if isinstance(one, str) else json.dumps(_plain(one), ensure_ascii=False)}


def _plain(value: object) -> Any:
    """The value as JSON has it."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    try:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return to_jsonable_python(dataclasses.asdict(value))
        return to_jsonable_python(value)
    except (ValueError, TypeError) as error:
        raise ToolRefused(f"it returned {type(value).__name__}, which is no JSON: {error}") from error
