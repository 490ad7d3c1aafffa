"""Parts of messages of the stream-json protocol, with the clients' names. Pure; `stream_json` puts them together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from callboard.cli.views.events import text_of
from callboard.core.mcp.tool_names import may_have
from callboard.sessions.result import LIMIT, RunLimit
from callboard.types.agent_spec import AgentSpec
from callboard.types.mcp import ServerNow, ServerState
from callboard.types.records import Envelope, Fault, Json, ToolCall, Usage
from callboard.types.skills import PersonCommand

SUMMARIES = ("summarize", "react", "truncate")
"""Stages that start a new part of the conversation have names that begin with one of these."""

FindCall = Callable[[str, str], ToolCall | None]
"""Function that finds an open tool call of an agent by our id."""


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


def no_servers() -> Sequence[ServerNow]:
    """Return the servers before a session is open: none."""
    return ()


def no_commands() -> Sequence[PersonCommand]:
    """Return the commands before a session is open: none."""
    return ()


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
