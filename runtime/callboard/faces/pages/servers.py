"""MCP servers as listings: a table for a person, JSON for a script. Pure.

The value of a variable or of a header is never shown: it may be a secret.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from callboard.desks.servers import Servers
from callboard.faces.pages.listings import table
from callboard.faces.terminal import Block, Line, block, plain
from callboard.ports.tool import ToolOutcome, ToolSpec
from callboard.words.mcp import ServerEntry, ServerNow, ServerState
from callboard.words.values import Json

_STATES: Mapping[ServerState, str] = {"waiting": "on"}
_HIDDEN = "..."


def servers_table(found: Servers, checked: Mapping[str, ServerNow]) -> Block:
    """Name, scope, state, how it is reached, the file. `checked`: those that were connected."""
    rows = [
        [name, entry.scope, entry.transport, _state(found, name, checked), _what(entry), entry.path]
        for name, entry in found.shown.items()
    ]
    heads = ["SERVER", "SCOPE", "TRANSPORT", "STATE", "COMMAND OR ADDRESS", "FILE"]
    lines = list(table(heads, rows, "no MCP server is configured: `callboard mcp add` adds one").lines)
    for name in found.shown:
        why = checked[name].why if name in checked else found.state_of(name)[1]
        if why:
            lines.append(Line(plain(f"{name}: {why}"), "warn"))
    return Block(tuple(lines))


def server_json(found: Servers, name: str, now: ServerNow | None, tools: Sequence[ToolSpec] = ()) -> dict[str, Any]:
    """One server. `now`: how it stands, where it was connected; what is known only then is left out otherwise."""
    entry, (state, why) = found.shown[name], found.state_of(name)
    told: dict[str, Any] = {
        "name": name,
        "scope": entry.scope,
        "transport": entry.transport,
        "path": entry.path,
        "state": "on" if state == "waiting" else state,
        "why": why,
        **_fields(entry),
    }
    if now is None:
        return told
    told |= {"state": now.state, "why": now.why, "version": now.version, "tools": list(now.tools)}
    told |= {
        "prompts": [f"/mcp__{one.server}__{one.name}" for one in now.prompts],
        "resources": [one.uri for one in now.resources],
    }
    if tools:
        told["declared"] = [
            {"name": one.name, "description": one.description, "input_schema": one.input_schema} for one in tools
        ]
    return told


def entry_block(entry: ServerEntry, state: ServerState, why: str) -> Block:
    """One entry in full."""
    lines = [Line(plain(entry.name), "strong")]
    lines += [Line(plain(f"  {name:<10} {value}")) for name, value in _told(entry)]
    lines.append(Line(f"  {'state':<10} {_STATES.get(state, state)}"))
    return Block((*lines, Line(plain(f"  {why}"), "warn")) if why else tuple(lines))


def entry_json(entry: Mapping[str, object]) -> Json:
    """An entry as it was written, without the values of its variables and headers. A `${NAME}` is no secret."""

    def shown(value: object) -> object:
        if not isinstance(value, dict):
            return _HIDDEN
        named = cast("dict[str, object]", value)
        return {name: one if _names_a_variable(one) else _HIDDEN for name, one in named.items()}

    return {name: shown(value) if name in ("env", "headers") else value for name, value in entry.items()}


def test_block(now: ServerNow, tools: Sequence[ToolSpec]) -> Block:
    """How a server stands, and what it offers."""
    lines = [Line(plain(f"{now.name} is {now.state}"), "good" if now.state == "connected" else "bad")]
    if now.version:
        lines.append(Line(plain(f"  {now.version}"), "dim"))
    if now.why:
        lines.append(Line(plain(f"  {now.why}"), "warn"))
    offered = [
        ("tool", [(one.name, one.description) for one in tools]),
        ("prompt", [(f"/mcp__{one.server}__{one.name}", one.description) for one in now.prompts]),
        ("resource", [(f"@{one.server}:{one.uri}", one.description or one.name) for one in now.resources]),
    ]
    for kind, rows in offered:
        lines += table([kind.upper(), "WHAT"], [list(row) for row in rows], f"no {kind}s").lines
    return Block(tuple(lines))


def call_block(outcome: ToolOutcome) -> Block:
    """What a tool answered."""
    content = outcome.content
    text = content if isinstance(content, str) else "\n".join(map(_block_text, content))
    return block(text, "bad" if outcome.is_error else "plain")


def _block_text(one: Json) -> str:
    return str(one["text"]) if one.get("type") == "text" else f"[{one.get('type')}]"


def _state(found: Servers, name: str, checked: Mapping[str, ServerNow]) -> str:
    state, _ = found.state_of(name)
    if name not in checked:
        return _STATES.get(state, state)
    now = checked[name]
    count = len(now.tools)
    return f"connected, {count} tool{'s' if count != 1 else ''}" if now.state == "connected" else now.state


def _what(entry: ServerEntry) -> str:
    return entry.url or shlex.join([entry.command, *entry.args])


def _fields(entry: ServerEntry) -> dict[str, Any]:
    if entry.url:
        return {"url": entry.url, "headers": sorted(entry.headers)}
    return {"command": entry.command, "args": list(entry.args), "env": sorted(entry.env)}


def _told(entry: ServerEntry) -> Iterator[tuple[str, str]]:
    yield "scope", f"{entry.scope}, {entry.path}"
    yield "transport", entry.transport
    yield ("url", entry.url) if entry.url else ("command", _what(entry))
    for name, values in (("env", entry.env), ("headers", entry.headers)):
        if values:
            yield name, ", ".join(f"{one}={_shown(value)}" for one, value in values.items())
    if entry.timeout is not None:
        yield "timeout", f"{entry.timeout:g} s for a call"
    if entry.always_load:
        yield "alwaysLoad", "its tools are never deferred"


def _shown(value: str) -> str:
    return value if _names_a_variable(value) else _HIDDEN


def _names_a_variable(value: object) -> bool:
    return isinstance(value, str) and value.startswith("${") and value.endswith("}") and ":-" not in value
