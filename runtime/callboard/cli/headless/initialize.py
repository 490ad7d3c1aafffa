"""Handling of `initialize`: the requests of a client in it, and the response.

Hooks of a client: its `initialize` names callbacks, and each becomes a handler of the registry. A callback gets the
input of a command hook and answers like one (docs/hooks.md, "Commands"). A callback that fails or is too late, or whose
client is gone, is a fault: it stops the call that it guards, unless its matcher says `onFailure: continue`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import anyio

from callboard.adapters.extensions.agents import AgentFile, given_agents
from callboard.adapters.extensions.hooks import HookEntry
from callboard.cli.headless.client import Client, ClientGone, ClientRefused
from callboard.core.hooks.matching import MATCHED
from callboard.core.hooks.merge import Misfit, read_matcher
from callboard.core.hooks.output import output_meaning
from callboard.ports.hooks import Terms
from callboard.sessions.hosted import HostedSession
from callboard.sessions.options import SessionOptions
from callboard.types.errors import UsageError
from callboard.types.hook_answers import FITTING, HandlerResult
from callboard.types.records import Json

_TAKEN = frozenset({"subtype", "hooks", "agents", "sdkMcpServers"})
_WHY: Mapping[str, str] = {
    "skills": "each agent finds its skills by itself",
    "excludeDynamicSections": "what changes by itself is never part of the system prompt",
    "systemPromptSnapshot": "the system prompt of a session stays as it began",
    "forwardSubagentText": "the words of subagents are always sent",
}


def options_of(
    request: Json, options: SessionOptions, client: Client, listener: Heard
) -> tuple[SessionOptions, tuple[str, ...]]:
    """Return the options extended by an `initialize`, and one line for each ignored part. Raises `UsageError`."""
    hooks = hooks_given(request.get("hooks"), client, listener)
    new_agents, notes = agents_of(request.get("agents"), "initialize")
    listed: Any = request.get("sdkMcpServers")
    names = [str(name) for name in cast("list[object]", listed)] if isinstance(listed, list) else []
    bridges = {**options.mcp.bridges, **{name: partial(carried, client, name) for name in names}}
    agents = {**options.extensions.agents, **new_agents}
    extensions = replace(options.extensions, hooks=(*options.extensions.hooks, *hooks.entries), agents=agents)
    extended = replace(options, extensions=extensions, mcp=replace(options.mcp, bridges=bridges))
    return extended, (*hooks.notes, *notes, *_ignored_notes(request))


async def carried(client: Client, server: str, message: Json) -> Json | None:
    """Send one message to an MCP server in the client and return its answer. Raises `ClientGone` and
    `ClientRefused`."""
    response = await client.ask({"subtype": "mcp_message", "server_name": server, "message": message})
    answer: Any = response.get("mcp_response")
    return cast("Json", answer) if "id" in message and isinstance(answer, dict) else None


def _ignored_notes(request: Json) -> Iterator[str]:
    for name in request:
        if name not in _TAKEN:
            yield f"initialize: {name} is ignored: {_WHY.get(name, 'it is not known here')}"


def agents_of(raw_agents: object, place: str) -> tuple[dict[str, AgentFile], list[str]]:
    """Return the agent types of a client by name, and the ignored parts. Raises `UsageError` for anything but a mapping
    of names to objects."""
    if raw_agents is None:
        return {}, []
    listed = cast("dict[object, object]", raw_agents) if isinstance(raw_agents, dict) else {"": None}
    if not all(isinstance(name, str) and isinstance(entry, dict) for name, entry in listed.items()):
        raise UsageError(f"{place}: agents map names to objects with `description` and `prompt`")
    agents, notes = given_agents(cast("dict[str, Json]", raw_agents), place)
    return agents, [str(note) for note in notes]


def initialize_response(session: HostedSession) -> Json:
    """Return the response to an `initialize`."""
    names = dict.fromkeys((session.model_of(), *session.models_of()))
    agents = [{"name": name, "description": about} for name, about in session.agent_types.items()]
    return {
        "commands": [
            {"name": command.name, "description": command.about, "argumentHint": command.hint}
            for command in session.commands()
        ],
        "agents": agents,
        "output_style": "default",
        "available_output_styles": ["default"],
        "models": [{"value": name, "displayName": name, "description": ""} for name in names],
        "account": {},
        "hooks_applied": True,
        "hook_on_failure_supported": True,
    }


SECONDS = 60.0
"""Default timeout of a callback, in seconds."""
LONGEST = 86_400.0

Heard = Callable[[str, Json], None]
"""Function called when a callback starts and ends: the subtype (`hook_started`, `hook_response`) and the fields."""


@dataclass(frozen=True, slots=True, eq=False)
class ClientHook:
    """A `HookHandler` that asks the client."""

    client: Client
    callback: str
    timeout: float | None
    listener: Heard

    @property
    def name(self) -> str:
        """As people know it."""
        return f"callback {self.callback}"

    async def run(self, event_json: Json, timeout: float) -> HandlerResult:
        """Send one request. See `HookHandler.run`."""
        event = str(event_json.get("hook_event_name"))
        about: Json = {"hook_id": self.callback, "hook_name": f"{event}:{self.callback}", "hook_event": event}
        self.listener("hook_started", about)
        result = HandlerResult(fault=f"no answer within {timeout:g} s")
        outcome: Json = {"output": "", "stdout": "", "stderr": "", "outcome": "error"}
        with anyio.move_on_after(timeout):
            try:
                response = json.dumps(await self._ask(event_json))
            except ClientGone:
                result = HandlerResult(fault="the client that answers it is gone")
            except ClientRefused as refused:
                result = HandlerResult(fault=str(refused))
            else:
                result = output_meaning(event_json, 0, response, "")
                outcome |= {"output": response, "stdout": response}
        ending = {"stderr": result.fault} if result.fault else {"outcome": "success", "exit_code": 0}
        self.listener("hook_response", about | outcome | ending)
        return result

    async def _ask(self, event_json: Json) -> Json:
        request: Json = {"subtype": "hook_callback", "callback_id": self.callback, "input": event_json}
        return await self.client.ask({**request, "tool_use_id": event_json.get("tool_use_id")})


@dataclass(frozen=True, slots=True)
class HooksGiven:
    """The hooks of an `initialize`, and what of them is not taken, a line each."""

    entries: tuple[HookEntry, ...] = ()
    notes: tuple[str, ...] = ()


def hooks_given(raw_hooks: object, client: Client, listener: Heard) -> HooksGiven:
    """The hooks that an `initialize` names: event -> groups of `matcher`, `hookCallbackIds`, `timeout` (seconds) and
    `onFailure`. Raises `UsageError` for what is no such mapping."""
    if raw_hooks is None:
        return HooksGiven()
    entries: list[HookEntry] = []
    notes: list[str] = []
    for event, group in _groups(raw_hooks):
        if event not in FITTING:
            notes.append(f"the hook event {event} never happens here: its callbacks are not asked")
            continue
        matcher = group.get("matcher") or ""
        if not isinstance(matcher, str):
            raise UsageError(f"initialize: the matcher of a hook of {event} is not a text")
        if matcher and event not in MATCHED:
            notes.append(f"{event} has no matcher: {matcher!r} is ignored")
            matcher = ""
        try:
            read_matcher(matcher)
        except Misfit as misfit:
            raise UsageError(f"initialize: {misfit}") from misfit
        terms = Terms(fail_open=group.get("onFailure") == "continue")
        seconds = _seconds(group.get("timeout"), event)
        for callback in _callbacks(group, event):
            entries.append(HookEntry(event, ClientHook(client, callback, seconds, listener), matcher, terms))
    return HooksGiven(tuple(entries), tuple(notes))


def _groups(raw_hooks: object) -> Iterator[tuple[str, Json]]:
    for event, groups in cast("dict[str, object]", raw_hooks).items() if isinstance(raw_hooks, dict) else [("", None)]:
        if not isinstance(groups, list):
            raise UsageError("initialize: `hooks` maps each event to a list of groups with `hookCallbackIds`")
        for group in cast("list[object]", groups):
            if not isinstance(group, dict):
                raise UsageError(f"initialize: a group of hooks of {event} is an object with `hookCallbackIds`")
            yield event, cast("Json", group)


def _callbacks(group: Json, event: str) -> list[str]:
    listed: Any = group.get("hookCallbackIds")
    if not isinstance(listed, list) or not all(isinstance(callback, str) for callback in cast("list[object]", listed)):
        raise UsageError(f"initialize: `hookCallbackIds` of {event} is a list of texts")
    return cast("list[str]", listed)


def _seconds(value: object, event: str) -> float:
    if value is None:
        return SECONDS
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LONGEST:
        raise UsageError(f"initialize: the timeout of a hook of {event} is a number of seconds above 0, at most a day")
    return float(value)
