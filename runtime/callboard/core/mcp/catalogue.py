"""What an agent is told of MCP servers: a line for each, which tools its prompt lists, what has changed since. Pure.

A prompt stands as it was composed (docs/mcp.md, "Many tools"): a tool that comes later goes by `call_tool`,
and is told in a reminder. What servers say of themselves is data, in a tag of its own that they cannot close.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from callboard.core.context.prompt import SERVERS, defused_block, one_line
from callboard.core.context.view.tokens import estimate_json
from callboard.core.mcp.search import Found
from callboard.words.mcp import ServerNow
from callboard.words.values import Json

SEARCH, CALL, CONNECT = "search_tools", "call_tool", "connect_mcp"
"""The tools by which an agent reaches those that its prompt does not list."""
MOST_NAMED = 30
"""Tools of one server that its line names."""
MOST_SAID = 2_000
"""Characters of what a server says of itself."""
_CHANGED = (
    "MCP servers have changed since your tools were listed. Tools that are not in your list: call_tool calls them."
)


@dataclass(frozen=True, slots=True)
class Deferral:
    """When tools of servers are deferred behind the search."""

    over: int = 40
    """Tools that a prompt lists at most."""
    share: float = 0.1
    """Of the model's window that they may take."""


def listed(tools: Sequence[Found], always: Collection[str], window: int, deferral: Deferral) -> tuple[str, ...]:
    """The names of the tools that the prompt lists: all, or where they are too many those alone that are never
    deferred. `window`: tokens of the model."""
    counted = [tool for tool in tools if tool.name not in always]
    tokens = sum(estimate_json(json.dumps(declared(tool)).encode()) for tool in counted)
    fits = len(counted) <= deferral.over and tokens <= deferral.share * window
    return tuple(sorted(tool.name for tool in tools if fits or tool.name in always))


def declared(tool: Found) -> Json:
    """The tool as a prompt's list has it."""
    return {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}


def inner_call(name: str, given: object) -> tuple[str, object] | None:
    """What `call_tool` calls: a tool of a server by its name, and its input as it was written; None for any other."""
    if name != CALL or not isinstance(given, dict):
        return None
    asked = cast("Json", given)
    inner = asked.get("name")
    return (inner, asked.get("input", {})) if isinstance(inner, str) and inner.startswith("mcp__") else None


def real_call(block: Json) -> Json:
    """A block of a reply for who looks on: a call by `call_tool` as one of the tool that it names."""
    found = inner_call(str(block.get("name")), block.get("input")) if block.get("type") == "tool_use" else None
    return (
        block if found is None else {**block, "name": found[0], "input": found[1] if isinstance(found[1], dict) else {}}
    )


def kept(tools: bytes) -> tuple[Found, ...]:
    """The tools of servers that a prompt's list holds."""
    entries = cast("list[dict[str, Any]]", json.loads(tools)) if tools else []
    return tuple(
        Found(str(one["name"]), str(one.get("description", "")), cast("Json", one.get("input_schema", {})))
        for one in entries
        if str(one.get("name", "")).startswith("mcp__")
    )


def server_line(now: ServerNow, mine: Sequence[str], in_list: Collection[str], *, connects: bool) -> str:
    """One line on a server. `mine`: its tools that the agent may have; `in_list`: those of servers that the prompt's
    list holds; `connects`: the agent has `connect_mcp`."""
    name = f"{now.name} ({now.version})" if now.version else now.name
    if now.state != "connected":
        return one_line(f"{name}: {_standing(now, connects=connects)}")
    rest = [one for one in mine if one not in in_list]
    said = [f"{name}: connected, {len(mine)} tool{'s' if len(mine) != 1 else ''}"]
    if rest:
        more = f" and {len(rest) - MOST_NAMED} more" if len(rest) > MOST_NAMED else ""
        said.append(f"{len(rest)} of them by {CALL}: {', '.join(rest[:MOST_NAMED])}{more}")
    if now.instructions.strip():
        said.append(f"it says of itself: {now.instructions[:MOST_SAID]}")
    return one_line("; ".join(said))


def _standing(now: ServerNow, *, connects: bool) -> str:
    why = f": {now.why}" if now.why else ""
    match now.state:
        case "waiting":
            return f"not connected; {CONNECT} connects it" if connects else "not connected"
        case "connecting":
            return "connecting"
        case "failed":
            return f"failed{why}" + (f"; {CONNECT} tries again" if connects else "")
        case _:
            return f"{now.state}{why}"


def lines_in_prompt(system: bytes) -> tuple[str, ...]:
    """The lines on servers that a system prompt holds."""
    blocks = cast("list[dict[str, Any]]", json.loads(system)) if system else []
    texts = (str(block.get("text", "")) for block in blocks)
    section = next((text for text in texts if text.startswith(f"# {SERVERS}\n")), "")
    return tuple(line.removeprefix("- ") for line in section.splitlines() if line.startswith("- "))


def news(lines: Mapping[str, str], in_prompt: Iterable[str], gone: Sequence[str], told: str) -> str:
    """What is to be told now: the lines that the prompt does not hold, and those on servers that the newest telling
    was about; empty where there is nothing. `lines`: server -> its line; `gone`: tools of the prompt's list that are
    not there; `told`: the newest telling."""
    there = set(in_prompt)
    due = [line for name, line in lines.items() if line not in there or _is_about(told, name, before="\n- ")]
    lost = [f"- {one_line(line)}" for line in _lost(in_prompt, lines)]
    if gone:
        more = f" and {len(gone) - MOST_NAMED} more" if len(gone) > MOST_NAMED else ""
        lost.append(f"- not there at the moment: {', '.join(gone[:MOST_NAMED])}{more}")
    if not due and not lost:
        return ""
    return f"{_CHANGED}\n{defused_block([*(f'- {line}' for line in due), *lost])}"


def _lost(in_prompt: Iterable[str], lines: Mapping[str, str]) -> Iterable[str]:
    """Servers that the prompt tells of and that are no more."""
    for line in in_prompt:
        if not any(_is_about(line, name) for name in lines):
            yield f"{line.partition(':')[0].partition(' (')[0]}: there is no such server any more"


def _is_about(text: str, name: str, before: str = "") -> bool:
    """Whether a text has, or is, the line on this server."""
    begins = tuple(f"{before}{one_line(name)}{end}" for end in (":", " ("))
    return any(one in text for one in begins) if before else text.startswith(begins)
