"""The hooks of agent and skill files. An agent's are heard by agents of its type only, a skill's by agents that loaded
it. They are read when a session begins, with everything else that a person trusts then."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from callboard.adapters.agent_files import AgentFile
from callboard.adapters.hook_fields import HookOrigin
from callboard.adapters.hook_files import HooksRead, read_hooks
from callboard.adapters.skill_files import Skill


@dataclass(frozen=True, slots=True)
class FrontMatter:
    """What one file's front matter brings."""

    source: Literal["agent", "skill"]
    read: HooksRead
    of_workspace: bool
    """The file is the workspace's, not the person's or ours."""


def front_matter_hooks(agents: Iterable[AgentFile], skills: Iterable[Skill], project: str) -> Iterator[FrontMatter]:
    """The hooks of each file that has some. `project`: the workspace, absolute."""
    for agent in agents:
        if agent.hooks is not None:
            origin = HookOrigin(project, agent.compatible, agent_type=agent.name)
            read = read_hooks(agent.hooks, agent.path, origin)
            line = dict(agent.lines).get("hooks", 0)
            read = replace(read, notes=tuple(replace(note, line=line) for note in read.notes))
            yield FrontMatter("agent", read, agent.scope == "workspace")
    for skill in skills:
        if skill.hooks is not None:
            origin = HookOrigin(project, skill.source.compatible, skill=skill.text.name)
            read = read_hooks(skill.hooks, str(skill.path), origin)
            yield FrontMatter("skill", read, skill.source.scope == "workspace")
