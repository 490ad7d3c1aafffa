"""What a slash command is, and what it works on."""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from callboard.app import OpenSession
from callboard.faces.editing import Edit
from callboard.faces.terminal import Block
from callboard.words.errors import UsageError


class Leave(Exception):
    """The person is done with this prompt line."""


class Switch(Leave):
    """The person goes on with another session of this workspace; the one that is left is kept."""

    def __init__(self, session: str) -> None:
        super().__init__(session)
        self.session = session
        """Its id."""


@dataclass(frozen=True, slots=True)
class Here:
    """What a slash command works on: the session, and an editor at this prompt line."""

    session: OpenSession
    edit: Edit


@dataclass(frozen=True, slots=True)
class Command:
    """One slash command: its arguments and its meaning, for /help, and what it does with the words after its name."""

    words: str
    help: str
    act: Callable[[Here, str], Awaitable[Block]]


def meant(name: str, known: Iterable[str], mark: str = "") -> str:
    """` Did you mean /tasks?`, where a name is near to some that are known; else empty."""
    near = difflib.get_close_matches(name, list(known), n=2, cutoff=0.5)
    return f" Did you mean {' or '.join(f'{mark}{one}' for one in near)}?" if near else ""


def nothing_more(words: str, usage: str) -> None:
    """Raises `UsageError` where a command that takes no words was given some."""
    if words:
        raise UsageError(f"{usage} takes no words; it was given {words!r}")


def living(here: Here, name: str) -> str:
    """The name of an agent that lives. Raises `UsageError`, which names those that do."""
    wanted = name.removeprefix("@")
    team = {one.name: one.life for one in here.session.team()}
    there = [one for one, life in team.items() if life != "stopped"]
    if wanted in there:
        return wanted
    what = f"{wanted} has stopped already" if wanted in team else f"there is no agent {wanted!r}"
    raise UsageError(f"{what}.{meant(wanted, there)} There are: {', '.join(there) or 'none'}")
