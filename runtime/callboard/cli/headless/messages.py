"""Parts of messages of the stream-json protocol, with the clients' names. Pure; `stream_json` puts them together.

`ClientSpoken` has the tools under the names and input fields that clients of this protocol know.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import reduce
from types import MappingProxyType
from typing import Any, cast

from callboard.cli.headless.translated_events import TranslatedEvents
from callboard.cli.views.events import text_of
from callboard.core.agent.state import BackgroundCommand
from callboard.core.context.view.sendable import image_block, sendable
from callboard.core.hooks.payloads import compatible_name, to_compatible, tool_use_result
from callboard.core.mcp.tool_names import may_have
from callboard.core.messaging.envelopes import PLAIN_PROMPT, PromptExtras
from callboard.core.utf8 import storable_json
from callboard.sessions.base import OpenSession
from callboard.sessions.result import ERROR_CODES, LIMIT, RunEnd, RunLimit
from callboard.types.agent_spec import AgentSpec, ModelLimits
from callboard.types.events import ResultsMerged, ToolFinished, ToolSettled
from callboard.types.hook_events import HookToolResult
from callboard.types.lazy_dataclass import dataclass
from callboard.types.mcp import ServerState, ServerStatus
from callboard.types.records import Envelope, Fault, Json, ToolCall, Usage
from callboard.types.skills import PersonCommand, Plugin

OF_RESULTS = frozenset({ToolFinished, ToolSettled, ResultsMerged})
"""Events from which only messages with the results of calls are made."""
SUMMARIES = ("summarize", "react", "truncate")
"""Stages that start a new part of the conversation have names that begin with one of these."""


@dataclass(slots=True)
class AgentProgress:
    """Known state of one agent."""

    spec: AgentSpec | None = None
    parent: str | None = None
    """Provider's id of the call that started the agent."""
    calls: tuple[ToolCall, ...] = ()
    incarnation: int = 0
    """Number of its life; 0: not known yet."""
    results: dict[str, HookToolResult] = field(default_factory=dict[str, HookToolResult])
    fault: Fault | None = None
    model: str = ""
    """Model of the newest call of a turn."""
    usage: Usage = field(default_factory=Usage)
    replies: int = 0
    tool_uses: int = 0
    began_at: float = 0.0
    called_at: float = 0.0
    ending: Json = field(default_factory=dict[str, object])
    """Message about its end that is still to be sent."""


def background_entry(session: OpenSession | None, caller: str | None, task: str) -> BackgroundCommand | None:
    """Return a background command or subagent of an agent; None: it is in the foreground, or its caller has ended.

    `caller` None: the lead.
    """
    state = session.state(caller or "lead") if session is not None else None
    return state.work.background.get(task) if state is not None else None


@dataclass(frozen=True, slots=True)
class MessageWording:
    """Wording of the messages: Callboard's own names, and no streamed parts."""

    client: bool = False
    """True for a client that drives the session: each turn begins with `system/init`, and each result of a call is a
    message of its own."""
    partial: bool = False
    """True if replies are also reported while they stream."""
    extra: Json = field(default_factory=dict[str, object])
    """Additional fields of `system/init`."""

    def tools(self, names: Sequence[str]) -> list[str]:
        """Return the tools of an agent, as `system/init` lists them."""
        return list(names)

    def block(self, block: Json) -> Json:
        """Return a block of a reply."""
        return block

    def call(self, call: Json) -> Json:
        """Return the fields `tool_name` and, if present, `tool_input` of a call."""
        return call

    def events(self, event: Json) -> Iterable[Json]:
        """Return the raw events of a streaming reply, as they are reported."""
        return (event,)

    def result(self, call: ToolCall, result: HookToolResult) -> Json:
        """Return additional fields of the message that contains only this result."""
        return {}


STATUS: Mapping[ServerState, str] = MappingProxyType(
    {"waiting": "pending", "connecting": "pending", "connected": "connected", "failed": "failed"}
)
"""States of a server, under the names of this protocol; all others are `disabled`."""


def server_json(now: ServerStatus) -> Json:
    """Return an MCP server, as `system/init` lists it."""
    return {"name": now.name, "status": STATUS.get(now.state, "disabled")}


def key_source() -> str:
    """Return the variable with the key of the model service; `none` if there is none."""
    return "ANTHROPIC_API_KEY" if os.environ.get("ANTHROPIC_API_KEY") else "none"


def json_line(message: Json) -> str:
    """Return a message as one line of JSON, with null for NaN and Infinity, at which clients refuse the line."""
    try:
        return json.dumps(message, allow_nan=False)
    except ValueError:
        return json.dumps(storable_json(message))


