"""Values of skills and of what a person types with a slash, which the parts of the runtime hand to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

Effort = Literal["", "low", "medium", "high", "xhigh", "max"]
"""How hard a model is asked to think; empty: nobody says."""
CommandKind = Literal["skill", "command", "prompt"]
"""A skill's folder; a file of `.claude/commands`; a prompt of an MCP server."""


def _no_variables() -> Mapping[str, str]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SkillText:
    """One skill. `body` None in a catalogue, and as its author wrote it after `load`."""

    name: str
    description: str
    folder: str
    body: str | None = None
    problem: str = ""
    kind: CommandKind = "skill"
    hint: str = ""
    """What a person may write behind its name, as its author says it."""
    arguments: tuple[str, ...] = ()
    """Names of its arguments, by their places."""
    allowed: tuple[str, ...] = ()
    """Rules that lift the question of a call in the turn that it was started in."""
    disallowed: tuple[str, ...] = ()
    """Rules that deny in that turn."""
    model: str = ""
    """Asked for the rest of that turn; empty: the agent's own."""
    effort: Effort = ""
    fork: bool = False
    """It runs as the prompt of a subagent, and its answer is what the caller gets."""
    agent: str = "general"
    """The type of that subagent."""
    for_model: bool = True
    """A model may load it."""
    for_person: bool = True
    """It stands in a person's `/` menu."""
    no_commands: str = ""
    """Why the commands in its text are not run; empty: they are."""
    variables: Mapping[str, str] = field(default_factory=_no_variables)
    """`${NAME}` in its text -> what stands there, beside those that the session knows."""


@dataclass(frozen=True, slots=True)
class PersonCommand:
    """What a person may type with a slash, beside the commands of a face."""

    name: str
    """Without the slash."""
    hint: str = ""
    """What may stand behind it: `<issue> [branch]`."""
    about: str = ""
    """One line."""
    kind: CommandKind = "skill"
