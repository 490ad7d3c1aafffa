"""In a replay, MCP servers have the recorded state, and no server is contacted."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from tests.engine.agent.test_one_agent import Echo

from callboard.adapters.mcp.memory import MemoryServers
from callboard.adapters.models.cassette.wrappers import RecordedServers, replayed_servers
from callboard.types.errors import ToolRefused
from callboard.types.mcp import McpPrompt, McpResource
from callboard.types.records import Json

pytestmark = pytest.mark.anyio


class JsonRecorder:
    """Recorder that stores values as JSON."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], str] = {}
        self.count = 0

    def keep(self, kind: str, key: str, value: Json) -> None:
        self.kept[kind, key] = json.dumps(value)
        self.count += 1

    def value_of(self, kind: str, key: str) -> Json | None:
        kept = self.kept.get((kind, key))
        return None if kept is None else json.loads(kept)

    def draw(self, taker: str, real: float) -> float:
        return real

    def new_id(self, taker: str, real: str) -> str:
        return real


async def test_what_servers_offered_is_kept_when_it_changes_and_replayed_without_them() -> None:
    tape, servers = JsonRecorder(), MemoryServers()
    assert replayed_servers(tape) is None
    servers.put("shop", [Echo(name="mcp__shop__list")], instructions="Ask first.", always_load=True)
    servers.put_prompt("shop", McpPrompt("shop", "greet", "hi", (("who", "a name", True),)), [])
    servers.put_resource("shop", McpResource("shop", "note://one"), [])
    recorded = RecordedServers(servers, tape)
    assert isinstance(recorded.tools(), Mapping)
    assert recorded.tools() is servers.tools()
    assert tape.count == 1
    servers.put("bank", [Echo(name="mcp__bank__pay", effect="unknown")])
    recorded.tools()
    assert tape.count == 2
    replayed = replayed_servers(tape)
    assert replayed is not None
    assert replayed.now() == list(servers.now())
    assert {name: tool.spec for name, tool in replayed.tools().items()} == {
        name: tool.spec for name, tool in servers.tools().items()
    }
    with pytest.raises(ToolRefused, match="reaches no MCP server"):
        await replayed.connect("shop")
