"""Adapter from a Python function to the engine's tool: it checks arguments, limits the time, and converts the result.

Functions that are not async run in worker threads. A function that exceeds its time limit continues in its thread, but
its call ends.
"""

from __future__ import annotations

import base64
import dataclasses
import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import anyio
import anyio.from_thread
import anyio.to_thread
from pydantic_core import to_jsonable_python

from callboard.core.utf8 import storable, storable_json
from callboard.ports.foreign_code import result_of_own_task
from callboard.ports.tool import CallContext, Effect, Folders, ToolOutcome, ToolSpec
from callboard.sdk.tools import AnyTool, Image, ToolContext, ToolResult
from callboard.types.errors import ToolRefused
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json

THREADS = 40
"""Number of functions, of those that are not async, that may run at once in a session. Further calls wait."""
_EFFECTS: Mapping[str, Effect] = {"read": "read", "again": "reconcile", "unknown": "unknown"}


@dataclass(frozen=True, slots=True)
class InProcessTool:
    """Function of the program that opened the session, as a tool. Implements the port `Tool`."""

    tool: AnyTool
    threads: anyio.CapacityLimiter

    @property
    def spec(self) -> ToolSpec:
        """Return the tool's description for the model, and how the engine may run it."""
        tool = self.tool
        return ToolSpec(
            tool.name,
            tool.description,
            tool.input_schema,
            _EFFECTS[tool.effect],
            tool.concurrency,
            destructive=tool.destructive,
            seconds=tool.timeout,
        )

    def key(self, tool_input: Json, folders: Folders) -> str:
        """Return an empty key: the tool's concurrency alone decides which calls overlap."""
        return ""

    async def prepare(self, tool_input: Json, context: CallContext) -> Json:
        """Check the input before the start is recorded.

        Raises `ToolRefused` for an input that does not match the schema.
        """
        self._bound(tool_input, None)
        return {}

    async def run(self, tool_input: Json, context: CallContext) -> ToolOutcome:
        """Call the function. The engine handles its exceptions."""
        function = self.tool.function
        threaded = not _is_async(function)
        args, kwargs = self._bound(tool_input, _context_of(context, threaded=threaded))
        with anyio.move_on_after(self.tool.timeout):
            try:
                call = partial(function, *args, **kwargs)
                value: Any = await self._in_thread(call) if threaded else call()
                while inspect.isawaitable(value):
                    value = await result_of_own_task(value)
            except SystemExit as exit_call:
                return ToolOutcome(f"{self.tool.name} tried to end the program: SystemExit({exit_call.code!r})", True)
            return outcome_of(value)
        message = f"{self.tool.name} took longer than {self.tool.timeout:g} s: its effect so far is unknown"
        return ToolOutcome(message, is_error=True)

    async def _in_thread(self, call: partial[Any]) -> Any:
        return await anyio.to_thread.run_sync(call, abandon_on_cancel=True, limiter=self.threads)

    async def repair(self, tool_input: Json, marks: Json, context: CallContext) -> ToolOutcome | None:
        """Decide on a call that was cut off with its process. A call with an unknown effect never runs again."""
        if self.tool.effect != "unknown":
            return None
        message = (
            f"The program ended while {self.tool.name} ran. Whether it had its effect is not known, and it was not run "
            "again: look before you call it again"
        )
        return ToolOutcome(message, is_error=True)

    def _bound(self, tool_input: Json, context: ToolContext | None) -> tuple[list[Any], dict[str, Any]]:
        try:
            return self.tool.taken.bind(tool_input, context)
        except ValueError as wrong:
            raise ToolRefused(str(wrong)) from wrong


def _is_async(function: Callable[..., Any]) -> bool:
    called: object = type(function).__call__
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def _context_of(context: CallContext, *, threaded: bool) -> ToolContext:
    """Return the part of the call's context that the function may use."""
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
    """Convert the return value of a function into a tool result. Raises `ToolRefused` for a value that is not JSON."""
    if isinstance(value, ToolResult):
        return _result_of(value)
    if isinstance(value, str):
        return ToolOutcome(storable(value))
    if value is None:
        return ToolOutcome("Done.")
    if isinstance(value, Image):
        return ToolOutcome(_blocks([value]))
    if isinstance(value, list | tuple) and any(isinstance(item, Image) for item in cast("Sequence[object]", value)):
        return ToolOutcome(_blocks(cast("Sequence[str | Image]", value)))
    plain = _plain(cast("object", value))
    data = cast("Json", plain) if isinstance(plain, dict) else {"result": plain}
    return ToolOutcome(json.dumps(plain, ensure_ascii=False, indent=2), data=data)


def _result_of(result: ToolResult) -> ToolOutcome:
    """Convert a `ToolResult`. Raises `ToolRefused` for a field of a type that no record can contain."""
    content = cast("object", result.content)
    if not isinstance(content, Iterable):
        raise _misfit("content", content, "a text, or a list of texts and images")
    data = _plain(result.data)
    if not isinstance(data, dict):
        raise _misfit("data", result.data, "a dict")
    blocks = storable(content) if isinstance(content, str) else _blocks(cast("Iterable[str | Image]", content))
    return ToolOutcome(blocks, bool(result.is_error), data=cast("Json", data), ends_turn=bool(result.ends_turn))


def _misfit(name: str, value: object, expected: str) -> ToolRefused:
    return ToolRefused(f"it returned a ToolResult whose `{name}` is {type(value).__name__}: give {expected}")


def _blocks(content: Iterable[str | Image]) -> list[Json]:
    return [_block(item) for item in content]


def _block(block: object) -> Json:
    if isinstance(block, Image):
        source = {"type": "base64", "media_type": block.media_type, "data": base64.b64encode(block.data).decode()}
        return {"type": "image", "source": source}
    text = storable(block) if isinstance(block, str) else json.dumps(_plain(block), ensure_ascii=False)
    return {"type": "text", "text": text}


def _plain(value: object) -> Any:
    """Convert the value to plain JSON values. Raises `ToolRefused` if it has none."""
    try:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = dataclasses.asdict(value)
        # Before, because the conversion refuses such a key; and after, because a model keeps such a text.
        return storable_json(to_jsonable_python(storable_json(value)))
    except (ValueError, TypeError, RecursionError) as error:
        raise ToolRefused(f"it returned {type(value).__name__}, which is not JSON: {error}") from error
