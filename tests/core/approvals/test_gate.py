"""The plan gate: what may run while it is open, required, pending; and what moves it."""

from __future__ import annotations

import pytest
from tests.core.agent.agent_states import Life, judged, started

from callboard.core.approvals.plan_gate import BEFORE_APPROVAL, PlanGate, gate_refusal
from callboard.core.messaging.envelopes import injection_block
from callboard.core.tool_access import ALL_TOOLS
from callboard.types import events as ev

READS = ("read_file", "grep", "glob", "list_tasks", "task_output")
WRITES = ("write_file", "edit_file", "bash", "task", "create_task", "complete_task", "spawn_teammate", "schedule_cron")


@pytest.mark.parametrize("tool", [*READS, *WRITES, *sorted(BEFORE_APPROVAL)])
def test_an_open_gate_stops_nothing(tool: str) -> None:
    assert gate_refusal(PlanGate(), tool, reads_only=False) is None
    assert gate_refusal(PlanGate("open", "req_1", "d", "the plan", "approved"), tool, reads_only=False) is None


@pytest.mark.parametrize("tool", WRITES)
def test_a_required_plan_lets_reads_pass_and_nothing_that_changes(tool: str) -> None:
    assert "call submit_plan" in str(gate_refusal(PlanGate("required"), tool, reads_only=False))
    assert gate_refusal(PlanGate("required"), tool, reads_only=True) is None


@pytest.mark.parametrize("tool", sorted(BEFORE_APPROVAL))
def test_words_notes_and_the_plan_itself_pass_a_required_gate(tool: str) -> None:
    assert gate_refusal(PlanGate("required"), tool, reads_only=False) is None
    assert tool in ALL_TOOLS, "a name that no tool has"


@pytest.mark.parametrize("tool", [*WRITES, "submit_plan", "report"])
def test_while_a_plan_waits_nothing_runs_and_the_request_is_named(tool: str) -> None:
    refusal = gate_refusal(PlanGate("pending", "req_1"), tool, reads_only=False)
    assert refusal == "Not run: waiting for plan approval (req_1)."


def answered(life: Life, status: str, digest: str = "d1", request: str = "req_1") -> Life:
    return life.on(ev.AnswerTaken, request_id=request, kind="plan", status=status, by="person", digest=digest)


def pending() -> Life:
    life = Life.begun(plan_required=True).prompted("go")
    return life.on(ev.GateSet, gate="pending", request_id="req_1", digest="d1", plan="the plan")


def test_only_the_approval_of_this_plan_opens_the_gate() -> None:
    assert answered(pending(), "approved").state.work.gate == PlanGate("open", "req_1", "d1", "the plan", "approved")


@pytest.mark.parametrize("status", ["rejected", "expired", "withdrawn"])
def test_anything_but_an_approval_leaves_it_required(status: str) -> None:
    life = answered(pending(), status)
    assert life.state.work.gate == PlanGate("required")
    assert life.state.context.injections[-1].kind == "plan-decision"
    assert status in life.state.context.injections[-1].text
    assert life.state.context.wants_reply


def test_the_feedback_of_a_rejection_is_told_with_what_may_be_done_now() -> None:
    answer = {"request_id": "req_1", "kind": "plan", "status": "rejected", "by": "lead", "reason": "name the files"}
    (told,) = pending().on(ev.AnswerTaken, **answer).state.context.injections
    assert told.text.startswith("Your plan is rejected by lead.\nname the files\nYou may still only read")


def test_a_stale_a_foreign_and_a_changed_approval_open_nothing() -> None:
    assert answered(pending(), "approved", request="req_0").state.work.gate.gate == "pending"
    assert answered(pending(), "approved", digest="another").state.work.gate == PlanGate("required")
    assert answered(Life.begun(plan_required=True), "approved").state.work.gate == PlanGate("required")
    late = answered(answered(pending(), "rejected"), "approved")
    assert late.state.work.gate == PlanGate("required")


def test_the_next_assignment_needs_a_plan_of_its_own() -> None:
    life = answered(pending(), "approved").on(ev.Reported, status="done", result="did it")
    assert life.state.work.gate == PlanGate("required")
    life = answered(pending(), "approved").mailed("another", type="message", metadata={"assignment": True}).delivered()
    assert life.state.work.gate == PlanGate("required")
    free = Life.begun().prompted("go").on(ev.Reported, status="done", result="did it")
    assert free.state.work.gate == PlanGate()


def test_a_plan_for_a_task_ends_with_the_task_and_one_for_the_assignment_does_not() -> None:
    for_task = Life.begun(plan_required=True).prompted("go").on(ev.TaskHeld, task="task_1")
    for_task = for_task.on(ev.GateSet, gate="pending", request_id="req_1", digest="d1", plan="p", task="task_1")
    assert for_task.on(ev.TaskHeld, task="task_1", held=False).state.work.gate.gate == "pending", (
        "its answer is still due"
    )
    for_task = answered(for_task, "approved")
    assert for_task.on(ev.TaskHeld, task="task_1", held=False).state.work.gate == PlanGate("required")
    whole = answered(pending(), "approved").on(ev.TaskHeld, task="task_1").on(ev.TaskHeld, task="task_1", held=False)
    assert whole.state.work.gate.gate == "open"


