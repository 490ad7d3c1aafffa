"""A plugin as a value: a folder that brings agents, skills, commands, hooks and MCP servers, under one name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from callboard.words.values import Json


@dataclass(frozen=True, slots=True)
class Plugin:
    """One plugin, as its manifest and its folders say. All paths are absolute and lie in `root`.

    Whatever it brings goes by `name:thing`, so nothing of it hides a thing of the person or the workspace.
    """

    name: str
    root: Path
    version: str = ""
    description: str = ""
    agents: tuple[Path, ...] = ()
    """Folders of agent files, or single files."""
    skills: tuple[Path, ...] = ()
    """Folders that hold skills (`NAME/SKILL.md`), or are one themselves."""
    commands: tuple[Path, ...] = ()
    """Folders of command files, or single files."""
    hooks: tuple[Path, ...] = ()
    """Files in the shape of `hooks/hooks.json`."""
    hooks_inline: Json | None = None
    """The same, written out in the manifest."""
    mcp: tuple[Path, ...] = ()
    """Files in the shape of `.mcp.json`."""
    mcp_inline: Json | None = None
    """Servers written out in the manifest: name -> entry."""
