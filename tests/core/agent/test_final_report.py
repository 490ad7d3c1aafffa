"""The report of a teammate to its lead, and the state that survives a compaction."""

from __future__ import annotations

from typing import Any

import pytest
from tests.core.agent.agent_states import Life
from tests.core.recovery.failures import NOW, failed, spec

from callboard.core.agent.rules.final_report import life_end_messages, state_block, turn_end_messages
from callboard.core.recovery import retry_policy as rec
from callboard.types import events as ev
from callboard.types.records import AgentRow, Todo
from callboard.types.schedules import Schedule
from callboard.types.steps import EndTurn

LEAD = AgentRow(name="lead", kind="lead", incarnation=2)


def prompted(**spec: Any) -> Life:
    return Life.begun(**spec).prompted("go")


def owing() -> Life:
    return Life.begun().mailed("do it", type="message", metadata={"assignment": True}).turned().delivered()


def pending() -> Life:
    return prompted().on(ev.GateSet, gate="pending", request_id="req_2")


@pytest.mark.parametrize(
    ("told", "reason", "kind", "wakes", "words"),
    [
        (owing().said("all done"), "end", "result", True, "all done"),
        (owing(), "end", "result", True, "(it ended its turn without a word)"),
        (prompted().said("hm"), "end", "idle_notification", False, "hm"),
        (prompted(), "end", "idle_notification", False, "(idle)"),
        (owing().said("so far"), "failed", "error", True, "alice could not continue: why\nIts last words: so far"),
        (owing(), "overflow", "error", True, "alice could not continue: why"),
        (prompted(), "refused", "error", True, "alice could not continue: why"),
        (owing().said("so far"), "limit", "error", True, "alice stopped at a limit: why\nIts last words: so far"),
    ],
)
def test_no_turn_of_a_teammate_ends_in_silence(told: Life, reason: str, kind: str, wakes: bool, words: str) -> None:
    (sent,) = turn_end_messages(told.state, EndTurn(reason, "why"), LEAD, now=5.0)
    assert (sent.type, sent.mode == "wake", sent.content) == (kind, wakes, words)
    assert (sent.sender, sent.recipient, sent.incarnation, sent.depth) == ("alice", "lead", 2, 1)


def test_what_a_stop_leaves_unsaid_is_said_at_the_end_of_the_life() -> None:
    assert turn_end_messages(owing().state, EndTurn("stopped"), LEAD, now=5.0) == ()


def test_an_interrupted_turn_is_told_and_wakes_the_lead_only_where_no_person_is_at_it() -> None:
    (person,) = turn_end_messages(owing().on(ev.Interrupted).state, EndTurn("interrupted"), LEAD, now=5.0)
    assert (person.type, person.mode, person.metadata) == ("idle_notification", "queue", {"status": "interrupted"})
    assert person.content == "A person has interrupted alice; it has not reported yet."
    (hook,) = turn_end_messages(owing().on(ev.Interrupted, by="no more").state, EndTurn("interrupted"), LEAD, now=5.0)
    assert (hook.type, hook.mode, hook.content) == ("error", "wake", "alice was halted by a hook: no more")
    assert turn_end_messages(prompted().on(ev.Interrupted).state, EndTurn("interrupted"), LEAD, now=5.0) == ()


def test_what_it_says_answers_its_assignment_and_names_what_caused_it() -> None:
    state = owing().said("done").state
    (sent,) = turn_end_messages(state, EndTurn("end"), LEAD, now=5.0)
    assert state.turn is not None
    assert (sent.reply_to, sent.caused_by, sent.sender_incarnation) == (state.work.assigned, state.turn.cause, 1)
    assert sent.reply_to


def test_who_has_reported_who_is_no_teammate_and_who_has_no_lead_says_nothing() -> None:
    reported = owing().on(ev.Reported, status="done", result="r")
    end = EndTurn("end")
    assert turn_end_messages(reported.state, end, LEAD, now=5.0) == ()
    assert turn_end_messages(prompted(kind="lead").state, end, LEAD, now=5.0) == ()
    assert turn_end_messages(prompted(kind="subagent").state, end, LEAD, now=5.0) == ()
    assert turn_end_messages(owing().state, end, None, now=5.0) == ()
    assert turn_end_messages(Life.begun().state, end, LEAD, now=5.0) == ()


