"""What a connected server offers: its tools, prompts and resources, read as a stranger's words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import anyio.to_thread

from callboard.adapters.mcp.tools import Call, Declared, ServerTool, declared
from callboard.adapters.mcp.wire import ServerFailed, Wire
from callboard.core.mcp.limits import Limits
from callboard.core.mcp.names import own_clashes
from callboard.core.mcp.texts import cut, one_line
from callboard.words.mcp import McpPrompt, McpResource, ServerEntry
from callboard.words.values import Json


@dataclass(frozen=True, slots=True)
class Offer:
    """All that a server has to offer at one time."""

    tools: Mapping[str, ServerTool] = field(default_factory=dict[str, ServerTool])
    prompts: tuple[McpPrompt, ...] = ()
    resources: tuple[McpResource, ...] = ()
    version: str = ""
    instructions: str = ""
    wrong: str = ""
    """What of its lists could not be used."""


async def offer_of(wire: Wire, entry: ServerEntry, limits: Limits, call: Call, before: Offer) -> Offer:
    """Read all lists. A tool whose declaration is what it was stays the same object. Raises `ServerFailed`."""
    wrong: list[str] = []
    tools = await _tools(wire, entry, limits, wrong)
    if clash := own_clashes(entry.name, [tool.name for tool in tools]):
        raise ServerFailed(f"two of its tools could not be told apart: {clash}")
    objects = {tool.spec.name: _object_for(tool, before, call, limits) for tool in tools}
    return Offer(
        objects,
        await _prompts(wire, entry, wrong),
        await _resources(wire, entry, wrong),
        _version(wire.info),
        cut(wire.info.get("instructions")),
        one_line("; ".join(wrong), 1_000),
    )


async def _tools(wire: Wire, entry: ServerEntry, limits: Limits, wrong: list[str]) -> list[Declared]:
    if not wire.offers("tools"):
        return []
    seconds = min(limits.call_of(entry.timeout), limits.idle_of(entry.transport, entry.timeout))
    found: list[Declared] = []
    listed = await wire.listed("tools/list", "tools")
    # Hundreds of schemas take a while to be looked through; all else goes on meanwhile.
    for tool in await anyio.to_thread.run_sync(lambda: [declared(entry.name, one, seconds) for one in listed]):
        if tool is None:
            wrong.append("a tool without a name is left out")
            continue
        if tool.schema:
            wrong.append(f"{tool.name}: {tool.schema}")
        found.append(tool)
    return found


def _object_for(tool: Declared, before: Offer, call: Call, limits: Limits) -> ServerTool:
    same = before.tools.get(tool.spec.name)
    if same is not None and same.declared == tool:
        return same
    return ServerTool(tool, call, limits.shown_of(tool.shown))


async def _prompts(wire: Wire, entry: ServerEntry, wrong: list[str]) -> tuple[McpPrompt, ...]:
    found = await _optional(wire, "prompts", wrong)
    return tuple(
        McpPrompt(entry.name, one["name"], one_line(one.get("description")), _arguments(one.get("arguments")))
        for one in found
        if isinstance(one.get("name"), str)
    )


def _arguments(given: object) -> tuple[tuple[str, str, bool], ...]:
    listed = cast("Sequence[Any]", given) if isinstance(given, list) else ()
    objects = [cast("Json", one) for one in listed if isinstance(one, dict)]
    named = [one for one in objects if isinstance(one.get("name"), str)]
    return tuple((one["name"], one_line(one.get("description")), one.get("required") is True) for one in named)


async def _resources(wire: Wire, entry: ServerEntry, wrong: list[str]) -> tuple[McpResource, ...]:
    found = await _optional(wire, "resources", wrong)
    return tuple(
        McpResource(
            entry.name,
            one["uri"],
            one_line(one.get("title") or one.get("name")),
            one_line(one.get("description")),
            one_line(one.get("mimeType"), 100),
        )
        for one in found
        if isinstance(one.get("uri"), str)
    )


async def _optional(wire: Wire, what: str, wrong: list[str]) -> list[Json]:
    """A list that a server may fail to give without failing as a whole."""
    if not wire.offers(what):
        return []
    try:
        return await wire.listed(f"{what}/list", what)
    except ServerFailed as error:
        if error.lost:
            raise
        wrong.append(f"its {what} could not be listed: {error.why}")
        return []


def _version(info: Json) -> str:
    own = info.get("serverInfo")
    told = cast("Json", own) if isinstance(own, Mapping) else {}
    return one_line(f"{told.get('name') or ''} {told.get('version') or ''}", 200)
