"""Broker that puts requests to the approvers of a process, which hosts the session or follows another host.

All approvers are asked at once, and the first answer wins by the compare-and-swap of `answer_request`. A request with
changed content is asked again. A request that escalates at a deadline is put again to approvers that had left it to
others, so that a person at an attached terminal is asked about a plan that the lead could answer first.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Protocol

import anyio

from callboard.core.approvals.plans import AnswerDetails
from callboard.core.approvals.session_rules import settling_rules
from callboard.core.keys import request_key
from callboard.engine.approvals.requests import NOBODY_WAITS, answer_request, overdue_request
from callboard.engine.runtime import SessionRuntime
from callboard.ports.environment import Answer, Approver
from callboard.ports.foreign_code import AwaitedTaskCancelled, result_of_foreign
from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Request


class Requests(Protocol):
    """Requests of a session, as known to this process."""

    def request(self, request_id: str) -> tuple[Request, int] | None: ...
    def requests(self) -> Sequence[Request]: ...


Give = Callable[[Request, Answer], Awaitable[str | None]]
"""Function that writes an answer and returns None if it is accepted, otherwise the reason why not."""


@dataclass(slots=True)
class _Open:
    """A pending request that was put to this process's approvers."""

    digest: str
    escalations: int
    scopes: list[anyio.CancelScope] = field(default_factory=list[anyio.CancelScope])
    passed: list[Approver] = field(default_factory=list[Approver])
    """Approvers that have left the request to others."""


class ApproverBroker:
    """Broker that puts each pending request of the session to the approvers of this process."""

    def __init__(self, requests: Requests, approvers: Sequence[Approver], give: Give) -> None:
        self._requests = requests
        self._approvers = approvers
        self._give = give
        self._group: anyio.abc.TaskGroup | None = None
        self._open: dict[str, _Open] = {}

    async def run(self) -> None:
        """Serve until cancelled."""
        async with anyio.create_task_group() as group:
            self._group = group
            try:
                for request in sorted(self._requests.requests(), key=lambda request: (request.created_at, request.id)):
                    self.handle_request(request.id)
                await anyio.sleep_forever()
            finally:
                self._group = None  # a commit that ends later is for the broker of the next process

    def handle_request(self, request_id: str) -> None:
        """Handle a new or changed request."""
        match = self._requests.request(request_id)
        if self._group is None or match is None:
            return
        request = match[0]
        open_request = self._open.get(request_id)
        # An answer to the old content must not count for the new content
        # (test_a_changed_content_is_asked_anew_and_an_answered_one_no_more).
        if open_request is not None and (request.status != "pending" or request.digest != open_request.digest):
            del self._open[request_id]
            for scope in open_request.scopes:
                scope.cancel()
            open_request = None
        escalations = _escalations(request)
        if request.status == "pending" and open_request is None:
            open_request = self._open[request_id] = _Open(request.digest, escalations, passed=[*self._approvers])
            self._put_to_all(request, open_request)
            self._opened(request, open_request)
        elif open_request is not None and escalations > open_request.escalations:
            open_request.escalations = escalations
            self._put_to_all(request, open_request)

    def _opened(self, request: Request, open_request: _Open) -> None:
        """Handle a request that was put to the approvers for the first time."""

    def _put_to_all(self, request: Request, open_request: _Open) -> None:
        """Put a request to all approvers that are not working on it already."""
        approvers, open_request.passed = open_request.passed, []
        for approver in approvers:
            self._start(open_request, partial(self._ask, approver, request, open_request))

    def _start(self, open_request: _Open, work: Callable[[], Awaitable[None]]) -> None:
        assert self._group is not None, "requests are handled while the broker serves"
        scope = anyio.CancelScope()
        open_request.scopes.append(scope)
        self._group.start_soon(_within, scope, work)

    async def _ask(self, approver: Approver, request: Request, open_request: _Open) -> None:
        answer = await _answer_of(approver, request)
        while answer is None:
            match = self._requests.request(request.id)
            if match is None or _escalations(match[0]) == _escalations(request):
                open_request.passed.append(approver)
                return
            request = match[0]  # the request was put to another approver meanwhile
            answer = await _answer_of(approver, request)
        await self._deliver(request, replace(answer, word=replace(answer.word, seen=request.digest)))

    async def _deliver(self, request: Request, answer: Answer) -> None:
        with anyio.CancelScope(shield=True):  # the answer was given: its approver must get the result
            lost = await self._give(request, answer)
            if lost is not None:
                answer.refused(lost)


async def _answer_of(approver: Approver, request: Request) -> Answer | None:
    try:
        return await result_of_foreign(approver.answer(request))
    except AwaitedTaskCancelled as failed:
        raise AwaitedTaskCancelled(f"the approver failed at {request.id}: {failed}") from failed


class HostBroker(ApproverBroker):
    """Broker of the process that hosts the session.

    It also applies new session rules to waiting requests, and closes questions and shutdowns at their deadline. A plan
    or a permission request ends with its agent.
    """

    def __init__(self, runtime: SessionRuntime) -> None:
        super().__init__(runtime.rows, runtime.services.approvers, self._write)
        self._runtime = runtime

    async def _write(self, request: Request, answer: Answer) -> str | None:
        runtime = self._runtime
        now = runtime.clock.now()
        lost = await answer_request(
            runtime.services.store, runtime.session, request.id, answer, now=now, commit=runtime.commit
        )
        await runtime.refresh(request_key(runtime.session, request.id))
        return lost

    def handle_rules(self) -> None:
        """Handle a new or revoked session rule, which may allow waiting requests."""
        for request_id, open_request in list(self._open.items()):
            match = self._requests.request(request_id)
            if match is not None:
                self._allow_by_rules(match[0], open_request)

    def _opened(self, request: Request, open_request: _Open) -> None:
        self._allow_by_rules(request, open_request)
        if request.kind in NOBODY_WAITS and request.expires_at is not None:
            self._start(open_request, partial(self._until_over, request.id))

    def _allow_by_rules(self, request: Request, open_request: _Open) -> None:
        """Allow a request that newer session rules allow.

        The user is then not asked twice about one class of calls.
        """
        reason = settling_rules(request, self._runtime.rows.rules(), self._runtime.clock.now())
        if reason:
            answer = Answer("approved", "policy", reason, AnswerDetails(seen=request.digest))
            self._start(open_request, partial(self._deliver, request, answer))

    async def _until_over(self, request_id: str) -> None:
        """Wait from deadline to deadline until the request is decided."""
        while (match := self._runtime.rows.request(request_id)) is not None and match[0].status == "pending":
            deadline = match[0].expires_at
            if deadline is None:
                return
            seconds = deadline - match[0].created_at
            await self._runtime.clock.sleep_until(deadline)
            await overdue_request(self._runtime, request_id, seconds, attended=True, passed=deadline)


def _escalations(request: Request) -> int:
    return sum(entry.what == "escalated" for entry in request.history)


async def _within(scope: anyio.CancelScope, work: Callable[[], Awaitable[None]]) -> None:
    with scope:  # already cancelled if the request was decided before this began
        await work()
