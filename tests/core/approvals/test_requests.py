"""What counts as an answer, as tables, and over random sequences of answers, deadlines and withdrawals."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.core.approvals.requests import (
    MOST_REFUSED,
    SCHEDULED_WAIT,
    AnswerRefusal,
    answer,
    approval_fault,
    covers,
    digest_of,
    escalate,
    expire,
    is_overdue,
    may_answer,
    open_request,
    with_refusal,
    withdraw,
)
from callboard.types.records import Request, RequestKind, RequestStatus


def _request(kind: RequestKind = "plan", **fields: object) -> Request:
    payload = {"plan": "do it", "options": [], "task_id": None}
    about = {"id": "req_1", "kind": kind, "asked_by": "alice", "payload": payload, "digest": digest_of(kind, payload)}
    return Request.model_validate({**about, "may_answer": ("person", "lead", "policy"), "expires_at": 100.0, **fields})


def _why(outcome: Request | AnswerRefusal) -> str:
    assert isinstance(outcome, AnswerRefusal), outcome
    assert "req_1" in outcome.text or outcome.why == "status"
    return outcome.why


def _taken(outcome: Request | AnswerRefusal) -> Request:
    assert isinstance(outcome, Request), outcome
    return outcome


def test_the_first_answer_counts_and_says_by_whom() -> None:
    after = _taken(answer(_request(), "plan", by="lead", status="rejected", reason="smaller steps", now=50.0))
    assert (after.status, after.answered_by, after.reason) == ("rejected", "lead", "smaller steps")


def test_later_answers_are_told_who_was_first() -> None:
    decided = _taken(answer(_request(), "plan", by="person", status="approved", reason="", now=50.0))
    late = answer(decided, "plan", by="lead", status="rejected", reason="no", now=51.0)
    assert late == AnswerRefusal("decided", "req_1 is approved by person already")


@pytest.mark.parametrize("status", ["approved", "rejected", "answered", "expired", "withdrawn"])
def test_what_is_decided_stays_decided(status: RequestStatus) -> None:
    request = _request(status=status)
    assert _why(answer(request, "plan", by="person", status="approved", reason="", now=50.0)) == "decided"
    assert _why(expire(request, 200.0)) == "decided"
    assert _why(escalate(request, 200.0, 60.0)) == "decided"
    assert _why(withdraw(request, "alice", "", 50.0)) == "decided"


KINDS: tuple[RequestKind, ...] = ("plan", "permission", "shutdown", "question")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("asked", KINDS)
def test_an_answer_of_another_kind_does_not_count(kind: RequestKind, asked: RequestKind) -> None:
    outcome = answer(
        _request(asked), kind, by="person", status="answered" if kind == "question" else "approved", reason="", now=50.0
    )
    if kind == asked:
        assert isinstance(outcome, Request)
    else:
        assert _why(outcome) == "kind"


@pytest.mark.parametrize(
    ("kind", "status", "counts"),
    [
        *((kind, status, True) for kind in ("plan", "permission", "shutdown") for status in ("approved", "rejected")),
        ("question", "answered", True),
        ("question", "approved", False),
        ("plan", "answered", False),
        ("plan", "pending", False),
        ("permission", "expired", False),
        ("shutdown", "withdrawn", False),
    ],
)
def test_each_kind_has_its_answers(kind: RequestKind, status: RequestStatus, counts: bool) -> None:
    outcome = answer(_request(kind), kind, by="person", status=status, reason="", now=50.0)
    assert isinstance(outcome, Request) is counts
    if not counts:
        assert _why(outcome) == "status"


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_approves_himself_even_where_he_is_listed(kind: RequestKind) -> None:
    request = _request(kind, asked_by="lead", may_answer=("lead", "person"))
    assert (
        _why(
            answer(
                request, kind, by="lead", status="answered" if kind == "question" else "approved", reason="", now=50.0
            )
        )
        == "self"
    )


@pytest.mark.parametrize("by", ["lead", "bob"])
def test_no_agent_answers_a_permission_even_where_it_is_listed(by: str) -> None:
    request = _request("permission", may_answer=("person", "lead", "bob"))
    outcome = answer(request, "permission", by=by, status="approved", reason="", now=50.0)
    assert outcome == AnswerRefusal("not_yours", "req_1 is not yours to answer: it waits for person")


def test_who_is_not_asked_may_not_answer() -> None:
    assert (
        _why(answer(_request(may_answer=("person",)), "plan", by="lead", status="approved", reason="", now=50.0))
        == "not_yours"
    )
    assert (
        _why(answer(_request(may_answer=()), "plan", by="person", status="approved", reason="", now=50.0))
        == "not_yours"
    )
    assert may_answer(_request(), "policy") is None


@pytest.mark.parametrize(("now", "counts"), [(99.9, True), (100.0, False), (200.0, False)])
def test_an_answer_after_the_deadline_does_not_count(now: float, counts: bool) -> None:
    outcome = answer(_request(), "plan", by="person", status="approved", reason="", now=now)
    assert isinstance(outcome, Request) is counts
    if not counts:
        assert _why(outcome) == "expired"


def test_a_request_without_a_deadline_waits_for_ever() -> None:
    request = _request(expires_at=None)
    assert not is_overdue(request, 1e12)
    assert isinstance(answer(request, "plan", by="person", status="approved", reason="", now=1e12), Request)
    assert _why(expire(request, 1e12)) == "early"


def test_a_changed_content_makes_every_answer_void() -> None:
    request = _request().model_copy(update={"payload": {"plan": "rm -rf", "options": [], "task_id": None}})
    assert _why(answer(request, "plan", by="person", status="approved", reason="", now=50.0)) == "changed"


def test_an_approval_covers_one_content_of_one_life_and_nothing_else() -> None:
    request = _taken(answer(_request(), "plan", by="person", status="approved", reason="", now=50.0))
    digest = request.digest
    assert covers(request, "plan", asked_by="alice", incarnation=1, digest=digest)
    assert not covers(request, "plan", asked_by="alice", incarnation=2, digest=digest)
    assert not covers(request, "plan", asked_by="bob", incarnation=1, digest=digest)
    assert not covers(request, "permission", asked_by="alice", incarnation=1, digest=digest)
    assert not covers(request, "plan", asked_by="alice", incarnation=1, digest=digest_of("plan", {"plan": "another"}))
    assert not covers(_request(), "plan", asked_by="alice", incarnation=1, digest=digest)
    assert not covers(
        request.model_copy(update={"payload": {"plan": "x"}}), "plan", asked_by="alice", incarnation=1, digest=digest
    )


def test_a_digest_follows_the_content_and_not_the_order_of_its_fields() -> None:
    assert digest_of("plan", {"a": 1, "b": [1, 2]}) == digest_of("plan", {"b": [1, 2], "a": 1})
    assert digest_of("plan", {"a": 1}) != digest_of("permission", {"a": 1})
    assert digest_of("plan", {"a": [1, 2]}) != digest_of("plan", {"a": [2, 1]})
    assert len(digest_of("plan", {"a": "\ud800 €"})) == 64


def test_at_its_deadline_a_request_expires_or_goes_to_the_next_one_once() -> None:
    assert _why(expire(_request(), 99.0)) == "early"
    assert _taken(expire(_request(), 100.0)).status == "expired"
    assert _taken(escalate(_request(), 100.0, 60.0)).status == "expired"
    assert _why(escalate(_request(escalation="person"), 99.0, 60.0)) == "early"

    further = _taken(escalate(_request(escalation="person", may_answer=("lead",)), 100.0, 90.0))
    assert (further.status, further.may_answer, further.expires_at) == ("pending", ("lead", "person"), 190.0)
    policy = _taken(escalate(further, 190.0, 90.0))
    assert (policy.may_answer, policy.expires_at) == (("lead", "person", "policy"), 250.0), "a policy has a minute"
    assert _taken(escalate(policy, 250.0, 90.0)).status == "expired"
    again = _taken(escalate(_request(escalation="lead"), 100.0, 60.0))
    assert (again.may_answer, again.escalation) == (("person", "lead", "policy"), "person")


@pytest.mark.parametrize(
    ("fields", "reachable", "then"),
    [
        ({"escalation": "lead"}, {"person", "policy"}, ["person", "policy"]),
        ({"escalation": "person"}, {"lead", "policy"}, ["policy"]),
        ({"escalation": "person"}, {"lead"}, []),
        ({"escalation": "policy"}, {"lead", "person"}, []),
        ({"kind": "permission", "escalation": "lead"}, {"lead", "person"}, ["person"]),
        ({"asked_by": "lead", "escalation": "lead"}, {"lead", "policy"}, ["policy"]),
        ({"escalation": "lead", "person_only": True}, {"lead", "person", "policy"}, ["person"]),
        ({"escalation": "policy", "person_only": True}, {"lead", "person", "policy"}, []),
    ],
)
def test_at_each_deadline_the_next_who_may_and_is_there_is_asked_and_then_it_is_refused(
    fields: dict[str, object], reachable: set[str], then: list[str]
) -> None:
    request, now = _request(may_answer=()).model_copy(update=fields), 100.0
    put = list[str]()
    while (request := _taken(escalate(request, now, 60.0, reachable))).status == "pending":
        put.append(request.may_answer[-1])
        assert request.expires_at is not None
        now = request.expires_at
    assert (put, request.status) == (then, "expired")
    assert [said.reason for said in request.history] == [
        *(f"put to the {to}" for to in then),
        "nobody answered in time",
    ]


@pytest.mark.parametrize("by", ["lead", "policy", "alice", "bob"])
@pytest.mark.parametrize("kind", ["plan", "permission", "question", "shutdown"])
def test_what_only_a_person_may_answer_no_one_else_does_whoever_is_listed(by: str, kind: RequestKind) -> None:
    request = _request(kind, person_only=True, may_answer=("person", "lead", "policy", "bob"))
    status: RequestStatus = "answered" if kind == "question" else "approved"
    assert _why(answer(request, kind, by=by, status=status, reason="", now=50.0)) in ("not_yours", "self")
    assert isinstance(answer(request, kind, by="person", status=status, reason="", now=50.0), Request)
    forged = request.model_copy(update={"status": "approved", "answered_by": by})
    assert kind == "question" or approval_fault(forged)


def test_every_word_stands_in_the_history_also_those_that_did_not_count() -> None:
    request = open_request(_request(created_at=10.0, may_answer=("lead",), escalation="person"))
    assert request.digest == digest_of("plan", request.payload)
    foreign = answer(request, "plan", by="bob", status="approved", reason="", now=20.0)
    assert isinstance(foreign, AnswerRefusal)
    request = _taken(with_refusal(request, "bob", foreign, 20.0) or foreign)
    request = _taken(escalate(request, 100.0, 60.0, {"person"}))
    request = _taken(answer(request, "plan", by="person", status="rejected", reason="smaller", now=120.0))
    late = answer(request, "plan", by="lead", status="approved", reason="", now=130.0)
    assert isinstance(late, AnswerRefusal)
    request = _taken(with_refusal(request, "lead", late, 130.0) or late)
    assert [(said.at, said.by, said.what) for said in request.history] == [
        (10.0, "alice", "asked"),
        (20.0, "bob", "refused"),
        (100.0, "runtime", "escalated"),
        (120.0, "person", "rejected"),
        (130.0, "lead", "refused"),
    ]
    assert request.history[3].reason == "smaller"
    assert "rejected by person already" in request.history[4].reason
    taken_back = _taken(withdraw(open_request(_request()), "runtime", "it ended", 30.0))
    assert [said.what for said in taken_back.history] == ["asked", "withdrawn"]
    assert [said.what for said in _taken(expire(open_request(_request()), 100.0)).history] == ["asked", "expired"]


def test_who_goes_on_answering_what_is_not_his_fills_no_history() -> None:
    request = _request()
    for number in range(100):
        why = answer(request, "plan", by="bob", status="approved", reason="", now=float(number % 99))
        assert isinstance(why, AnswerRefusal)
        request = with_refusal(request, "bob", why, float(number)) or request
    assert len(request.history) == MOST_REFUSED


@pytest.mark.parametrize("by", ["alice", "bob", "runtime", "", None])
def test_an_approval_in_a_row_that_nobody_could_give_is_none(by: str | None) -> None:
    forged = _request().model_copy(update={"status": "approved", "answered_by": by})
    assert "may not approve req_1" in approval_fault(forged)
    assert not covers(forged, "plan", asked_by="alice", incarnation=1, digest=forged.digest)
    given = _taken(answer(_request(), "plan", by="person", status="approved", reason="", now=50.0))
    assert approval_fault(given) == ""
    assert "changed after" in approval_fault(given.model_copy(update={"payload": {"plan": "another"}}))
    assert approval_fault(_request()) == "", "what is not approved is no approval at all"


@pytest.mark.parametrize(("by", "may"), [("alice", True), ("person", True), ("runtime", True), ("lead", False)])
def test_only_the_asker_the_person_or_the_runtime_takes_a_request_back(by: str, may: bool) -> None:
    outcome = withdraw(_request(), by, "not needed", 50.0)
    if may:
        assert (_taken(outcome).status, _taken(outcome).reason) == ("withdrawn", "not needed")
    else:
        assert _why(outcome) == "not_yours"


@settings(max_examples=200, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    listed=st.sets(st.sampled_from(["person", "lead", "policy", "alice", "bob"])),
    escalation=st.sampled_from(["refuse", "person", "lead"]),
    acts=st.lists(
        st.tuples(
            st.sampled_from(["answer", "expire", "escalate", "withdraw"]),
            st.sampled_from(["person", "lead", "policy", "alice", "bob"]),
            st.sampled_from(["approved", "rejected", "answered"]),
            st.floats(0, 400),
        ),
        max_size=8,
    ),
)
def test_over_any_sequence_only_who_may_decides_and_only_once(
    kind: RequestKind,
    listed: set[str],
    escalation: str,
    acts: list[tuple[str, str, RequestStatus, float]],
) -> None:
    request = _request(kind, may_answer=tuple(sorted(listed)), escalation=escalation)
    for act, by, status, now in acts:
        outcome = {
            "answer": lambda r, b=by, s=status, n=now: answer(r, kind, by=b, status=s, reason="", now=n),
            "expire": lambda r, n=now: expire(r, n),
            "escalate": lambda r, n=now: escalate(r, n, 60.0),
            "withdraw": lambda r, b=by, n=now: withdraw(r, b, "", n),
        }[act](request)
        if isinstance(outcome, AnswerRefusal):
            continue
        assert request.status == "pending"
        request = outcome
        assert (request.id, request.payload, request.digest) == ("req_1", _request(kind).payload, _request(kind).digest)
    if request.answered_by is not None:
        assert request.answered_by != request.asked_by
        assert request.answered_by in request.may_answer
        assert kind != "permission" or request.answered_by in {"person", "policy"}


def test_what_a_scheduled_turn_asks_never_waits_for_ever() -> None:
    """A person's turn may, where the settings say so; a deadline that is there stays as it is."""
    for_ever = _request("permission", created_at=50.0, expires_at=None)
    assert open_request(for_ever).expires_at is None
    assert open_request(for_ever.model_copy(update={"cause": "schedule"})).expires_at == 50.0 + SCHEDULED_WAIT
    assert open_request(_request("permission", cause="schedule")).expires_at == 100.0
