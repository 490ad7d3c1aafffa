"""The log of decisions is read from a journal, and says what came of each."""

from __future__ import annotations

from typing import Any

from tests.core.agent.agent_states import Life, done

from callboard.core.reports.decisions import Decision, about, decisions_in, digest
from callboard.types import events as ev

CALLED = Life.begun().prompted("go").called("bash", "read_file")
ASKED = CALLED.on(
    ev.ApprovalNeeded, at=101.0, call="c1", request_id="req_1", rule="N", why="w", mode="default", level=1
)


def decisions(life: Life) -> list[Decision]:
    return decisions_in(enumerate(life.events, 1))


def first(life: Life) -> Decision:
    return next(one for one in decisions(life) if one.call == "c1")


def test_an_allowed_call_says_who_called_what_by_what_and_in_which_mode() -> None:
    life = CALLED.on(ev.CallJudged, call="c1", verdict="allow", by="rule Bash(make:*)", mode="acceptEdits", level=2)
    found = first(life)
    assert (found.agent, found.kind, found.agent_type, found.tool) == ("alice", "teammate", "worker", "bash")
    assert (found.verdict, found.by, found.mode, found.level) == ("allow", "rule Bash(make:*)", "acceptEdits", 2)
    assert (found.runs, found.answer, found.seq) == (True, None, len(life.events))


def test_what_is_told_is_the_input_that_runs_as_hooks_left_it() -> None:
    given = {"command": "make all\nmake more"}
    found = first(CALLED.on(ev.CallJudged, call="c1", verdict="allow", input=given))
    assert found.about == "make all"
    assert found.digest == digest({"command": "make all\nmake more"}) != digest({})


def test_a_question_waits_then_carries_its_answer() -> None:
    assert (first(ASKED).verdict, first(ASKED).runs, first(ASKED).request) == ("ask", None, "req_1")
    yes = first(
        ASKED.on(ev.AnswerTaken, at=105.0, request_id="req_1", kind="permission", status="approved", by="person")
    )
    assert yes.answer is not None
    assert (yes.at, yes.answer.at, yes.answer.by, yes.runs) == (101.0, 105.0, "person", True)
    no = first(ASKED.on(ev.AnswerTaken, request_id="req_1", kind="permission", status="expired"))
    assert no.answer is not None
    assert (no.answer.status, no.runs) == ("expired", False)


def test_an_approval_of_another_content_lets_nothing_run() -> None:
    asked = CALLED.on(ev.ApprovalNeeded, call="c1", request_id="req_1", digest="d1")
    told: dict[str, Any] = {"request_id": "req_1", "kind": "permission", "status": "approved", "by": "person"}
    assert first(asked.on(ev.AnswerTaken, digest="d2", **told)).runs is False
    assert first(asked.on(ev.AnswerTaken, digest="d1", **told)).runs is True


def test_decisions_stay_told_when_their_calls_are_long_gone() -> None:
    life = done(CALLED, "c1", "c2").on(ev.ResultsMerged).said("done")
    again = life.prompted("more").called("bash").on(ev.CallJudged, call="c1", verdict="deny", by="S", why="no")
    assert [(one.tool, one.verdict) for one in decisions(again)] == [
        ("bash", "allow"),
        ("read_file", "allow"),
        ("bash", "deny"),
    ]


def test_decisions_behind_a_hole_in_the_journal_are_read_with_their_own_numbers() -> None:
    life = ASKED.on(ev.AnswerTaken, request_id="req_1", kind="permission", status="approved", by="person")
    life = life.on(ev.CallJudged, call="c2", verdict="deny", by="S", why="no")
    whole = list(enumerate(life.events, 1))
    for gone in range(1, len(whole)):
        left = [(seq, event) for seq, event in whole if seq != gone]
        expected = {one.seq for one in decisions(life)} - {gone} if gone > 1 else set[int]()
        assert {one.seq for one in decisions_in(left)} == expected, gone


def test_a_short_form_is_one_line_of_bounded_length() -> None:
    assert about({"path": "a.txt", "content": "long"}) == "a.txt"
    assert about({"x": 1}) == "x 1"
    assert about({}) == ""
    assert len(about({"command": "x" * 5_000})) == 200
    assert digest({"a": 1, "b": "\ud800"}) == digest({"b": "\ud800", "a": 1})
