"""What waits for a word: the one state machine of plans, permissions, shutdowns and questions. Pure.

A request is pending, and then for ever approved, rejected, answered, expired or withdrawn. An answer counts when its
kind fits, its author may answer, the content is what was asked, and the request is pending and in time; the first one
that is written wins, by the revision it was read at. Nobody approves himself; no agent ever answers a permission.

What does not count is a `Refusal`, a value: whoever answers - a tool, the command line, a policy - says it his own way.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Literal

from callboard.words.values import Json, Request, RequestKind, RequestStatus

Why = Literal["kind", "status", "decided", "expired", "changed", "self", "not_yours", "early"]


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
    if by not in request.may_answer or (request.kind == "permission" and by not in _NO_AGENT):
        who = " or ".join(name for name in request.may_answer if request.kind != "permission" or name in _NO_AGENT)
        return Refusal("not_yours", f"{request.id} is not yours to answer: it waits for {who or 'nobody'}")
    return None


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
    return request.model_copy(update={"status": status, "answered_by": by, "reason": reason})


def covers(request: Request, kind: RequestKind, asked_by: str, incarnation: int, digest: str) -> bool:
    """Whether `request` approves exactly this content for this life of this agent, and nothing else."""
    return (
        request.status == "approved"
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
    return request.model_copy(update={"status": "expired", "reason": "nobody answered in time"})


def escalate(request: Request, now: float, seconds: float) -> Request | Refusal:
    """At its deadline: put it to whom `escalation` names as well, for `seconds` more. Once; then it expires.

    Where nobody is left to ask (escalation `refuse`, or only the asker himself, or an agent for a permission), it
    expires at once.
    """
    expired = expire(request, now)
    if isinstance(expired, Refusal):
        return expired
    to = request.escalation
    if to == "refuse" or may_answer(request.model_copy(update={"may_answer": (to,)}), to):
        return expired
    widened = request.may_answer if to in request.may_answer else (*request.may_answer, to)
    return request.model_copy(update={"may_answer": widened, "escalation": "refuse", "expires_at": now + seconds})


def withdraw(request: Request, by: str, reason: str) -> Request | Refusal:
    """Its asker, the person or the runtime takes it back: no answer counts any more."""
    if by not in {request.asked_by, "person", "runtime"}:
        return Refusal("not_yours", f"{request.id}: only {request.asked_by} or the person takes it back")
    if refusal := _refuse_closed(request):
        return refusal
    return request.model_copy(update={"status": "withdrawn", "reason": reason})


def _refuse_closed(request: Request) -> Refusal | None:
    if request.status == "pending":
        return None
    by = f" by {request.answered_by}" if request.answered_by else ""
    return Refusal("decided", f"{request.id} is {request.status}{by} already")
