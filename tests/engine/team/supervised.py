"""Worlds of the supervisor: judges and tools that crash or hang, and what is asked of a team that has them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

import anyio
from structlog.testing import capture_logs
from tests.engine.agent.test_background import Commands
from tests.engine.agent.test_one_agent import Echo
from tests.engine.team.team_world import TeamWorld, spawn
from tests.simulation.virtual import run_virtual

from callboard.core.keys import journal
from callboard.engine.recall import events_of
from callboard.engine.runtime import SessionRuntime
from callboard.engine.team.admin_orders import AdminOrder, Order, give_order
from callboard.ports.environment import PermissionDecision, PermissionQuery
from callboard.ports.model import ModelRequest, Reply
from callboard.testing import AllowAll, HostedSession, ScriptedModel, say, use
from callboard.types import events as ev
from callboard.types.records import AgentRow, Json

WORK = ("write_file", cast("Json", {"text": "x"}))
"""What breaks or hangs in these worlds."""


class Breaks(AllowAll):
    """A judge with a bug, which is a bug of the agent's own code: it crashes so often, for one tool of one agent."""

    def __init__(self, times: int, who: str = "alice") -> None:
        super().__init__()
        self.left, self.who = times, who

    async def judge(self, query: PermissionQuery) -> PermissionDecision:
        if query.call.name == "write_file" and query.spec.name.startswith(self.who) and self.left:
            self.left -= 1
            raise ZeroDivisionError("a bug in Callboard")
        return await super().judge(query)


class Hangs(Echo):
    """A tool that never returns; `deaf`: it cannot be cancelled either, before the test lets go of it."""

    def __init__(self, *, deaf: bool = False, effect: str = "unknown") -> None:
        super().__init__(name="write_file", effect=effect, act=self._hang)
        self.deaf, self.begun, self.free = deaf, anyio.Event(), anyio.Event()

    async def _hang(self, given: Json) -> str:
        self.begun.set()
        with anyio.CancelScope(shield=self.deaf):
            await self.free.wait()
        return "at last"


class Processes(TeamWorld):
    """With background commands."""

    commands: Commands

    def runtime(self, session: str) -> SessionRuntime:
        runtime = super().runtime(session)
        runtime.services = replace(runtime.services, launcher=self.commands)
        return runtime


Act = Callable[[], Awaitable[None]]


def virtual(act: Act) -> Callable[[], None]:
    """A test on the virtual clock. What is logged of crashes is kept off the screen: drawing it takes seconds."""

    def test() -> None:
        with capture_logs():
            run_virtual(act)

    test.__name__, test.__doc__ = act.__name__, act.__doc__
    return test


def row(team: HostedSession, name: str) -> AgentRow:
    found = team.team.runtime.rows.agent(name)
    assert found is not None
    return found[0]


async def until(team: HostedSession, name: str, *lives: str) -> AgentRow:
    """Wait until an agent is in one of these states; virtual time, so that it may be looked at again and again."""
    with anyio.fail_after(600):
        while (found := team.team.runtime.rows.agent(name)) is None or found[0].life not in lives:
            await anyio.sleep(0.1)
    return found[0]


async def told(team: HostedSession, name: str, kind: type[ev.Base]) -> list[Any]:
    """The events of a kind in an agent's journal."""
    events = await events_of(team.world.store, journal(team.id, name, row(team, name).incarnation))
    return [event for event in events if isinstance(event, kind)]


async def order(team: HostedSession, what: Order, name: str, nonce: str = "1") -> None:
    given = AdminOrder(what, name, row(team, name).incarnation, "enough")
    await give_order(team.world.store, team.id, given, now=team.world.clock.now(), nonce=nonce)


def to_lead(model: ScriptedModel) -> str:
    return b"\n".join([r for r in model.requests if r.agent == "lead"][-1].messages).decode()


def at_work(*more: Any) -> dict[str, list[Any]]:
    """A lead with a task for alice, which she has from the start."""
    lead: list[Any] = [
        use("create_task", {"subject": "the work"}),
        spawn_for_the_task,
        say("w"),
    ]
    return {"lead": [*lead, *more], "alice": [use(*WORK)]}


def spawn_for_the_task(request: ModelRequest) -> Reply:
    text = request.messages[-1].decode()
    return use(*spawn("alice", task_id=text[text.index("task_") :][:17]))


def replying(model: ScriptedModel, reply: Any) -> Any:
    """Every subagent gets this reply."""
    whole = model.complete

    async def complete(request: Any, on_delta: Any) -> Any:
        return reply if request.agent.startswith("explore") else await whole(request, on_delta)

    return complete
