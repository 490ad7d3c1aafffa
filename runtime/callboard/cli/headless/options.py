"""Options that a client sets by its flags, before the session opens."""

from __future__ import annotations

from typing import cast

from callboard.adapters.extensions.agents import AgentFile, given_agents
from callboard.sessions.options import SessionOptions
from callboard.types.errors import UsageError
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Options of a run that a client drives over stdin and stdout."""

    options: SessionOptions
    mode: str = "default"
    """Permission mode at the start."""
    first: str | None = None
    """Prompt from the command line, treated like a first message."""
    partial: bool = False
    """True if replies are also reported while they stream."""
    replays: bool = False
    """True if the client's messages are sent back to it."""
    hook_events: bool = False
    """True if the client is notified of each callback that runs."""
    asks: bool = False
    """True if the client answers permissions, plans and questions."""
    prompt_tool: str = ""
    """Name of the MCP tool that answers permission requests in place of the client; empty: none."""
    may_bypass: bool = False
    """True if the client may put the session into the mode `bypassPermissions`."""
    schema: Json | None = None
    """JSON schema for the final text of each turn."""
    servers: tuple[str, ...] = ()
    """Names of the MCP servers that run in the client."""
    states: bool = False
    """True if the client is notified when the session starts and stops working."""
    checkpoints: bool = False
    """True if files are copied before tools change them, so that the client can have them restored."""
    forwards: bool = False
    """True if the texts of subagents are reported too."""
    mirrors: bool = False
    """True if the client gets the lines of the transcripts, for a store of its own."""
    betas: tuple[str, ...] = ()
    """Beta features of the service that the client requests."""
    quiet_states: bool = False
    """True if only the client's library requested the states, and keeps them to itself."""


def agents_of(raw_agents: object, place: str) -> tuple[dict[str, AgentFile], list[str]]:
    """Return the agent types of a client by name, and the ignored parts.

    Raises `UsageError` for anything but a mapping of names to objects.
    """
    if raw_agents is None:
        return {}, []
    listed = cast("dict[object, object]", raw_agents) if isinstance(raw_agents, dict) else {"": None}
    if not all(isinstance(name, str) and isinstance(entry, dict) for name, entry in listed.items()):
        raise UsageError(f"{place}: agents map names to objects with `description` and `prompt`")
    agents, notes = given_agents(cast("dict[str, Json]", raw_agents), place)
    return agents, [str(note) for note in notes]
