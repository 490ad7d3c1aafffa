"""The world outside the store, for simulations: files and commands whose effects are counted where no crash reaches.

One tool for each effect class that the store's own tools do not have: `read_file` (read), `write_file` (reconcile) and
`bash` (unknown). `task` (attach) and the tools of the board (store) are the real ones.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import anyio

from callboard.ports.tool import CallContext, Folders, Tool, ToolOutcome, ToolSpec
from callboard.types.errors import ToolRefused
from callboard.types.events import FileSeen
from callboard.types.records import Json

Act = Callable[["Outside", Json, CallContext], Awaitable[ToolOutcome]]


@dataclass
class Outside:
    """What really happened: never rolled back, never lost, counted by the id of the call."""

    files: dict[str, str] = field(default_factory=dict[str, str])
    written: Counter[str] = field(default_factory=Counter[str])
    commanded: Counter[str] = field(default_factory=Counter[str])
    slow: float = 0.0
    """Seconds that a command takes; half of them before its effect."""

    def tools(self) -> dict[str, Tool]:
        """The three tools, on this world."""
        return {
            "read_file": OutsideTool(ToolSpec("read_file", "Read.", schema("path"), "read", "keyed"), self, _read),
            "write_file": OutsideTool(
                ToolSpec("write_file", "Write.", schema("path", "text"), "reconcile", "keyed"), self, _write
            ),
            "bash": OutsideTool(ToolSpec("bash", "Run.", schema("command"), "unknown"), self, bash),
        }


@dataclass(frozen=True)
class OutsideTool:
    """A `Tool` made of a function of the world outside."""

    spec: ToolSpec
    outside: Outside
    act: Act

    def key(self, given: Json, folders: Folders) -> str:
        return str(given.get("path", ""))

    async def prepare(self, given: Json, context: CallContext) -> Json:
        if self.spec.effect != "reconcile":
            return {}
        return {"before": _digest(self.outside.files, given), "after": _sha(given["text"])}

    async def run(self, given: Json, context: CallContext) -> ToolOutcome:
        return await self.act(self.outside, given, context)

    async def repair(self, given: Json, marks: Json, context: CallContext) -> ToolOutcome | None:
        """Done, not done, or not to be known: as the effect class says."""
        if self.spec.effect == "unknown":
            return ToolOutcome("Its outcome is unknown: the process ended while it ran.", is_error=True)
        return ToolOutcome("written") if _digest(self.outside.files, given) == marks["after"] else None


async def _read(outside: Outside, given: Json, context: CallContext) -> ToolOutcome:
    await anyio.lowlevel.checkpoint()
    if given["path"] == "long.txt":
        return ToolOutcome("a line of a long file\n" * 400)
    return ToolOutcome(outside.files.get(given["path"], "(no such file)"))


async def _write(outside: Outside, given: Json, context: CallContext) -> ToolOutcome:
    await anyio.lowlevel.checkpoint()
    outside.files[given["path"]] = given["text"]
    outside.written[context.call] += 1
    await anyio.lowlevel.checkpoint()
    seen = FileSeen(at=context.now, path=given["path"], digest=_sha(given["text"]), changed=True)
    return ToolOutcome("written", events=(seen,))


async def bash(outside: Outside, given: Json, context: CallContext) -> ToolOutcome:
    """A command that is waited for: its effect stands in its middle."""
    if given["command"] == "refuse":
        raise ToolRefused("not this one")
    await anyio.sleep(outside.slow / 2)
    outside.commanded[context.call] += 1
    await anyio.sleep(outside.slow / 2)
    return ToolOutcome(f"ran {given['command']}")


def schema(*fields: str) -> Json:
    """An input of so many texts, all needed."""
    properties = {name: {"type": "string"} for name in fields}
    return {"type": "object", "properties": properties, "required": list(fields), "additionalProperties": False}


def _digest(files: Mapping[str, str], given: Json) -> str:
    return _sha(files[given["path"]]) if given["path"] in files else ""


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
