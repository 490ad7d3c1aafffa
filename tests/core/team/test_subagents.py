"""Subagents in the background: how their ends are called and told, and where they count as work of their caller."""

from __future__ import annotations

import pytest
from tests.core.agent.agent_states import Life

from callboard.core.agent.rules.final_report import state_block, turn_end_messages
from callboard.core.context.summary.request import _state_kept
from callboard.core.team.subagents import ending_words, in_background, notification_text, report_status, report_text
from callboard.core.team.unfinished import keeps_tasks, kept_tasks_text
from callboard.types import events as ev
from callboard.types.records import AgentRow
from callboard.types.steps import EndTurn

NAME = "kit:explore-ab12"
TASK = {"id": NAME, "command": "find it", "pid": 0, "started": 0.0, "output": "", "agent": NAME}
COMMAND = {"id": "bg_1", "command": "serve", "pid": 7, "started": 1.0, "output": "/o"}
LEAD = AgentRow(name="lead", kind="lead", incarnation=2)


def caller(life: Life | None = None) -> Life:
    return (life or Life.begun()).on(ev.BackgroundStarted, **TASK)


@pytest.mark.parametrize(
    ("outcome", "status", "text"),
    [
        ("done", "completed", "in x.py"),
        ("stopped", "stopped", "[status: stopped] The subagent was stopped before it was done:\nin x.py"),
        ("limit", "failed", "[status: limit] The subagent reached its limit before it was done:\nin x.py"),
        ("failed", "failed", "[status: failed] The subagent failed:\nin x.py"),
    ],
)
def test_an_end_has_a_status_and_words(outcome: str, status: str, text: str) -> None:
    assert (report_status(outcome), report_text(outcome, " in x.py\n")) == (status, text)
    assert bool(ending_words(outcome)) == (outcome != "done")
    (began,) = in_background(caller().state)
    told = f"{NAME} {status}\nsubagent: find it\nits report:\n{text}"
    assert notification_text(began, outcome, "in x.py") == told


def test_a_subagent_without_words_has_a_report() -> None:
    assert report_text("done", " ") == "(it said nothing)"


def test_only_running_subagents_are_in_the_background() -> None:
    life = caller().on(ev.BackgroundStarted, **COMMAND)
    assert [began.agent for began in in_background(life.state)] == [NAME]
    assert in_background(life.on(ev.BackgroundEnded, id=NAME, status="completed", agent=NAME).state) == ()


def test_the_state_after_a_compaction_names_them_and_a_summary_must_keep_the_whole_name() -> None:
    block = state_block(caller().on(ev.BackgroundStarted, **COMMAND).state, (), schedules=(), tasks=())
    assert block.background == (f"{NAME}: subagent: find it (running)", "bg_1: serve (running)")
    assert [item.marks for item in _state_kept(block, ())] == [((NAME,),), (("bg_1",),)]


def test_a_teammate_that_still_waits_for_one_does_not_report() -> None:
    life = Life.begun().mailed("do it", type="message", metadata={"assignment": True}).turned().delivered()
    (sent,) = turn_end_messages(caller(life.said("I wait")).state, EndTurn("end"), LEAD, now=5.0)
    assert (sent.type, sent.mode) == ("idle_notification", "queue")
    assert sent.content == f"alice has not reported yet: it waits for its subagents ({NAME}).\nIts last words: I wait"
    (failed,) = turn_end_messages(caller(life).state, EndTurn("failed", "why"), LEAD, now=5.0)
    assert failed.type == "error"


def test_a_teammate_keeps_its_task_while_one_works() -> None:
    life = caller(Life.begun().prompted("go").on(ev.TaskHeld, task="task_1", subject="x", held=True))
    assert keeps_tasks(life.state)
    assert kept_tasks_text(life.state).endswith(f"waits for its subagent {NAME}.")
