"""Calls, results and handlers for tests of the hook registry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import anyio

from callboard.types.hook_answers import Answer, HandlerResult, HookToolResult, PostToolUse, PreToolUse
from callboard.types.records import Json, ToolCall


def call(tool: str = "bash", **given: object) -> PreToolUse:
    return PreToolUse(ToolCall(id="c", use_id="u", name=tool, input=given or {"command": "ls"}))


def result(text: str = "old", *, is_error: bool = False) -> PostToolUse:
    return PostToolUse(call().call, HookToolResult(({"type": "text", "text": text},), is_error))


@dataclass
class Handler:
    """A handler behind the port that says what it is told to, when `go` is set."""

    says: HandlerResult = HandlerResult()
    name: str = "handler"
    timeout: float | None = None
    go: anyio.Event | None = None
    raises: BaseException | None = None
    told: list[Json] = field(default_factory=list[Json])
    begun: Callable[[], None] = lambda: None

    async def run(self, event_json: Json, timeout: float) -> HandlerResult:
        self.told.append(event_json)
        self.begun()
        if self.go is not None:
            await self.go.wait()
        if self.raises is not None:
            raise self.raises
        return self.says


def answering(*answers: Answer, **fields: Any) -> Handler:
    return Handler(HandlerResult(answers), **fields)
