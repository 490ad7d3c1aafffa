"""Plans, their answers, and the final report."""

from __future__ import annotations

import pytest
from tests.adapters.tools.tool_world import NOON, SESSION, ToolWorld

from callboard.adapters.tools.board import board_tools
from callboard.adapters.tools.plan_and_report import plan_tools
from callboard.core import keys as names
from callboard.core.approvals.requests import answer, digest_of
from callboard.types.errors import Conflict
from callboard.types.events import GateSet, Reported, TaskHeld
from callboard.types.records import Request, Task

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def world() -> ToolWorld:
    world = ToolWorld(plan_tools(), board_tools())
    await world.join("lead", "lead")
    await world.join("alice", plan_approver="either")
    await world.join("bob")
    return world


async def _submit(world: ToolWorld, by: str = "alice", plan: str = "# Parse\n1. lex") -> Request:
    outcome = await world.run("submit_plan", by, plan=plan)
    return await _request(world, str(outcome.data["request_id"]))


async def _request(world: ToolWorld, request_id: str) -> Request:
    found = (await world.rows()).request(request_id)
    assert found is not None
    return found[0]


async def _claim(world: ToolWorld, by: str = "alice") -> str:
    task = str((await world.run("create_task", subject="Parse")).data["task_id"])
    await world.run("claim_task", by, task_id=task)
    return task


async def _task(world: ToolWorld, task_id: str) -> Task:
    found = (await world.rows()).task(task_id)
    assert found is not None
    return found[0]


# Submitting


async def test_a_plan_is_a_request_and_closes_the_gate_in_one_commit(world: ToolWorld) -> None:
    task = await _claim(world)
    world.checked_out = "c0ffee"
    outcome = await world.run("submit_plan", "alice", plan="# Parse\n1. lex", options=["by hand", "with a library"])
    request = await _request(world, str(outcome.data["request_id"]))
    assert request.payload == {
        "plan": "# Parse\n1. lex",
        "options": ["by hand", "with a library"],
        "task_id": task,
        "assignment": "env_1",
        "folder": "/nowhere",
        "base": "c0ffee",
    }
    assert (request.kind, request.asked_by, request.subject, request.revision) == ("plan", "alice", "Parse", 1)
    assert request.digest == digest_of("plan", request.payload)
    assert request.expires_at == request.created_at + 1_800
    (gate,) = outcome.events
    assert isinstance(gate, GateSet)
    assert (gate.gate, gate.request_id, gate.digest, gate.task) == ("pending", request.id, request.digest, task)
    assert not outcome.ends_turn


def test_a_plan_is_a_barrier() -> None:
    barriers = {tool.spec.name for tool in plan_tools() if tool.spec.barrier}
    assert barriers == {"submit_plan"}


async def test_the_lead_reads_the_plan_whole_with_its_options(world: ToolWorld) -> None:
    plan = "step\n" * 5_000
    request = await _submit(world, plan=plan)
    (mail,) = await world.mail("lead")
    assert (mail.type, mail.mode, mail.request_id) == ("plan_approval_request", "wake", request.id)
    assert mail.content.startswith(plan)
    await world.run("review_plan", request_id=request.id, approve=False, feedback="shorter")
    await world.run("submit_plan", "alice", plan="x", options=["a", "b"])
    assert "Options:\n1. a\n2. b\n" in (await world.mail("lead"))[1].content


@pytest.mark.parametrize(
    ("approver", "who", "told"),
    [
        ("person", ("person", "policy"), 0),
        ("lead", ("lead", "policy"), 1),
        ("either", ("person", "lead", "policy"), 1),
    ],
)
async def test_who_may_answer_follows_the_spec(
    world: ToolWorld, approver: str, who: tuple[str, ...], told: int
) -> None:
    await world.join("carol", plan_approver=approver)
    assert (await _submit(world, "carol")).may_answer == who
    assert len(await world.mail("lead")) == told


async def test_nobody_approves_himself_so_the_leads_plan_is_the_persons(world: ToolWorld) -> None:
    await world.join("lead", "lead", plan_approver="lead")
    assert "you are not in plan mode" in await world.refusal("submit_plan", "lead", plan="x")
    await world.join("lead", "lead", plan_approver="lead", permission_mode="plan")
    request = await _submit(world, "lead")
    assert request.may_answer == ("person", "policy")
    assert await world.mail("lead") == []
    await world.join("lead", "lead", plan_approver="lead")  # a person took it out of plan mode
    words = await world.refusal("review_plan", request_id=request.id, approve=True)
    assert "no one may answer their own request" in words


