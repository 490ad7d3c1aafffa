"""Plans as content: what an answer is bound to, options, a person's edit, and what makes an approval void."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.core.approvals.plans import (
    AnswerDetails,
    AuthorSituation,
    PlanBinding,
    answer_record,
    apply_answer_details,
    commit_change,
    decision_text,
    payload_of,
    previous_revision,
    submitted_of,
    unified_diff,
    void_reason,
)
from callboard.core.approvals.requests import AnswerRefusal, answer, digest_of
from callboard.types.records import Request

OLD, NEW = "a" * 40, "b" * 40


def asked(plan: str = "# Mend it\n1. read", *options: str, **fields: object) -> Request:
    payload = payload_of(plan, options, PlanBinding("task_1", "env_1", "/w", OLD))
    base = {"id": "req_1", "kind": "plan", "asked_by": "alice", "may_answer": ("person", "lead"), "created_at": 10.0}
    return Request.model_validate({**base, "payload": payload, "digest": digest_of("plan", payload), **fields})


def said(
    request: Request, word: AnswerDetails, by: str = "person", status: str = "approved"
) -> Request | AnswerRefusal:
    answered = answer(request, request.kind, by=by, status=status, reason="", now=20.0)
    assert isinstance(answered, Request)
    return apply_answer_details(request, answered, word, by=by, now=20.0)


def now(commit: str = "", *, void: bool = False, tasks: tuple[str, ...] = ("task_1",)) -> AuthorSituation:
    return AuthorSituation(30.0, tasks, commit, moved_is_void=void)


# What an answer is bound to


def test_an_answer_to_a_content_that_is_another_by_now_is_void() -> None:
    request = asked()
    assert isinstance(said(request, AnswerDetails(seen=request.digest)), Request)
    refused = said(asked("something else"), AnswerDetails(seen=request.digest))
    assert isinstance(refused, AnswerRefusal)
    assert refused.why == "changed"
    assert "changed since you read it" in refused.text


@pytest.mark.parametrize(("option", "chosen"), [(0, ""), (1, "by hand"), (2, "with a library")])
def test_an_option_is_approved_by_its_number(option: int, chosen: str) -> None:
    answered = said(asked("x", "by hand", "with a library"), AnswerDetails(option))
    assert isinstance(answered, Request)
    assert (answered.choice, answered.status) == (chosen, "approved")


@pytest.mark.parametrize(
    ("request_", "word", "by", "status", "words"),
    [
        (asked("x", "a", "b"), AnswerDetails(3), "person", "approved", "it has 1 to 2"),
        (asked("x"), AnswerDetails(1), "person", "approved", "it names none"),
        (asked("x", "a"), AnswerDetails(1), "person", "rejected", "belongs to the approval"),
        (asked("x"), AnswerDetails(plan="y"), "person", "rejected", "belongs to the approval"),
        (asked("x"), AnswerDetails(plan="y"), "lead", "approved", "only a person edits"),
        (asked("x"), AnswerDetails(plan=" \n"), "person", "approved", "reject it instead"),
    ],
)
def test_what_an_answer_may_not_say(request_: Request, word: AnswerDetails, by: str, status: str, words: str) -> None:
    refused = said(request_, word, by, status)
    assert isinstance(refused, AnswerRefusal)
    assert words in refused.text


def test_an_option_goes_with_a_plan_alone() -> None:
    payload = {"tool": "bash"}
    permission = Request(id="r", kind="permission", asked_by="alice", payload=payload)
    permission = permission.model_copy(update={"digest": digest_of("permission", payload)})
    assert isinstance(said(permission, AnswerDetails(1)), AnswerRefusal)
    assert isinstance(said(permission, AnswerDetails(seen="another")), AnswerRefusal), (
        "a permission too is for what was read"
    )


# An edit


def test_an_edit_is_an_approval_of_a_new_content_that_keeps_the_submitted_one() -> None:
    request = asked("# Mend it\n1. read")
    edited = said(request, AnswerDetails(plan="# Mend it well\n1. read\n2. test"))
    assert isinstance(edited, Request)
    assert (edited.status, edited.revision, edited.subject) == ("approved", 2, "Mend it well")
    assert edited.payload["plan"] == "# Mend it well\n1. read\n2. test"
    assert submitted_of(edited) == {"plan": "# Mend it\n1. read", "digest": request.digest}
    assert edited.digest == digest_of("plan", edited.payload) != request.digest
    words = [one.what for one in edited.history]
    assert "edited" in words
    assert "approved" not in words[: words.index("edited")], "first the edit, then what was said to it"


def test_a_text_that_is_the_same_is_no_edit() -> None:
    request = asked("x")
    answered = said(request, AnswerDetails(plan="x"))
    assert isinstance(answered, Request)
    assert (answered.digest, answered.revision, submitted_of(answered)) == (request.digest, 1, {})


@given(st.text(min_size=1), st.text(min_size=1))
def test_an_edited_plan_opens_the_gate_of_the_plan_that_was_edited_and_of_no_other(mine: str, edit: str) -> None:
    request = asked(mine)
    edited = said(request, AnswerDetails(plan=edit))
    if isinstance(edited, AnswerRefusal):
        assert not edit.strip()
        return
    event = answer_record(edited, now())
    assert void_reason(event, request.digest) == ""
    assert void_reason(event, asked(mine + "!").digest) != ""
    assert (event.plan or mine) == edit


# What makes an approval void


def test_a_text_that_was_changed_behind_its_digest_is_void() -> None:
    request = asked()
    approved = said(request, AnswerDetails())
    assert isinstance(approved, Request)
    forged = approved.model_copy(update={"payload": {**approved.payload, "plan": "rm -rf"}})
    assert void_reason(answer_record(forged, now()), request.digest) != ""


@pytest.mark.parametrize(
    ("commit", "void", "noted", "counts"),
    [("", False, False, True), (OLD, True, False, True), (NEW, False, True, True), (NEW, True, True, False)],
)
def test_a_commit_that_moved_is_told_and_void_where_that_is_set(
    commit: str, void: bool, noted: bool, counts: bool
) -> None:
    approved = said(asked(), AnswerDetails())
    assert isinstance(approved, Request)
    event = answer_record(approved, now(commit, void=void))
    assert bool(event.note) is noted
    assert (void_reason(event, approved.digest) == "") is counts
    assert ("moved from commit aaaaaaaaaa to bbbbbbbbbb" in decision_text(event, event.void)) is noted


def test_an_approval_of_a_plan_for_a_task_that_was_taken_away_is_void() -> None:
    approved = said(asked(), AnswerDetails())
    assert isinstance(approved, Request)
    event = answer_record(approved, now(tasks=()))
    assert "task_1 is no longer held by you" in void_reason(event, approved.digest)
    rejected = said(asked(), AnswerDetails(), status="rejected")
    assert isinstance(rejected, Request)
    assert answer_record(rejected, now(NEW, void=True, tasks=())).void == "", "there is nothing to make void"


def test_what_is_not_known_has_not_moved() -> None:
    assert commit_change(asked(), "") == commit_change(asked(payload={"plan": "x"}), NEW) == ""


# What is told


def test_the_author_reads_what_was_chosen_changed_and_said() -> None:
    edited = said(asked("x", "a", "b"), AnswerDetails(2, "y"))
    assert isinstance(edited, Request)
    told = decision_text(answer_record(edited.model_copy(update={"reason": "mind the zones"}), now(NEW)), "")
    assert told.startswith("Your plan is approved by person.\nOf its options this one was chosen: b\n")
    assert "approved text is this one, and not yours:\n\ny\n" in told
    assert "mind the zones" in told
    assert "Check that it still fits." in told
    assert told.endswith("You may carry it out now, and only this plan.")


def test_a_void_approval_is_told_as_one() -> None:
    approved = said(asked(), AnswerDetails())
    assert isinstance(approved, Request)
    told = decision_text(answer_record(approved, now()), "the reason.")
    assert "the approval is void: the reason." in told
    assert "You may carry it out" not in told
    assert told.endswith("or report why you cannot.")


def test_the_revision_before_is_of_the_same_life_and_work() -> None:
    first = asked("1", id="req_a", revision=1, created_at=1.0)
    foreign = asked("x", id="req_b", asked_by="bob", created_at=2.0)
    old_life = asked("x", id="req_c", incarnation=7, created_at=2.0)
    other = asked("x", id="req_d", payload=payload_of("x", (), PlanBinding("task_2", "env_1")), created_at=2.0)
    later = asked("3", id="req_f", revision=3, created_at=9.0)
    newest = asked("2", id="req_e", revision=2, created_at=5.0)
    assert previous_revision(newest, [later, other, old_life, foreign, newest, first]) == first
    assert previous_revision(first, [newest, later]) is None


def test_changes_are_the_lines_of_a_diff() -> None:
    assert unified_diff("a\nb", "a\nc", "1", "2") == ["--- 1", "+++ 2", "@@ -1,2 +1,2 @@", " a", "-b", "+c"]
    assert unified_diff("a", "a", "1", "2") == []
