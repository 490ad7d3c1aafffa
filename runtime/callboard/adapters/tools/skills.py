"""`load_skill`: the body of a skill whose name and description are in the system prompt.

Commands in the body run before the model reads it, and a skill may run as a subagent: the engine does both
(`CallContext.use_skill`), by the id of the call, so that a call that was cut finds its subagent again.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from callboard.adapters.tools.base import Input, read_input, schema_of
from callboard.core.skills.substitution import commands_in
from callboard.ports.tool import CallContext, Folders, Tool, ToolOutcome, ToolSpec
from callboard.types.records import Json

_LOAD = """\
Load a skill: instructions for a kind of work, by the name that the catalogue in your system prompt shows. Load it \
before you begin work that it covers, and follow it. Files that it names are in its folder: read them when you need \
them. Some skills run as a subagent: then you get its answer."""
_CUT = "it was cut off while the commands in its text ran, and what they did is unknown: look, before you load it again"


class _Load(Input):
    name: str = Field(min_length=1)
    arguments: str = Field(default="", description="What the skill works on, where it takes arguments")


def skill_tools() -> tuple[Tool, ...]:
    """Return `load_skill`. After a crash, its subagent is found again, and commands are not run twice. It runs alone: a
    skill changes which calls of the turn are allowed, and the commands in its text may do anything."""
    spec = ToolSpec("load_skill", _LOAD, schema_of(_Load), effect="attach", seconds=None)
    return (SkillTool(spec),)


@dataclass(frozen=True, slots=True)
class SkillTool:
    """The `load_skill` tool."""

    spec: ToolSpec

    def key(self, tool_input: Json, folders: Folders) -> str:
        """Return an empty key: a skill has no single path."""
        return ""

    async def prepare(self, tool_input: Json, context: CallContext) -> Json:
        """Refuse an invalid input before the start is recorded."""
        read_input(_Load, tool_input)
        return {}

    async def run(self, tool_input: Json, context: CallContext) -> ToolOutcome:
        """Return the skill's text, or its subagent's answer. Raises `ToolRefused`."""
        read = read_input(_Load, tool_input)
        use = await context.use_skill(read.name, read.arguments)
        return ToolOutcome(use.text, is_error=use.is_error, events=use.events, data=use.data)

    async def repair(self, tool_input: Json, marks: Json, context: CallContext) -> ToolOutcome | None:
        """Run it again, unless commands may have run."""
        skill = context.skills.load(read_input(_Load, tool_input).name)
        return ToolOutcome(_CUT, is_error=True) if commands_in(skill.body or "") else None
