"""Answers to requests: one compare-and-swap, whoever answers; and the approvers that this process has.

The row is the truth; the envelope that goes with it only rings the asker's bell.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial

import anyio

from callboard.core.asking import requests as rules
from callboard.core.asking.plans import Word, with_word
from callboard.core.asking.session_rules import made, settles
from callboard.core.bus.authority import answered as answered_as
from callboard.core.bus.mail import sending
from callboard.core.mcp.forms import asked_of, read
from callboard.core.names import agent_key, request_envelope_id, request_key, rule_key, short_id
from callboard.engine.host import Host
from callboard.ports.store import Fence, Put, Store, Write
from callboard.ports.world import Answer, Approver, Policy
from callboard.words.errors import Conflict
from callboard.words.values import AgentRow, Envelope, EnvelopeType, Json, Request, SessionRule

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
    not his to answer), for the one who answered to read; the request's history has either."""
    while True:
        row = await store.get(request_key(session, request_id))
        if row is None or row.value is None:
            return f"there is no request {request_id} in session {session}"
        request = Request.model_validate_json(row.value)
        answered = rules.answer(request, request.kind, answer.by, answer.status, answer.reason, now)
        if isinstance(answered, Request):
            answered = with_word(request, answered, answer.word, answer.by, now)
        if isinstance(answered, Request) and _edits(answered, answer):
            answered = answered.model_copy(update={"input": answer.input})
        if isinstance(answered, Request) and (unread := _unread(request, answer)):
            return unread
        ruled = _rules_of(request, answered, answer, now)
        answered = ruled if isinstance(ruled, rules.Refusal) else answered
        kept = answered if isinstance(answered, Request) else rules.refused(request, answer.by, answered, now)
        writes: list[Write] = [Put(row.key, kept.encode(), expected=row.revision)] if kept else []
        asker = await store.get(agent_key(session, request.asked_by))
        if isinstance(answered, Request) and asker is not None and asker.value is not None:
            row_of = AgentRow.model_validate_json(asker.value)
            heard = asked_of(request) is None  # a server's question is answered to the server, by the call that waits
            if heard and row_of.incarnation == request.incarnation:  # a new life of the name never hears of it
                writes.append(sending(session, _bell(answered, row_of, answer, now)))
        if not isinstance(ruled, rules.Refusal):
            writes += [Put(rule_key(session, one.id), one.encode()) for one in ruled]
        try:
            await store.commit(*writes, fence=fence)
            return None if isinstance(answered, Request) else answered.text
        except Conflict:
            continue  # somebody else changed it in between: look again, the first answer wins


def _unread(request: Request, answer: Answer) -> str:
    """Why the words are no answer to what a server asks; empty: they are. They may be said again."""
    asked = asked_of(request)
    found = read(asked, answer.reason) if asked is not None else ""
    return f"{request.id}: {found}" if isinstance(found, str) and found else ""


def _edits(answered: Request, answer: Answer) -> bool:
    """Whether a person allowed the call with another input."""
    allowed = (answered.kind, answered.status, answer.by) == ("permission", "approved", "person")
    return allowed and answer.input is not None


def _rules_of(
    request: Request, answered: Request | rules.Refusal, answer: Answer, now: float
) -> tuple[SessionRule, ...] | rules.Refusal:
    """The session rules that an answer makes, or why it makes none; an answer that does not count makes none."""
    if answer.always is None or not isinstance(answered, Request):
        return ()
    if answered.status != "approved":
        return rules.Refusal("status", f"{request.id}: only what is allowed can be allowed for always")
    return made(request, answer.always, answer.by, now)


def _bell(request: Request, asker: AgentRow, answer: Answer, now: float) -> Envelope:
    return Envelope(
        id=short_id("env", request.id, request.status, request.revision),
        sender=answer.by,
        recipient=asker.name,
        incarnation=asker.incarnation,
        type=_BELLS[request.kind],
        content=answer.reason,
        request_id=request.id,
        reply_to=None if answer.by in ("person", "policy", "runtime") else request_envelope_id(request.id, answer.by),
        cause=answered_as(request, answer.by),
        metadata={"status": request.status} | _word(answer),
        sent_at=now,
    )


def _word(answer: Answer) -> Json:
    """For a recording of the session: what its replay answers again."""
    word = answer.word
    edited = {} if answer.input is None else {"input": answer.input}
    return edited | ({"option": word.option} if word.option else {}) | ({"plan": word.plan} if word.plan else {})


async def overdue_request(host: Host, request_id: str, seconds: float, *, attended: bool) -> None:
    """Its deadline has come and nobody answered: it is put to the next who may, for `seconds` more, or it is over, and
    the asker is told where nothing of his waits for it. Lost a race: the answer stands.

    `attended`: a person is there to be asked.
    """
    found = host.board.request(request_id)
    if found is None:
        return
    now = host.clock.now()
    changed = rules.escalate(found[0], now, seconds, _reachable(host, found[0], attended))
    if not isinstance(changed, Request):
        return
    writes: list[Write] = [Put(request_key(host.session, request_id), changed.encode(), expected=found[1])]
    asker = host.board.agent(changed.asked_by)
    ours = changed.status == "expired" and changed.kind in _NOBODY_WAITS and asked_of(changed) is None
    if ours and asker and asker[0].incarnation == changed.incarnation and asker[0].life not in ("stopped", "crashed"):
        said = Answer("rejected", "runtime", _NOBODY_WAITS[changed.kind])
        writes.append(sending(host.session, _bell(changed, asker[0], said, now)))
    try:
        await host.commit(*writes)
    except Conflict as lost:
        await host.refresh(lost.what)


