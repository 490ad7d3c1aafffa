"""The MCP servers of a recorded session, and of its replay: what they offered is kept, and nobody is reached again.

The newest state counts for all of a replay. A session whose servers changed while its agents began differs in its
prompts then, and the replay says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import anyio

from callboard.adapters.cassette import Tape
from callboard.ports.mcp import Servers
from callboard.ports.tool import Tool, ToolContext, ToolOutcome, ToolSpec
from callboard.words.errors import ToolRefused
from callboard.words.mcp import McpPrompt, McpResource, ServerEntry, ServerNow
from callboard.words.values import Json

_KEY = "all"
_REPLAYED = "a replay reaches no MCP server"


@dataclass(frozen=True)
class SpokenOf:
    """A tool of a server that is not there: what it answered stands on the tape."""

    spec: ToolSpec

    def key(self, given: Json) -> str:
        return ""

    async def prepare(self, given: Json, context: ToolContext) -> Json:
        return {}

    async def run(self, given: Json, context: ToolContext) -> ToolOutcome:
        raise ToolRefused(_REPLAYED)

    async def repair(self, given: Json, marks: Json, context: ToolContext) -> ToolOutcome | None:
        raise ToolRefused(_REPLAYED)


class RecordedServers:
    """The port `Servers`, whose state is kept whenever it has changed."""

    def __init__(self, servers: Servers, tape: Tape) -> None:
        self._servers, self._tape, self._kept = servers, tape, -1

    @property
    def revision(self) -> int:
        return self._servers.revision

    def now(self) -> Sequence[ServerNow]:
        return self._servers.now()

    def tools(self) -> Mapping[str, Tool]:
        tools = self._servers.tools()
        if self._kept != self._servers.revision:
            self._kept = self._servers.revision
            specs = [asdict(tool.spec) for tool in tools.values()]
            self._tape.keep("servers", _KEY, {"now": [asdict(one) for one in self.now()], "tools": specs})
        return tools

    async def changed(self, since: int) -> int:
        return await self._servers.changed(since)

    async def ready(self) -> None:
        await self._servers.ready()

    async def connect(self, name: str) -> ServerNow:
        return await self._servers.connect(name)

    async def switch_off(self, name: str) -> ServerNow:
        return await self._servers.switch_off(name)

    async def add(self, entry: ServerEntry) -> None:
        await self._servers.add(entry)

    async def remove(self, name: str) -> None:
        await self._servers.remove(name)

    async def prompt(self, server: str, name: str, arguments: Mapping[str, str]) -> Sequence[Json]:
        return await self._servers.prompt(server, name, arguments)

    async def read(self, server: str, uri: str) -> Sequence[Json]:
        return await self._servers.read(server, uri)


class ReplayedServers:
    """The port `Servers` of a replay."""

    revision = 1

    def __init__(self, kept: Json) -> None:
        self._now = [_now(one) for one in cast("Sequence[dict[str, Any]]", kept["now"])]
        specs = [ToolSpec(**one) for one in cast("Sequence[dict[str, Any]]", kept["tools"])]
        self._tools: Mapping[str, Tool] = {spec.name: SpokenOf(spec) for spec in specs}

    def now(self) -> Sequence[ServerNow]:
        return self._now

    def tools(self) -> Mapping[str, Tool]:
        return self._tools

    async def changed(self, since: int) -> int:
        if since == self.revision:
            await anyio.sleep_forever()
        return self.revision

    async def ready(self) -> None:
        """They stand as they stood."""

    async def connect(self, name: str) -> ServerNow:
        raise ToolRefused(_REPLAYED)

    async def switch_off(self, name: str) -> ServerNow:
        raise ToolRefused(_REPLAYED)

    async def add(self, entry: ServerEntry) -> None:
        """Nobody is reached."""

    async def remove(self, name: str) -> None:
        """Nobody is reached."""

    async def prompt(self, server: str, name: str, arguments: Mapping[str, str]) -> Sequence[Json]:
        raise ToolRefused(_REPLAYED)

    async def read(self, server: str, uri: str) -> Sequence[Json]:
        raise ToolRefused(_REPLAYED)


def replayed_servers(tape: Tape) -> ReplayedServers | None:
    """The servers of the recorded session; None: it had none."""
    kept = tape.found("servers", _KEY)
    return None if kept is None else ReplayedServers(kept)


def _now(kept: dict[str, Any]) -> ServerNow:
    prompts = tuple(
        McpPrompt(
            one["server"], one["name"], one["description"], tuple((n, d, bool(r)) for n, d, r in one["arguments"])
        )
        for one in kept["prompts"]
    )
    resources = tuple(McpResource(**one) for one in kept["resources"])
    plain: dict[str, Any] = {**kept, "tools": tuple(str(name) for name in kept["tools"])}
    return replace(ServerNow(**plain), prompts=prompts, resources=resources)
