"""At its deadline a request goes to the next who may answer it, attended or not, and with nobody left it is a no."""

from __future__ import annotations

import anyio
import pytest
from tests.engine.agent.test_one_agent import Echo, Person
from tests.engine.messaging.test_authority import asking_world, requests
from tests.engine.team.team_world import spawn, team_world

from callboard.ports.environment import Answer
from callboard.testing import ScriptedModel, say, use
from callboard.types.records import Request

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> object:
    """Virtual time alone."""
    from trio.testing import MockClock

    return "trio", {"clock": MockClock(autojump_threshold=0)}


class LastWord(Person):
    """A policy that speaks only when nobody else did."""

    def decides(self, request: Request) -> bool:
        return True

    async def answer(self, request: Request) -> Answer | None:
        self.asked.append(request)
        late = any(said.what == "escalated" and "policy" in said.reason for said in request.history)
        return self.answer_with if late else None


class NoRule(LastWord):
    """A policy that has no rule for anything."""

    def decides(self, request: Request) -> bool:
        return False


@pytest.mark.parametrize("deadline", [0, 600])
@pytest.mark.parametrize(("status", "runs"), [("approved", 1), ("rejected", 0)])
async def test_a_permission_that_nobody_answers_is_put_to_the_policy(deadline: int, status: str, runs: int) -> None:
    echo, policy = Echo(), LastWord(Answer(status, "policy"))
    world = asking_world(echo, policy)
    world.spec = {"ask_deadline": deadline}
    async with world.session() as team:
        await team.prompt("go")
        await anyio.sleep(deadline + 30)
        await team.quiet()
        assert len(echo.ran) == runs
        (row,) = await requests(team)
        assert [said.what for said in row.history] == ["asked", "escalated", status]
        assert row.answered_by == "policy"


async def test_where_no_policy_has_a_rule_it_is_refused_at_once_and_says_so() -> None:
    echo = Echo()
    world = asking_world(echo, NoRule(Answer("approved", "policy")))
    world.spec = {"ask_deadline": 0}
    async with world.session() as team:
        await team.prompt("go")
        await anyio.sleep(1)
        await team.quiet()
        assert echo.ran == []
        (row,) = await requests(team)
        assert [said.what for said in row.history] == ["asked", "expired"]


@pytest.mark.parametrize(
    ("attended", "asked"), [(1_800.0, ["put to the person", "put to the policy"]), (0, ["put to the policy"])]
)
async def test_a_plan_for_the_lead_goes_to_the_person_then_to_the_policy_then_it_is_no(
    attended: float, asked: list[str]
) -> None:
    model = ScriptedModel(
        {
            "lead": [use(*spawn("alice", plan_required=True)), say("waiting"), *[say("well")] * 5],
            "alice": [use("submit_plan", {"plan": "the plan"}), say("so be it")],
        }
    )
    policy = LastWord(None)
    world = team_world(model, approvers=[policy])
    world.spec = {"plan_approver": "lead", "plan_deadline": 600.0, "ask_deadline": attended}
    async with world.session() as team:
        await team.prompt("go")
        await anyio.sleep(2_000)
        await team.quiet()
        (plan,) = await requests(team)
        assert [said.reason for said in plan.history if said.what == "escalated"] == asked
        assert plan.status == "expired"
        assert team.state("alice").work.gate.gate == "required"
        assert len(policy.asked) == 1 + len(asked), "who left it to others is asked again at each deadline"


async def test_a_plan_without_a_deadline_waits_for_the_person_however_long() -> None:
    model = ScriptedModel(
        {
            "lead": [use(*spawn("alice", plan_required=True)), say("waiting"), *[say("well")] * 5],
            "alice": [use("submit_plan", {"plan": "the plan"}), say("so be it")],
        }
    )
    world = team_world(model)
    world.spec = {"plan_deadline": None, "ask_deadline": None}
    async with world.session() as team:
        await team.prompt("go")
        await anyio.sleep(7 * 86_400)
        # A pending request is work left, so that the team is not quiet here.
        (plan,) = await requests(team)
        assert (plan.status, plan.expires_at) == ("pending", None)


async def test_an_answer_that_does_not_count_stands_in_the_history() -> None:
    class Meddler(Person):
        async def answer(self, request: Request) -> Answer | None:
            return Answer("approved", "bob")

    echo = Echo()
    world = asking_world(echo, Meddler(None))
    world.spec = {"ask_deadline": 60}
    async with world.session() as team:
        await team.prompt("go")
        await anyio.sleep(100)
        await team.quiet()
        (row,) = await requests(team)
        assert echo.ran == []
        assert [(said.by, said.what) for said in row.history] == [
            ("lead", "asked"),
            ("bob", "refused"),
            ("runtime", "expired"),
        ]
