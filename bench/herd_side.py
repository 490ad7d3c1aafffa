"""Process of one side of `herd.py`: `python bench/herd_side.py URL SECONDS governed|alone`.

Each agent is the lead of a session and always makes its next model call. All sessions share one key, one connection
pool, and, if governed, one rate limiter. With `alone`, each agent has only its own recovery: it waits as long as the
service says. Prints as JSON when each agent started and received its replies, in seconds from the start.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field, replace
from typing import Any, cast

import anyio

from callboard.adapters.models.anthropic.client import AnthropicModel
from callboard.engine.rate_limits.limiter import DEFAULT_PRIORITY, CallPriority, KeyLimiter, LimitedCall
from callboard.engine.rate_limits.prefix_leader import SharedPrefix
from callboard.engine.runtime import SessionRuntime
from callboard.ports.model import Delta
from callboard.ports.tool import CallContext, Folders, ToolOutcome, ToolSpec
from callboard.testing import ScriptedModel, SteadyClock, World
from callboard.types.events import Event
from callboard.types.records import Envelope

AGENTS = 100
TRIES = 10
"""Maximum attempts of one call, as in an unattended run."""


class Unlimited(LimitedCall):
    """Call that waits for nothing, and whose end changes nothing."""

    async def __aenter__(self) -> LimitedCall:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        return


class Alone(KeyLimiter):
    """No rate limiter: every call is sent at once, and agents do not share refusals."""

    def slot(self, priority: CallPriority = DEFAULT_PRIORITY, prefix: SharedPrefix | None = None) -> LimitedCall:
        return Unlimited(self, priority, None)

    def parked_until(self, model: str) -> float:
        return 0.0


class Look:
    """Tool that each step calls; it takes no time."""

    spec = ToolSpec("look", "Look again.", {"type": "object", "properties": {}}, "read", "shared", False)

    def key(self, tool_input: dict[str, Any], folders: Folders) -> str:
        return ""

    async def prepare(self, tool_input: dict[str, Any], context: CallContext) -> dict[str, Any]:
        return {}

    async def run(self, tool_input: dict[str, Any], context: CallContext) -> ToolOutcome:
        return ToolOutcome("nothing new")

    async def repair(self, tool_input: object, marks: object, context: CallContext) -> ToolOutcome | None:
        return None


@dataclass
class Replies:
    """Observer that records when the replies of one agent arrive."""

    zero: float
    times: list[float] = field(default_factory=list[float])
    ended: str = ""

    def on_event(self, agent: str, seq: int, event: Event) -> None:
        if event.t == "model_replied":
            self.times.append(time.monotonic() - self.zero)
        elif event.t == "turn_ended":
            self.ended = event.why or event.reason

    def on_delta(self, agent: str, delta: Delta) -> None: ...
    def on_mail(self, envelope: Envelope) -> None: ...


@dataclass
class Governed(World):
    """World of a session that shares its rate limiter with the others."""

    key_limiter: KeyLimiter | None = None

    def runtime(self, session: str) -> SessionRuntime:
        runtime = super().runtime(session)
        runtime.services = replace(runtime.services, key_limiter=self.key_limiter)
        assert self.key_limiter is not None
        runtime.key_limiter = self.key_limiter
        return runtime


async def live(world: World, session: str) -> None:
    """Run one agent until cancelled."""
    async with world.session(session) as team:
        await team.prompt("Go on and on.")
        await anyio.sleep_forever()


async def run(url: str, seconds: float, governed: bool) -> dict[str, Any]:
    """Run the agents for this many seconds."""
    model = cast("ScriptedModel", cast("object", AnthropicModel(base_url=url, api_key="bench")))
    clock = SteadyClock(time.time())
    key_limiter = KeyLimiter(clock) if governed else Alone(clock)
    spec = {"model": "rehearsal", "attempts": TRIES, "stuck_after": 0, "pipeline": ()}
    zero = time.monotonic()
    seen = [Replies(zero) for _ in range(AGENTS)]
    async with anyio.create_task_group() as group:
        for number, one in enumerate(seen):
            world = Governed(
                model, {"look": Look()}, clock=clock, observers=[one], spec=spec, key_limiter=key_limiter, seed=number
            )
            group.start_soon(live, world, f"s{number}")
        await anyio.sleep(seconds - (time.monotonic() - zero))
        group.cancel_scope.cancel()
    await model.aclose()
    return {
        "replies": [[at for at in one.times if at < seconds] for one in seen],
        "ended": [one.ended for one in seen if one.ended],
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(anyio.run(run, sys.argv[1], float(sys.argv[2]), sys.argv[3] == "governed")) + "\n")
