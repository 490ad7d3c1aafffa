"""Text about MCP servers for an agent: one line per server, the tools in its prompt, and later changes. Pure.

A prompt stays as it was composed (docs/mcp.md, "Many tools"): a tool that is added later is called through `call_tool`,
and announced in a reminder. Text from servers about themselves is data, in a separate tag that they cannot close.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, cast

from callboard.core.context.system_prompt import SERVERS, defused_block, one_line
from callboard.core.context.view.tokens import estimate_json
from callboard.core.mcp.tool_search import DeclaredTool
from callboard.types.lazy_dataclass import dataclass
from callboard.types.mcp import ServerStatus
from callboard.types.records import Json, ToolCall

SEARCH = "search_tools"
CALL = "call_tool"
CONNECT = "connect_mcp"
"""Tools by which an agent reaches servers' tools that its prompt does not list."""
MOST_NAMED = 30
"""Maximum number of a server's tools named in its line."""
MOST_SAID = 2_000
"""Maximum characters of a server's description of itself."""
_CHANGED = (
    "MCP servers have changed since your tools were listed. Tools that are not in your list: call_tool calls them."
)


@dataclass(frozen=True, slots=True)
class Deferral:
    """Limits above which tools of servers are deferred behind the search."""

    over: int = 40
    """Maximum number of tools in a prompt."""
    share: float = 0.1
    """Maximum share of the model's window for these tools."""


def prompt_tool_names(
    tools: Sequence[DeclaredTool], always: Collection[str], window: int, deferral: Deferral
) -> tuple[str, ...]:
    """Return the names of the tools in the prompt: all, or if they are too many, only those that are never deferred.

    `window`: tokens of the model.
    """
    counted = [tool for tool in tools if tool.name not in always]
    tokens = sum(estimate_json(json.dumps(tool_declaration(tool)).encode()) for tool in counted)
    fits = len(counted) <= deferral.over and tokens <= deferral.share * window
    return tuple(sorted(tool.name for tool in tools if fits or tool.name in always))


def tool_declaration(tool: DeclaredTool) -> Json:
    """Return the tool as listed in a prompt."""
    return {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}


def inner_call(name: str, tool_input: object) -> tuple[str, object] | None:
    """Return the name and the unparsed input of the server's tool that `call_tool` calls; None for any other call."""
    if name != CALL or not isinstance(tool_input, dict):
        return None
    call_input = cast("Json", tool_input)
    inner = call_input.get("name")
    return (inner, call_input.get("input", {})) if isinstance(inner, str) and inner.startswith("mcp__") else None


def real_call(block: Json) -> Json:
    """Return a block of a reply for display: a call of `call_tool` as a call of the tool that it names."""
    inner = inner_call(str(block.get("name")), block.get("input")) if block.get("type") == "tool_use" else None
    return (
        block if inner is None else {**block, "name": inner[0], "input": inner[1] if isinstance(inner[1], dict) else {}}
    )


def unwrap_call(call: ToolCall) -> ToolCall:
    """Return the call that `call_tool` wraps, so that all later code has the real name and input.

    The call is unchanged if it names no tool of a server.
    """
    call_parts = None if call.bad_input is not None else inner_call(call.name, call.input)
    if call_parts is None:
        return call
    name, tool_input = call_parts
    inner = cast("Json", tool_input) if isinstance(tool_input, dict) else {}
    wrong = None if isinstance(tool_input, dict) else "`input` is not a JSON object"
    return call.model_copy(update={"name": name, "input": inner, "bad_input": wrong})


def listed_tools(tools: bytes) -> tuple[DeclaredTool, ...]:
    """Return the tools of servers in a prompt's list."""
    entries = cast("list[dict[str, Any]]", json.loads(tools)) if tools else []
    return tuple(
        DeclaredTool(str(entry["name"]), str(entry.get("description", "")), cast("Json", entry.get("input_schema", {})))
        for entry in entries
        if str(entry.get("name", "")).startswith("mcp__")
    )


def server_line(now: ServerStatus, tools: Sequence[str], in_list: Collection[str], *, connects: bool) -> str:
    """Return one line about a server.

    `tools`: its tools that the agent may use; `in_list`: tools of servers in the prompt's list; `connects`: the agent
    has `connect_mcp`.
    """
    name = f"{now.name} ({now.version})" if now.version else now.name
    if now.state != "connected":
        return one_line(f"{name}: {_status_text(now, connects=connects)}")
    unlisted = [tool for tool in tools if tool not in in_list]
    sentences = [f"{name}: connected, {len(tools)} tool{'s' if len(tools) != 1 else ''}"]
    if unlisted:
        overflow = f" and {len(unlisted) - MOST_NAMED} more" if len(unlisted) > MOST_NAMED else ""
        sentences.append(f"{len(unlisted)} of them by {CALL}: {', '.join(unlisted[:MOST_NAMED])}{overflow}")
    if now.instructions.strip():
        sentences.append(f"it says of itself: {now.instructions[:MOST_SAID]}")
    return one_line("; ".join(sentences))


def _status_text(now: ServerStatus, *, connects: bool) -> str:
    reason = f": {now.why}" if now.why else ""
    match now.state:
        case "waiting":
            return f"not connected; {CONNECT} connects it" if connects else "not connected"
        case "connecting":
            return "connecting"
        case "failed":
            return f"failed{reason}" + (f"; {CONNECT} tries again" if connects else "")
        case _:
            return f"{now.state}{reason}"


def lines_in_prompt(system: bytes) -> tuple[str, ...]:
    """Return the lines about servers in a system prompt."""
    blocks = cast("list[dict[str, Any]]", json.loads(system)) if system else []
    texts = (str(block.get("text", "")) for block in blocks)
    section = next((text for text in texts if text.startswith(f"# {SERVERS}\n")), "")
    return tuple(line.removeprefix("- ") for line in section.splitlines() if line.startswith("- "))


def news(lines: Mapping[str, str], in_prompt: Iterable[str], gone: Sequence[str], latest: str) -> str:
    """Return the text to announce now: lines not in the prompt, and lines of the newest announcement's servers.

    Empty if there is none. `lines`: server -> its line; `gone`: unavailable tools of the prompt's list; `latest`: the
    newest announcement.
    """
    held_lines = set(in_prompt)
    due = [line for name, line in lines.items() if line not in held_lines or _is_about(latest, name, before="\n- ")]
    lost = [f"- {one_line(line)}" for line in _lost(in_prompt, lines)]
    if gone:
        overflow = f" and {len(gone) - MOST_NAMED} more" if len(gone) > MOST_NAMED else ""
        lost.append(f"- not there at the moment: {', '.join(gone[:MOST_NAMED])}{overflow}")
    if not due and not lost:
        return ""
    return f"{_CHANGED}\n{defused_block([*(f'- {line}' for line in due), *lost])}"


def _lost(in_prompt: Iterable[str], lines: Mapping[str, str]) -> Iterable[str]:
    """Yield messages for servers of the prompt that no longer exist."""
    for line in in_prompt:
        if not any(_is_about(line, name) for name in lines):
            yield f"{line.partition(':')[0].partition(' (')[0]}: there is no such server any more"


def _is_about(text: str, name: str, before: str = "") -> bool:
    """Return True if a text contains, or is, the line about this server."""
    begins = tuple(f"{before}{one_line(name)}{end}" for end in (":", " ("))
    return any(start in text for start in begins) if before else text.startswith(begins)
