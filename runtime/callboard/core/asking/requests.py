"""What waits for a word: the one state machine of plans, permissions, shutdowns and questions. Pure.

A request is pending, and then for ever approved, rejected, answered, expired or withdrawn. An answer counts when its
kind fits, its author may answer, the content is what was asked, and the request is pending and in time; the first one
that is written wins, by the revision it was read at. Nobody approves himself; no agent ever answers a permission.

What does not count is a `Refusal`, a value: whoever answers - a tool, the command line, a policy - says it his own way.
Every word stands in the row's history, those that did not count too. A row that says `approved` is no proof of it:
`unsound` looks at who is said to have approved what before anything is done by it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from callboard.words.values import Json, Request, RequestKind, RequestStatus, Said

Why = Literal["kind", "status", "decided", "expired", "changed", "self", "not_yours", "early", "void"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an answer or a change does not count. `text` says it to whoever tried."""

    why: Why
    text: str


_ANSWERS: dict[RequestKind, frozenset[RequestStatus]] = {
    "plan": frozenset({"approved", "rejected"}),
    "permission": frozenset({"approved", "rejected"}),
    "shutdown": frozenset({"approved", "rejected"}),
    "question": frozenset({"answered"}),
}
_NO_AGENT = frozenset({"person", "policy"})
CHAIN: tuple[Literal["lead", "person", "policy"], ...] = ("lead", "person", "policy")
"""To whom a request goes at a deadline, one after the other; behind the last it is refused."""
SCHEDULED_WAIT = 1_800.0
"""How long what a scheduled turn asks waits at most, where the settings say for ever."""
POLICY_SECONDS = 60.0
"""How long a policy may take for its word, once a request was put to it at a deadline."""
MOST_REFUSED = 20
"""Words that did not count and are kept with a request; who goes on after that is told, and not written down."""


def asked(request: Request) -> Request:
    """The request as it is put up: bound to its content, with the first word of its history, and with a deadline where
    a schedule began the turn: nobody may be there to end the waiting."""
    first = Said(at=request.created_at, by=request.asked_by, what="asked")
    until = request.expires_at
    if until is None and request.cause == "schedule":
        until = request.created_at + SCHEDULED_WAIT
    digest = digest_of(request.kind, request.payload)
    return request.model_copy(update={"digest": digest, "history": (first,), "expires_at": until})


def _said(request: Request, said: Said, update: dict[str, object]) -> Request:
    return request.model_copy(update={**update, "history": (*request.history, said)})


