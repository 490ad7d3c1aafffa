"""What waits for a word never waits for ever: at its deadline, and when nobody can act on the answer any more."""

from __future__ import annotations

import anyio
import pytest
from tests.engine.agent.test_one_agent import Echo
from tests.engine.team.team_world import spawn, team_world

from callboard.core.keys import request_key, rows_prefix
from callboard.ports.store import Row
from callboard.testing import HostedSession, ScriptedModel, say, use
from callboard.types.records import AgentRow, Request

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> object:
    """Virtual time alone: an hour passes here."""
    from trio.testing import MockClock

    return "trio", {"clock": MockClock(autojump_threshold=0)}


async def requests(team: HostedSession) -> list[Request]:
    rows = await team.world.store.keys(rows_prefix("s1"))
    return [Request.model_validate_json(row.value or b"") for row in rows if "/request/" in row.key]


async def row_of(team: HostedSession, name: str) -> AgentRow:
    (row,) = [one for one in await team.world.store.keys(rows_prefix("s1")) if one.key.endswith(f"/agent/{name}")]
    return AgentRow.model_validate_json(row.value or b"")


async def test_a_question_that_nobody_answers_expires_and_its_asker_is_told() -> None:
    model = ScriptedModel({"lead": [use("ask_person", {"question": "Which?"}), say("waiting"), say("I chose A.")]})
    async with team_world(model).session() as team:
        await team.prompt("go")
        await team.quiet()
        assert [one.status for one in await requests(team)] == ["pending"]
        await anyio.sleep(1_801)
        await team.quiet()
        assert [one.status for one in await requests(team)] == ["expired"]
        assert team.state("lead").turns.last_text == "I chose A."
        assert b"Nobody answered in time" in model.requests[-1].messages[-1]


async def test_a_question_is_expired_by_the_next_process_too() -> None:
    model = ScriptedModel({"lead": [use("ask_person", {"question": "Which?"}), say("waiting"), say("I chose A.")]})
    world = team_world(model)
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
    await anyio.sleep(5_000)
    async with world.session(resume=True) as team:
        await anyio.sleep(1)
        await team.quiet()
        assert [one.status for one in await requests(team)] == ["expired"]
        assert team.state("lead").turns.last_text == "I chose A."


async def test_a_plan_is_withdrawn_when_its_turn_ends_at_the_time_limit() -> None:
    model = ScriptedModel(
        {
            "lead": [use(*spawn("alice", plan_required=True)), say("waiting"), say("alas")],
            "alice": [use("submit_plan", {"plan": "the plan"})],
        }
    )
    world = team_world(model)
    world.spec = {"limits": {"seconds": 600}}
    async with world.session() as team:
        await team.prompt("go")
        await anyio.sleep(700)
        await team.quiet()
        (plan,) = await requests(team)
        assert plan.status == "withdrawn", "an approval that comes now would open nothing"
        assert team.state("alice").work.gate.gate == "required"


async def test_a_plan_is_withdrawn_when_another_one_is_asked_for() -> None:
    model = ScriptedModel(
        {
            "lead": [
                use(*spawn("alice", plan_required=True)),
                say("waiting"),
                use("request_plan", {"teammate": "alice", "task": "the roof"}),
                say("waiting again"),
            ],
            "alice": [use("submit_plan", {"plan": "the cellar"}), use("submit_plan", {"plan": "the roof"})],
        }
    )
    async with team_world(model, Echo(name="write_file")).session() as team:
        await team.prompt("go")
        await anyio.sleep(10)
        await team.prompt("have the roof planned")
        await anyio.sleep(10)
        found = {one.payload["plan"]: one.status for one in await requests(team)}
        assert found == {"the cellar": "withdrawn", "the roof": "pending"}


async def test_the_row_of_a_stopped_agent_waits_for_nothing() -> None:
    model = ScriptedModel(
        {
            "lead": [use(*spawn("alice", plan_required=True)), say("waiting"), say("so be it")],
            "alice": [use("submit_plan", {"plan": "the plan"})],
        }
    )
    async with team_world(model).session() as team:
        await team.prompt("go")
        await anyio.sleep(10)
        assert (await row_of(team, "alice")).waiting_for
        await team.command("stop", to="alice")
        await anyio.sleep(10)
        alice = await row_of(team, "alice")
        assert (alice.life, alice.waiting_for) == ("stopped", "")


async def test_a_request_of_a_commit_that_ends_after_the_session_is_left_to_the_next_process() -> None:
    world = team_world(ScriptedModel({"lead": [use("ask_person", {"question": "Which?"}), say("waiting")]}))
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        (asked,) = await requests(team)
    later = asked.model_copy(update={"id": "req_later"})
    team.team.runtime.rows.take(Row(request_key("s1", later.id), later.encode(), 1_000))
    async with world.session(resume=True) as team:
        await anyio.sleep(1)
        assert [one.status for one in await requests(team)] == ["pending"]


async def test_a_request_that_is_decided_before_anybody_looked_at_it_ends_nothing() -> None:
    world = team_world(
        ScriptedModel({"lead": [use("ask_person", {"question": "Which?"}), say("waiting"), say("fine")]})
    )
    async with world.session() as team:
        await team.prompt("go")
        await team.quiet()
        (asked,) = await requests(team)
        pending = asked.model_copy(update={"id": "req_later"})
        decided = pending.model_copy(update={"status": "withdrawn"})
        for number, one in enumerate((pending, decided)):
            team.team.runtime.rows.take(Row(request_key("s1", one.id), one.encode(), 1_000 + number))
        await anyio.sleep(1)
        await team.prompt("still there?")
        await anyio.sleep(1)
        assert team.state("lead").turns.last_text == "fine"
