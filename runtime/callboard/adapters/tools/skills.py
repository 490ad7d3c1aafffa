"""`load_skill`: the body of a skill whose name and description stand in the system prompt."""

from __future__ import annotations

import hashlib

from pydantic import Field

from callboard.adapters.tools.store_tool import Input, store_tool
from callboard.ports.tool import Tool, ToolContext, ToolOutcome
from callboard.words.events import SkillLoaded

_LOAD = """\
Load a skill: instructions for a kind of work, by the name that the catalogue in your system prompt shows. Load it \
before you begin work that it covers, and follow it. Files that it names are in its folder: read them when you need \
them."""


class _Load(Input):
    name: str = Field(min_length=1)


def skill_tools() -> tuple[Tool, ...]:
    """`load_skill`. Of effect `read`: it changes nothing but its agent's own state, and may run again."""
    return (store_tool("load_skill", _LOAD, _Load, _load_skill, effect="read"),)


def _load_skill(given: _Load, context: ToolContext) -> ToolOutcome:
    skill = context.skills.load(given.name)
    body = skill.body or ""
    lines = [f"Skill {skill.name}, folder {skill.folder}"]
    if skill.problem:
        lines.append(f"Note: {skill.problem}")
    digest = hashlib.sha256(body.encode("utf-8", "surrogatepass")).hexdigest()
    event = SkillLoaded(at=context.now, name=skill.name, digest=digest)
    return ToolOutcome("\n".join([*lines, "", body.strip() or "(it has no text)"]), events=(event,))
