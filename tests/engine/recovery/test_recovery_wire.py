"""A fallback takes over in the middle of a tool loop, over real HTTP: the strict service takes every request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import cast

import pytest
from tests.engine.agent.test_one_agent import Echo, tools
from tests.engine.context.summary_world import JumpingClock, events

from callboard.adapters.models.anthropic.client import AnthropicModel
from callboard.adapters.models.rehearsal.api import ApiError, ModelSpec
from callboard.adapters.models.rehearsal.emulator import serve
from callboard.adapters.models.rehearsal.replies import (
    SimulatedFault,
    SimulatedReply,
    SimulatedRequest,
    text,
    thinking,
    tool_use,
)
from callboard.adapters.models.rehearsal.scenario import Scenario
from callboard.core.context.view.invariants import invariants
from callboard.core.context.view.messages import calls_of
from callboard.engine.operations import model_call
from callboard.ports.model import ModelRequest, OnDelta
from callboard.ports.model import Reply as Whole
from callboard.testing import ScriptedModel, World
from callboard.types import events as ev

pytestmark = pytest.mark.anyio

MODELS = {"one": ModelSpec("one", min_cache=256), "two": ModelSpec("two", min_cache=256)}


@pytest.fixture
def anyio_backend() -> str:
    """The service's transport runs on asyncio alone."""
    return "asyncio"


class Asking(AnthropicModel):
    """Asks for thinking in every request."""

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Whole:
        """The tool list is the last thing in front of the messages: whatever stands behind it is a field of its own."""
        asked = replace(request, tools=request.tools + b',"thinking":{"type":"adaptive"}')
        return await super().complete(asked, on_delta)


class Thinker:
    """Thinks before each call; the first model is overloaded from its `fails`-th call in the session on, twice."""

    def __init__(self, steps: int, fails: int) -> None:
        self.steps, self.fails, self.served = steps, fails, 0
        self.asked: list[SimulatedRequest] = []

    def __call__(self, request: SimulatedRequest) -> SimulatedReply | ApiError:
        self.asked.append(request)
        if request.model == "one" and self.served == self.fails:
            return SimulatedReply((), faults=(SimulatedFault(status=529, times=2),))
        self.served += 1
        if self.served % (self.steps + 1) == 0:
            return SimulatedReply((thinking(f"last thought of {request.model}"), text("done")))
        return SimulatedReply(
            (thinking(f"thought {self.served} of {request.model}"), tool_use("echo", {"text": f"{self.served}"}))
        )


def bodies(asked: list[SimulatedRequest], model: str) -> Iterator[bytes]:
    """What a model was sent, message by message, without cache marks."""
    for request in asked:
        if request.model == model:
            messages = json.loads(json.dumps(request.body["messages"]))
            for message in messages:
                for block in message["content"]:
                    block.pop("cache_control", None)
            yield json.dumps(messages)[:-1].encode()


@pytest.mark.parametrize("fails", [0, 1, 2, 3])
async def test_each_model_is_sent_its_own_thinking_alone_and_its_prefix_stands(fails: int) -> None:
    talk = Thinker(steps=3, fails=fails)
    emulator = await serve(Scenario.from_callable(talk, models=MODELS))
    model = Asking(base_url=emulator.url, api_key="a-rehearsed-key")
    spec = {"model": "one", "fallback_models": ("two",), "pipeline": ()}
    world = World(cast("ScriptedModel", cast("object", model)), tools(Echo()), clock=JumpingClock(), spec=spec)
    try:
        async with world.session() as team:
            for _ in range(3):
                await team.prompt("go")
                await team.quiet()
                state = team.state("lead")
                assert (state.turns.last_reason, state.turns.last_text) == ("end", "done"), state.turns.last_why
                assert invariants(state.context.conversation.messages, sent=False) == []
            (switched,) = await events(world, ev.ModelSwitched)
            assert switched.model == "two"
            assert [one.fault.kind for one in await events(world, ev.CallFailed)] == ["overloaded"] * 2
    finally:
        await model.aclose()
        await emulator.aclose()
    for model_, other in (("one", "two"), ("two", "one")):
        sent = list(bodies(talk.asked, model_))
        assert len(sent) == 1 or any(f"of {model_}".encode() in body for body in sent)
        assert not any(f"of {other}".encode() in body for body in sent)
        assert all(later.startswith(body) for body, later in pairwise(sent)), "the prefix stands"
    assert [one.model for one in talk.asked][-4:] == ["one"] * 4, "the next turns are the first model's"


