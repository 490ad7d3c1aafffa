"""Values of skills, slash commands, and plugins that parts of the runtime exchange.

A plugin is a folder with agents, skills, commands, hooks and MCP servers under one name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json

Effort = Literal["", "low", "medium", "high", "xhigh", "max"]
"""Thinking effort requested from the model; empty: not stated."""
CommandKind = Literal["skill", "command", "prompt"]
"""Kind of a command: a skill's folder, a file of `.claude/commands`, or a prompt of an MCP server."""


def _no_variables() -> Mapping[str, str]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SkillText:
    """One skill. `body` is None in a catalogue, and the author's text after `load`."""

    name: str
    description: str
    folder: str
    body: str | None = None
    second: str = ""
    """Another name by which it is found; empty if there is none."""
    problem: str = ""
    kind: CommandKind = "skill"
    hint: str = ""
    """The author's hint for the arguments after the name."""
    arguments: tuple[str, ...] = ()
    """Names of positional arguments, in order."""
    allowed: tuple[str, ...] = ()
    """Rules that allow a call without a question in the turn in which the skill was started."""
    disallowed: tuple[str, ...] = ()
    """Rules that deny in that turn."""
    model: str = ""
    """Model for the rest of that turn; empty: the agent's own."""
    effort: Effort = ""
    fork: bool = False
    """True if the skill runs as the prompt of a subagent, whose answer the caller gets."""
    agent: str = "general"
    """Type of that subagent."""
    background: bool = False
    """True if the caller does not wait for that subagent: its answer comes as a message."""
    for_model: bool = True
    """True if a model may load it."""
    for_person: bool = True
    """True if it is in the user's `/` menu."""
    no_commands: str = ""
    """Reason why commands in the text do not run; empty: they run."""
    variables: Mapping[str, str] = field(default_factory=_no_variables)
    """Values for `${NAME}` in the text, in addition to those of the session."""


@dataclass(frozen=True, slots=True)
class PersonCommand:
    """Slash command for the user, in addition to those of the user interface."""

    name: str
    """Name without the slash."""
    hint: str = ""
    """Hint for the arguments after the name: `<issue> [branch]`."""
    about: str = ""
    """Description in one line."""
    kind: CommandKind = "skill"
    aliases: tuple[str, ...] = ()
    """Unique shorter names: `deploy` for `/tools:deploy`."""

    def goes_by(self, name: str) -> bool:
        """Return True if this name refers to the command."""
        return name == self.name or name in self.aliases


@dataclass(frozen=True, slots=True)
class Plugin:
    """One plugin, from its manifest and its folders. All paths are absolute and inside `root`.

    Its parts are named `name:part`, so that they never hide a part of the user or the workspace.
    """

    name: str
    root: Path
    version: str = ""
    description: str = ""
    agents: tuple[Path, ...] = ()
    """Folders of agent files, or single files."""
    skills: tuple[Path, ...] = ()
    """Folders that contain skills (`NAME/SKILL.md`), or that are skills."""
    commands: tuple[Path, ...] = ()
    """Folders of command files, or single files."""
    named_commands: tuple[tuple[str, Path], ...] = ()
    """Files of commands, or folders, with the names that the manifest gives to the files."""
    output_styles: tuple[Path, ...] = ()
    """Folders of output styles, or single files."""
    hooks: tuple[Path, ...] = ()
    """Files in the form of `hooks/hooks.json`."""
    hooks_inline: Json | None = None
    """Hooks in the manifest itself, in the same form."""
    mcp: tuple[Path, ...] = ()
    """Files in the form of `.mcp.json`."""
    mcp_inline: Json | None = None
    """Servers in the manifest itself: name -> entry."""
