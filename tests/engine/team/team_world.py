"""A world with the real tools of the store: board, team, plans, schedules, todos, control."""

from __future__ import annotations

from dataclasses import replace

from callboard.adapters.tools.board import board_tools
from callboard.adapters.tools.control import control_tools
from callboard.adapters.tools.cron import cron_tools
from callboard.adapters.tools.plan_and_report import plan_tools
from callboard.adapters.tools.team import team_tools
from callboard.adapters.tools.todo import todo_tools
from callboard.core.tool_access import tools_for
from callboard.engine.rate_limits.limiter import KeyLimiter
from callboard.engine.runtime import SessionRuntime
from callboard.ports.tool import Tool
from callboard.testing import ScriptedModel, World
from callboard.types.agent_spec import AgentSpec
from callboard.types.records import Json

FAMILIES = (control_tools, cron_tools, plan_tools, team_tools, todo_tools)
STORE_TOOLS: tuple[Tool, ...] = tuple(tool for family in FAMILIES for tool in family())
"""Tools of the store that hold nothing: to write out their schemas takes longer than many a test. The board's remember
which check has passed."""


class TeamWorld(World):
    """Agents have the tools of their kind."""

    def spec_of(self, agent_type: str, name: str, parent: AgentSpec | None) -> AgentSpec:
        spec = super().spec_of(agent_type, name, parent)
        own = tuple(sorted({*tools_for(spec.kind, None).names, "write_file"} & set(self.tools)))
        return spec.model_copy(update={"tools": own})


def team_world(model: ScriptedModel, *more: Tool, **kwargs: object) -> TeamWorld:
    """All tools of the store, and `more`."""
    tools = [*board_tools(), *STORE_TOOLS, *more]
    return TeamWorld(model, {tool.spec.name: tool for tool in tools}, **kwargs)


def spawn(name: str, prompt: str = "do it", **more: object) -> tuple[str, Json]:
    """A call of spawn_teammate."""
    return "spawn_teammate", {"name": name, "role": "worker", "prompt": prompt, **more}


class Shared(World):
    """A world whose host takes the rate limiter that it is given."""

    key_limiter: KeyLimiter | None = None

    def runtime(self, session: str) -> SessionRuntime:
        runtime = super().runtime(session)
        runtime.services = replace(runtime.services, key_limiter=self.key_limiter)
        runtime.key_limiter = self.key_limiter or runtime.key_limiter
        return runtime
