"""Who is asked about a request: also beside the host, and also when it is put to someone else at its deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import anyio
import pytest

from callboard.core.approvals.requests import escalate, open_request
from callboard.engine.approvals.broker import ApproverBroker
from callboard.ports.environment import Answer
from callboard.types.records import Request

pytestmark = pytest.mark.anyio


class Rows:
    """The requests of a session that this process follows."""

    def __init__(self, *rows: Request) -> None:
        self.rows = {row.id: row for row in rows}

    def request(self, request_id: str) -> tuple[Request, int] | None:
        return (self.rows[request_id], 1) if request_id in self.rows else None

    def requests(self) -> Sequence[Request]:
        return list(self.rows.values())


class Person:
    """Answers what is a person's to answer."""

    def __init__(self) -> None:
        self.seen = list[str]()

    async def answer(self, request: Request) -> Answer | None:
        self.seen.append(",".join(request.may_answer))
        return Answer("approved", "person") if "person" in request.may_answer else None


async def test_a_plan_that_goes_from_the_lead_to_the_person_is_asked_of_a_person_beside_the_host() -> None:
    plan = open_request(
        Request(
            id="req_1",
            kind="plan",
            asked_by="alice",
            may_answer=("lead", "policy"),
            payload={"plan": "x"},
            escalation="person",
            expires_at=10.0,
        )
    )
    rows, person, given = Rows(plan), Person(), list[tuple[str, str]]()

    async def give(request: Request, answer: Answer) -> str | None:
        given.append((answer.by, answer.word.seen))
        return None

    broker = ApproverBroker(rows, [person], give)
    async with anyio.create_task_group() as group:
        group.start_soon(broker.run)
        await anyio.wait_all_tasks_blocked()
        assert (len(person.seen), given) == (1, [])
        later = escalate(plan, 10.0, 60.0, {"person"})
        assert isinstance(later, Request)
        rows.rows["req_1"] = later
        broker.handle_request("req_1")
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    assert given == [("person", later.digest)]


async def test_a_changed_content_is_asked_anew_and_an_answered_one_no_more() -> None:
    question = open_request(
        Request(id="req_1", kind="plan", asked_by="alice", may_answer=("lead",), payload={"plan": "x"})
    )
    rows, person = Rows(question), Person()

    async def give(request: Request, answer: Answer) -> str | None:
        return None

    broker = ApproverBroker(rows, [person], give)
    async with anyio.create_task_group() as group:
        group.start_soon(broker.run)
        await anyio.wait_all_tasks_blocked()
        rows.rows["req_1"] = question.model_copy(update={"digest": "another"})
        broker.handle_request("req_1")
        await anyio.wait_all_tasks_blocked()
        rows.rows["req_1"] = question.model_copy(update={"digest": "third", "status": "approved"})
        broker.handle_request("req_1")
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    assert len(person.seen) == 2


async def test_an_approver_that_awaits_something_cancelled_fails() -> None:
    class Fails:
        async def answer(self, request: Request) -> Answer | None:
            raise asyncio.CancelledError

    async def give(request: Request, answer: Answer) -> str | None:
        return None

    question = open_request(Request(id="req_1", kind="question", asked_by="alice", may_answer=("person",)))
    with pytest.raises(ExceptionGroup) as failed:
        await ApproverBroker(Rows(question), [Fails()], give).run()
    assert "the approver failed at req_1" in str(failed.value.exceptions[0])