class Numbering(AnthropicModel):
    """Gateway that numbers the calls of each reply anew."""

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Whole:
        reply = await super().complete(request, on_delta)
        blocks = [
            {**block, "id": f"call_{place}"} if block["type"] == "tool_use" else block
            for place, block in enumerate(reply.blocks)
        ]
        return replace(reply, blocks=tuple(blocks))


async def test_calls_that_a_gateway_numbers_anew_in_each_reply_have_ids_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[SimulatedRequest] = []
    searched: list[object] = []
    monkeypatch.setattr(model_call, "calls_of", lambda message: searched.append(message) or calls_of(message))

    def talk(request: SimulatedRequest) -> SimulatedReply:
        asked.append(request)
        if len(asked) % 4 == 0:
            return SimulatedReply((text("done"),))
        pair = (tool_use("echo", {"text": f"{len(asked)}"}), tool_use("echo", {"text": "again"}))
        return SimulatedReply(pair)

    emulator = await serve(Scenario.from_callable(talk, models=MODELS))
    model = Numbering(base_url=emulator.url, api_key="a-rehearsed-key")
    world = World(
        cast("ScriptedModel", cast("object", model)), tools(Echo()), clock=JumpingClock(), spec={"model": "one"}
    )
    try:
        for session in (1, 2):
            async with world.session(resume=session == 2) as team:
                for _ in range(session):  # the first prompt after a resume is the same one, and arrives once
                    await team.prompt("go")
                await team.quiet()
                state = team.state("lead")
                assert (state.turns.last_reason, state.turns.last_text) == ("end", "done"), state.turns.last_why
                assert invariants(state.context.conversation.messages, sent=False) == []
                assert len(searched) <= len(state.context.conversation.messages), "once, not at each reply"
    finally:
        await model.aclose()
        await emulator.aclose()
    sent = list(bodies(asked, "one"))
    assert all(later.startswith(body) for body, later in pairwise(sent)), "the prefix stands"
    assert sent[-1].count(b'"call_0"') == 2, "the first call and its result"
    assert len(asked) == 8


class Adding(AnthropicModel):
    """Gateway that adds a block of a kind that the service does not take back."""

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Whole:
        reply = await super().complete(request, on_delta)
        return replace(reply, blocks=({"type": "new_kind", "id": "n"}, *reply.blocks))


async def test_a_refused_block_of_an_unknown_kind_is_left_out_and_the_turn_goes_on() -> None:
    asked: list[SimulatedRequest] = []

    def talk(request: SimulatedRequest) -> SimulatedReply:
        asked.append(request)
        return SimulatedReply((tool_use("echo", {"text": "x"}),) if len(asked) % 2 else (text("done"),))

    emulator = await serve(Scenario.from_callable(talk, models=MODELS))
    model = Adding(base_url=emulator.url, api_key="a-rehearsed-key")
    world = World(
        cast("ScriptedModel", cast("object", model)), tools(Echo()), clock=JumpingClock(), spec={"model": "one"}
    )
    try:
        for session in (1, 2):
            async with world.session(resume=session == 2) as team:
                for _ in range(session):  # the first prompt after a resume is the same one, and arrives once
                    await team.prompt("go")
                await team.quiet()
                state = team.state("lead")
                assert (state.turns.last_reason, state.turns.last_text) == ("end", "done"), state.turns.last_why
    finally:
        await model.aclose()
        await emulator.aclose()
    refused = [one for one in await events(world, ev.ContextEdited) if one.stage == "leave_out_refused"]
    assert len(refused) == 3
    assert b"Block of kind new_kind left out" in list(bodies(asked, "one"))[-1]
