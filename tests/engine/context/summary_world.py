"""A lead whose conversation is to be summarised, with the rehearsed model behind real HTTP; time jumps over waits."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from tests.engine.agent.test_one_agent import Echo, tools

from callboard.adapters.models.anthropic.client import AnthropicModel
from callboard.adapters.models.rehearsal.api import ApiError, ModelSpec
from callboard.adapters.models.rehearsal.emulator import Emulator, serve
from callboard.adapters.models.rehearsal.replies import SimulatedReply, SimulatedRequest, call, say
from callboard.adapters.models.rehearsal.scenario import Scenario
from callboard.ports.tool import Tool
from callboard.testing import HostedSession, ScriptedModel, SteadyClock, World
from callboard.types import events as ev
from callboard.types.records import Budget, Json

Answer = Callable[[SimulatedRequest], SimulatedReply | ApiError]
WORDS = "word " * 1_000
"""A result of about 1,250 tokens."""


class JumpingClock(SteadyClock):
    """Waits are noted and jumped over."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []
        self._ahead = 0.0

    def now(self) -> float:
        return super().now() + self._ahead

    async def sleep_until(self, when: float) -> None:
        left = max(0.0, when - self.now())
        self.waits.append(round(left, 1))
        self._ahead += left


@dataclass
class Talk:
    """A model in code: `steps` calls of `echo` in each turn, then a last word; summaries by `summary`."""

    summary: Answer
    steps: int = 4
    turns: list[SimulatedRequest] = field(default_factory=list[SimulatedRequest])
    summaries: list[SimulatedRequest] = field(default_factory=list[SimulatedRequest])

    def __call__(self, request: SimulatedRequest) -> SimulatedReply | ApiError:
        if request.purpose == "summary":
            self.summaries.append(request)
            return self.summary(request)
        self.turns.append(request)
        done = sum(1 for one in self.turns if one.attempt == 1)
        return call("echo", {"text": f"marker-{done}"}) if done % (self.steps + 1) else say("THE FINAL ANSWER")


async def long_result(given: Json) -> str:
    """What `echo` says: much, with its text at the end."""
    return f"{WORDS} {given.get('text', '')}."


@asynccontextmanager
async def over_http(
    talk: Callable[[SimulatedRequest], SimulatedReply | ApiError],
    models_: Mapping[str, ModelSpec] | None = None,
    more: Mapping[str, Tool] | None = None,
    *,
    budget: Budget | None = None,
    **spec: Any,
) -> AsyncGenerator[tuple[World, HostedSession, Emulator]]:
    """The session, and the service that it speaks to. Compacts over 3,000 tokens."""
    known = models_ or {"rehearsal": ModelSpec("rehearsal", min_cache=256)}
    emulator = await serve(Scenario.from_callable(talk, models=known))
    model = AnthropicModel(base_url=emulator.url, api_key="test")
    limits = {
        name: {"window": one.window, "max_output": one.max_output, "cache_minimum": one.min_cache}
        for name, one in known.items()
    }
    base: Json = {
        "model": next(iter(known)),
        "models": limits,
        "pipeline": ({"stage": "summarize_all"},),
        "context_limit": 3_000,
    }
    world = World(
        cast("ScriptedModel", cast("object", model)),
        {**tools(Echo(act=long_result)), **(more or {})},
        clock=JumpingClock(),
        spec={**base, **spec},
        **({} if budget is None else {"budget": budget}),
    )
    try:
        async with world.session() as team:
            yield world, team, emulator
    finally:
        await model.aclose()
        await emulator.aclose()


def text_of(request: SimulatedRequest) -> str:
    """All that a request says."""
    return json.dumps(request.body, ensure_ascii=False)


async def events(world: World, kind: type[Any]) -> list[Any]:
    """The lead's events of a kind."""
    return [one for one in await all_events(world) if isinstance(one, kind)]


async def all_events(world: World, incarnation: int = 1) -> list[ev.Event]:
    """The lead's journal."""
    records = await world.store.read(f"j/s1/lead.{incarnation}", 0, 10_000)
    return [ev.decode_event(record.data) for record in records]
