"""Thinking that was chosen for an agent: what its turns and summaries ask for, and what a model gets that takes over.

The rehearsed model behind real HTTP caches as the service does.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from tests.engine.agent.test_one_agent import Echo
from tests.engine.context.summary_world import WORDS, events, over_http

from callboard.adapters.models.rehearsal.api import ModelSpec
from callboard.adapters.models.rehearsal.emulator import Emulator
from callboard.adapters.models.rehearsal.replies import (
    SimulatedFault,
    SimulatedReply,
    SimulatedRequest,
    text,
    thinking,
    tool_use,
)
from callboard.testing import HostedSession, World
from callboard.types import events as ev
from callboard.types.agent_spec import ThinkingChoice
from callboard.types.records import Budget, Json

pytestmark = pytest.mark.anyio

MODELS = {
    name: ModelSpec(name, min_cache=256, thinking=frozenset({kind, "disabled"}))
    for name, kind in (("one", "enabled"), ("two", "enabled"), ("three", "adaptive"))
}
LIMITS: Json = {
    name: {"adaptive_thinking": name == "three", "cache_minimum": 256, "price_input": 3, "price_output": 15}
    for name in MODELS
}
BUDGET = ThinkingChoice(kind="enabled", budget=2_000)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Loop:
    """A model that thinks before the first call of each turn, and makes `calls` calls in it.

    `overloaded`: number of the reply that model one refuses to give.
    """

    def __init__(self, calls: int, overloaded: int | None = None) -> None:
        self._calls = calls
        self._overloaded = overloaded
        self._made = 0

    def __call__(self, request: SimulatedRequest) -> SimulatedReply:
        if request.purpose == "summary":
            return SimulatedReply((text("- a summary"),))
        if request.model == "one" and self._made == self._overloaded:
            return SimulatedReply((), faults=(SimulatedFault(status=529, times=2),))
        self._made += 1
        place = self._made % (self._calls + 1)
        thought = (thinking(f"thought {self._made}"),) if place == 1 and "thinking" in request.body else ()
        return SimulatedReply((*thought, tool_use("echo", {"text": str(self._made)}) if place else text("done")))


def talking(talk: Loop, **more: Any) -> AbstractAsyncContextManager[tuple[World, HostedSession, Emulator]]:
    own = {"model": "one", "models": LIMITS, "pipeline": (), "context_limit": None, "stuck_after": 0}
    return over_http(talk, MODELS, {"echo": Echo(act=long_result)}, **{**own, **more})


async def long_result(_: Json) -> str:
    return WORDS * 3


async def test_a_fallback_in_a_tool_loop_gets_no_budget_that_the_service_refuses() -> None:
    """The thinking that began the loop is not sent to another model: for that one, the loop began without any."""
    model = Loop(4, overloaded=1)
    async with talking(model, fallback_models=("two",), thinking=BUDGET) as (_, team, emulator):
        await team.prompt("go")
        await team.quiet()
        assert team.state("lead").turns.last_reason == "end"
        assert [(call.model, call.status) for call in emulator.log] == [
            ("one", 200),
            *[("one", 529)] * 2,
            *[("two", 200)] * 4,
        ]
        assert ["thinking" in call.body for call in emulator.log] == [True] * 3 + [False] * 4


@pytest.mark.parametrize(
    ("model", "choice"), [("one", BUDGET), ("one", ThinkingChoice(kind="adaptive")), ("three", BUDGET)]
)
async def test_a_turn_and_a_summary_of_it_keep_the_form_of_thinking_and_so_the_cache(
    model: str, choice: ThinkingChoice
) -> None:
    async with talking(Loop(5), model=model, thinking=choice) as (world, team, emulator):
        for _ in range(2):
            await team.prompt("go")
            await team.quiet()
        await team.command("compact")
        await team.quiet()
        forms = [call.body.get("thinking") for call in emulator.log]
        assert forms == [forms[0]] * 13
        assert forms[0]
        read = [call.usage["cache_read_input_tokens"] for call in emulator.log]
        assert read[2:] == sorted(read[2:]), "each request reads what the one before it left"
        assert read[2] > 0
        assert [edit.usage.cache_read_input_tokens for edit in await events(world, ev.ContextEdited)] == [read[-1]]


async def test_a_budget_that_runs_out_does_not_change_the_thinking_from_call_to_call() -> None:
    choice = ThinkingChoice(kind="enabled")
    async with talking(Loop(20), thinking=choice, budget=Budget(cost_usd=0.55)) as (_, team, emulator):
        await team.prompt("go")
        await team.quiet()
        budgets = [call.body.get("thinking", {}).get("budget_tokens", 0) for call in emulator.log]
        assert len(emulator.log) > 8
        assert set(budgets) == {4_000, 0}
        assert budgets == sorted(budgets, reverse=True), "it ends once, when a call has no room for it"
        assert len({call.body["max_tokens"] for call in emulator.log}) > 2, "the premise: the calls get smaller"


async def test_a_budget_stands_beside_the_tokens_of_the_answer() -> None:
    choice = ThinkingChoice(kind="enabled", budget=31_999)
    async with talking(Loop(1), thinking=choice) as (_, team, emulator):
        await team.prompt("go")
        await team.quiet()
        assert {(call.body["max_tokens"], call.body["thinking"]["budget_tokens"]) for call in emulator.log} == {
            (39_999, 31_999)
        }