def _reachable(host: Host, request: Request, attended: bool) -> set[str]:
    """Who of the chain is there to be asked."""
    lead = host.board.agent("lead")
    there = {"person"} if attended else set[str]()
    if lead is not None and lead[0].life not in ("stopped", "crashed"):
        there.add("lead")
    if any(isinstance(one, Policy) and one.decides(request) for one in host.ports.approvers):
        there.add("policy")
    return there


@dataclass(slots=True)
class _Open:
    """A pending request that was put to this process's approvers."""

    digest: str
    escalations: int
    scopes: list[anyio.CancelScope] = field(default_factory=list[anyio.CancelScope])
    passed: list[Approver] = field(default_factory=list[Approver])
    """Who has left it to others."""


class Desk:
    """Puts each pending request of the session to the approvers of this process, all at once; the first answer wins.

    A changed content is asked anew; what is put to someone else at a deadline is asked again of those who had left it
    to others. A question or a shutdown that nobody answers ends here, at its deadline; a plan or a permission with its
    asker.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._group: anyio.abc.TaskGroup | None = None
        self._open: dict[str, _Open] = {}

    async def run(self) -> None:
        """Serve until cancelled."""
        async with anyio.create_task_group() as group:
            self._group = group
            try:
                for request in sorted(self._host.board.requests(), key=lambda one: (one.created_at, one.id)):
                    self.heed(request.id)
                await anyio.sleep_forever()
            finally:
                self._group = None  # a commit that ends after us is for the next process's desk

    def heed(self, request_id: str) -> None:
        """A request is new, or has changed."""
        found = self._host.board.request(request_id)
        if self._group is None or found is None:
            return
        request, there = found[0], self._open.get(request_id)
        if there is not None and (request.status != "pending" or request.digest != there.digest):
            del self._open[request_id]
            for scope in there.scopes:
                scope.cancel()
            there = None
        escalations = _escalations(request)
        if request.status == "pending" and there is None:
            there = self._open[request_id] = _Open(request.digest, escalations, passed=[*self._host.ports.approvers])
            self._put_to_all(request, there)
            self._settle(request, there)
            if request.kind in _NOBODY_WAITS and request.expires_at is not None:
                self._start(there, partial(self._until_over, request_id))
        elif there is not None and escalations > there.escalations:
            there.escalations = escalations
            self._put_to_all(request, there)

    def heed_rules(self) -> None:
        """A session rule is new, or is none any more: what waits may be allowed by it."""
        for request_id, there in list(self._open.items()):
            found = self._host.board.request(request_id)
            if found is not None:
                self._settle(found[0], there)

    def _settle(self, request: Request, there: _Open) -> None:
        """Allow it where session rules that were made meanwhile allow it: nobody is asked twice for one class."""
        why = settles(request, self._host.board.rules(), self._host.clock.now())
        if why:
            said = Answer("approved", "policy", why, Word(seen=request.digest))
            self._start(there, partial(self._given, request, said))

    def _put_to_all(self, request: Request, there: _Open) -> None:
        """To all who are not at it already."""
        left, there.passed = there.passed, []
        for approver in left:
            self._start(there, partial(self._ask, approver, request, there))

    def _start(self, there: _Open, work: Callable[[], Awaitable[None]]) -> None:
        assert self._group is not None, "requests are heeded while the desk serves"
        scope = anyio.CancelScope()
        there.scopes.append(scope)
        self._group.start_soon(_within, scope, work)

    async def _until_over(self, request_id: str) -> None:
        """From deadline to deadline, until it is decided."""
        while (found := self._host.board.request(request_id)) is not None and found[0].status == "pending":
            if found[0].expires_at is None:
                return
            await self._host.clock.sleep_until(found[0].expires_at)
            seconds = found[0].expires_at - found[0].created_at
            await overdue_request(self._host, request_id, seconds, attended=True)

    async def _ask(self, approver: Approver, request: Request, there: _Open) -> None:
        answer = await approver.answer(request)
        while answer is None:
            found = self._host.board.request(request.id)
            if found is None or _escalations(found[0]) == _escalations(request):
                there.passed.append(approver)
                return
            request = found[0]  # put to someone else while it was asked
            answer = await approver.answer(request)
        await self._given(request, replace(answer, word=replace(answer.word, seen=request.digest)))

    async def _given(self, request: Request, answer: Answer) -> None:
        store, now = self._host.ports.store, self._host.clock.now()
        with anyio.CancelScope(shield=True):  # it was given: whoever gave it hears what came of it
            lost = await answer_request(store, self._host.session, request.id, answer, now, self._host.fence)
            if lost is not None:
                answer.refused(lost)
            await self._host.refresh(request_key(self._host.session, request.id))


def _escalations(request: Request) -> int:
    return sum(said.what == "escalated" for said in request.history)


async def _within(scope: anyio.CancelScope, work: Callable[[], Awaitable[None]]) -> None:
    with scope:  # cancelled already, where it was decided before this began
        await work()
