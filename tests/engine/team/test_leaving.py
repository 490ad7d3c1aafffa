"""What an agent leaves behind when it is parked or interrupted: nobody waits for it, and no row keeps its name."""

from __future__ import annotations

import anyio
import pytest
from tests.engine.agent.test_one_agent import Echo
from tests.engine.team.team_world import spawn, team_world
from tests.simulation.virtual import run_virtual

from callboard.core.keys import request_key
from callboard.core.messaging.envelopes import envelope_write
from callboard.ports.environment import PermissionDecision, PermissionQuery
from callboard.ports.store import Put
from callboard.testing import AllowAll, ScriptedModel, say, use
from callboard.types.records import Envelope, Request


class Breaks(AllowAll):
    """A judge with a bug, which is a bug of the agent's own code: it crashes for one tool."""

    async def judge(self, query: PermissionQuery) -> PermissionDecision:
        if query.call.name == "write_file":
            raise ZeroDivisionError("a bug in Callboard")
        return await super().judge(query)


def test_a_teammate_that_crashes_again_and_again_is_parked_and_its_task_and_questions_are_free() -> None:
    run_virtual(parked)


async def parked() -> None:
    model = ScriptedModel(
        {
            "lead": [use("create_task", {"subject": "the work"}), use(*spawn("alice", "help")), say("w"), say("I see")],
            "alice": [
                use("ask_person", {"question": "which?"}),
                use("report", {"status": "done", "result": "ready"}),
                use("write_file", {"text": "x"}),
            ],
        }
    )
    world = team_world(model, Echo(name="write_file", effect="unknown"), judge=Breaks())
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        board = team.team.runtime.rows
        found = board.agent("alice")
        assert found is not None
        assert (found[0].life, found[0].outcome) == ("crashed", "failed")
        assert [(task.status, task.owner) for task in board.tasks()] == [("pending", None)]
        assert [request.status for request in board.requests()] == ["withdrawn"]
        told = b"\n".join([r for r in model.requests if r.agent == "lead"][-1].messages)
        assert b"crashed again and again and is parked: ZeroDivisionError" in told


class Bell:
    """Tells that somebody was asked, and leaves the answer to others."""

    def __init__(self) -> None:
        self.rung = anyio.Event()

    async def answer(self, request: Request) -> None:
        self.rung.set()


@pytest.mark.parametrize("seed", range(8))
def test_an_answer_at_the_very_moment_of_an_interrupt_crashes_nobody(seed: int) -> None:
    run_virtual(answered_and_interrupted, seed=seed)


async def answered_and_interrupted() -> None:
    """Another process answers and interrupts in one commit: whatever this one hears first, it goes on."""
    model, bell = ScriptedModel({"lead": [use("write_file"), say("on again")]}), Bell()
    world = team_world(model, Echo(name="write_file"), judge=AllowAll(ask=["write_file"]), approvers=[bell])
    async with world.session() as team:
        await team.prompt("go")
        await bell.rung.wait()
        (asked,) = team.team.runtime.rows.requests()
        approved = asked.model_copy(update={"status": "approved", "answered_by": "person"})
        given = {"id": "env_stop", "sender": "person", "recipient": "lead", "type": "command"}
        interrupt = Envelope.model_validate({**given, "metadata": {"action": "interrupt"}})
        await world.store.commit(Put(request_key("s1", asked.id), approved.encode()), envelope_write("s1", interrupt))
        await team.quiet()
        assert (await team.journal("lead")).count("agent_resumed") == 0, "it crashed"
        assert team.state("lead").turns.last_reason == "interrupted"


class BreaksWhenCancelled(AllowAll):
    """A judge with a bug that shows only where its call is cancelled."""

    def __init__(self) -> None:
        self.asked = anyio.Event()

    async def judge(self, query: PermissionQuery) -> PermissionDecision:
        self.asked.set()
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class() as cancelled:
            raise ZeroDivisionError("a bug in Callboard") from cancelled


@pytest.mark.anyio
async def test_an_agent_that_crashes_as_its_session_closes_does_not_fail_the_session() -> None:
    model = ScriptedModel({"lead": [use("write_file", {"text": "x"})]})
    judge = BreaksWhenCancelled()
    async with team_world(model, Echo(name="write_file"), judge=judge).session() as team:
        await team.prompt("go")
        await judge.asked.wait()  # leaving the block closes the session
