"""Composition of an agent's system prompt and tool list from files, skills and tools.

The result contains nothing that changes from step to step, so that the same session gives the same bytes
(docs/context.md).
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from pathlib import Path

from callboard.adapters.extensions.instructions import WorkspaceInstructions
from callboard.adapters.extensions.memory import Memories
from callboard.core.context.cache.breakpoints import anchored_list
from callboard.core.context.system_prompt import ProjectFile, PromptFacts, SkillLine, own_block, shared_blocks
from callboard.core.context.view.tokens import estimate_json
from callboard.ports.environment import PromptParts
from callboard.ports.tool import Skills, ToolSpec
from callboard.types.agent_spec import AgentSpec
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json

_REPOSITORY = ("It is not a git repository.", "It is a git repository.")
Facts = Callable[[str, tuple[str, ...]], tuple[str, ...]]
"""Function (agent, facts about this machine) that returns the facts for the agent's prompt."""


@dataclass(frozen=True, slots=True)
class Guidance:
    """Content of a prompt besides the runtime's own text."""

    instructions: WorkspaceInstructions
    memories: Memories | None = None
    """Notes whose index is shown; None: none are shown."""


@dataclass(frozen=True, slots=True)
class ToolList:
    """Tool list of a prompt."""

    tools: Sequence[ToolSpec]
    data: bytes
    tokens: int


@dataclass(frozen=True, slots=True)
class SharedBlocks:
    """System blocks of a type, and what they were made from."""

    facts: PromptFacts
    spec: AgentSpec
    data: bytes
    """The blocks as a list in JSON, with a cache mark on the last one: the agent's own block comes after it."""
    tokens: int

    def are_of(self, spec: AgentSpec, facts: PromptFacts) -> bool:
        """Return True if the blocks of this agent are the same."""
        made = self.spec
        of_spec = (spec.kind, spec.instructions, spec.tools) == (made.kind, made.instructions, made.tools)
        return of_spec and facts == self.facts


class WorkspacePrompts:
    """Prompts of one workspace. Implements the port `Prompts`."""

    def __init__(
        self,
        workspace: Path,
        skills: Skills,
        *,
        appended: str = "",
        facts: Facts = lambda _, real: real,
        sandbox_facts: tuple[str, ...] = (),
        guidance: Guidance | None = None,
    ) -> None:
        """Store the parts.

        `facts`: function that returns the facts about the machine for an agent from the real ones. `sandbox_facts`:
        facts about the sandbox of the agent's commands. `guidance`: None: only the workspace's instruction files.
        """
        self._workspace = workspace
        self._git = workspace / ".git"
        self._machine = f"Platform: {platform.system()} {platform.machine()}."
        self._skills = skills
        self._appended = appended
        self._facts = facts
        self._sandbox_facts = sandbox_facts
        self._guidance = guidance or Guidance(WorkspaceInstructions(workspace))
        self._lists: dict[str, ToolList] = {}
        """Newest tool list of each agent type."""
        self._shared: dict[str, SharedBlocks] = {}
        """Newest blocks of each agent type."""

    async def compose(self, spec: AgentSpec, tools: Sequence[ToolSpec], servers: Sequence[str] = ()) -> PromptParts:
        files = await self._guidance.instructions.for_prompt(spec)
        can_load = any(tool.name == "load_skill" for tool in tools)
        skills = self._skills.catalogue(spec.limits_of(spec.model).window) if can_load else ()
        facts = PromptFacts(
            workspace=str(self._workspace),
            facts=self._facts(spec.name, (self._machine, _REPOSITORY[self._git.exists()], *self._sandbox_facts)),
            instructions=tuple(ProjectFile(file.path, file.text) for file in files or ()),
            skills=tuple(SkillLine(skill.name, skill.description) for skill in skills),
            servers=tuple(servers),
            memory=await self._index(spec),
            appended=self._appended,
        )
        shared = self._shared_by(spec, facts)
        own = anchored_list([own_block(spec, facts)], -1)
        listed = self._tool_list(spec.agent_type, tools)
        digests = None if files is None else {file.path: file.digest for file in files}
        tokens = shared.tokens + estimate_json(own) + listed.tokens
        return PromptParts(shared.data, listed.data, tokens, digests, own.decode())

    def _shared_by(self, spec: AgentSpec, facts: PromptFacts) -> SharedBlocks:
        """Return the blocks of this type. Agents of a type have the same object while its content is the same."""
        newest = self._shared.get(spec.agent_type)
        if newest is None or not newest.are_of(spec, facts):
            data = anchored_list(shared_blocks(spec, facts))
            newest = self._shared[spec.agent_type] = SharedBlocks(facts, spec, data, estimate_json(data))
        return newest

    def _tool_list(self, agent_type: str, tools: Sequence[ToolSpec]) -> ToolList:
        """Return the list of these tools. Agents of a type have the same object while their tools are the same."""
        newest = self._lists.get(agent_type)
        if newest is None or newest.tools != tools:
            entries: list[Json] = [
                tool.service or {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}
                for tool in tools
            ]
            data = anchored_list(entries, -1)  # without a mark: the mark in the system prompt covers the tools
            newest = self._lists[agent_type] = ToolList(tools, data, estimate_json(data))
        return newest

    async def _index(self, spec: AgentSpec) -> str:
        """Return the index of the agent's notes.

        A replay shows the recorded index, because the recorded run changed the notes.
        """
        if self._guidance.memories is None:
            return ""
        index = await self._guidance.memories.index(spec)
        return "\n".join(self._facts(f"{spec.name}.memory", (index,)))