def test_two_turns_say_two_things_and_one_turn_says_one() -> None:
    first = owing()
    second = first.on(ev.TurnEnded, turn="t", reason="end").prompted("more")
    ids = [turn_end_messages(one.state, EndTurn("end"), LEAD, now=5.0)[0].id for one in (first, first, second)]
    assert ids[0] == ids[1] != ids[2]


def test_a_life_that_ends_while_it_owes_a_report_is_told() -> None:
    (sent,) = life_end_messages(owing().state, LEAD, "stopped", 5.0)
    assert (sent.type, sent.content) == ("error", "alice ended without a report: stopped")
    between = owing().on(ev.TurnEnded, turn="t", reason="stopped")
    assert life_end_messages(between.state, LEAD, "stopped", 5.0)[0].depth == 1
    assert life_end_messages(prompted().state, LEAD, "stopped", 5.0) == ()
    assert life_end_messages(owing().state, None, "stopped", 5.0) == ()
    assert life_end_messages(prompted(kind="lead").state, LEAD, "stopped", 5.0) == ()


def test_what_the_runtime_knows_is_told_exactly() -> None:
    told = prompted().on(ev.TodosSet, todos=(Todo(content="ship", status="in_progress"),))
    told = told.on(ev.FileSeen, path="a", digest="1").on(ev.FileSeen, path="b", digest="2", changed=True)
    told = told.on(ev.SkillLoaded, name="review")
    for id, status in (("b1", None), ("b2", "failed")):
        told = told.on(ev.BackgroundStarted, id=id, command="make", pid=1, started=1.0, output="/o")
        told = told.on(ev.BackgroundEnded, id=id, status=status) if status else told
    team = [AgentRow(name="alice", kind="teammate"), AgentRow(name="bob", kind="teammate", role="tests", life="idle")]
    team += [AgentRow(name=f"explore-{n}", kind="subagent", life="stopped") for n in range(3)]
    cron = {"cron": "@daily", "prompt": "look"}
    schedules = [Schedule(id="cron_1", **cron), Schedule(id="cron_2", state="fired", **cron)]
    block = state_block(told.state, team, schedules=schedules, tasks=["task_1 [pending] x"])
    assert block.todos == ("[in_progress] ship",)
    assert (block.files_read, block.files_changed, block.skills) == (("a",), ("b",), ("review",))
    assert block.background == ("b1: make (running)",)
    assert block.teammates == ("bob (tests): idle", "and 3 that have ended")
    assert block.schedules == ("cron_1: @daily UTC: look",)
    assert (block.tasks, block.plan) == (("task_1 [pending] x",), "")


@pytest.mark.parametrize(
    ("gate", "said"),
    [
        ({"gate": "pending", "plan": "the plan"}, "pending: the plan"),
        ({"gate": "required"}, "gate: required"),
        ({"gate": "open"}, ""),
    ],
)
def test_a_plan_and_where_it_stands_outlive_a_compaction(gate: dict[str, str], said: str) -> None:
    assert state_block(prompted().on(ev.GateSet, **gate).state, [], schedules=[], tasks=[]).plan == said
    approved = pending().on(ev.GateSet, gate="pending", request_id="req_1", digest="d", plan="the plan")
    approved = approved.on(ev.AnswerTaken, request_id="req_1", kind="plan", status="approved", digest="d")
    assert state_block(approved.state, [], schedules=[], tasks=[]).plan == "approved: the plan"


@pytest.mark.parametrize("kind", [*rec.FINAL, *rec.NEXT])
def test_the_lead_reads_no_advice_for_a_person_in_the_error_of_a_teammate(kind: str) -> None:
    why = rec.recover(failed(kind), rec.RecoveryState(attempts=99), spec(), now=NOW)
    assert isinstance(why, EndTurn)
    (sent,) = turn_end_messages(owing().state, why, LEAD, now=5.0)
    assert sent.content == f"{owing().state.me.name} could not continue: {rec.without_advice(why.why)}"
