"""Cross-check of `context_cost.py`: run the same session through the engine over HTTP, billed by the emulator.

The check uses the engine, the vendor's transport, and the strict emulator with its prompt cache; the replay uses only
the core.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from context_bill import MODEL, OVERHEAD, SYSTEM, TOOLS, units
from context_player import Player, reply_of, summary_of
from context_session import Session

from callboard.adapters.models.anthropic.client import AnthropicModel
from callboard.adapters.models.rehearsal.emulator import Emulator, serve
from callboard.adapters.models.rehearsal.replies import SimulatedReply, SimulatedRequest
from callboard.adapters.models.rehearsal.scenario import Scenario
from callboard.core.context.cache.breakpoints import anchored_list
from callboard.engine.runtime import SessionRuntime
from callboard.ports.environment import PromptParts
from callboard.ports.tool import CallContext, Folders, Tool, ToolOutcome, ToolSpec
from callboard.testing import ScriptedModel, World
from callboard.types.agent_spec import AgentSpec, StageSpec
from callboard.types.records import Usage

Json = dict[str, Any]


@dataclass
class Stage:
    """The next speaker and the answers of the tools."""

    player: Player
    result: str = ""
    prompt: str = ""

    def __call__(self, request: SimulatedRequest) -> SimulatedReply:
        shown = json.dumps(request.body, ensure_ascii=False)
        if request.purpose == "summary":
            return SimulatedReply(
                ({"type": "text", "text": summary_of(shown, cast("int", request.body["max_tokens"]))},)
            )
        if self.player.done:
            return SimulatedReply(({"type": "text", "text": "Done."},))
        work = self.player.next(shown.encode())
        self.result, self.prompt = work.result, work.prompt
        return SimulatedReply(tuple(reply_of(work, "")))


@dataclass
class Played:
    """Tool that returns the session's result."""

    name: str
    stage: Stage

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(self.name, f"What {self.name} does.", {"type": "object"}, "read", "shared")

    def key(self, tool_input: Json, folders: Folders) -> str:
        return ""

    async def prepare(self, tool_input: Json, context: CallContext) -> Json:
        return {}

    async def run(self, tool_input: Json, context: CallContext) -> ToolOutcome:
        return ToolOutcome(self.stage.result)

    async def repair(self, tool_input: Json, marks: Json, context: CallContext) -> ToolOutcome | None:
        return None


class _Prompts:
    """System prompt and tools of every request of the bench."""

    async def compose(self, spec: AgentSpec, tools: Sequence[ToolSpec], servers: Sequence[str] = ()) -> PromptParts:
        return PromptParts(anchored_list(SYSTEM), anchored_list(TOOLS), OVERHEAD)


class _World(World):
    def runtime(self, session: str) -> SessionRuntime:
        made = super().runtime(session)
        return SessionRuntime(session, replace(made.services, prompts=_Prompts()), None, made.types)


async def over_http(session: Session, pipeline: Sequence[StageSpec]) -> tuple[float, int]:
    """Return the units that the emulator billed, and the rereads."""
    stage = Stage(Player(session))
    emulator = await serve(Scenario.from_callable(stage, models={MODEL.id: MODEL}))
    model = AnthropicModel(base_url=emulator.url, api_key="bench")
    names = [cast("str", tool["name"]) for tool in TOOLS]
    tools: dict[str, Tool] = {name: Played(name, stage) for name in names}
    spec: Json = {"model": MODEL.id, "models": {MODEL.id: {}}, "pipeline": tuple(pipeline)}
    world = _World(cast("ScriptedModel", cast("object", model)), tools, spec=spec)
    try:
        async with world.session() as team:
            stage.prompt = session.first
            while not stage.player.done:
                await team.prompt(stage.prompt)
                await team.quiet()
                state = team.state("lead")
                if state.turns.last_reason != "end":
                    raise RuntimeError(f"the session ended with {state.turns.last_reason}: {state.turns.last_why}")
    finally:
        await model.aclose()
        await emulator.aclose()
    return sum(units(_usage(one.usage)) for one in _billed(emulator)), len(stage.player.reread)


def _billed(emulator: Emulator) -> list[Any]:
    """Return all replies except the last, which only ends the session."""
    return [one for one in emulator.log if one.path == "/v1/messages" and one.status == 200][:-1]


def _usage(usage: Json) -> Usage:
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
    return Usage.model_validate({name: usage.get(name, 0) for name in names})
