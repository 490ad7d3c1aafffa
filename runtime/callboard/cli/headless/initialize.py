"""The client's request `initialize`: its options, its hooks, and the response.

For hooks, `initialize` names callbacks, and each becomes a handler of the registry. A callback gets the input of a
command hook and answers like one (docs/hooks.md, "Commands"). A callback that fails or is too late, or whose client is
gone, is a fault: it stops the call that it guards, unless its matcher has `onFailure: continue`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio

from callboard.adapters.extensions.hooks import HookEntry
from callboard.cli.headless.client import Client, ClientGone, ClientRefused
from callboard.cli.headless.json_result import schema_words
from callboard.cli.headless.messages import PROMPT_COMMANDS, key_source
from callboard.cli.headless.options import agents_of
from callboard.core.hooks.matching import MATCHED
from callboard.core.hooks.merge import InvalidHook, read_matcher
from callboard.core.hooks.output import defers, output_meaning
from callboard.ports.hooks import HookTerms
from callboard.sessions.hosted import HostedSession
from callboard.sessions.options import LeadOptions, SessionOptions
from callboard.types.agent_spec import ModelLimits
from callboard.types.errors import UsageError
from callboard.types.hook_answers import FITTING, HandlerResult
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json

_TAKEN = frozenset(
    {
        *("subtype", "hooks", "agents", "sdkMcpServers", "sdkMcpServerManifests", "sdkMcpServerManifestsOrigin"),
        *("jsonSchema", "systemPrompt", "appendSystemPrompt", "forwardSubagentText", "title", "skills"),
        *("plugins", "mcpServers", "perTaskStopAffordance", "systemPromptSnapshot", "excludeDynamicSections"),
    }
)
"""Fields that take effect, or whose effect Callboard has anyway: a session keeps its system prompt, and changing
content is never a part of it."""
_WHY: Mapping[str, str] = {
    "planModeInstructions": "plan mode has its own instructions; put yours into the prompt or the system prompt",
    "toolAliases": "a call runs the tool that it names; deny that tool, and name yours in the system prompt",
    "promptSuggestions": "no prompts are suggested",
    "agentProgressSummaries": "the progress of an agent is reported without a summary",
    "supportedDialogKinds": "no dialogs are shown; questions are asked by can_use_tool",
    "sdkMcpServerConfigs": "timeouts and policies of the client's servers are those of all servers",
}


def options_of(
    request: Json, options: SessionOptions, client: Client, listener: Heard, *, defer: Defer | None = None
) -> tuple[SessionOptions, tuple[str, ...]]:
    """Return the options extended by an `initialize`, and one line for each ignored part. Raises `UsageError`."""
    hooks = hooks_given(request.get("hooks"), client, listener, defer=defer)
    new_agents, notes = agents_of(request.get("agents"), "initialize")
    listed: Any = request.get("sdkMcpServers")
    names = [str(name) for name in cast("list[object]", listed)] if isinstance(listed, list) else []
    bridges = {**options.mcp.bridges, **{name: partial(send_to_client, client, name) for name in names}}
    agents = {**options.extensions.agents, **new_agents}
    listed_skills: Any = request.get("skills")
    extensions = replace(
        options.extensions,
        hooks=(*options.extensions.hooks, *hooks.entries),
        agents=agents,
        plugins=(*options.extensions.plugins, *_plugins(request.get("plugins"))),
        skills=_texts(listed_skills, "skills") if listed_skills is not None else options.extensions.skills,
    )
    config: Any = request.get("mcpServers")
    servers = (json.dumps({"mcpServers": config}),) if config else ()
    extended = replace(
        options,
        extensions=extensions,
        lead=_lead(request, options.lead),
        mcp=replace(options.mcp, bridges=bridges, config=(*options.mcp.config, *servers)),
    )
    return extended, (*hooks.notes, *notes, *_ignored_notes(request))


def _lead(request: Json, lead: LeadOptions) -> LeadOptions:
    """Return the options of the lead with the client's system prompt. A prompt without text keeps the lead's own."""
    system = "\n\n".join(text for text in _texts(request.get("systemPrompt") or (), "systemPrompt") if text.strip())
    schema = schema_of(request, None)
    appended = [lead.appended, str(request.get("appendSystemPrompt") or "")]
    return replace(
        lead,
        instructions=system.replace(_BOUNDARY, "").strip() or lead.instructions,
        appended="\n\n".join(text for text in appended if text.strip()),
        schema=lead.schema or (schema_words(schema) if schema else ""),
    )


_BOUNDARY = "__SYSTEM_PROMPT_DYNAMIC_BOUNDARY__"
"""Mark in a system prompt between its static and its dynamic part."""


def schema_of(request: Json, otherwise: Json | None) -> Json | None:
    """Return the schema of answers in an `initialize`, or the one of the command line. Raises `UsageError`."""
    schema: Any = request.get("jsonSchema")
    if schema is None or otherwise is not None:  # the command line has it too, and its instructions are there already
        return otherwise
    if not isinstance(schema, dict):
        raise UsageError("initialize: `jsonSchema` is an object")
    from callboard.core.full_json_schema import answer_schema_fault  # noqa: PLC0415 - most clients send no schema

    if fault := answer_schema_fault(cast("object", schema)):
        raise UsageError(f"initialize: `jsonSchema`: {fault}")
    return cast("Json", schema)


def _texts(value: object, name: str) -> tuple[str, ...]:
    listed = cast("Sequence[object]", value) if isinstance(value, list | tuple) else (value,)
    if not all(isinstance(text, str) for text in listed):
        raise UsageError(f"initialize: `{name}` is a list of texts")
    return tuple(str(text) for text in listed)


def _plugins(value: object) -> tuple[Path, ...]:
    """Return the folders of the plugins that an `initialize` lists. Raises `UsageError`."""
    if value is None:
        return ()
    entries = cast("Sequence[object]", value) if isinstance(value, list) else (value,)
    folders = [_plugin_folder(entry) for entry in entries]
    if not all(folders):
        raise UsageError('initialize: `plugins` is a list of {"type": "local", "path": FOLDER}')
    return tuple(Path(folder) for folder in folders)


def _plugin_folder(raw_entry: object) -> str:
    """Return the folder of an entry; empty if it is none."""
    entry = cast("Json", raw_entry) if isinstance(raw_entry, dict) else {}
    path: object = entry.get("path")
    return path if entry.get("type") == "local" and isinstance(path, str) and "\0" not in path else ""


async def send_to_client(client: Client, server: str, message: Json) -> Json | None:
    """Send one message to an MCP server in the client and return its answer.

    Raises `ClientGone` and `ClientRefused`.
    """
    response = await client.ask({"subtype": "mcp_message", "server_name": server, "message": message})
    answer: Any = response.get("mcp_response")
    return cast("Json", answer) if "id" in message and isinstance(answer, dict) else None


def _ignored_notes(request: Json) -> Iterator[str]:
    for name in request:
        if name not in _TAKEN:
            yield f"initialize: {name} is ignored: {_WHY.get(name, 'it is unknown')}"


EFFORTS = ("low", "medium", "high", "xhigh", "max")
"""Levels of thinking effort."""


def initialize_response(session: HostedSession, request: Json) -> Json:
    """Return the response to an `initialize`."""
    response: Json = {
        "commands": commands_listed(session),
        "agents": agents_listed(session),
        "output_style": session.voice.named,
        "available_output_styles": list(session.voice.styles),
        "models": models_json(session),
        "account": account_json(),
        "hooks_applied": True,
        "hook_on_failure_supported": True,
    }
    if request.get("plugins"):
        loaded = {plugin.root.resolve() for plugin in session.plugins}
        response["plugins_applied"] = all(path.resolve() in loaded for path in _plugins(request["plugins"]))
    if request.get("mcpServers"):
        response["mcp_servers_applied"] = True
    return response


def agents_listed(session: HostedSession) -> list[Json]:
    """Return the agent types of a session, as clients list them."""
    return [{"name": name, "description": about} for name, about in session.agent_types.items()]


def commands_listed(session: HostedSession) -> list[Json]:
    """Return the slash commands of a session, as clients list them."""
    return [
        {
            "name": command.name,
            "description": command.about,
            "argumentHint": command.hint,
            **({"aliases": list(command.aliases)} if command.aliases else {}),
        }
        for command in {command.name: command for command in (*PROMPT_COMMANDS, *session.commands())}.values()
    ]


def models_json(session: HostedSession) -> list[Json]:
    """Return the models that a session knows, as clients list them."""
    state = session.state("lead")
    known = state.me.models if state is not None and state.identity.spec is not None else {}
    return [_model_json(name, known.get(name)) for name in dict.fromkeys((session.model_of(), *known))]


def _model_json(name: str, limits: ModelLimits | None) -> Json:
    model: Json = {"value": name, "displayName": name, "description": ""}
    if limits is None:
        return model
    levels = {"supportedEffortLevels": list(EFFORTS)} if limits.effort else {}
    abilities = {"supportsEffort": limits.effort, "supportsAdaptiveThinking": limits.adaptive_thinking}
    return {**model, "description": f"window of {limits.window:,} tokens", **abilities, **levels}


def account_json() -> Json:
    """Return what is known about the account: the source of its key."""
    source = key_source()
    tokens = (name for name in _TOKENS if source == "none" and os.environ.get(name))
    return {"apiKeySource": source, "tokenSource": next(tokens, "none")}


_TOKENS = ("ANTHROPIC_AUTH_TOKEN",)


SECONDS = 60.0
"""Default timeout of a callback, in seconds."""
LONGEST = 86_400.0

Heard = Callable[[str, Json], None]
"""Function called when a callback starts and ends: the subtype (`hook_started`, `hook_response`) and the fields."""
Defer = Callable[[Json], Awaitable[None]]
"""Function called with the input of a `PreToolUse` callback that defers the call. It returns only if the call cannot be
deferred: then it is asked about."""


@dataclass(frozen=True, slots=True, eq=False)
class ClientHook:
    """A `HookHandler` that asks the client."""

    client: Client
    callback: str
    timeout: float | None
    listener: Heard
    defer: Defer | None = None

    @property
    def name(self) -> str:
        """Return the name for people."""
        return f"callback {self.callback}"

    async def run(self, event_json: Json, timeout: float) -> HandlerResult:
        """Send one request. See `HookHandler.run`."""
        event = str(event_json.get("hook_event_name"))
        about: Json = {"hook_id": self.callback, "hook_name": f"{event}:{self.callback}", "hook_event": event}
        self.listener("hook_started", about)
        result = HandlerResult(fault=f"no answer within {timeout:g} s")
        outcome: Json = {"output": "", "stdout": "", "stderr": "", "outcome": "error"}
        response = ""
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
        if self.defer is not None and not result.fault and defers(event_json, response):
            await self.defer(event_json)
        return result

    async def _ask(self, event_json: Json) -> Json:
        request: Json = {"subtype": "hook_callback", "callback_id": self.callback, "input": event_json}
        return await self.client.ask({**request, "tool_use_id": event_json.get("tool_use_id")})


@dataclass(frozen=True, slots=True)
class HooksGiven:
    """Hooks of an `initialize`, and a line for each ignored part."""

    entries: tuple[HookEntry, ...] = ()
    notes: tuple[str, ...] = ()


def hooks_given(raw_hooks: object, client: Client, listener: Heard, *, defer: Defer | None = None) -> HooksGiven:
    """Return the hooks of an `initialize`.

    The hooks are a mapping: event -> groups of `matcher`, `hookCallbackIds`, `timeout` (seconds) and `onFailure`.
    Raises `UsageError` for anything but such a mapping.
    """
    if raw_hooks is None:
        return HooksGiven()
    entries: list[HookEntry] = []
    notes: list[str] = []
    for event, group in _groups(raw_hooks):
        if event not in FITTING:
            notes.append(f"the hook event {event} never occurs here: its callbacks are not called")
            continue
        matcher = group.get("matcher") or ""
        if not isinstance(matcher, str):
            raise UsageError(f"initialize: the matcher of a hook of {event} is not a text")
        if matcher and event not in MATCHED:
            notes.append(f"{event} has no matcher: {matcher!r} is ignored")
            matcher = ""
        try:
            read_matcher(matcher)
        except InvalidHook as misfit:
            raise UsageError(f"initialize: {misfit}") from misfit
        terms = HookTerms(fail_open=group.get("onFailure") == "continue")
        seconds = _seconds(group.get("timeout"), event)
        for callback in _callbacks(group, event):
            entries.append(HookEntry(event, ClientHook(client, callback, seconds, listener, defer), matcher, terms))
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