def digest_of(kind: RequestKind, payload: Json) -> str:
    """sha256 (hex) over kind and payload, the same for the same content whatever the order of its fields."""
    canonical = json.dumps([kind, payload], sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()


def overdue(request: Request, now: float) -> bool:
    """Whether its deadline has come while nobody answered."""
    return request.status == "pending" and request.expires_at is not None and now >= request.expires_at


def may_answer(request: Request, by: str) -> Refusal | None:
    """Why `by` (`person`, `policy`, or an agent's name) may not answer it; None when he may."""
    if by == request.asked_by:
        return Refusal("self", f"{request.id}: nobody answers his own request")
    may = answerers(request)
    if by in may:
        return None
    return Refusal("not_yours", f"{request.id} is not yours to answer: it waits for {' or '.join(may) or 'nobody'}")


def answerers(request: Request) -> tuple[str, ...]:
    """Who may answer it: of those it is put to, the person alone where only a person may, and no agent a permission."""
    listed = [name for name in request.may_answer if name != request.asked_by]
    if request.person_only:
        listed = [name for name in listed if name == "person"]
    if request.kind == "permission":
        listed = [name for name in listed if name in _NO_AGENT]
    return tuple(listed)


def answer(
    request: Request, kind: RequestKind, by: str, status: RequestStatus, reason: str, now: float
) -> Request | Refusal:
    """The request as `by` answers it, or why that does not count. `reason`: feedback, or a question's answer."""
    if kind != request.kind:
        return Refusal("kind", f"{request.id} is a {request.kind} request, not a {kind} request")
    if status not in _ANSWERS[kind]:
        return Refusal("status", f"a {kind} request is {' or '.join(sorted(_ANSWERS[kind]))}, not {status}")
    if refusal := may_answer(request, by):
        return refusal
    if refusal := _refuse_closed(request):
        return refusal
    if overdue(request, now):
        return Refusal("expired", f"{request.id}: its deadline has passed")
    if request.digest != digest_of(request.kind, request.payload):
        return Refusal("changed", f"{request.id}: its content is not what was asked for")
    said = Said.model_validate({"at": now, "by": by, "what": status, "reason": reason})
    return _said(request, said, {"status": status, "answered_by": by, "reason": reason})


def refused(request: Request, by: str, why: Refusal, now: float) -> Request | None:
    """The request with a word in its history that did not count; None when enough of them stand there."""
    if sum(said.what == "refused" for said in request.history) >= MOST_REFUSED:
        return None
    return _said(request, Said(at=now, by=by, what="refused", reason=why.text), {})


def unsound(request: Request) -> str:
    """Why an approval in a row is none, whatever the row says; empty when it is one, and for what is not approved."""
    if request.status != "approved":
        return ""
    by = request.answered_by or ""
    if may_answer(request, by):
        return f"{by or 'nobody'} may not approve {request.id}"
    if request.digest != digest_of(request.kind, request.payload):
        return f"what {request.id} asks for was changed after it was approved"
    return ""


def covers(request: Request, kind: RequestKind, asked_by: str, incarnation: int, digest: str) -> bool:
    """Whether `request` approves exactly this content for this life of this agent, and nothing else."""
    return (
        request.status == "approved"
        and not unsound(request)
        and request.kind == kind
        and (request.asked_by, request.incarnation) == (asked_by, incarnation)
        and request.digest == digest == digest_of(kind, request.payload)
    )


def expire(request: Request, now: float) -> Request | Refusal:
    """Nobody answered in time. A refusal before the deadline, and for what is decided."""
    if refusal := _refuse_closed(request):
        return refusal
    if not overdue(request, now):
        return Refusal("early", f"{request.id}: its deadline has not come")
    late = "nobody answered in time"
    return _said(
        request, Said(at=now, by="runtime", what="expired", reason=late), {"status": "expired", "reason": late}
    )


def escalate(
    request: Request, now: float, seconds: float, reachable: Collection[str] = frozenset(CHAIN)
) -> Request | Refusal:
    """At its deadline: put it to the next of the chain as well, from `escalation` on, for `seconds` more (a policy:
    for `POLICY_SECONDS`); from there it goes on to the one behind. With nobody left it expires.

    `reachable`: who of the chain is there to be asked. Passed over are they who may not answer it: the asker himself,
    an agent for a permission, everybody but the person for what only a person may answer.
    """
    expired = expire(request, now)
    if isinstance(expired, Refusal):
        return expired
    left = () if request.escalation == "refuse" else CHAIN[CHAIN.index(request.escalation) :]
    to = next((one for one in left if one in reachable and may_be_put(request, one)), None)
    if to is None:
        return expired
    behind = CHAIN[CHAIN.index(to) + 1 :]
    update: dict[str, object] = {
        "may_answer": request.may_answer if to in request.may_answer else (*request.may_answer, to),
        "escalation": behind[0] if behind else "refuse",
        "expires_at": now + (POLICY_SECONDS if to == "policy" else seconds),
    }
    return _said(request, Said(at=now, by="runtime", what="escalated", reason=f"put to the {to}"), update)


def may_be_put(request: Request, to: str) -> bool:
    """Whether `to` could answer it, were it put to him."""
    return may_answer(request.model_copy(update={"may_answer": (to,)}), to) is None


def withdraw(request: Request, by: str, reason: str, now: float) -> Request | Refusal:
    """Its asker, the person or the runtime takes it back: no answer counts any more."""
    if by not in {request.asked_by, "person", "runtime"}:
        return Refusal("not_yours", f"{request.id}: only {request.asked_by} or the person takes it back")
    if refusal := _refuse_closed(request):
        return refusal
    said = Said(at=now, by=by, what="withdrawn", reason=reason)
    return _said(request, said, {"status": "withdrawn", "reason": reason})


def _refuse_closed(request: Request) -> Refusal | None:
    if request.status == "pending":
        return None
    by = f" by {request.answered_by}" if request.answered_by else ""
    return Refusal("decided", f"{request.id} is {request.status}{by} already")