def mirror_json(path: str, lines: Sequence[bytes]) -> Json:
    """Return the message with new lines of the transcript at a path, for a store of the client."""
    return {"type": "transcript_mirror", "filePath": path, "entries": [json.loads(line) for line in lines]}


def plugins_json(plugins: Sequence[Plugin], refused: Sequence[tuple[str, str]]) -> Json:
    """Return the plugins of a session, as `system/init` lists them.

    `refused`: path and reason of each plugin that could not be loaded.
    """
    loaded = [
        {
            "name": plugin.name,
            "path": str(plugin.root),
            **({"version": plugin.version} if plugin.version else {}),
        }
        for plugin in plugins
    ]
    errors = [
        {"plugin": f"inline[{number}]", "type": "generic-error", "message": reason, "path": path}
        for number, (path, reason) in enumerate(refused)
    ]
    return {"plugins": loaded, **({"plugin_errors": errors} if errors else {})}


def tools_of(spec: AgentSpec | None, servers: Sequence[ServerStatus]) -> tuple[str, ...]:
    """Return all tools of an agent, those of MCP servers last."""
    if spec is None:
        return ()
    return (*spec.tools, *(name for now in servers for name in now.tools if may_have(spec, name)))


CHANGING_COMMANDS = (
    PersonCommand("compact", "[focus]", "Summarize the lead's conversation now", "command"),
    PersonCommand("clear", "", "Start an empty conversation; the old one is kept on disk", "command"),
)
_SHOWING_COMMANDS = (
    PersonCommand("context", "[AGENT]", "Show what fills the lead's window", "command"),
    PersonCommand("cost", "[model]", "Show the cost of each agent, or of each model", "command"),
    PersonCommand("usage", "", "Show the cost of each agent", "command"),
    PersonCommand("status", "", "Show session, folder, model, mode, sandbox and open work", "command"),
    PersonCommand("agents", "", "List the agent types that the lead can start", "command"),
    PersonCommand("team", "", "List the agents", "command"),
    PersonCommand("tasks", "", "Show the task board", "command"),
    PersonCommand("inbox", "[AGENT]", "Show the requests that wait, or the mail of an agent", "command"),
    PersonCommand("permissions", "", "Show the permission mode and the rules, with their places", "command"),
    PersonCommand("mcp", "", "Show the MCP servers", "command"),
    PersonCommand("cron", "", "Show the schedules", "command"),
)
PROMPT_COMMANDS = (*CHANGING_COMMANDS, *_SHOWING_COMMANDS)
"""Slash commands of the runtime that need no prompt line (`prompt_commands.py`)."""


def commands_json(commands: Sequence[PersonCommand]) -> Json:
    """Return a person's slash commands, as `system/init` lists them, then those of the runtime."""
    return {
        "slash_commands": list(dict.fromkeys(command.name for command in (*commands, *PROMPT_COMMANDS))),
        "skills": [command.name for command in commands if command.kind == "skill"],
    }


ERRORS: Mapping[str, str] = {
    "rate_limited": "rate_limit",
    "overloaded": "overloaded",
    "credentials": "authentication_failed",
    "payment": "billing_error",
    "spend_limit": "billing_error",
    "not_found": "model_not_found",
    "invalid": "invalid_request",
    "too_long": "invalid_request",
}
"""Kinds of faults under the clients' names; all others are `server_error`."""


def end_of_run(code: int, limit: RunLimit = "") -> tuple[str, str]:
    """Return the result's subtype and terminal reason for an exit code and the limit that ended the run."""
    if code == 0:
        return "success", "completed"
    if code == LIMIT or limit == "hook":
        return _LIMITS.get(limit, ("error_during_execution", "blocking_limit"))
    return "error_during_execution", _REASONS.get(code, "model_error")


_REASONS: Mapping[int, str] = {
    4: "tool_deferred_unavailable",
    6: "api_error",
    124: "blocking_limit",
    130: "aborted_streaming",
    143: "aborted_streaming",
}
_LIMITS: Mapping[RunLimit, tuple[str, str]] = {
    "turn_steps": ("error_max_turns", "max_turns"),
    "turn_cost": ("error_max_budget_usd", "budget_exhausted"),
    "budget_cost": ("error_max_budget_usd", "budget_exhausted"),
    "window": ("error_during_execution", "prompt_too_long"),
    "hook": ("error_during_execution", "hook_stopped"),
}


def result_block(call: ToolCall, result: HookToolResult) -> Json:
    """Return the result of a call as a `tool_result` block; text alone is a text, not a list of blocks."""
    only_text = all(item.get("type") == "text" for item in result.content)
    rendered = text_of(result.content) if only_text else list(result.content)
    return {"type": "tool_result", "tool_use_id": call.use_id, "content": rendered, "is_error": result.is_error}


