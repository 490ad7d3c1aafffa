"""Capabilities of a connected server: its tools, prompts and resources, parsed as untrusted text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, cast

import anyio.to_thread

from callboard.adapters.mcp.session import McpSession, ServerFailed
from callboard.adapters.mcp.tools import Call, ServerTool, ToolDeclaration, read_declaration
from callboard.core.mcp.limits import McpLimits
from callboard.core.mcp.results import cut, one_line
from callboard.core.mcp.tool_names import own_clashes
from callboard.types.lazy_dataclass import dataclass
from callboard.types.mcp import McpPrompt, McpResource, ServerEntry
from callboard.types.records import Json


@dataclass(frozen=True, slots=True)
class ServerCapabilities:
    """Everything that a server offers at one time."""

    tools: Mapping[str, ServerTool] = field(default_factory=dict[str, ServerTool])
    prompts: tuple[McpPrompt, ...] = ()
    resources: tuple[McpResource, ...] = ()
    version: str = ""
    instructions: str = ""
    wrong: str = ""
    """Parts of the server's lists that are unusable, with the reasons."""


async def offer_of(
    mcp_session: McpSession, entry: ServerEntry, limits: McpLimits, *, call: Call, before: ServerCapabilities
) -> ServerCapabilities:
    """Read all lists. A tool whose declaration has not changed remains the same object. Raises `ServerFailed`."""
    wrong: list[str] = []
    tools = await _tools(mcp_session, entry, limits, wrong)
    if clash := own_clashes(entry.name, [tool.name for tool in tools]):
        raise ServerFailed(f"two of its tools could not be told apart: {clash}")
    objects = {tool.spec.name: _object_for(tool, before, call, limits) for tool in tools}
    return ServerCapabilities(
        objects,
        await _prompts(mcp_session, entry, wrong),
        await _resources(mcp_session, entry, wrong),
        _version(mcp_session.info),
        cut(mcp_session.info.get("instructions")),
        one_line("; ".join(wrong), 1_000),
    )


async def _tools(
    mcp_session: McpSession, entry: ServerEntry, limits: McpLimits, wrong: list[str]
) -> list[ToolDeclaration]:
    if not mcp_session.offers("tools"):
        return []
    seconds = min(limits.call_of(entry.timeout), limits.idle_of(entry.transport, entry.timeout))
    tools: list[ToolDeclaration] = []
    listed = await mcp_session.list_all("tools/list", "tools", wrong)
    # Checking hundreds of schemas takes time; other tasks run meanwhile.
    for tool in await anyio.to_thread.run_sync(
        lambda: [read_declaration(entry.name, item, seconds) for item in listed]
    ):
        if tool is None:
            wrong.append("a tool without a name is left out")
            continue
        if tool.schema:
            wrong.append(f"{tool.name}: {tool.schema}")
        tools.append(tool)
    return tools


def _object_for(tool: ToolDeclaration, before: ServerCapabilities, call: Call, limits: McpLimits) -> ServerTool:
    same = before.tools.get(tool.spec.name)
    if same is not None and same.declared == tool:
        return same
    return ServerTool(tool, call, limits.shown_of(tool.result_size))


async def _prompts(mcp_session: McpSession, entry: ServerEntry, wrong: list[str]) -> tuple[McpPrompt, ...]:
    prompts = await _optional(mcp_session, "prompts", wrong)
    return tuple(
        McpPrompt(entry.name, prompt["name"], one_line(prompt.get("description")), _arguments(prompt.get("arguments")))
        for prompt in prompts
        if isinstance(prompt.get("name"), str)
    )


def _arguments(value: object) -> tuple[tuple[str, str, bool], ...]:
    listed = cast("Sequence[Any]", value) if isinstance(value, list) else ()
    objects = [cast("Json", entry) for entry in listed if isinstance(entry, dict)]
    named = [entry for entry in objects if isinstance(entry.get("name"), str)]
    return tuple((entry["name"], one_line(entry.get("description")), entry.get("required") is True) for entry in named)


async def _resources(mcp_session: McpSession, entry: ServerEntry, wrong: list[str]) -> tuple[McpResource, ...]:
    resources = await _optional(mcp_session, "resources", wrong)
    return tuple(
        McpResource(
            entry.name,
            resource["uri"],
            one_line(resource.get("title") or resource.get("name")),
            one_line(resource.get("description")),
            one_line(resource.get("mimeType"), 100),
        )
        for resource in resources
        if isinstance(resource.get("uri"), str)
    )


async def _optional(mcp_session: McpSession, kind: str, wrong: list[str]) -> list[Json]:
    """Return a list whose failure does not count as a failure of the server."""
    if not mcp_session.offers(kind):
        return []
    try:
        return await mcp_session.list_all(f"{kind}/list", kind, wrong)
    except ServerFailed as error:
        if error.lost:
            raise
        wrong.append(f"its {kind} could not be listed: {error.why}")
        return []


def _version(info: Json) -> str:
    own = info.get("serverInfo")
    server = cast("Json", own) if isinstance(own, Mapping) else {}
    return one_line(f"{server.get('name') or ''} {server.get('version') or ''}", 200)
