"""A team and a service that says slow down, over real HTTP: what reaches the service, as the service counts it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import cast

import anyio
import pytest
from tests.engine.agent.test_one_agent import Echo, tools
from tests.engine.team.team_world import Shared

from callboard.adapters.models.anthropic.client import AnthropicModel
from callboard.adapters.models.rehearsal.api import ApiError, ModelSpec, of_status
from callboard.adapters.models.rehearsal.emulator import serve
from callboard.adapters.models.rehearsal.replies import SimulatedReply, SimulatedRequest, call, say
from callboard.adapters.models.rehearsal.scenario import Scenario
from callboard.engine.rate_limits.limiter import KeyLimiter
from callboard.testing import ScriptedModel, SteadyClock

pytestmark = pytest.mark.anyio
AGENTS = 12
LOOK_S = 0.3
"""How long the one that goes alone is kept waiting: others that were sent would arrive meanwhile."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"  # the SDK's transport runs nowhere else


@dataclass
class Service:
    """Answers all first calls together, as `first` says; then refuses the next `down` ones, one by one."""

    first: Sequence[ApiError | None]
    down: int = 0
    asked: int = 0
    refused: int = 0
    alone: list[bool] = field(default_factory=list[bool])
    """Of each call that came after the refusal, until one was answered: no other one came beside it."""
    open: bool = False
    all_here: anyio.Event = field(default_factory=anyio.Event)

    async def __call__(self, request: SimulatedRequest) -> SimulatedReply | ApiError:
        self.asked += 1
        mine = self.asked
        if mine <= AGENTS:
            if mine == AGENTS:
                self.all_here.set()
            await self.all_here.wait()
            error = self.first[mine - 1]
        elif not self.open:
            await anyio.sleep(LOOK_S)
            self.alone.append(self.asked == mine)
            error = of_status(529) if len(self.alone) <= self.down else None
            self.open = error is None
        else:
            error = None
        self.refused += error is not None
        if error is not None:
            return error
        return say("done") if request.results else call("echo", {"text": "x"})


async def played(service: Callable[[SimulatedRequest], Awaitable[SimulatedReply | ApiError]]) -> list[str]:
    """What the agents of one key say in the end."""
    emulator = await serve(Scenario.from_callable(service, models={"rehearsal": ModelSpec("rehearsal")}))
    model = AnthropicModel(base_url=emulator.url, api_key="test")
    clock = SteadyClock()
    key_limiter, said = KeyLimiter(clock), list[str]()

    async def live(number: int) -> None:
        spec = {"model": "rehearsal", "attempts": 10, "pipeline": ()}
        world = Shared(cast("ScriptedModel", cast("object", model)), tools(Echo()), clock=clock, spec=spec, seed=number)
        world.key_limiter = key_limiter
        async with world.session(f"s{number}") as team:
            await team.prompt("go")
            await team.quiet()
            said.append(team.state("lead").turns.last_text)

    try:
        with anyio.fail_after(180):
            async with anyio.create_task_group() as group:
                for number in range(AGENTS):
                    group.start_soon(live, number)
    finally:
        await model.aclose()
        await emulator.aclose()
    return said


async def test_a_429_with_a_wait_parks_the_team_once() -> None:
    slow = ApiError("rate_limit_error", "slow down", 429, retry_after=1)
    service = Service([slow, *[None] * (AGENTS - 1)])
    assert await played(service) == ["done"] * AGENTS
    assert service.alone == [True], "one goes first when the wait is over, and the others follow its answer"
    assert service.refused == 1
    assert service.asked == 2 * AGENTS + 1


async def test_after_an_outage_one_call_goes_and_not_a_herd() -> None:
    service = Service([of_status(529)] * AGENTS, down=2)
    assert await played(service) == ["done"] * AGENTS
    assert service.alone == [True, True, True], "two that were refused, and the one that was answered"
    assert service.refused == AGENTS + 2
    assert service.asked == 2 * AGENTS + service.refused, "not one call more than the outage refused"
