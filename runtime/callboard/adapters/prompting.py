"""Composes an agent's system prompt and tool list from what there is: files, skills, tools.

Nothing that changes by the step stands here, so that the same session gives the same bytes (docs/context.md).
"""

from __future__ import annotations

import platform
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio.to_thread

from callboard.core.context.cache.anchors import anchored_list
from callboard.core.context.prompt import ProjectFile, PromptFacts, SkillLine, system_prompt
from callboard.core.context.view.tokens import estimate_json
from callboard.ports.tool import Skills, ToolSpec
from callboard.ports.world import PromptParts
from callboard.words.specs import AgentSpec
from callboard.words.values import Json

INSTRUCTION_FILES = ("AGENTS.md", "CLAUDE.md")
MOST_INSTRUCTIONS = 60_000
"""Characters of one instruction file; what follows is left out, and the prompt says so."""
Facts = Callable[[str, tuple[str, ...]], tuple[str, ...]]
"""(agent, what is true here) -> what its prompt says."""


class WorkspacePrompts:
    """The port `Prompts`, for one workspace."""

    def __init__(
        self,
        workspace: Path,
        skills: Skills,
        appended: str = "",
        facts: Facts = lambda _, real: real,
        walls: tuple[str, ...] = (),
    ) -> None:
        """`facts`: what is said to an agent of the machine, given what is true of it; `walls`: what is true of the
        sandbox of its commands."""
        self._workspace = workspace
        self._skills = skills
        self._appended = appended
        self._facts = facts
        self._walls = walls

    async def compose(self, spec: AgentSpec, tools: Sequence[ToolSpec]) -> PromptParts:
        paths = _instruction_paths(self._workspace)  # two looks: what is read, is read in a thread
        files = await anyio.to_thread.run_sync(_instructions, paths) if paths else ()
        skills = tuple(SkillLine(s.name, s.description) for s in self._skills.catalogue())
        can_load = any(tool.name == "load_skill" for tool in tools)
        facts = PromptFacts(
            workspace=str(self._workspace),
            facts=self._facts(spec.name, (*_platform(self._workspace), *self._walls)),
            instructions=files,
            skills=skills if can_load else (),
            appended=self._appended,
        )
        blocks = system_prompt(spec, facts)
        listed: list[Json] = [
            {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema} for tool in tools
        ]
        system = anchored_list(blocks, len(blocks) - 2)  # behind it stands what is this agent's own
        names = anchored_list(listed, -1)  # no mark: the one in the system prompt covers them
        return PromptParts(system, names, estimate_json(system) + estimate_json(names))


def _instruction_paths(workspace: Path) -> tuple[Path, ...]:
    """The instruction files that the workspace has: regular files, no links."""
    paths = (workspace / name for name in INSTRUCTION_FILES)
    return tuple(path for path in paths if _is_plain(path))


def _is_plain(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _instructions(paths: Sequence[Path]) -> tuple[ProjectFile, ...]:
    """What instruction files say; one with the same text as another stands once."""
    found: dict[str, str] = {}
    for path in paths:
        if _is_plain(path):  # still
            text = path.read_text(encoding="utf-8", errors="replace").strip()
            if len(text) > MOST_INSTRUCTIONS:
                text = f"{text[:MOST_INSTRUCTIONS]}\n[Cut: {len(text):,} characters. Read the file for the rest.]"
            if text and text not in found.values():
                found[str(path)] = text
    return tuple(ProjectFile(path, text) for path, text in found.items())


def _platform(workspace: Path) -> tuple[str, ...]:
    git = "It is a git repository." if (workspace / ".git").exists() else "It is not a git repository."
    return (f"Platform: {platform.system()} {platform.machine()}.", git)
