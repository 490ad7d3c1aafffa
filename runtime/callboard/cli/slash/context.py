"""Types of slash commands, and their context."""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

from callboard.cli.repl.team_panel import TeamPanel
from callboard.cli.terminal.plan_editor import Edit
from callboard.cli.terminal.terminal import Block
from callboard.sessions.base import OpenSession
from callboard.types.choices import choose, unknown
from callboard.types.errors import UsageError
from callboard.types.lazy_dataclass import dataclass

ShowingWork = Callable[[Callable[[Block], None]], Coroutine[Any, Any, None]]
"""Work that shows lines above the prompt line, by the function that it gets."""


class LeavePrompt(Exception):
    """Raised when the person leaves this prompt line."""


class Switch(LeavePrompt):
    """Raised when the person switches to another session of this workspace. The current session is kept."""

    def __init__(self, session: str) -> None:
        super().__init__(session)
        self.session = session
        """Session id."""


@dataclass(frozen=True, slots=True)
class SlashContext:
    """Context of a slash command: the session, and an editor at this prompt line."""

    session: OpenSession
    edit: Edit
    host: int | None = None
    """Process that hosts the session, if it is not this one."""
    panel: TeamPanel | None = None
    """Panel above the prompt line; None if this terminal has none."""
    beside: Callable[[ShowingWork], None] | None = None
    """Function that runs work beside the prompt line until it ends; None if there is no prompt line."""

    @property
    def workspace(self) -> Path:
        """Return the folder of the session."""
        return self.session.workspace


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """Slash command: its arguments and description for /help, and its function.

    The function receives the text after the name.
    """

    words: str
    help: str
    act: Callable[[SlashContext, str], Awaitable[Block]]


def suggestion(name: str, names: Iterable[str], mark: str = "") -> str:
    """Return ` Did you mean /tasks?` if a name is similar to known ones; otherwise an empty string."""
    near = difflib.get_close_matches(name, list(names), n=2, cutoff=0.5)
    return f" Did you mean {' or '.join(f'{mark}{match}' for match in near)}?" if near else ""


def nothing_more(arguments: str, usage: str) -> None:
    """Raise `UsageError` for arguments of a command that takes none."""
    if arguments:
        raise UsageError(f"{usage} takes no arguments; it was given {arguments!r}")


def living_agent(console: SlashContext, name: str) -> str:
    """Return the name of a living agent. Raises `UsageError` that lists the living agents."""
    agent = name.removeprefix("@")
    team = {member.name: member.life for member in console.session.team()}
    names = [member for member, life in team.items() if life != "stopped"]
    if agent in names:
        return agent
    stopped = f"{agent} has already stopped: {choose(names)}"
    raise UsageError(stopped if agent in team else unknown("agent", agent, names))
