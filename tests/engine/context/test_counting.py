"""Near the limit the service is asked how long a request is: as an operation, once, and never in the way."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from tests.engine.agent.test_one_agent import Echo, tools

from callboard.core.context.view.conversation import size
from callboard.ports.model import ModelRequest
from callboard.testing import ScriptedModel, World, say, use
from callboard.types.records import Json

pytestmark = pytest.mark.anyio

SPEC: Json = {"models": {"scripted": {"window": 50_000, "max_output": 8_000}}, "output_tokens": 8_000}


async def long(given: Json) -> str:
    """40,000 tokens by the estimate, of 41,900 that fit."""
    return "word" * 40_000


def world(*script: Any, counts: Any = None) -> World:
    model = ScriptedModel({"lead": list(script)})
    model.counts = counts
    return World(model, tools(Echo(act=long)), spec={**SPEC, "pipeline": ({"stage": "summarize_all"},)})


async def test_what_the_service_counts_stands_in_the_journal_and_counts() -> None:
    asked: list[ModelRequest] = []

    def counts(request: ModelRequest) -> int:
        asked.append(request)
        return 30_000

    there = world(use("echo"), say("done"), counts=counts)
    async with there.session() as team:
        await team.prompt("go")
        await team.quiet()
        events = await team.journal("lead")
        assert events.index("results_merged") < events.index("tokens_counted") < events.index("turn_ended")
        assert events.count("tokens_counted") == 1
        assert size(team.state("lead").context.conversation) < 31_000
    (request,) = asked
    called = there.model.requests[-1]
    assert (request.purpose, request.ordinal, request.agent) == ("count", called.ordinal, "lead")
    assert b",".join(request.messages) == b",".join(called.messages), "the bytes of the call that follows"
    assert (request.system, request.tools) == (called.system, called.tools)


async def test_a_service_that_cannot_is_asked_once_in_an_agents_life() -> None:
    there = world(use("echo"), say("one"), use("echo"), say("two"))
    async with there.session() as team:
        for words in ("go", "again"):
            await team.prompt(words)
            await team.quiet()
        assert (await team.journal("lead")).count("tokens_counted") == 1
        assert team.state("lead").model.uncountable
        assert team.state("lead").turns.last_text == "two"


async def test_an_interrupt_ends_a_count_that_hangs_and_one_that_nobody_ends_runs_out_of_time() -> None:
    there = world(use("echo"), say("after all"))
    hanging = anyio.Event()

    async def hang(request: ModelRequest) -> int:
        hanging.set()
        await anyio.sleep_forever()
        return 0

    there.model.count = hang
    async with there.session() as team:
        await team.prompt("go")
        await hanging.wait()
        await team.command("interrupt")
        await team.quiet()
        assert team.state("lead").turns.last_reason == "interrupted"
        assert "tokens_counted" not in await team.journal("lead")


async def test_a_process_that_dies_while_it_counts_asks_again_when_it_is_back() -> None:
    there = world(use("echo"), say("done"))
    counted: list[int] = []

    async def hang(request: ModelRequest) -> int:
        counted.append(request.ordinal)
        if len(counted) == 1:
            await anyio.sleep_forever()
        return 20_000

    there.model.count = hang
    async with there.session() as team:
        await team.prompt("go")
        while not counted:
            await anyio.sleep(0)
    async with there.session(resume=True) as team:
        await team.quiet()
        assert counted == [2, 2]
        assert team.state("lead").turns.last_text == "done"
        assert (await team.journal("lead")).count("tokens_counted") == 1


def too_many(request: ModelRequest) -> int:
    return 60_000


async def test_a_count_that_is_over_the_budget_is_compacted_before_the_call() -> None:
    there = world(use("echo"), say("done"), counts=too_many)
    async with there.session() as team:
        await team.prompt("go")
        await team.quiet()
        events = await team.journal("lead")
        assert events.index("tokens_counted") < events.index("context_edited")
        assert "call_failed" not in events