async def test_a_second_plan_while_one_waits_is_refused(world: ToolWorld) -> None:
    request = await _submit(world)
    assert request.id in await world.refusal("submit_plan", "alice", plan="another")
    assert (await _submit(world, "bob")).revision == 1


async def test_a_revision_counts_the_plans_of_one_piece_of_work(world: ToolWorld) -> None:
    for revision in (1, 2, 3):
        request = await _submit(world)
        assert request.revision == revision
        await world.run("review_plan", request_id=request.id, approve=False, feedback="no")
    await _claim(world)
    assert (await _submit(world)).revision == 1
    await world.join("alice", incarnation=2, plan_approver="either")
    assert (await _submit(world)).revision == 1


async def test_the_next_assignment_begins_with_revision_1(world: ToolWorld) -> None:
    request = await _submit(world)
    await world.run("review_plan", request_id=request.id, approve=False, feedback="no")
    world.assigned = "env_2"
    assert (await _submit(world)).revision == 1


async def test_an_empty_plan_or_option_is_refused(world: ToolWorld) -> None:
    assert "empty" in await world.refusal("submit_plan", "alice", plan=" \n ")
    assert "options" in await world.refusal("submit_plan", "alice", plan="x", options=["a", " "])


@pytest.mark.parametrize(
    ("kind", "approver", "on_deadline", "then"),
    [
        ("teammate", "lead", "escalate", "person"),
        ("teammate", "lead", "refuse", "refuse"),
        ("teammate", "person", "escalate", "policy"),
        ("teammate", "either", "escalate", "policy"),
        ("lead", "lead", "escalate", "policy"),
    ],
)
async def test_at_the_deadline_a_person_is_asked_as_well_and_never_an_agent(
    world: ToolWorld, kind: str, approver: str, on_deadline: str, then: str
) -> None:
    name = "lead" if kind == "lead" else "carol"
    mode = "plan" if kind == "lead" else "default"
    await world.join(name, kind, plan_approver=approver, plan_on_deadline=on_deadline, permission_mode=mode)
    assert (await _submit(world, name)).escalation == then


@pytest.mark.parametrize(
    ("plan", "subject"), [("\n\n## Parse it\nx", "Parse it"), ("#\nx", "#"), ("one line", "one line")]
)
async def test_a_plan_is_named_by_its_first_line(world: ToolWorld, plan: str, subject: str) -> None:
    assert (await _submit(world, plan=plan)).subject == subject


# Answering


async def test_an_approval_changes_the_row_and_rings_the_bell(world: ToolWorld) -> None:
    request = await _submit(world)
    await world.run("review_plan", request_id=request.id, approve=True, feedback="Mind the zones.")
    after = await _request(world, request.id)
    assert (after.status, after.answered_by, after.reason) == ("approved", "lead", "Mind the zones.")
    (mail,) = await world.mail("alice")
    assert (mail.type, mail.request_id, mail.metadata) == (
        "plan_approval_response",
        request.id,
        {"status": "approved"},
    )


async def test_a_lead_approves_one_of_the_options(world: ToolWorld) -> None:
    await world.run("submit_plan", "alice", plan="x", options=["by hand", "with a library"])
    (request,) = [one for one in (await world.rows()).requests() if one.asked_by == "alice"]
    assert "it has 1 to 2" in await world.refusal("review_plan", request_id=request.id, approve=True, option=3)
    outcome = await world.run("review_plan", request_id=request.id, approve=True, option=2)
    assert "option 2: with a library" in str(outcome.content)
    assert (await _request(world, request.id)).choice == "with a library"


async def test_a_rejection_needs_its_feedback(world: ToolWorld) -> None:
    request = await _submit(world)
    assert "feedback" in await world.refusal("review_plan", request_id=request.id, approve=False)
    await world.run("review_plan", request_id=request.id, approve=False, feedback="Too big.")
    assert (await _request(world, request.id)).status == "rejected"
    assert [mail.content for mail in await world.mail("alice")] == ["Too big."]
    assert "rejected by lead already" in await world.refusal("review_plan", request_id=request.id, approve=True)


