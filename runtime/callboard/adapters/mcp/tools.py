"""A server's tool as a Callboard tool: its description for the model, and its calls.

A server's annotations are its own claims: `readOnlyHint` only allows a call to run again after a crash. Every other
tool of a server has an unknown effect: after a crash this is reported, and the call is never run again.

A call of a server's tool has two timeouts, progress, and the server's questions to the user.

It ends by its hard timeout or after a silence, whichever comes first. Progress ends a silence, and the time that the
user takes to answer counts for neither.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import anyio

from callboard.adapters.mcp.schema_fix import sound
from callboard.core.mcp.results import ResultContent, cut, one_line, shortened, whole_text
from callboard.core.mcp.schemas import problem
from callboard.core.mcp.tool_names import tool_name
from callboard.ports.tool import CallContext, Folders, ToolOutcome, ToolSpec
from callboard.types.errors import ToolRefused
from callboard.types.mcp import AnsweredBack, Elicitation
from callboard.types.records import Json

Call = Callable[[str, Json, CallContext], Awaitable[ResultContent]]
"""Function that calls a tool by the server's own name for it. Raises `ToolRefused`."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A tool as declared by its server. Equal declarations are the same tool."""

    server: str
    name: str
    """The server's own name for it."""
    spec: ToolSpec
    result_size: object = None
    """Characters of a result that the tool asks to be shown."""
    schema: str = ""
    """Mistakes in the tool's schema; empty if there are none."""


def declared(server: str, entry: Json, seconds: float) -> Declared | None:
    """Return a tool of a `tools/list`; None if it has no name. `seconds`: the longest silence of a call."""
    name = entry.get("name")
    if not isinstance(name, str) or not name.strip():
        return None
    schema, wrong = sound(entry.get("inputSchema"))
    hints = _object(entry.get("annotations"))
    meta = _object(entry.get("_meta"))
    reads = hints.get("readOnlyHint") is True
    spec = ToolSpec(
        tool_name(server, name),
        cut(entry.get("description")) or cut(entry.get("title") or hints.get("title")) or name,
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

    def __init__(self, declared: Declared, call: Call, most_characters: int) -> None:
        """Store the tool. `most_characters`: the most characters of a result that are shown."""
        self.declared = declared
        self._call = call
        self._shown = most_characters

    @property
    def spec(self) -> ToolSpec:
        return self.declared.spec

    def key(self, tool_input: Json, folders: Folders) -> str:
        return ""

    async def prepare(self, tool_input: Json, context: CallContext) -> Json:
        """Check the arguments, so that invalid ones are never sent."""
        if wrong := problem(self.spec.input_schema, tool_input):
            raise ToolRefused(wrong)
        return {}

    async def run(self, tool_input: Json, context: CallContext) -> ToolOutcome:
        answer = await self._call(self.declared.name, tool_input, context)
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

    async def repair(self, tool_input: Json, marks: Json, context: CallContext) -> ToolOutcome | None:
        """After a crash, run the call again if the server declares it read-only; else report an unknown outcome."""
        if self.spec.effect == "read":
            return None
        return ToolOutcome(
            f"The runtime stopped while {self.spec.name} was under way at the server {self.declared.server}, so its "
            "outcome is unknown and it was not called again. Look at what it has done before you call it again.",
            is_error=True,
        )


async def _keep(folder: Path, call: str, text: str) -> Path:
    """Write the complete large result to a file that its agent can read."""
    path = folder / f"{call}.out"
    await anyio.Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    await anyio.Path(path).write_text(text, encoding="utf-8")
    return path


def _object(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


A_WORD = 0.1
"""Seconds between two progress messages that are shown."""


@dataclass(slots=True)
class CallInFlight:
    """A call that a server is processing."""

    server: str
    context: CallContext
    most: float
    """Most seconds that it may take."""
    silence: float
    """Most seconds without progress."""
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    _ends: float = math.inf
    _reported_at: float = -math.inf
    _asking: int = 0

    def begin(self) -> anyio.CancelScope:
        """Start the timeouts. Return the cancel scope for the request."""
        self._ends = anyio.current_time() + self.most
        self._wind()
        return self.scope

    @property
    def reason(self) -> str:
        """Return a text for the user that says which timeout ended the call."""
        if anyio.current_time() >= self._ends:
            return f"it took longer than {self.most:g} s"
        return f"the server said nothing for {self.silence:g} s"

    async def progressed(self, progress: float, total: float | None, message: str | None) -> None:
        """Show the progress, and restart the silence timeout."""
        self._wind()
        if anyio.current_time() < self._reported_at + A_WORD:
            return
        self._reported_at = anyio.current_time()
        counted = f"{progress:g}" if total is None else f"{progress:g}/{total:g}"
        self.context.progress(f"{counted} {one_line(message)}".strip())

    async def ask(self, question: Elicitation) -> AnsweredBack:
        """Ask the user a question of the server; the timeouts are paused until the answer."""
        began = anyio.current_time()
        self._asking += 1
        self._wind()
        try:
            return await self.context.elicit(replace(question, server=self.server))
        finally:
            self._asking -= 1
            self._ends += anyio.current_time() - began
            self._wind()

    def _wind(self) -> None:
        self.scope.deadline = math.inf if self._asking else min(self._ends, anyio.current_time() + self.silence)
