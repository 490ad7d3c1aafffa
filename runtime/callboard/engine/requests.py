"""Answers to requests: one compare-and-swap, whoever answers; and the approvers that this process has.

The row is the truth; the envelope that goes with it only rings the asker's bell.
"""

from __future__ import annotations

import anyio

from callboard.core import requests as rules
from callboard.core.mail import sending
from callboard.core.names import agent_key, request_envelope_id, request_key, short_id
from callboard.engine.host import Host
from callboard.ports.store import Fence, Put, Store, Write
from callboard.ports.world import Answer, Approver
from callboard.words.errors import Conflict
from callboard.words.values import AgentRow, Cause, Envelope, EnvelopeType, Request

_BELLS: dict[str, EnvelopeType] = {
    "plan": "plan_approval_response",
    "permission": "permission_response",
    "shutdown": "shutdown_response",
    "question": "answer",
}
_NOBODY_WAITS: dict[str, str] = {
    "question": "Nobody answered in time. Decide yourself, and say in your result what you assumed.",
    "shutdown": "It has not stopped in time.",
}
"""Requests for which no call and no gate waits: at their deadline the desk takes them back, and says this."""


async def answer_request(
    store: Store, session: str, request_id: str, answer: Answer, now: float, fence: Fence | None = None
) -> str | None:
    """Answer a request, from any process. None: the answer counts. Else why it does not (unknown, decided already,
    not his to answer), for the one who answered to read."""
    while True:
        row = await store.get(request_key(session, request_id))
        if row is None or row.value is None:
            return f"there is no request {request_id} in session {session}"
        request = Request.model_validate_json(row.value)
        answered = rules.answer(request, request.kind, answer.by, answer.status, answer.reason, now)
        if not isinstance(answered, Request):
            return answered.text
        writes: list[Write] = [Put(row.key, answered.encode(), expected=row.revision)]
        asker = await store.get(agent_key(session, request.asked_by))
        if asker is not None and asker.value is not None:
            row_of = AgentRow.model_validate_json(asker.value)
            if row_of.incarnation == request.incarnation:  # a new life of the name never hears of it
                writes.append(sending(session, _bell(answered, row_of, answer, now)))
        try:
            await store.commit(*writes, fence=fence)
            return None
        except Conflict:
            continue  # somebody else changed it in between: look again, the first answer wins


def _bell(request: Request, asker: AgentRow, answer: Answer, now: float) -> Envelope:
    cause: Cause = "lead" if answer.by == "lead" else "person"
    return Envelope(
        id=short_id("env", request.id, request.status, request.revision),
        sender=answer.by,
        recipient=asker.name,
        incarnation=asker.incarnation,
        type=_BELLS[request.kind],
        content=answer.reason,
        request_id=request.id,
        reply_to=None if answer.by in ("person", "policy", "runtime") else request_envelope_id(request.id, answer.by),
        cause=cause,
        metadata={"status": request.status},
        sent_at=now,
    )


async def expire_request(host: Host, request_id: str) -> None:
    """Its deadline has come and nobody answered: the asker is told. Lost a race: the answer stands."""
    found = host.board.request(request_id)
    expired = rules.expire(found[0], host.clock.now()) if found else None
    if found is None or not isinstance(expired, Request):
        return
    writes: list[Write] = [Put(request_key(host.session, request_id), expired.encode(), expected=found[1])]
    asker = host.board.agent(expired.asked_by)
    if (
        asker is not None
        and asker[0].incarnation == expired.incarnation
        and asker[0].life not in ("stopped", "crashed")
    ):
        said = Answer("rejected", "runtime", _NOBODY_WAITS[expired.kind])
        writes.append(sending(host.session, _bell(expired, asker[0], said, host.clock.now())))
    try:
        await host.commit(*writes)
    except Conflict as lost:
        await host.refresh(lost.what)


class Desk:
    """Puts each pending request of the session to the approvers of this process, all at once; the first answer wins.

    A question or a shutdown that nobody answers ends here, at its deadline; a plan or a permission with its asker.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._group: anyio.abc.TaskGroup | None = None
        self._open: dict[str, anyio.CancelScope] = {}

    async def run(self) -> None:
        """Serve until cancelled."""
        async with anyio.create_task_group() as group:
            self._group = group
            try:
                for request in self._host.board.requests():
                    self.heed(request.id)
                await anyio.sleep_forever()
            finally:
                self._group = None  # a commit that ends after us is for the next process's desk

    def heed(self, request_id: str) -> None:
        """A request is new, or has changed."""
        found = self._host.board.request(request_id)
        if self._group is None or found is None:
            return
        if found[0].status != "pending":
            scope = self._open.pop(request_id, None)
            if scope is not None:
                scope.cancel()
        elif request_id not in self._open:
            scope = self._open[request_id] = anyio.CancelScope()
            self._group.start_soon(self._ask_all, found[0], scope)

    async def _ask_all(self, request: Request, scope: anyio.CancelScope) -> None:
        with scope:  # cancelled already, where it was decided before this began
            async with anyio.create_task_group() as group:
                for approver in self._host.ports.approvers:
                    group.start_soon(self._ask, approver, request)
                if request.kind in _NOBODY_WAITS and request.expires_at is not None:
                    await self._host.clock.sleep_until(request.expires_at)
                    await expire_request(self._host, request.id)

    async def _ask(self, approver: Approver, request: Request) -> None:
        answer = await approver.answer(request)
        if answer is not None:
            store, now = self._host.ports.store, self._host.clock.now()
            await answer_request(store, self._host.session, request.id, answer, now, self._host.fence)
            await self._host.refresh(request_key(self._host.session, request.id))
