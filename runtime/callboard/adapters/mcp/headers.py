"""The headers of a remote server: those of its entry, and those that its `headersHelper` prints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from callboard.adapters.mcp.transports import Place, environment_of
from callboard.adapters.mcp.wire import ServerFailed
from callboard.adapters.programs import find_program, run_program
from callboard.core.mcp.limits import HELPER
from callboard.core.mcp.texts import one_line
from callboard.words.mcp import ServerEntry

MOST_BYTES = 100_000
"""That a helper may print."""


async def headers_of(entry: ServerEntry, place: Place) -> Mapping[str, str]:
    """The headers for one connection; the helper's win. Raises `ServerFailed` when the helper gives none."""
    if not entry.headers_helper:
        return entry.headers
    return entry.headers | await _helped(entry, place)


async def _helped(entry: ServerEntry, place: Place) -> dict[str, str]:
    told = {"CLAUDE_CODE_MCP_SERVER_NAME": entry.name, "CLAUDE_CODE_MCP_SERVER_URL": entry.url}
    shell = find_program("sh", place.workspace, place.environment.get("PATH"))
    if shell is None:
        raise ServerFailed("its headersHelper needs `sh`, which was not found on PATH")
    ran = await run_program(
        [shell, "-c", f'cd -- "$1" && {{ {entry.headers_helper}\n}}', "sh", str(place.workspace)],
        environment_of(entry, place) | told,
        timeout=HELPER,
        most=MOST_BYTES,
    )
    if ran.timed_out:
        raise ServerFailed(f"its headersHelper took longer than {HELPER:g} s")
    if ran.code != 0:
        raise ServerFailed(f"its headersHelper failed (exit {ran.code}): {one_line(ran.err.decode(errors='replace'))}")
    try:
        found: Any = json.loads(ran.out)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(one, str) for one in cast("dict[str, Any]", found).values()):
        raise ServerFailed("its headersHelper printed no JSON object of texts")
    return cast("dict[str, str]", found)