async def test_of_two_answers_at_once_the_first_wins(world: ToolWorld) -> None:
    request = await _submit(world)
    by_lead = await world.preview("review_plan", request_id=request.id, approve=False, feedback="no")
    by_person = answer(request, "plan", by="person", status="approved", reason="", now=NOON + 9)
    assert isinstance(by_person, Request)
    await world.put(names.request_key(SESSION, request.id), by_person)
    with pytest.raises(Conflict):
        await world.store.commit(*by_lead.writes)
    assert "approved by person already" in await world.refusal(
        "review_plan", request_id=request.id, approve=False, feedback="no"
    )
    assert await world.mail("alice") == []


async def test_a_stale_a_foreign_and_an_unknown_request_are_refused(world: ToolWorld) -> None:
    request = await _submit(world)
    assert f"plans that wait for you: {request.id}" in await world.refusal("review_plan", request_id="x", approve=True)
    theirs = await _submit(world, "bob")
    assert "not yours" in await world.refusal("review_plan", request_id=theirs.id, approve=True)
    world.now += 2_000
    assert "deadline" in await world.refusal("review_plan", request_id=request.id, approve=True)


async def test_a_lead_never_answers_a_permission_with_a_plans_answer(world: ToolWorld) -> None:
    payload = {"tool": "bash"}
    permission = Request(
        id="req_p", kind="permission", asked_by="alice", payload=payload, digest=digest_of("permission", payload)
    )
    await world.put(names.request_key(SESSION, "req_p"), permission)
    assert "is a permission request" in await world.refusal("review_plan", request_id="req_p", approve=True)


async def test_an_answer_for_an_old_life_does_not_reach_the_new_one(world: ToolWorld) -> None:
    request = await _submit(world)
    await world.join("alice", incarnation=2)
    await world.run("review_plan", request_id=request.id, approve=True)
    assert await world.mail("alice", 1) == await world.mail("alice", 2) == []


async def test_a_plan_is_asked_for_with_a_gate_that_the_envelope_carries(world: ToolWorld) -> None:
    await world.run("request_plan", teammate="alice", task="Move the tables")
    (mail,) = await world.mail("alice")
    assert (mail.type, mail.mode, mail.content) == ("plan_request", "wake", "Move the tables")
    assert mail.metadata == {"gate": "required"}
    assert "what the plan is for" in await world.refusal("request_plan", teammate="alice", task=" ")
    assert "yourself" in await world.refusal("request_plan", teammate="lead", task="x")


# Reporting


async def test_a_report_goes_to_the_parent_and_ends_the_turn(world: ToolWorld) -> None:
    outcome = await world.run("report", "alice", status="done", result="It parses.")
    assert outcome.ends_turn
    assert outcome.content == "Report sent to lead."
    assert [type(event) for event in outcome.events] == [Reported]
    (mail,) = await world.mail("lead")
    assert (mail.type, mail.mode, mail.content) == ("result", "wake", "It parses.")
    assert mail.metadata == {"status": "done", "tasks": []}


async def test_done_is_refused_while_a_task_is_held(world: ToolWorld) -> None:
    task = await _claim(world)
    assert f"{task} is still in your hands" in await world.refusal("report", "alice", status="done", result="x")
    assert await world.mail("lead") == []


@pytest.mark.parametrize(("status", "ends"), [("failed", "failed"), ("blocked", "pending")])
async def test_who_gives_up_leaves_no_task_owned(world: ToolWorld, status: str, ends: str) -> None:
    task = await _claim(world)
    outcome = await world.run("report", "alice", status=status, result="No network.")
    after = await _task(world, task)
    assert (after.status, after.result) == (ends, "No network.")
    assert [event.held for event in outcome.events if isinstance(event, TaskHeld)] == [False]
    assert task in str(outcome.content)
    assert (await world.mail("lead"))[0].metadata == {"status": status, "tasks": [task]}


async def test_a_report_without_words_is_refused(world: ToolWorld) -> None:
    assert "empty" in await world.refusal("report", "alice", status="done", result="  ")


async def test_a_report_to_a_parent_that_is_gone_still_ends_the_assignment() -> None:
    world = ToolWorld(plan_tools())
    await world.join("alice")
    outcome = await world.run("report", "alice", status="done", result="x")
    assert outcome.ends_turn
    assert outcome.writes == ()