def origin(envelope: Envelope) -> Json:
    """Return the origin of an envelope that a person did not send: a notification, or another agent."""
    if envelope.type == "scheduled":
        return {"kind": "task-notification", "subkind": "scheduled-trigger"}
    if envelope.type == "task_notification":
        return {"kind": "task-notification"}
    return {"kind": "peer", "from": envelope.sender}


def usage_part(usage: Usage) -> Json:
    """Return the usage in the fields of the API, without the cost."""
    searches = {"web_search_requests": usage.web_searches, "web_fetch_requests": 0}
    return {**usage.model_dump(exclude={"cost_usd", "unpriced_tokens"}), "server_tool_use": searches}


class ModelCosts:
    """Usage of each model while this process observes the session."""

    def __init__(self) -> None:
        self._usage: dict[str, Usage] = {}

    def add(self, model: str, usage: Usage) -> None:
        """Count the usage of a call."""
        self._usage[model] = self._usage.get(model, Usage()).plus(usage)

    def fields(self, limits_of: Callable[[str], ModelLimits | None]) -> Json:
        """Return the cost and the usage of each model, which add up to it, as fields of a `result` message."""
        whole = reduce(Usage.plus, self._usage.values(), Usage())
        by_model = {model: model_usage(usage, limits_of(model)) for model, usage in sorted(self._usage.items())}
        return {"total_cost_usd": whole.stated_cost, "modelUsage": by_model}


def model_usage(usage: Usage, limits: ModelLimits | None) -> Json:
    """Return the usage in the fields of `modelUsage` in a `result` message."""
    sizes = {} if limits is None else {"contextWindow": limits.window, "maxOutputTokens": limits.max_output}
    return {
        **sizes,
        "webSearchRequests": usage.web_searches,
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "cacheReadInputTokens": usage.cache_read_input_tokens,
        "cacheCreationInputTokens": usage.cache_creation_input_tokens,
        "costUSD": usage.stated_cost,
    }


@dataclass(frozen=True, slots=True)
class RefusedCall:
    """Model call that the service refused for good. Clients read it as a reply with the error."""

    text: str
    error: str
    """Kind of error, under the clients' names."""
    status: int | None


def refused_call(fault: Fault | None, end: RunEnd) -> RefusedCall | None:
    """Return the newest model call if the service refused it for good, and it ended the turn; otherwise None.

    `fault`: of that call, if it failed.
    """
    if fault is None or end.exit_code not in ERROR_CODES or end.limit:
        return None
    status = f"{fault.status} " if fault.status else ""
    return RefusedCall(f"API Error: {status}{end.reason}", ERRORS.get(fault.kind, "server_error"), fault.status)


def synthetic_reply(text: str) -> Json:
    """Return a reply that no model wrote."""
    usage = usage_part(Usage())
    body: Json = {"content": [{"type": "text", "text": text}], "stop_reason": "stop_sequence", "stop_sequence": ""}
    return {
        "id": str(uuid.uuid4()),
        "type": "message",
        "role": "assistant",
        "model": "<synthetic>",
        **body,
        "usage": usage,
    }


def task_usage(seen: AgentProgress, now: float) -> Json:
    """Return what an agent has used so far."""
    return {
        "total_tokens": seen.usage.prompt_tokens + seen.usage.output_tokens,
        "tool_uses": seen.tool_uses,
        "duration_ms": round(max(now - seen.began_at, 0.0) * 1000) if seen.began_at else 0,
    }


def session_parts(
    spoken: MessageWording,
    spec: AgentSpec | None,
    *,
    servers: Sequence[ServerStatus],
    commands: Sequence[PersonCommand],
    agents: Sequence[str],
    plugins: Json,
    style: str,
) -> Json:
    """Return the parts of a session for `system/init`: tools, servers, commands, agent types."""
    return {
        "agents": sorted(agents),
        "tools": spoken.tools(tools_of(spec, servers)),
        "mcp_servers": [server_json(now) for now in servers],
        "output_style": style,
        "apiKeySource": key_source(),
        **plugins,
        **commands_json(commands),
    }


LISTED = {"task": "Task", "spawn_teammate": "Agent"}
"""Older names of the tools that start agents, still used in the tools list of `system/init`."""


