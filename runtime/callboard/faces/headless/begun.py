"""What an `initialize` asks for, and what it is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

from callboard.adapters.agent_files import AgentFile, given_agents
from callboard.app import Options, Session
from callboard.faces.headless.client import Client
from callboard.faces.headless.hooks import Heard, hooks_given
from callboard.words.errors import UsageError
from callboard.words.values import Json

_TAKEN = frozenset({"subtype", "hooks", "agents", "sdkMcpServers"})
_WHY: Mapping[str, str] = {
    "skills": "each agent finds its skills by itself",
    "excludeDynamicSections": "what changes by itself never stands in the system prompt",
    "systemPromptSnapshot": "the system prompt of a session stays as it began",
    "forwardSubagentText": "what subagents say is told anyway",
}


def options_of(request: Json, options: Options, client: Client, heard: Heard) -> tuple[Options, tuple[str, ...]]:
    """The options with what an `initialize` adds, and what of it is not heeded, a line each. Raises `UsageError`."""
    hooks = hooks_given(request.get("hooks"), client, heard)
    found, notes = agents_of(request.get("agents"), "initialize")
    listed: Any = request.get("sdkMcpServers")
    names = [str(one) for one in cast("list[object]", listed)] if isinstance(listed, list) else []
    bridges = {**options.bridges, **{name: partial(carried, client, name) for name in names}}
    agents = {**options.agents, **found}
    more = replace(options, hooks=(*options.hooks, *hooks.entries), agents=agents, bridges=bridges)
    return more, (*hooks.notes, *notes, *_left(request))


async def carried(client: Client, server: str, message: Json) -> Json | None:
    """One message to an MCP server that lives in the client; its answer. Raises `ClientGone` and `ClientRefused`."""
    said = await client.ask({"subtype": "mcp_message", "server_name": server, "message": message})
    answer: Any = said.get("mcp_response")
    return cast("Json", answer) if "id" in message and isinstance(answer, dict) else None


def _left(request: Json) -> Iterator[str]:
    for name in request:
        if name not in _TAKEN:
            yield f"initialize: {name} is not heeded: {_WHY.get(name, 'it is not known here')}"


def agents_of(given: object, place: str) -> tuple[dict[str, AgentFile], list[str]]:
    """The agent types that a client brings, by name, and what of them is not honoured. Raises `UsageError` for what is
    no mapping of names to objects."""
    if given is None:
        return {}, []
    listed = cast("dict[object, object]", given) if isinstance(given, dict) else {"": None}
    if not all(isinstance(name, str) and isinstance(one, dict) for name, one in listed.items()):
        raise UsageError(f"{place}: agents map names to objects with `description` and `prompt`")
    found, notes = given_agents(cast("dict[str, Json]", given), place)
    return found, [str(note) for note in notes]


def told_of(session: Session, options: Options) -> Json:
    """The response to an `initialize`."""
    names = dict.fromkeys((session.model_of(), *session.models_of()))
    agents = [{"name": name, "description": one.description} for name, one in options.agents.items()]
    return {
        "commands": [
            {"name": one.name, "description": one.about, "argumentHint": one.hint} for one in session.commands()
        ],
        "agents": agents,
        "output_style": "default",
        "available_output_styles": ["default"],
        "models": [{"value": name, "displayName": name, "description": ""} for name in names],
        "account": {},
        "hooks_applied": True,
        "hook_on_failure_supported": True,
    }
