"""What a client asked for by its flags, before anything was opened."""

from __future__ import annotations

from dataclasses import dataclass

from callboard.app import Options
from callboard.words.values import Json


@dataclass(frozen=True, slots=True)
class Wishes:
    """A run that a client drives over stdin and stdout."""

    options: Options
    mode: str = "default"
    """The permission mode at the start."""
    first: str | None = None
    """A prompt of the command line: as if it had come as the first message."""
    partial: bool = False
    """Replies are told as they stream too."""
    replays: bool = False
    """The client's messages are told back to it."""
    hook_events: bool = False
    """It is told of each callback that runs."""
    asks: bool = False
    """The client answers permissions, plans and questions."""
    may_bypass: bool = False
    """The client may put the session into the mode `bypassPermissions`."""
    schema: Json | None = None
    """What the last words of each turn have to be: JSON of this schema."""
    servers: tuple[str, ...] = ()
    """MCP servers that live in it, by name."""
    states: bool = False
    """It is told when the session is at work and when it rests."""
    quiet_states: bool = False
    """Only its library asked for that, and keeps it to itself."""
