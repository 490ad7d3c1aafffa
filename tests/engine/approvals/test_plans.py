"""Plans in a running team: what an approval is bound to, what waits meanwhile, what a restart keeps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import anyio
import pytest
from tests.engine.agent.test_one_agent import Echo
from tests.engine.approvals.plan_world import AtPrompt, answered, pending, planner, reported, rows, sent, taken
from tests.engine.team.team_world import TeamWorld, spawn, team_world

from callboard.core.approvals.plans import AnswerDetails
from callboard.core.approvals.requests import digest_of
from callboard.core.context.reminders import ReminderFacts
from callboard.core.keys import request_key
from callboard.engine.runtime import SessionRuntime
from callboard.ports.environment import Answer
from callboard.ports.model import ModelRequest, Reply
from callboard.ports.store import Put
from callboard.testing import ScriptedModel, say, use
from callboard.types.agent_spec import AgentSpec

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> object:
    """Virtual time alone: half an hour passes here."""
    from trio.testing import MockClock

    return "trio", {"clock": MockClock(autojump_threshold=0)}


# What an approval is bound to


async def test_an_edited_plan_is_what_its_author_carries_out() -> None:
    world = team_world(planner(reported()))
    async with world.session() as team:
        await team.prompt("go")
        plan = await pending(team)
        assert await answered(team, plan, "approved", word=AnswerDetails(2, "# Mend well", plan.digest)) is None
        await team.quiet()
        told = sent(world)
        assert f'<plan-decision request=\\"{plan.id}\\" status=\\"approved\\">' in told
        assert "# Mend well" in told
        assert "this one was chosen: by tool" in told
        (row,) = await rows(team)
        assert (row.revision, row.choice) == (2, "by tool")
        assert [one.what for one in row.history] == ["asked", "edited", "approved"]
        (event,) = await taken(team)
        assert (event.plan, event.submitted, event.digest) == ("# Mend well", plan.digest, row.digest)


async def test_an_approval_of_another_text_is_void_whichever_way_it_comes() -> None:
    person = AtPrompt(Answer("approved", "person"))
    touch = Echo(name="write_file", effect="reconcile")
    world = team_world(planner(use("write_file", {"text": "x"}), reported()), touch, approvers=[person])
    async with world.session() as team:
        await team.prompt("go")
        plan = await pending(team)
        await anyio.wait_all_tasks_blocked()
        found = await team.world.store.get(request_key("s1", plan.id))
        assert found is not None
        payload = {**plan.payload, "plan": "rm -rf build"}
        forged = plan.model_copy(update={"payload": payload, "digest": digest_of("plan", payload)})
        await team.world.store.commit(Put(found.key, forged.encode(), found.revision))
        await anyio.wait_all_tasks_blocked()
        assert "changed since you read it" in str(
            await answered(team, plan, "approved", word=AnswerDetails(seen=plan.digest))
        )
        assert [one.payload["plan"] for one in person.asked] == ["# Mend\n1. read", "rm -rf build"], "asked anew"
        person.go.set()  # he approves the new text: it is not what its author has submitted
        await team.quiet()
        assert touch.ran == []
        assert "the approval is void" in sent(world)


async def test_an_approval_of_an_earlier_revision_opens_nothing() -> None:
    touch = Echo(name="write_file", effect="reconcile")
    again = use("submit_plan", {"plan": "# Mend\n1. read\n2. test"})
    world = team_world(planner(again, use("write_file", {"text": "x"}), reported()), touch)
    async with world.session() as team:
        await team.prompt("go")
        first = await pending(team)
        assert await answered(team, first, "rejected") is None
        while (second := (await rows(team))[-1]).id == first.id:
            await anyio.sleep(0.01)
        assert (second.revision, second.status) == (2, "pending")
        assert "is rejected by person already" in str(await answered(team, first, "approved"))
        await anyio.wait_all_tasks_blocked()
        assert touch.ran == []
        assert team.state("alice").work.gate.gate == "pending"
        assert await answered(team, second, "approved") is None
        await team.quiet()
        assert touch.ran == [{"text": "x"}]


@dataclass
class Repository:
    """Surroundings with one commit that a test changes."""

    head: str = "a" * 40
    looked: list[str] = field(default_factory=list[str])

    async def look(self, spec: AgentSpec, now: float) -> ReminderFacts:
        return ReminderFacts(datetime.fromtimestamp(now, UTC))

    async def commit(self, folder: str, why: str) -> str:
        self.looked.append(folder)
        await anyio.sleep(0.2)
        return self.head


def in_repository(world: TeamWorld, repository: Repository) -> TeamWorld:
    """The world, in a repository."""

    def runtime(session: str) -> SessionRuntime:
        made = TeamWorld.runtime(world, session)
        made.services = replace(made.services, surroundings=repository)
        return made

    world.runtime = runtime
    return world


@pytest.mark.parametrize(("setting", "runs"), [("tell", [{"text": "x"}]), ("void", [])])
async def test_a_base_commit_that_moved_is_told_and_void_where_that_is_set(
    setting: str, runs: Sequence[object]
) -> None:
    repository, touch = Repository(), Echo(name="write_file", effect="reconcile")
    world = in_repository(team_world(planner(use("write_file", {"text": "x"}), reported()), touch), repository)
    world.spec = {"plan_moved_base": setting}
    async with world.session() as team:
        await team.prompt("go")
        plan = await pending(team)
        assert (plan.payload["base"], plan.payload["folder"]) == ("a" * 40, "/workspace")
        repository.head = "b" * 40
        assert await answered(team, plan, "approved") is None
        await team.quiet()
        assert "moved from commit aaaaaaaaaa to bbbbbbbbbb" in sent(world)
        assert touch.ran == runs
        assert ("the approval is void" in sent(world)) is (setting == "void")


async def test_the_next_task_needs_a_plan_of_its_own() -> None:
    touch = Echo(name="write_file", effect="reconcile")

    def claim(request: ModelRequest) -> Reply:
        text = b"\n".join(request.messages).decode()
        ids = sorted(set(re.findall(r"task_[a-z0-9]{12}", text)))
        return use("claim_task", {"task_id": ids[claimed.pop()]})

    def complete(request: ModelRequest) -> Reply:
        (task,) = team.state("alice").work.tasks
        return use("complete_task", {"task_id": task, "result": "did it"})

    claimed = [1, 0]
    model = ScriptedModel(
        {
            "lead": [
                use("create_task", {"subject": "one"}, ("create_task", {"subject": "two"})),
                use(*spawn("alice", plan_required=True)),
                say("waiting"),
                say("done"),
            ],
            "alice": [
                use("list_tasks", {}),
                claim,
                use("submit_plan", {"plan": "# one"}),
                use("write_file", {"text": "one"}),
                complete,
                claim,
                use("write_file", {"text": "two"}),
                use("report", {"status": "blocked", "result": "no plan for two"}),
            ],
        }
    )
    world = team_world(model, touch)
    world.judge.reads = {"claim_task"}
    async with world.session() as team:
        await team.prompt("go")
        plan = await pending(team)
        assert str(plan.payload["task_id"]).startswith("task_")
        assert await answered(team, plan, "approved") is None
        await team.quiet()
        assert touch.ran == [{"text": "one"}]
        assert "a plan must be approved first" in sent(world)


# The barrier, and mail


async def test_a_reply_with_a_plan_and_other_calls_keeps_its_teammate_alive() -> None:
    touch, look = Echo(name="write_file", effect="reconcile"), Echo(name="read_file", effect="read")
    together = ("read_file", {"text": "before"}), ("submit_plan", {"plan": "# Mend"}), ("write_file", {"text": "after"})
    model = ScriptedModel(
        {
            "lead": [use(*spawn("alice", plan_required=True)), say("waiting"), say("done")],
            "alice": [use(*together[0], *together[1:]), use("write_file", {"text": "mended"}), reported()],
        }
    )
    world = team_world(model, touch, look)
    async with world.session() as team:
        await team.prompt("go")
        plan = await pending(team)
        await anyio.wait_all_tasks_blocked()
        assert (look.ran, touch.ran) == ([{"text": "before"}], []), "calls before it finish, later ones are not run"
        assert await answered(team, plan, "approved") is None
        await team.quiet()
        assert touch.ran == [{"text": "mended"}]
        assert "Not run: waiting for plan approval" in sent(world)
        assert team.state("alice").work.reported == "mended"


async def test_mail_that_comes_while_a_plan_waits_outlives_the_process_and_is_read_after_the_answer() -> None:
    world = team_world(planner(reported()))
    async with world.session() as team:
        await team.prompt("go")
        plan = await pending(team)
        await team.prompt("mind the zones", to="alice")
        await anyio.wait_all_tasks_blocked()
        calls = [one.agent for one in world.model.requests].count("alice")
    async with world.session(resume=True) as team:
        await anyio.wait_all_tasks_blocked()
        assert [one.agent for one in world.model.requests].count("alice") == calls, "no model call while a plan waits"
        assert await answered(team, plan, "approved") is None
        await team.quiet()
    told = sent(world)
    assert told.index("plan-decision") < told.index("mind the zones")


# Several at once, and restarts


async def test_several_plans_wait_at_once_and_each_is_answered_by_its_id() -> None:
    names = ("alice", "bob", "carol")
    model = ScriptedModel(
        {
            "lead": [
                use(*spawn("alice", plan_required=True), *(spawn(name, plan_required=True) for name in names[1:])),
                say("waiting"),
            ]
        }
        | {name: [use("submit_plan", {"plan": f"# {name}"}), reported()] for name in names}
    )
    world = team_world(model)
    async with world.session() as team:
        await team.prompt("go")
        await pending(team, 3)
        by_name = {one.asked_by: one for one in await rows(team)}
        for name in ("carol", "alice", "bob"):
            assert await answered(team, by_name[name], "approved") is None
            await anyio.wait_all_tasks_blocked()
            assert [one.request_id for one in await taken(team, name)] == [by_name[name].id]
        await team.quiet()
        assert {name: team.state(name).work.reported for name in names} == dict.fromkeys(names, "mended")


async def test_a_plan_outlives_its_process_with_its_deadline_and_is_answered_while_nobody_hosts() -> None:
    world = team_world(planner(reported()))
    async with world.session() as team:
        await team.prompt("go")
        before = await pending(team)
    await anyio.sleep(600)
    async with world.session(resume=True) as team:
        await anyio.wait_all_tasks_blocked()
        (after,) = await rows(team)
        assert (after, team.state("alice").work.gate.gate) == (before, "pending")
    assert await answered(team, before, "approved") is None
    async with world.session(resume=True) as team:
        await team.quiet()
        assert team.state("alice").work.reported == "mended"


@pytest.mark.parametrize("hosted", [True, False])
async def test_at_its_deadline_a_plan_is_refused_also_when_no_process_saw_it_come(hosted: bool) -> None:
    world = team_world(planner(use("report", {"status": "blocked", "result": "nobody answered"})))
    async with world.session() as team:
        await team.prompt("go")
        plan = await pending(team)
        if hosted:
            await anyio.sleep(1_801)
    if not hosted:
        await anyio.sleep(1_801)
        assert "its deadline has passed" in str(await answered(team, plan, "approved"))
    async with world.session(resume=True) as team:
        await anyio.sleep(1)
        await team.quiet()
        assert (await rows(team))[0].status == "expired"
        assert team.state("alice").work.reported == "nobody answered"
        assert team.state("alice").work.gate.gate == "required"
