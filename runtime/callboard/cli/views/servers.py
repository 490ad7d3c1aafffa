"""MCP servers as listings: a table for a person, JSON for a script. Pure.

The value of a variable or of a header is never shown: it may be a secret.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from callboard.cli.terminal.terminal import Block, Line, block, plain, stacked
from callboard.cli.views.listings import table
from callboard.ports.tool import ToolOutcome, ToolSpec
from callboard.sessions.inspect.mcp_servers import ConfiguredServers
from callboard.types.mcp import ServerEntry, ServerState, ServerStatus
from callboard.types.records import Json

_STATES: Mapping[ServerState, str] = {"waiting": "on"}
_HIDDEN = "..."
NO_SERVERS = "this session has no MCP servers: `callboard mcp add` configures one, for sessions that begin after it"


def servers_table(servers: ConfiguredServers, checked: Mapping[str, ServerStatus]) -> Block:
    """Return the name, scope, state, transport and file of each server. `checked`: those that were connected."""
    rows = [
        [name, entry.scope, entry.transport, _state(servers, name, checked), _address(entry), entry.path]
        for name, entry in servers.shown.items()
    ]
    heads = ["SERVER", "SCOPE", "TRANSPORT", "STATE", "COMMAND OR ADDRESS", "FILE"]
    parts: list[Block | Line] = [table(heads, rows, "no MCP server is configured: `callboard mcp add` adds one")]
    for name in servers.shown:
        reason = checked[name].why if name in checked else servers.state_of(name)[1]
        if reason:
            parts.append(Line(plain(f"{name}: {reason}"), "warn"))
    return stacked(*parts)


def server_json(
    servers: ConfiguredServers, name: str, now: ServerStatus | None, tools: Sequence[ToolSpec] = ()
) -> dict[str, Any]:
    """Return one server. `now`: its state if it was connected; otherwise the fields known only then are omitted."""
    entry = servers.shown[name]
    (state, reason) = servers.state_of(name)
    record: dict[str, Any] = {
        "name": name,
        "scope": entry.scope,
        "transport": entry.transport,
        "path": entry.path,
        "state": "on" if state == "waiting" else state,
        "why": reason,
        **_fields(entry),
    }
    if now is None:
        return record
    record |= {"state": now.state, "why": now.why, "version": now.version, "tools": list(now.tools)}
    record |= {
        "prompts": [f"/mcp__{prompt.server}__{prompt.name}" for prompt in now.prompts],
        "resources": [resource.uri for resource in now.resources],
    }
    if tools:
        record["declared"] = [
            {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema} for tool in tools
        ]
    return record


def entry_block(entry: ServerEntry, state: ServerState, reason: str) -> Block:
    """Return one entry in full."""
    lines = [Line(plain(entry.name), "strong")]
    lines += [Line(plain(f"  {name:<10} {value}")) for name, value in _entry_rows(entry)]
    lines.append(Line(f"  {'state':<10} {_STATES.get(state, state)}"))
    return Block((*lines, Line(plain(f"  {reason}"), "warn")) if reason else tuple(lines))


def entry_json(entry: Mapping[str, object]) -> Json:
    """Return an entry as it was written, without the values of its variables and headers.

    A `${NAME}` is not a secret.
    """

    def visible_entry(value: object) -> object:
        if not isinstance(value, dict):
            return _HIDDEN
        named = cast("dict[str, object]", value)
        return {name: item if _names_a_variable(item) else _HIDDEN for name, item in named.items()}

    return {name: visible_entry(value) if name in ("env", "headers") else value for name, value in entry.items()}


def test_block(now: ServerStatus, tools: Sequence[ToolSpec]) -> Block:
    """Return the state of a server, and its tools."""
    lines = [Line(plain(f"{now.name} is {now.state}"), "good" if now.state == "connected" else "bad")]
    if now.version:
        lines.append(Line(plain(f"  {now.version}"), "dim"))
    if now.why:
        lines.append(Line(plain(f"  {now.why}"), "warn"))
    offered = [
        ("tool", [(tool.name, tool.description) for tool in tools]),
        ("prompt", [(f"/mcp__{prompt.server}__{prompt.name}", prompt.description) for prompt in now.prompts]),
        (
            "resource",
            [
                (f"@{resource.server}:{resource.uri}", resource.description or resource.name)
                for resource in now.resources
            ],
        ),
    ]
    tables = [table([kind.upper(), "WHAT"], [list(row) for row in rows], f"no {kind}s") for kind, rows in offered]
    return stacked(*lines, *tables)


def call_block(outcome: ToolOutcome) -> Block:
    """Return the answer of a tool."""
    content = outcome.content
    text = content if isinstance(content, str) else "\n".join(map(_block_text, content))
    return block(text, "bad" if outcome.is_error else "plain")


def _block_text(item: Json) -> str:
    return str(item["text"]) if item.get("type") == "text" else f"[{item.get('type')}]"


def _state(servers: ConfiguredServers, name: str, checked: Mapping[str, ServerStatus]) -> str:
    state, _ = servers.state_of(name)
    if name not in checked:
        return _STATES.get(state, state)
    now = checked[name]
    count = len(now.tools)
    return f"connected, {count} tool{'s' if count != 1 else ''}" if now.state == "connected" else now.state


def _address(entry: ServerEntry) -> str:
    return entry.url or shlex.join([entry.command, *entry.args])


def _fields(entry: ServerEntry) -> dict[str, Any]:
    if entry.url:
        return {"url": entry.url, "headers": sorted(entry.headers)}
    return {"command": entry.command, "args": list(entry.args), "env": sorted(entry.env)}


def _entry_rows(entry: ServerEntry) -> Iterator[tuple[str, str]]:
    yield "scope", f"{entry.scope}, {entry.path}"
    yield "transport", entry.transport
    yield ("url", entry.url) if entry.url else ("command", _address(entry))
    for name, values in (("env", entry.env), ("headers", entry.headers)):
        if values:
            yield name, ", ".join(f"{key}={_visible_value(value)}" for key, value in values.items())
    if entry.timeout is not None:
        yield "timeout", f"{entry.timeout:g} s for a call"
    if entry.always_load:
        yield "alwaysLoad", "its tools are never deferred"


def _visible_value(value: str) -> str:
    return value if _names_a_variable(value) else _HIDDEN


def _names_a_variable(value: object) -> bool:
    return isinstance(value, str) and value.startswith("${") and value.endswith("}") and ":-" not in value


def states_block(servers: Sequence[ServerStatus]) -> Block:
    """Return a line for each server, with the reason if it is not available."""
    rows = [[now.name, now.state, tools_count(now), str(len(now.prompts)), str(len(now.resources))] for now in servers]
    states = table(["SERVER", "STATE", "TOOLS", "PROMPTS", "RESOURCES"], rows, NO_SERVERS)
    return stacked(states, *(Line(plain(f"{now.name}: {now.why}"), "warn") for now in servers if now.why))


def tools_count(now: ServerStatus) -> str:
    """Return `2 tools`."""
    return f"{len(now.tools)} tool{'s' if len(now.tools) != 1 else ''}"
