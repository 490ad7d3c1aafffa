"""Parts of messages of the stream-json protocol, in the clients' words. Pure; `stream_json` puts them together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from callboard.core.mcp.rights import may_have
from callboard.faces.lines import text_of
from callboard.words.mcp import ServerNow, ServerState
from callboard.words.skills import PersonCommand
from callboard.words.specs import AgentSpec
from callboard.words.values import Envelope, Fault, Json, ToolCall, Usage

SUMMARIES = ("summarize", "react", "truncate")
"""Stages that begin a new stretch of the conversation start with one of these."""

FindCall = Callable[[str, str], ToolCall | None]
"""A tool call that an agent has under way, by our id."""


@dataclass(slots=True)
class Seen:
    """What this face knows of one agent."""

    spec: AgentSpec | None = None
    parent: str | None = None
    """The provider's id of the call that made it."""
    calls: tuple[ToolCall, ...] = ()
    results: dict[str, tuple[tuple[Json, ...], bool]] = field(default_factory=dict[str, tuple[tuple[Json, ...], bool]])
    fault: Fault | None = None
    usage: Usage = field(default_factory=Usage)
    replies: int = 0
    called_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Spoken:
    """How the messages are put for whoever reads them: as things are called here, and without what streams."""

    partial: bool = False
    """Replies are told as they stream too."""
    more: Json = field(default_factory=dict[str, object])
    """Fields of `system/init` beside the others."""

    def tools(self, names: Sequence[str]) -> list[str]:
        """The tools of an agent, as `system/init` lists them."""
        return list(names)

    def block(self, block: Json) -> Json:
        """A block of a reply."""
        return block

    def call(self, call: Json) -> Json:
        """The fields `tool_name` and, where it is there, `tool_input` of a call."""
        return call

    def events(self, event: Json) -> Iterable[Json]:
        """The raw event of a reply that streams, as it is told."""
        return (event,)


STATUS: Mapping[ServerState, str] = MappingProxyType(
    {"waiting": "pending", "connecting": "pending", "connected": "connected", "failed": "failed"}
)
"""How clients of this protocol call the state of a server; `disabled` for the others."""


def server_told(now: ServerNow) -> Json:
    """An MCP server in `system/init`."""
    return {"name": now.name, "status": STATUS.get(now.state, "disabled")}


UNTOLD: Mapping[str, Any] = MappingProxyType(
    {"agents": [], "plugins": [], "apiKeySource": "none", "output_style": "default"}
)
"""Fields of `system/init` that always say the same."""


def tools_of(spec: AgentSpec | None, servers: Sequence[ServerNow]) -> tuple[str, ...]:
    """All tools of an agent, those of MCP servers behind the others."""
    if spec is None:
        return ()
    return (*spec.tools, *(name for now in servers for name in now.tools if may_have(spec, name)))


def no_servers() -> Sequence[ServerNow]:
    """Before a session is there."""
    return ()


def no_commands() -> Sequence[PersonCommand]:
    """Before a session is there."""
    return ()


def commands_told(commands: Sequence[PersonCommand]) -> Json:
    """What a person may say with a slash, as `system/init` lists it. `/compact` and `/clear` are the runtime's own."""
    names = [one.name for one in commands]
    return {
        "slash_commands": [*names, *(one for one in ("clear", "compact") if one not in names)],
        "skills": [one.name for one in commands if one.kind == "skill"],
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
"""Kinds of faults in the clients' words; the rest is `server_error`."""


def ending(code: int, why: str) -> tuple[str, str]:
    """The result's subtype and terminal reason for an exit code; `why` names the limit."""
    if code == 0:
        return "success", "completed"
    if code == 5 and why.startswith("stuck:"):  # the words that it repeats may be any
        return "error_during_execution", "blocking_limit"
    if code == 5:
        for limit, ending in _LIMITS.items():
            if limit in why:
                return ending
        return "error_during_execution", "blocking_limit"
    return "error_during_execution", _REASONS.get(code, "model_error")


_REASONS: Mapping[int, str] = {
    4: "tool_deferred_unavailable",
    6: "api_error",
    124: "blocking_limit",
    130: "aborted_streaming",
    143: "aborted_streaming",
}
_LIMITS: Mapping[str, tuple[str, str]] = {
    "model steps": ("error_max_turns", "max_turns"),
    "limit of $": ("error_max_budget_usd", "budget_exhausted"),
    "money": ("error_max_budget_usd", "budget_exhausted"),
    "window": ("error_during_execution", "prompt_too_long"),
}


def result_block(call: ToolCall, content: Sequence[Json], is_error: bool) -> Json:
    only_text = all(one.get("type") == "text" for one in content)
    shown = text_of(content) if only_text else list(content)
    return {"type": "tool_result", "tool_use_id": call.use_id, "content": shown, "is_error": is_error}


def origin(envelope: Envelope) -> Json:
    if envelope.type == "scheduled":
        return {"kind": "task-notification", "subkind": "scheduled-trigger"}
    if envelope.type == "task_notification":
        return {"kind": "task-notification"}
    return {"kind": "peer", "from": envelope.sender}


def usage_part(usage: Usage) -> Json:
    return usage.model_dump(exclude={"cost_usd"})


def model_usage(usage: Usage) -> Json:
    return {
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "cacheReadInputTokens": usage.cache_read_input_tokens,
        "cacheCreationInputTokens": usage.cache_creation_input_tokens,
        "costUSD": usage.cost_usd,
    }


def there(
    spoken: Spoken, spec: AgentSpec | None, servers: Sequence[ServerNow], commands: Sequence[PersonCommand]
) -> Json:
    """What a session has, for `system/init`: tools, servers, commands."""
    return {
        "tools": spoken.tools(tools_of(spec, servers)),
        "mcp_servers": [server_told(now) for now in servers],
        **UNTOLD,
        **commands_told(commands),
    }
