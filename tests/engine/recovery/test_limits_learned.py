"""Limits that the service states are learned, and the turn goes on; an input that never fits is escalated once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.engine.agent.test_one_agent import Echo, tools
from tests.engine.team.team_world import Shared

from callboard.adapters.tools.control import control_tools
from callboard.config.settings import LoadedSettings
from callboard.core.recovery.retry_policy import SMALLER_PROMPT
from callboard.engine.rate_limits.limiter import KeyLimiters
from callboard.ports.model import CallFault, ModelRequest, OnDelta, Reply
from callboard.sessions.compose import choose_model
from callboard.sessions.places import find_places
from callboard.testing import ScriptedModel, SteadyClock, World, say, use
from callboard.types.records import Fault
from callboard.types.settings import Settings

pytestmark = pytest.mark.anyio


class Small(ScriptedModel):
    """A service that allows less output than is assumed, and says so."""

    most = 10_000

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        if request.max_tokens > self.most:
            self.requests.append(request)
            words = f"max_tokens: {request.max_tokens} > {self.most}, which is the maximum allowed"
            raise CallFault(Fault(kind="invalid", message=words, status=400, max_output=self.most))
        return await super().complete(request, on_delta)


def asked(model: ScriptedModel, agent: str = "lead") -> list[int]:
    return [request.max_tokens for request in model.requests if request.agent == agent]


async def test_a_stated_output_limit_is_learned_once_and_the_turn_goes_on() -> None:
    cut = replace(say("half"), stop_reason="max_tokens")
    model = Small({"lead": [cut, say("whole"), say("again")]})
    world = World(model)
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert team.state("lead").turns.last_text == "whole"
        assert asked(model) == [8_000, 16_000, 10_000]
        await team.prompt("more")
        await team.quiet()
        assert team.state("lead").turns.last_text == "again"
    async with world.session(resume=True) as team:
        await team.quiet()
        assert team.state("lead").me.limits_of("scripted").max_output == 10_000, "a resume knows it"


async def test_what_one_agent_learned_is_known_to_the_others() -> None:
    task = {"description": "look", "prompt": "look", "agent_type": "general"}
    model = Small({"lead": [use("task", task), say("done")]})
    model.most = 5_000
    world = World(model, tools(*control_tools()))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
    others = {request.agent: request.max_tokens for request in reversed(model.requests) if request.agent != "lead"}
    assert set(others.values()) == {5_000}
    assert asked(model)[:2] == [8_000, 5_000]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # of the real adapter, which needs it
async def test_limits_learned_at_one_base_url_do_not_hold_at_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "the-same-key")
    key_limiters, calls = KeyLimiters(SteadyClock()), list[list[int]]()
    for port in (1, 2, 1):
        loaded = LoadedSettings(Settings(base_url=f"http://127.0.0.1:{port}"))
        async with choose_model("scripted", loaded, find_places(Path()), "s1") as chosen:
            key = chosen.key
        model = Small({"lead": [say("done")]})
        model.most = 5_000
        world = Shared(model)
        world.key_limiter = key_limiters.of(key)
        async with world.session() as team:
            await team.prompt("go")
            await team.quiet()
        calls.append(asked(model))
    assert calls == [[8_000, 5_000], [8_000, 5_000], [5_000]]


def cut_call(characters: int) -> Reply:
    reply = replace(use("echo", {}, text="I write it."), stop_reason="max_tokens", bad_inputs={1: "cut"})
    return replace(reply, cut_call=("echo", characters))


class Cuts(ScriptedModel):
    """Keeps what a test says of a cut call, which `ScriptedModel` leaves out of a reply."""

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Any:
        reply = await super().complete(request, on_delta)
        cut = reply.stop_reason == "max_tokens"
        return replace(reply, cut_call=("echo", request.max_tokens * 4)) if cut else reply


async def test_an_input_that_grows_with_the_limit_is_asked_for_in_smaller_parts() -> None:
    echo = Echo()
    model = Cuts({"lead": [cut_call(1), cut_call(2), use("echo", {"text": "part"}), say("done")]})
    world = World(model, tools(echo))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert team.state("lead").turns.last_text == "done"
    assert asked(model) == [8_000, 16_000, 16_000, 8_000], "no call at the highest limit"
    assert SMALLER_PROMPT.format(call="echo").encode() in b"".join(model.requests[2].messages)
    assert echo.ran == [{"text": "part"}]


async def test_an_input_that_never_fits_ends_the_turn_and_says_so() -> None:
    model = Cuts({"lead": [cut_call(1)] * 9})
    world = World(model, tools(Echo()))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        assert team.state("lead").turns.last_reason == "limit"
        assert "the input of echo never fitted" in team.state("lead").turns.last_why
    assert asked(model) == [8_000, 16_000, 16_000, 16_000]