def test_a_plan_that_was_asked_for_once_is_needed_once() -> None:
    life = Life.begun().prompted("go").on(ev.TaskHeld, task="task_1")
    life = life.on(ev.GateSet, gate="pending", request_id="req_1", digest="d1", plan="p", task="task_1")
    assert answered(life, "approved").on(ev.TaskHeld, task="task_1", held=False).state.work.gate == PlanGate()


def test_an_edited_plan_opens_the_gate_with_its_own_digest_and_text() -> None:
    edit = {"plan": "the plan, mended", "digest": "d2", "submitted": "d1", "choice": "by hand"}
    life = pending().on(ev.AnswerTaken, request_id="req_1", kind="plan", status="approved", by="person", **edit)
    assert life.state.work.gate == PlanGate("open", "req_1", "d2", "the plan, mended", "approved", "by hand")
    assert "the plan, mended" in life.state.context.injections[-1].text
    foreign = {**edit, "submitted": "d0"}
    life = pending().on(ev.AnswerTaken, request_id="req_1", kind="plan", status="approved", by="person", **foreign)
    assert life.state.work.gate == PlanGate("required")


def test_an_approval_that_is_void_opens_nothing_and_says_why() -> None:
    word = {"request_id": "req_1", "kind": "plan", "status": "approved", "by": "person", "digest": "d1"}
    life = pending().on(ev.AnswerTaken, **word, void="the base has moved")
    assert life.state.work.gate == PlanGate("required")
    (told,) = life.state.context.injections
    assert "void: the base has moved" in told.text
    assert injection_block(told).data["text"].startswith('<plan-decision request="req_1" status="void">\n')


def test_a_decision_names_its_request_and_status() -> None:
    (told,) = answered(pending(), "rejected").state.context.injections
    assert injection_block(told).data["text"].startswith('<plan-decision request="req_1" status="rejected">\n')


def test_a_plan_asked_for_closes_the_gate_at_its_receipt_and_stops_what_has_not_begun() -> None:
    life = Life.begun().prompted("go").called("bash", "bash", "bash")
    life = life.on(ev.CallJudged, call="c1", verdict="allow").on(ev.CallJudged, call="c2", verdict="allow")
    life = started(life, "c2").mailed("the roof first", type="plan_request")
    assert life.state.work.gate == PlanGate("required")
    assert [one.stage for one in life.state.calls] == ["proposed", "started", "proposed"]


def test_a_permission_that_comes_after_the_gate_has_closed_runs_nothing() -> None:
    life = Life.begun().prompted("go").called("bash", "send_message")
    for call, request in (("c1", "req_1"), ("c2", "req_2")):
        life = life.on(ev.ApprovalNeeded, call=call, request_id=request)
    life = life.mailed("plan it", type="plan_request")
    for request in ("req_1", "req_2"):
        life = life.on(ev.AnswerTaken, request_id=request, kind="permission", status="approved", by="person")
    bash, message = life.state.calls
    assert (bash.stage, bash.denied, bash.is_error) == ("settled", True, True)
    assert "a plan must be approved first" in bash.content[0]["text"]
    assert message.stage == "allowed"


def test_a_call_that_was_judged_before_is_not_touched_by_an_open_gate() -> None:
    life = judged(Life.begun().prompted("go").called("bash"), "c1")
    assert life.state.calls[0].stage == "allowed"


def test_work_that_ends_stops_the_calls_beside_it_that_have_not_begun() -> None:
    """A reply gives its task up and goes on with it: the plan was approved for that task and for nothing after it."""
    life = Life.begun(plan_required=True).prompted("go").on(ev.TaskHeld, task="task_1")
    life = life.on(ev.GateSet, gate="pending", request_id="req_1", digest="d1", plan="p", task="task_1")
    life = answered(life, "approved").called("bash", "bash")
    life = life.on(ev.CallJudged, call="c1", verdict="allow").on(ev.CallJudged, call="c2", verdict="allow")
    life = started(life, "c1")
    for end in (
        life.on(ev.TaskHeld, task="task_1", held=False),
        life.on(ev.Reported, status="failed", result="it cannot be done"),
    ):
        assert end.state.work.gate == PlanGate("required")
        assert [one.stage for one in end.state.calls] == ["started", "proposed"]


def test_what_no_plan_can_allow_is_not_said_to_wait_for_one() -> None:
    for state in ("required", "pending"):
        gate = PlanGate(state)
        assert gate_refusal(gate, "bash", reads_only=False, denied_by="E") is not None
        assert gate_refusal(gate, "bash", reads_only=False, denied_by="S") is None, "letter S denies it itself"
        assert gate_refusal(gate, "bash", reads_only=False, denied_by="K") is None
        assert gate_refusal(gate, "bash", reads_only=False, denied_by="rule Bash(touch:*)") is None, "a rule stays"
