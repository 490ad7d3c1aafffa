"""Headers of a remote server: those of its entry, and those that its `headersHelper` prints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

import anyio.to_thread

from callboard.adapters.mcp.session import ServerFailed
from callboard.adapters.mcp.starting import folder_of
from callboard.adapters.mcp.transports import Place, prepare
from callboard.adapters.processes.programs import find_program, run_program
from callboard.core.mcp.limits import HELPER
from callboard.core.mcp.results import one_line
from callboard.types.errors import ToolRefused
from callboard.types.mcp import ServerEntry

MOST_BYTES = 100_000
"""Most bytes of a helper's output."""


async def headers_of(entry: ServerEntry, place: Place) -> Mapping[str, str]:
    """Return the headers for one connection; the helper's win. Raises `ServerFailed` if the helper returns none."""
    if not entry.headers_helper:
        return entry.headers
    return entry.headers | await _helped(entry, place)


async def _helped(entry: ServerEntry, place: Place) -> dict[str, str]:
    extra = {"CLAUDE_CODE_MCP_SERVER_NAME": entry.name, "CLAUDE_CODE_MCP_SERVER_URL": entry.url}
    shell = find_program("sh", place.workspace, place.environment.get("PATH"))
    if shell is None:
        raise ServerFailed("its headersHelper needs `sh`, which was not found on PATH")
    try:
        environment = await anyio.to_thread.run_sync(prepare, entry, place)
    except ToolRefused as refused:
        raise ServerFailed(str(refused)) from None
    folder = folder_of(entry, place.workspace, place.empty)
    ran = await run_program(
        [shell, "-c", f'cd -- "$1" && {{ {entry.headers_helper}\n}}', "sh", str(folder)],
        environment | extra,
        timeout=HELPER,
        most=MOST_BYTES,
    )
    if ran.timed_out:
        raise ServerFailed(f"its headersHelper took longer than {HELPER:g} s")
    if ran.code != 0:
        raise ServerFailed(f"its headersHelper failed (exit {ran.code}): {one_line(ran.err.decode(errors='replace'))}")
    try:
        headers: Any = json.loads(ran.out)
    except ValueError:
        headers = None
    if not isinstance(headers, dict) or not all(
        isinstance(value, str) for value in cast("dict[str, Any]", headers).values()
    ):
        raise ServerFailed("its headersHelper printed no JSON object of texts")
    return cast("dict[str, str]", headers)
