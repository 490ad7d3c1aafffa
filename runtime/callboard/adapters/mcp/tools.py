"""A tool of a server as a tool of ours: what the model is told of it, and what becomes of a call.

A server's annotations are its own words: `readOnlyHint` lets a call that a crash cut be run again, and nothing else.
Everything else of a server has an unknown effect: after a crash it is told, never run again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import anyio

from callboard.adapters.mcp.sound import sound
from callboard.core.mcp.names import tool_name
from callboard.core.mcp.results import Answer, shortened, whole_text
from callboard.core.mcp.schemas import problem
from callboard.core.mcp.texts import cut
from callboard.ports.tool import ToolContext, ToolOutcome, ToolSpec
from callboard.words.errors import ToolRefused
from callboard.words.values import Json

Call = Callable[[str, Json, ToolContext], Awaitable[Answer]]
"""Calls a tool of the server by the server's own name for it. Raises `ToolRefused`."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A tool as its server declares it. Equal ones are the same tool."""

    server: str
    name: str
    """The server's own name for it."""
    spec: ToolSpec
    shown: object = None
    """Characters of a result that it asks to be shown."""
    schema: str = ""
    """What was wrong with its schema; empty: nothing."""


def declared(server: str, found: Json, seconds: float) -> Declared | None:
    """A tool of a `tools/list`; None for what has no name. `seconds`: how long a call may be silent."""
    name = found.get("name")
    if not isinstance(name, str) or not name.strip():
        return None
    schema, wrong = sound(found.get("inputSchema"))
    hints = _object(found.get("annotations"))
    meta = _object(found.get("_meta"))
    reads = hints.get("readOnlyHint") is True
    spec = ToolSpec(
        tool_name(server, name),
        cut(found.get("description")) or cut(found.get("title") or hints.get("title")) or name,
        schema,
        "read" if reads else "unknown",
        "shared" if reads else "exclusive",
        # A tool that says nothing may destroy (the protocol's default), and that alone is what `unknown` means already.
        destructive=hints.get("destructiveHint") is True and not reads,
        person_only=meta.get("anthropic/requiresUserInteraction") is True,
        always_load=meta.get("anthropic/alwaysLoad") is True,
        seconds=seconds,
    )
    return Declared(server, name, spec, meta.get("anthropic/maxResultSizeChars"), wrong)


class ServerTool:
    """The port `Tool` for one tool of a server."""

    def __init__(self, declared: Declared, call: Call, shown: int) -> None:
        """`shown`: characters of a result that are shown."""
        self.declared, self._call, self._shown = declared, call, shown

    @property
    def spec(self) -> ToolSpec:
        return self.declared.spec

    def key(self, given: Json) -> str:
        return ""

    async def prepare(self, given: Json, context: ToolContext) -> Json:
        """Check the arguments, so that what does not fit never leaves."""
        if wrong := problem(self.spec.input_schema, given):
            raise ToolRefused(wrong)
        return {}

    async def run(self, given: Json, context: ToolContext) -> ToolOutcome:
        answer = await self._call(self.declared.name, given, context)
        blocks = answer.blocks
        data: Json = {"server": self.declared.server, "tool": self.declared.name}
        if answer.characters > self._shown:
            whole = await _keep(context.folders.tool_results, context.call, whole_text(blocks))
            blocks = shortened(blocks, self._shown, str(whole))
            data["whole"] = str(whole)
        if answer.structured is not None:
            data["structuredContent"] = answer.structured
        if len(blocks) == 1 and blocks[0]["type"] == "text":
            return ToolOutcome(str(blocks[0]["text"]), answer.is_error, data=data)
        return ToolOutcome(blocks, answer.is_error, data=data)

    async def repair(self, given: Json, marks: Json, context: ToolContext) -> ToolOutcome | None:
        """After a crash: what only reads by its server's word is run again, all else has an outcome nobody knows."""
        if self.spec.effect == "read":
            return None
        return ToolOutcome(
            f"The runtime stopped while {self.spec.name} was under way at the server {self.declared.server}, so its "
            "outcome is unknown and it was not called again. Look at what it has done before you call it again.",
            is_error=True,
        )


async def _keep(folder: Path, call: str, text: str) -> Path:
    """Write the whole of a large result, readable by its agent."""
    path = folder / f"{call}.out"
    await anyio.Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    await anyio.Path(path).write_text(text, encoding="utf-8")
    return path


def _object(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
