"""Parts of messages of the stream-json protocol, with the clients' names. Pure; `stream_json` puts them together.

`ClientSpoken` has the tools under the names and input fields that clients of this protocol know.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, cast

from callboard.cli.views.events import text_of
from callboard.core.hooks.payloads import compatible_name, to_compatible
from callboard.core.mcp.tool_names import may_have
from callboard.sessions.result import LIMIT, RunLimit
from callboard.types.agent_spec import AgentSpec
from callboard.types.mcp import ServerNow, ServerState
from callboard.types.records import Envelope, Fault, Json, ToolCall, Usage
from callboard.types.skills import PersonCommand

SUMMARIES = ("summarize", "react", "truncate")
"""Stages that start a new part of the conversation have names that begin with one of these."""


@dataclass(slots=True)
class AgentProgress:
    """Known state of one agent."""

    spec: AgentSpec | None = None
    parent: str | None = None
    """Provider's id of the call that started the agent."""
    calls: tuple[ToolCall, ...] = ()
    results: dict[str, tuple[tuple[Json, ...], bool]] = field(default_factory=dict[str, tuple[tuple[Json, ...], bool]])
    fault: Fault | None = None
    usage: Usage = field(default_factory=Usage)
    replies: int = 0
    called_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Spoken:
    """Wording of the messages for their reader: here with our own names, and without streamed parts."""

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
        """Return the raw event of a streaming reply, as it is reported."""
        return (event,)


STATUS: Mapping[ServerState, str] = MappingProxyType(
    {"waiting": "pending", "connecting": "pending", "connected": "connected", "failed": "failed"}
)
"""States of a server, under the names of this protocol; all others are `disabled`."""


def server_told(now: ServerNow) -> Json:
    """Return an MCP server, as `system/init` lists it."""
    return {"name": now.name, "status": STATUS.get(now.state, "disabled")}


UNTOLD: Mapping[str, Any] = MappingProxyType({"plugins": [], "apiKeySource": "none", "output_style": "default"})
"""Fields of `system/init` with constant values."""


def tools_of(spec: AgentSpec | None, servers: Sequence[ServerNow]) -> tuple[str, ...]:
    """Return all tools of an agent, those of MCP servers last."""
    if spec is None:
        return ()
    return (*spec.tools, *(name for now in servers for name in now.tools if may_have(spec, name)))


def commands_told(commands: Sequence[PersonCommand]) -> Json:
    """Return a person's slash commands, as `system/init` lists them. The runtime itself provides `/compact` and
    `/clear`."""
    names = [command.name for command in commands]
    return {
        "slash_commands": [*names, *(name for name in ("clear", "compact") if name not in names)],
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


def ending(code: int, limit: RunLimit = "") -> tuple[str, str]:
    """Return the result's subtype and terminal reason for an exit code and the limit that ended the run."""
    if code == 0:
        return "success", "completed"
    if code == LIMIT:
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
}


def result_block(call: ToolCall, content: Sequence[Json], is_error: bool) -> Json:
    only_text = all(item.get("type") == "text" for item in content)
    rendered = text_of(content) if only_text else list(content)
    return {"type": "tool_result", "tool_use_id": call.use_id, "content": rendered, "is_error": is_error}


def origin(envelope: Envelope) -> Json:
    if envelope.type == "scheduled":
        return {"kind": "task-notification", "subkind": "scheduled-trigger"}
    if envelope.type == "task_notification":
        return {"kind": "task-notification"}
    return {"kind": "peer", "from": envelope.sender}


def usage_part(usage: Usage) -> Json:
    return usage.model_dump(exclude={"cost_usd", "unpriced_tokens"})


def model_usage(usage: Usage) -> Json:
    return {
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "cacheReadInputTokens": usage.cache_read_input_tokens,
        "cacheCreationInputTokens": usage.cache_creation_input_tokens,
        "costUSD": usage.cost_usd,
    }


def session_parts(
    spoken: Spoken,
    spec: AgentSpec | None,
    *,
    servers: Sequence[ServerNow],
    commands: Sequence[PersonCommand],
    agents: Sequence[str],
) -> Json:
    """Return the parts of a session for `system/init`: tools, servers, commands, agent types."""
    return {
        "agents": sorted(agents),
        "tools": spoken.tools(tools_of(spec, servers)),
        "mcp_servers": [server_told(now) for now in servers],
        **UNTOLD,
        **commands_told(commands),
    }


LISTED = {"task": "Task", "spawn_teammate": "Agent"}
"""Older names of the tools that start agents, still used in the tools list of `system/init`."""


def block_told(block: Json, folder: str) -> Json:
    """Return a block of a reply, with calls under the clients' names. `folder`: the absolute path to which relative
    paths in it refer."""
    if block.get("type") != "tool_use":
        return block
    name = str(block["name"])
    tool_input = cast("Json", block["input"])
    return {**block, "name": compatible_name(name), "input": to_compatible(name, tool_input, folder)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSpoken(Spoken):
    """Messages for a client: tools with the names and fields that it knows."""

    folder: str
    """Lead's working folder, absolute."""
    streaming: EventsTold

    def tools(self, names: Sequence[str]) -> list[str]:
        """See `Spoken.tools`."""
        return list(dict.fromkeys(LISTED.get(name, compatible_name(name)) for name in names))

    def block(self, block: Json) -> Json:
        """See `Spoken.block`."""
        return block_told(block, self.folder)

    def call(self, call: Json) -> Json:
        """See `Spoken.call`."""
        name = str(call["tool_name"])
        renamed: Json = {**call, "tool_name": compatible_name(name)}
        if "tool_input" in call:
            renamed["tool_input"] = to_compatible(name, cast("Json", call["tool_input"]), self.folder)
        return renamed

    def events(self, event: Json) -> Iterable[Json]:
        """See `Spoken.events`."""
        return self.streaming.translate(event)


class EventsTold:
    """Raw events of a streaming reply, with calls under the clients' names. The input of a call is sent in one piece
    when it is complete, since no part of it can be translated alone."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._calls: dict[Any, tuple[str, list[str]]] = {}

    def translate(self, event: Json) -> Iterator[Json]:
        """Yield the events that replace this one for clients."""
        index = event.get("index")
        kind = event.get("type")
        block = cast("Json", event.get("content_block") or {})
        if kind == "message_start":
            self._calls.clear()
        if kind == "content_block_start" and block.get("type") == "tool_use":
            name = str(block.get("name"))
            self._calls[index] = (name, [])
            yield {**event, "content_block": {**block, "name": compatible_name(name), "input": {}}}
        elif kind == "content_block_delta" and index in self._calls:
            self._calls[index][1].append(str(cast("Json", event.get("delta") or {}).get("partial_json") or ""))
        elif kind == "content_block_stop" and index in self._calls:
            name, pieces = self._calls.pop(index)
            delta = {"type": "input_json_delta", "partial_json": self._input(name, "".join(pieces))}
            yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield event
        else:
            yield event

    def _input(self, name: str, raw: str) -> str:
        try:
            tool_input = json.loads(raw or "{}")
        except (ValueError, RecursionError):
            return raw
        if not isinstance(tool_input, dict):
            return raw
        return json.dumps(to_compatible(name, cast("Json", tool_input), self._folder))
