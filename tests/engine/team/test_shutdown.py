"""A shutdown is mail: the teammate's model reads it and finishes, reports or refuses. The time-out ends it."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest
from tests.engine.agent.test_one_agent import Echo
from tests.engine.tasks.test_board import made, tasks_of
from tests.engine.tasks.test_unfinished import DONE, TAKE, reports_of
from tests.engine.team.team_world import TeamWorld, spawn, team_world

from callboard.core.context.view.conversation import Conversation
from callboard.ports.model import ModelRequest, OnDelta, Reply
from callboard.testing import HostedSession, ScriptedModel, say, use
from callboard.types.records import AgentRow, Json

pytestmark = pytest.mark.anyio

STOP = use("request_shutdown", {"teammate": "alice", "reason": "We ship today."})


@pytest.fixture
def anyio_backend() -> object:
    """Virtual time alone."""
    from trio.testing import MockClock

    return "trio", {"clock": MockClock(autojump_threshold=0)}


class Slow(Echo):
    """A build that takes a while."""

    def __init__(self, seconds: float) -> None:
        super().__init__(name="write_file", effect="unknown", act=self.build)
        self.seconds, self.finished, self.began = seconds, 0, anyio.Event()

    async def build(self, given: Json) -> str:
        self.began.set()
        await anyio.sleep(self.seconds)
        self.finished += 1
        return "built"


class Busy(ScriptedModel):
    """The lead asks alice to stop once her tool runs."""

    def __init__(self, tool: Slow, alice: list[Reply | Callable[[ModelRequest], Reply]]) -> None:
        super().__init__({"lead": [use(*spawn("alice")), STOP, *[say("I wait")] * 9], "alice": alice})
        self.tool = tool

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> Reply:
        if request.agent == "lead" and sum(one.agent == "lead" for one in self.requests) == 1:
            await self.tool.began.wait()
        return await super().complete(request, on_delta)


def row_of(team: HostedSession) -> AgentRow:
    found = team.team.runtime.rows.agent("alice")
    assert found is not None
    return found[0]


def seen_by_alice(world: TeamWorld) -> str:
    return b"\n".join([one for one in world.model.requests if one.agent == "alice"][-1].messages).decode()


async def test_a_running_tool_ends_by_itself_and_the_model_reads_the_request_before_its_next_step() -> None:
    tool = Slow(30.0)
    world = team_world(Busy(tool, [TAKE, use("write_file", {"text": "all"}), DONE, say("All is built.")]), tool)
    async with world.session() as team:
        await team.team.runtime.commit(made("t1"))
        await team.prompt("go")
        await team.quiet()
        assert tool.finished == 1
        asked = next(one for one in world.model.requests if b"shutdown_request" in b"\n".join(one.messages))
        last = asked.messages[-1].decode()
        assert "You are asked to stop. The reason: We ship today." in last
        assert "built" in last, "beside the result of the tool that was running"
        assert (row_of(team).life, tasks_of(team)["t1"].status) == ("stopped", "completed")
        assert [one.status for one in team.team.runtime.rows.requests()] == ["approved"]
        kinds = [(one.type, one.content) for one in await reports_of(team)]
        assert kinds == [("result", "All is built."), ("shutdown_response", "alice has stopped.")]
        state = team.state("alice")
        assert (state.context.conversation, state.inbox.mail) == (Conversation(), ()), (
            "the memory of a life that is over is freed"
        )
        assert (state.turns.steps, state.work.reported, state.budget.usage.output_tokens > 0) == (
            4,
            "All is built.",
            True,
        )


async def test_a_task_that_is_not_finished_in_the_last_turn_is_named_and_released() -> None:
    tool = Slow(3.0)
    world = team_world(Busy(tool, [TAKE, use("write_file", {"text": "all"}), say("Half of it is built.")]), tool)
    async with world.session() as team:
        await team.team.runtime.commit(made("t1"))
        await team.prompt("go")
        await team.quiet()
        assert (row_of(team).life, tasks_of(team)["t1"].status) == ("stopped", "pending")
        assert "tasks_reminded" not in await team.journal("alice")
        told = (await reports_of(team))[0]
        assert (told.type, told.metadata["status"]) == ("error", "unfinished")
        assert "did not finish t1 (the t1); the task is free again" in told.content


async def test_it_may_refuse_with_a_reason_and_goes_on() -> None:
    refuse = use("refuse_shutdown", {"reason": "the migration is half done"})
    tool = Slow(3.0)
    world = team_world(Busy(tool, [TAKE, use("write_file", {"text": "all"}), refuse, DONE, say("Migrated.")]), tool)
    async with world.session() as team:
        await team.team.runtime.commit(made("t1"))
        await team.prompt("go")
        await team.quiet()
        (request,) = team.team.runtime.rows.requests()
        assert (request.status, request.answered_by, request.reason) == (
            "rejected",
            "alice",
            "the migration is half done",
        )
        assert row_of(team).life == "idle"
        told = [one for one in await reports_of(team) if one.type == "shutdown_response"]
        assert [one.content for one in told] == ["alice continues and does not stop: the migration is half done"]
        assert tasks_of(team)["t1"].status == "completed"


async def test_an_idle_teammate_reads_it_too_and_a_plan_that_waits_is_withdrawn() -> None:
    plan = use("submit_plan", {"plan": "the plan"})
    model = ScriptedModel(
        {
            "lead": [use(*spawn("alice", plan_required=True)), say("w"), STOP, *[say("w")] * 5],
            "alice": [plan, say("bye")],
        }
    )
    world = team_world(model)
    async with world.session() as team:
        await team.prompt("go")
        with anyio.move_on_after(5):
            await team.quiet()
        await team.prompt("stop her")
        await team.quiet()
        assert "You are asked to stop." in seen_by_alice(world)
        states = {one.kind: one.status for one in team.team.runtime.rows.requests()}
        assert states == {"plan": "withdrawn", "shutdown": "approved"}
        assert row_of(team).life == "stopped"


async def test_what_runs_is_cancelled_at_the_time_out_and_not_before() -> None:
    tool = Slow(900.0)
    world = team_world(Busy(tool, [TAKE, use("write_file", {"text": "all"})]), tool)
    async with world.session() as team:
        await team.team.runtime.commit(made("t1"))
        began = anyio.current_time()
        await team.prompt("go")
        await team.quiet()
        assert 120.0 <= anyio.current_time() - began < 150.0
        assert (row_of(team).life, tasks_of(team)["t1"].status, tool.finished) == ("stopped", "pending", 0)
        assert [one.status for one in team.team.runtime.rows.requests()] == ["expired"]
        sent_to_lead = b"".join(b"".join(one.messages) for one in world.model.requests if one.agent == "lead")
        assert b"alice has not stopped in time, and is ended." in sent_to_lead