def block_json(block: Json, folder: str) -> Json:
    """Return a block of a reply, with calls under the clients' names.

    `folder`: the absolute path to which relative paths in it refer.
    """
    if block.get("type") != "tool_use":
        return block
    name = str(block["name"])
    tool_input = cast("Json", block["input"])
    return {**block, "name": compatible_name(name), "input": to_compatible(name, tool_input, folder)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSpoken(MessageWording):
    """Messages for a client: tools with the names and fields that it knows."""

    client: bool = True
    folder: str
    """Lead's working folder, absolute."""
    streaming: TranslatedEvents

    def tools(self, names: Sequence[str]) -> list[str]:
        """See `MessageWording.tools`."""
        return list(dict.fromkeys(LISTED.get(name, compatible_name(name)) for name in names))

    def block(self, block: Json) -> Json:
        """See `MessageWording.block`."""
        return block_json(block, self.folder)

    def call(self, call: Json) -> Json:
        """See `MessageWording.call`."""
        name = str(call["tool_name"])
        renamed: Json = {**call, "tool_name": compatible_name(name)}
        if "tool_input" in call:
            renamed["tool_input"] = to_compatible(name, cast("Json", call["tool_input"]), self.folder)
        return renamed

    def events(self, event: Json) -> Iterable[Json]:
        """See `MessageWording.events`."""
        return self.streaming.translate(event)

    def result(self, call: ToolCall, result: HookToolResult) -> Json:
        """See `MessageWording.result`."""
        return {"tool_use_result": tool_use_result(call, result, self.folder)}


IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")
"""Media types of images that the service accepts."""
_ATTACHED = frozenset({"image", "document"})


@dataclass(frozen=True, slots=True)
class ClientPrompt:
    """One message of a client."""

    text: str = ""
    extras: PromptExtras = PLAIN_PROMPT
    wrong: str = ""
    """Reason why the message is invalid; empty if it is valid."""
    starts_turn: bool = True
    """False for a text that the lead reads with the next prompt."""
    origin: Json | None = None
    """Origin that the client stated."""


def client_prompt(message: Json) -> ClientPrompt:
    """Return the prompt in a client's message: its text, its images and documents."""
    inner: Any = message.get("message")
    content: Any = cast("Json", inner).get("content") if isinstance(inner, dict) else None
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list) or not all(isinstance(item, dict) for item in cast("list[object]", content)):
        return ClientPrompt(wrong="a message has `message.content`: a text, or a list of blocks")
    blocks = cast("list[Json]", content)
    if other := sorted({str(item.get("type")) for item in blocks} - {"text", *_ATTACHED}):
        return ClientPrompt(wrong=f"blocks of type {', '.join(other)} are refused: send text, images, and documents")
    media = [item for item in blocks if item.get("type") in _ATTACHED]
    if wrong := next((reason for item in media if (reason := _unusable(item))), ""):
        return ClientPrompt(wrong=wrong)
    attached = sendable(media)
    text = "\n\n".join(str(item.get("text") or "") for item in blocks if item.get("type") == "text")
    if not text.strip() and not attached:
        return ClientPrompt(wrong="the message is empty: say what to do")
    extras = PromptExtras(attached, message.get("client_composed") is True, str(message.get("uuid") or ""))
    stated: Any = message.get("origin")
    origin = cast("Json", stated) if isinstance(stated, dict) else None
    return ClientPrompt(text, extras, starts_turn=message.get("shouldQuery") is not False, origin=origin)


def _unusable(block: Json) -> str:
    """Return the reason why the service would refuse this image or document; empty if it would accept it."""
    raw: Any = block.get("source")
    source = cast("Json", raw) if isinstance(raw, dict) else {}
    kind = str(block.get("type"))
    how = source.get("type")
    if how == "url":
        url = str(source.get("url") or "")
        return "" if url.startswith(("https://", "http://")) else f"the {kind}'s URL {url!r} is not http or https"
    if how == "text" and kind == "document":
        return "" if str(source.get("data") or "").strip() else "the document's `data` is not a text"
    if how == "content" and kind == "document":
        return "" if sendable([block])[0]["type"] == kind else "the document's `content` is empty"
    if how != "base64":
        return f"the {kind}'s source of type {how!r} is not supported: send base64 or a URL"
    media = source.get("media_type")
    accepted = IMAGES if kind == "image" else ("application/pdf",)
    if media not in accepted:
        return f"the {kind} is of type {media!r}: send {' or '.join(accepted)}"
    data: Any = source.get("data")
    try:
        decoded = base64.b64decode(data, validate=True) if isinstance(data, str) else b""
    except (binascii.Error, ValueError):
        decoded = b""
    if not decoded:
        return f"the {kind}'s `data` is not base64"
    image = image_block(str(data)) if kind == "image" else ""
    return f"the image cannot be sent: {image}" if isinstance(image, str) and image else ""
