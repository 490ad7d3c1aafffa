"""Plan mode ends with an approved plan or by a person's choice; the agent then works in the chosen mode."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.agent.agent_states import Life
from tests.core.agent.decisions import step

from callboard.core.agent.changes import in_mode
from callboard.core.agent.decide import PROMPT
from callboard.core.approvals.plans import AnswerDetails, apply_answer_details
from callboard.core.approvals.requests import AnswerRefusal, answer, open_request
from callboard.core.permissions.claude_updates import mode_of
from callboard.core.permissions.modes import next_mode
from callboard.types import events as ev
from callboard.types import steps as st
from callboard.types.records import Request


def planned(**spec: Any) -> Life:
    """An agent whose plan waits."""
    life = Life.begun(**spec).prompted("go")
    return life.on(ev.GateSet, gate="pending", request_id="req_1", digest="d", plan="# Do it")


def answered(life: Life, status: str, mode: str = "", digest: str = "d") -> Life:
    about: dict[str, Any] = {"request_id": "req_1", "kind": "plan", "status": status, "by": "person", "digest": digest}
    return life.on(ev.AnswerTaken, **about, mode=mode)


@pytest.mark.parametrize("kind", ["lead", "teammate"])
@pytest.mark.parametrize(
    ("before", "status", "chosen", "after", "gate"),
    [
        ("plan", "approved", "", "default", "open"),
        ("plan", "approved", "default", "default", "open"),
        ("plan", "approved", "acceptEdits", "acceptEdits", "open"),
        ("plan", "rejected", "", "plan", "required"),
        ("plan", "expired", "", "plan", "required"),
        ("acceptEdits", "approved", "", "acceptEdits", "open"),
        ("default", "approved", "acceptEdits", "acceptEdits", "open"),
    ],
)
def test_an_approval_puts_the_agent_into_the_chosen_mode(
    kind: str, before: str, status: str, chosen: str, after: str, gate: str
) -> None:
    life = answered(planned(kind=kind, permission_mode=before), status, chosen)
    assert (life.state.me.permission_mode, life.state.work.gate.gate) == (after, gate)
    text = str(life.state)
    assert (f"mode {after} now" in text) == (after != before or bool(chosen))


def test_a_void_approval_leaves_plan_mode_on() -> None:
    life = answered(planned(kind="lead", permission_mode="plan"), "approved", "acceptEdits", digest="another")
    assert (life.state.me.permission_mode, life.state.work.gate.gate) == ("plan", "required")


def test_a_lead_that_enters_plan_mode_can_hand_in_a_plan_and_leaves_it_by_another_choice() -> None:
    state = in_mode(Life.begun(kind="lead", tools=("bash",)).state, "plan")
    assert (state.me.permission_mode, state.me.tools) == ("plan", ("bash", "submit_plan"))
    rejected = answered(planned(kind="lead", permission_mode="plan"), "rejected").state
    assert in_mode(rejected, "default").work.gate.gate == "open"
    required = answered(planned(kind="teammate", plan_required=True), "rejected").state
    assert in_mode(required, "acceptEdits").work.gate.gate == "required", "it has to plan whatever its mode is"
    assert in_mode(state, "no mode") == state


def ordered(life: Life, mode: str) -> Life:
    return life.mailed(mode, type="command", metadata={"action": "mode"})


def reminders(life: Life) -> list[str]:
    return [one.text[:40] for one in life.state.context.injections if one.key == "mode"]


def test_a_prompt_without_the_tool_is_composed_again_before_the_next_call() -> None:
    life = ordered(Life.begun("lead", tools=("bash",)).prompted("go"), "plan")
    assert step(life) == st.SetPrompt()
    assert isinstance(step(life, running=frozenset({PROMPT})), st.Wait)
    assert not isinstance(step(ordered(life, "default")), st.SetPrompt), "it left the mode before the call"
    life = life.on(ev.PromptSet, system="s2", tools="t2", overhead_tokens=120)
    assert not isinstance(step(life), st.SetPrompt)
    back = ordered(ordered(life, "default"), "plan")
    assert back.state.me.tools == ("bash", "submit_plan"), "what is listed stays listed"
    assert not isinstance(step(back), st.SetPrompt)


def test_a_mode_that_was_left_before_any_call_leaves_no_trace() -> None:
    life = ordered(ordered(Life.begun("lead", tools=("bash",)), "plan"), "default").prompted("go")
    assert (life.state.me.tools, reminders(life)) == (("bash",), [])


def test_a_reminder_says_that_plan_mode_is_on_and_that_it_is_over() -> None:
    life = Life.begun("lead", tools=("submit_plan",), permission_mode="plan").prompted("go")
    (text,) = (one.text for one in life.state.context.injections)
    assert "submit_plan" in text
    sent = life.on(ev.InjectionsDelivered, blocks=())
    assert reminders(ordered(sent, "plan")) == [], "it was said"
    (over,) = reminders(ordered(sent, "acceptEdits"))
    assert over.startswith("You are no longer in plan mode")
    alone = Life.begun("subagent", permission_mode="plan").prompted("go")
    assert "submit_plan" not in alone.state.context.injections[0].text, "it has no such tool"
    assert reminders(Life.begun("lead").prompted("go")) == []


@pytest.mark.parametrize(
    ("by", "status", "mode", "told"),
    [
        ("person", "approved", "acceptEdits", ""),
        ("policy", "approved", "acceptEdits", ""),
        ("person", "approved", "bypassPermissions", "choose the mode default or acceptEdits"),
        ("lead", "approved", "acceptEdits", "only a person chooses the mode"),
        ("person", "rejected", "acceptEdits", "belongs to the approval of a plan"),
    ],
)
def test_the_mode_is_chosen_by_a_person_with_an_approval(by: str, status: str, mode: str, told: str) -> None:
    request = open_request(
        Request(
            id="req_1", kind="plan", asked_by="alice", may_answer=("person", "lead", "policy"), payload={"plan": "x"}
        )
    )
    new = answer(request, "plan", by=by, status=status, reason="why", now=0.0)
    assert isinstance(new, Request)
    chosen = apply_answer_details(request, new, AnswerDetails(mode=mode), by=by, now=0.0)
    assert (chosen.text if isinstance(chosen, AnswerRefusal) else "").endswith(told)
    assert isinstance(chosen, AnswerRefusal) == bool(told)
    assert isinstance(chosen, AnswerRefusal) or chosen.mode == mode


def test_shift_tab_goes_in_a_circle_and_reaches_bypass_only_where_the_session_began_so() -> None:
    assert [next_mode(mode, may_bypass=False) for mode in ("default", "acceptEdits", "plan", "dontAsk")] == [
        *("acceptEdits", "plan", "default", "default"),
    ]
    assert next_mode("plan", may_bypass=True) == "bypassPermissions"
    assert next_mode("bypassPermissions", may_bypass=True) == "default"


def test_a_client_names_the_mode_as_a_permission_update() -> None:
    assert (
        mode_of([{"type": "addRules"}, {"type": "setMode", "mode": "acceptEdits", "destination": "session"}])
        == "acceptEdits"
    )
    assert mode_of([{"type": "setMode", "mode": "manual"}]) == "default"
    assert [mode_of(one) for one in (None, "x", [3], [{"type": "setMode"}])] == [""] * 4
