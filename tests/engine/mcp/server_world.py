"""A world in memory with MCP servers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from tests.engine.agent.test_one_agent import Echo

from callboard.adapters.mcp.memory import MemoryServers
from callboard.adapters.tools.mcp import ServerPrompts, server_tools
from callboard.core.mcp.catalog import Deferral
from callboard.engine.operations.mcp_tools import hidden_tools
from callboard.engine.runtime import SessionRuntime
from callboard.engine.toolbox import Toolbox
from callboard.ports.tool import Tool
from callboard.testing import ScriptedModel, World
from callboard.types.agent_spec import AgentSpec
from callboard.types.mcp import ServerEntry
from callboard.types.records import Json


def shop(*names: str, server: str = "shop", effect: str = "read") -> list[Echo]:
    """Tools of a server."""
    return [Echo(name=f"mcp__{server}__{name}", effect=effect) for name in names]


@dataclass
class ServerWorld(World):
    """With servers, whose tools the agents have as in a session."""

    servers: MemoryServers = field(default_factory=MemoryServers)
    deferral: Deferral = Deferral()
    wait: float | None = 5.0
    own_servers: Mapping[str, ServerEntry] = field(default_factory=dict[str, ServerEntry])
    """Agent type -> a server that it brings."""

    def runtime(self, session: str) -> SessionRuntime:
        runtime = super().runtime(session)
        theirs = server_tools(self.servers, partial(hidden_tools, self.servers, runtime.private_servers))
        more: dict[str, Tool] = {tool.spec.name: tool for tool in theirs}
        box = Toolbox({**self.tools, **more}, self.servers)
        prompts = ServerPrompts(self.servers)
        runtime.services = replace(runtime.services, tools=box, servers=self.servers, prompt_source=prompts)
        runtime.services = replace(runtime.services, own_servers=self._own_servers)
        runtime.deferral, runtime.server_wait = self.deferral, self.wait
        return runtime

    def _own_servers(self, me: AgentSpec) -> Sequence[ServerEntry]:
        return [one for of, one in self.own_servers.items() if of == me.agent_type]


def listed(world: World, agent: str = "lead", call: int = -1) -> list[str]:
    """The tools in a request of an agent."""
    request = [r for r in model_of(world).requests if r.agent == agent][call]
    return [str(one["name"]) for one in json.loads(request.tools)]


def model_of(world: World) -> ScriptedModel:
    return world.model


def sent(world: World, agent: str = "lead", call: int = -1) -> str:
    """The messages of a request."""
    return b"\n".join([r for r in world.model.requests if r.agent == agent][call].messages).decode()


def calls(name: str, given: Json) -> tuple[str, Json]:
    """What a model writes to call a tool that its list does not hold."""
    return "call_tool", {"name": name, "input": given}


def names(tools: Sequence[Tool]) -> list[str]:
    return [tool.spec.name for tool in tools]
