"""`load_skill`: the body of a skill whose name and description stand in the system prompt.

Commands in the body run before the model reads it, and a skill may run as a subagent: the engine does both
(`ToolContext.use_skill`), by the id of the call, so that a call that was cut finds its subagent again.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from callboard.adapters.tools.store_tool import Input, read_input, schema_of
from callboard.core.skills.commands import commands_in
from callboard.ports.tool import Tool, ToolContext, ToolOutcome, ToolSpec
from callboard.words.values import Json

_LOAD = """\
Load a skill: instructions for a kind of work, by the name that the catalogue in your system prompt shows. Load it \
before you begin work that it covers, and follow it. Files that it names are in its folder: read them when you need \
them. Some skills run as a subagent: then you get its answer."""
_CUT = "it was cut off while the commands in its text ran, and what they did is unknown: look, before you load it again"


class _Load(Input):
    name: str = Field(min_length=1)
    arguments: str = Field(default="", description="What the skill works on, where it takes arguments")


def skill_tools() -> tuple[Tool, ...]:
    """`load_skill`. A subagent that it started is found again after a crash; commands are not run twice."""
    spec = ToolSpec("load_skill", _LOAD, schema_of(_Load), effect="attach", concurrency="shared", seconds=None)
    return (SkillTool(spec),)


@dataclass(frozen=True, slots=True)
class SkillTool:
    """The tool."""

    spec: ToolSpec

    def key(self, given: Json) -> str:
        """Skills load beside each other."""
        return ""

    async def prepare(self, given: Json, context: ToolContext) -> Json:
        """Refuse a wrong input before the start is recorded."""
        read_input(_Load, given)
        return {}

    async def run(self, given: Json, context: ToolContext) -> ToolOutcome:
        """The skill's text, or its subagent's answer. Raises `ToolRefused`."""
        read = read_input(_Load, given)
        use = await context.use_skill(read.name, read.arguments)
        return ToolOutcome(use.text, is_error=use.is_error, events=use.events, data=use.data)

    async def repair(self, given: Json, marks: Json, context: ToolContext) -> ToolOutcome | None:
        """Again, unless commands may have run."""
        skill = context.skills.load(read_input(_Load, given).name)
        return ToolOutcome(_CUT, is_error=True) if commands_in(skill.body or "") else None
