"""Results of tools: recorded in a run, and returned in a replay without running anything.

A replay starts no process and changes no file of the workspace. Two kinds of tools still run: those that only write to
the session's own store, which is discarded (including `complete_task`, whose check ends as recorded), and `task`, whose
subagent is replayed. A call that the cassette does not contain gets an error result with that reason.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from callboard.adapters.models.cassette.mail_order import DeliveryOrder
from callboard.adapters.models.cassette.recorder import Tape, stopped_in
from callboard.ports.store import Write
from callboard.ports.tool import (
    AGENT_TYPES,
    CallContext,
    Folders,
    Tool,
    ToolOutcome,
    ToolSpec,
)
from callboard.types.errors import ToolRefused
from callboard.types.events import Event, decode_event
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json

NOT_HELD = "The cassette holds no result of this call, and a replay runs no tools (--live-tools does)."


@dataclass(frozen=True)
class TapedTool:
    """A tool, and the tape of its results."""

    tool: Tool
    tape: Tape

    @property
    def spec(self) -> ToolSpec:
        return self.tool.spec

    def key(self, tool_input: Json, folders: Folders) -> str:
        return self.tool.key(tool_input, folders)


@dataclass(frozen=True)
class ToolAsListed:
    """A tool with the description and the schema that a recording lists, which may be those of another version."""

    tool: Tool
    spec: ToolSpec

    def key(self, tool_input: Json, folders: Folders) -> str:
        return self.tool.key(tool_input, folders)

    async def prepare(self, tool_input: Json, context: CallContext) -> Json:
        return await self.tool.prepare(tool_input, context)

    async def run(self, tool_input: Json, context: CallContext) -> ToolOutcome:
        return await self.tool.run(tool_input, context)

    async def repair(self, tool_input: Json, marks: Json, context: CallContext) -> ToolOutcome | None:
        return await self.tool.repair(tool_input, marks, context)


def as_listed(tool: Tool, listing: Json) -> Tool:
    """Return a tool as a recorded request lists it. The agent types at the end of a description are the current ones.

    A replay tests changes of agent files, but not the texts of another version of Callboard.
    """
    spec = tool.spec
    recorded = str(listing.get("description", "")).partition(AGENT_TYPES)[0]
    text, mark, types = spec.description.partition(AGENT_TYPES)
    schema = cast("Json", listing.get("input_schema") or spec.input_schema)
    if (recorded, schema) == (text, spec.input_schema):
        return tool
    return ToolAsListed(tool, replace(spec, description=f"{recorded}{mark}{types}", input_schema=schema))


@dataclass(frozen=True)
class RecordedTool(TapedTool):
    """Tool that runs, and whose changes to its agent are recorded.

    Its result is an event, which `DeliveryRecorder` records.
    """

    async def prepare(self, tool_input: Json, context: CallContext) -> Json:
        return await self.tool.prepare(tool_input, context)

    async def run(self, tool_input: Json, context: CallContext) -> ToolOutcome:
        return self._with_changes_kept(await self.tool.run(tool_input, context), context.call)

    async def repair(self, tool_input: Json, marks: Json, context: CallContext) -> ToolOutcome | None:
        outcome = await self.tool.repair(tool_input, marks, context)
        return None if outcome is None else self._with_changes_kept(outcome, context.call)

    def _with_changes_kept(self, outcome: ToolOutcome, call: str) -> ToolOutcome:
        if outcome.events:
            changes = [json.loads(event.encode()) for event in outcome.events]
            self.tape.keep("changes", call, {"events": changes})
        return outcome


@dataclass(frozen=True)
class ReplayedTool(TapedTool):
    """Tool that does not run: its recorded outcome is returned."""

    async def prepare(self, tool_input: Json, context: CallContext) -> Json:
        """Do nothing."""
        return {}

    async def run(self, tool_input: Json, context: CallContext) -> ToolOutcome:
        """Return the recorded outcome, or an error result if the call was not recorded."""
        recorded = self.tape.value_of("tool", context.call)
        if recorded is None:
            return ToolOutcome(NOT_HELD, is_error=True)
        changes = self.tape.value_of("changes", context.call) or {"events": []}
        events = tuple(decode_event(json.dumps(event).encode()) for event in changes["events"])
        return _outcome(recorded, events=events)

    async def repair(self, tool_input: Json, marks: Json, context: CallContext) -> ToolOutcome | None:
        """Return None: the call never began."""
        return None


@dataclass(frozen=True)
class ReplayedStoreTool(TapedTool):
    """Tool that changes the session's rows. It changes them in the recorded order, and returns the recorded text."""

    course: DeliveryOrder

    async def prepare(self, tool_input: Json, context: CallContext) -> Json:
        return await self.tool.prepare(tool_input, context)

    async def run(self, tool_input: Json, context: CallContext) -> ToolOutcome:
        """Run the tool and return its effect with the recorded text.

        The text may mention simultaneous acts of other agents.
        """
        await self.course.turn_of(context.call)
        recorded = self.tape.value_of("tool", context.call)
        try:
            outcome = await self.tool.run(tool_input, context)
        except ToolRefused:
            if recorded is None or not recorded["is_error"]:
                raise
            return _outcome(recorded)
        if recorded is None or recorded["is_error"] != outcome.is_error:
            return outcome
        return replace(outcome, content=_outcome(recorded).content)

    async def repair(self, tool_input: Json, marks: Json, context: CallContext) -> ToolOutcome | None:
        return await self.tool.repair(tool_input, marks, context)


WORKTREE_TOOLS = frozenset({"create_worktree", "keep_worktree", "remove_worktree"})
"""Tools that act on worktrees, which a replay lists without folders, and on the tasks bound to them."""


@dataclass(frozen=True)
class ReplayedWorktreeTool(ReplayedTool):
    """Worktree tool. A replay creates no folder, but binds tasks and changes their owners as recorded."""

    async def run(self, tool_input: Json, context: CallContext) -> ToolOutcome:
        """Return the recorded outcome with the writes that a replay needs; a refused call has none."""
        outcome = await ReplayedTool.run(self, tool_input, context)
        if outcome.is_error:
            return outcome
        done = await self.tool.run(tool_input, context)
        return replace(outcome, writes=done.writes, events=done.events or outcome.events)


@dataclass(frozen=True)
class ReplayedStopTool(ReplayedTool):
    """`task_stop`: a command ends as recorded; a subagent is stopped after all its recorded calls."""

    course: DeliveryOrder

    async def run(self, tool_input: Json, context: CallContext) -> ToolOutcome:
        """Return the recorded outcome, and the order to stop if the call stopped a subagent."""
        outcome = await ReplayedTool.run(self, tool_input, context)
        writes: list[Write] = []
        for agent in stopped_in(self.tape.value_of("changes", context.call) or {}):
            await self.course.wait_played(agent)
            writes += context.spawner.stop_writes(agent)
        return replace(outcome, writes=tuple(writes))


def _outcome(recorded: Json, *, events: tuple[Event, ...] = (), writes: tuple[Write, ...] = ()) -> ToolOutcome:
    content = cast("Sequence[Json]", recorded["content"])
    return ToolOutcome(content, recorded["is_error"], writes, events, recorded["data"], recorded["ends_turn"])
