"""State machine of requests that wait for an answer: plans, permissions, shutdowns and questions. Pure.

A request is pending, and then permanently approved, rejected, answered, expired or withdrawn. An answer is accepted if
its kind fits, its author may answer, the content is what was asked, and the request is pending and before its deadline.
The first accepted answer that is written wins: the write states the revision that was read. No author approves its own
request, and no agent answers a permission request.

A rejected answer is returned as an `AnswerRefusal`; the tool, the command line or the policy words the message. The
history of the row has every answer, including rejected ones. A row with the status `approved` is no proof:
`approval_fault` checks the author and the content of the approval before anything is done because of it.

`plan.deadline` and `ask.deadline` (`types/settings.py`) set how long a request waits. This module decides what happens
then.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from typing import Literal

from callboard.types.lazy_dataclass import dataclass
from callboard.types.records import Json, Request, RequestKind, RequestStatus, Said

Why = Literal["kind", "status", "decided", "expired", "changed", "self", "not_yours", "early", "void"]


@dataclass(frozen=True, slots=True)
class AnswerRefusal:
    """Reason why an answer or a change is rejected. `text` is the message for its author."""

    why: Why
    text: str


ANSWERS: dict[RequestKind, frozenset[RequestStatus]] = {
    "plan": frozenset({"approved", "rejected"}),
    "permission": frozenset({"approved", "rejected"}),
    "shutdown": frozenset({"approved", "rejected"}),
    "question": frozenset({"answered"}),
}
"""Statuses that an answer may give a request, by its kind."""
_NO_AGENT = frozenset({"person", "policy"})
CHAIN: tuple[Literal["lead", "person", "policy"], ...] = ("lead", "person", "policy")
"""Order of escalation at deadlines. After the last one the request is rejected."""
SCHEDULED_WAIT = 1_800.0
"""Most seconds that a request of a scheduled turn waits if the settings say forever."""
POLICY_SECONDS = 60.0
"""Seconds for a policy to answer a request that was put to it at a deadline."""
LATE = "nobody answered in time"
DENIED = "Permission denied:"
"""Prefix of the reason of a denied call, for the model."""
UNASKED = "nobody can be asked in this run"
MOST_REFUSED = 20
"""Most rejected answers to store with a request. Further ones are reported but not stored."""


def open_request(request: Request) -> Request:
    """Return the request as submitted: bound to its content, with the first entry of its history.

    A request gets a deadline if a schedule began the turn, because no one may be there to answer.
    """
    first = Said(at=request.created_at, by=request.asked_by, what="asked")
    until = request.expires_at
    if until is None and request.cause == "schedule":
        until = request.created_at + SCHEDULED_WAIT
    digest = digest_of(request.kind, request.payload)
    return request.model_copy(update={"digest": digest, "history": (first,), "expires_at": until})


def _with_entry(request: Request, entry: Said, update: dict[str, object]) -> Request:
    return request.model_copy(update={**update, "history": (*request.history, entry)})


def digest_of(kind: RequestKind, payload: Json) -> str:
    """Return the sha256 (hex) of kind and payload. The order of fields does not matter."""
    canonical = json.dumps([kind, payload], sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("utf-8", "surrogatepass")).hexdigest()


def is_overdue(request: Request, now: float) -> bool:
    """Return True if the request's deadline has passed and nobody answered."""
    return request.status == "pending" and request.expires_at is not None and now >= request.expires_at


def may_answer(request: Request, by: str) -> AnswerRefusal | None:
    """Return the reason why `by` may not answer the request; None if it may.

    `by`: `person`, `policy`, or an agent's name.
    """
    if by == request.asked_by:
        return AnswerRefusal("self", f"{request.id}: no one may answer their own request")
    may = answerers(request)
    if by in may:
        return None
    return AnswerRefusal(
        "not_yours", f"{request.id} is not yours to answer: it waits for {' or '.join(may) or 'nobody'}"
    )


def answerers(request: Request) -> tuple[str, ...]:
    """Return the possible approvers of the request: those that were asked.

    Only the user if the request is for a person only; no agent for a permission request.
    """
    listed = [name for name in request.may_answer if name != request.asked_by]
    if request.person_only:
        listed = [name for name in listed if name == "person"]
    if request.kind == "permission":
        listed = [name for name in listed if name in _NO_AGENT]
    return tuple(listed)


def answer(
    request: Request, kind: RequestKind, *, by: str, status: RequestStatus, reason: str, now: float
) -> Request | AnswerRefusal:
    """Return the request as answered by `by`, or the reason for a rejection.

    `reason`: feedback, or the answer to a question.
    """
    if kind != request.kind:
        return AnswerRefusal("kind", f"{request.id} is a {request.kind} request, not a {kind} request")
    if status not in ANSWERS[kind]:
        return AnswerRefusal("status", f"a {kind} request is {' or '.join(sorted(ANSWERS[kind]))}, not {status}")
    if refusal := may_answer(request, by):
        return refusal
    if refusal := _refuse_closed(request):
        return refusal
    if is_overdue(request, now):
        return AnswerRefusal("expired", f"{request.id}: its deadline has passed")
    if request.digest != digest_of(request.kind, request.payload):
        return AnswerRefusal("changed", f"{request.id}: its content has changed")
    entry = Said.model_validate({"at": now, "by": by, "what": status, "reason": reason})
    return _with_entry(request, entry, {"status": status, "answered_by": by, "reason": reason})


def with_user(request: Request, user: str) -> Request:
    """Return an answered request whose history names the person who answered."""
    if not user:
        return request
    *earlier, answer_entry = request.history
    return request.model_copy(update={"history": (*earlier, answer_entry.model_copy(update={"user": user}))})


def with_refusal(request: Request, by: str, refusal: AnswerRefusal, now: float) -> Request | None:
    """Return the request with a rejected answer in its history; None if the history has enough of them."""
    if sum(entry.what == "refused" for entry in request.history) >= MOST_REFUSED:
        return None
    return _with_entry(request, Said(at=now, by=by, what="refused", reason=refusal.text), {})


def approval_fault(request: Request) -> str:
    """Return the reason why a row's approval is invalid; empty if it is valid, or if the request is not approved."""
    if request.status != "approved":
        return ""
    by = request.answered_by or ""
    if may_answer(request, by):
        return f"{by or 'nobody'} may not approve {request.id}"
    if request.digest != digest_of(request.kind, request.payload):
        return f"what {request.id} asks for was changed after it was approved"
    return ""


def covers(request: Request, kind: RequestKind, *, asked_by: str, incarnation: int, digest: str) -> bool:
    """Return True if `request` approves exactly this content for this life of this agent, and nothing else."""
    return (
        request.status == "approved"
        and not approval_fault(request)
        and request.kind == kind
        and (request.asked_by, request.incarnation) == (asked_by, incarnation)
        and request.digest == digest == digest_of(kind, request.payload)
    )


def expire(request: Request, now: float) -> Request | AnswerRefusal:
    """Return the request as expired: no one answered before the deadline, or no one could be asked.

    If no one could be asked, the deadline is immediate. Return a refusal before the deadline, and for a decided
    request.
    """
    if refusal := _refuse_closed(request):
        return refusal
    if not is_overdue(request, now):
        return AnswerRefusal("early", f"{request.id}: its deadline has not passed")
    at_once = request.expires_at is not None and request.expires_at <= request.created_at
    reason = UNASKED if at_once else LATE
    return _with_entry(
        request, Said(at=now, by="runtime", what="expired", reason=reason), {"status": "expired", "reason": reason}
    )


def escalate(
    request: Request, now: float, seconds: float, reachable: Collection[str] = frozenset(CHAIN)
) -> Request | AnswerRefusal:
    """Put a request at its deadline to the next approver of the chain, starting with `escalation`.

    That approver has `seconds` more (a policy: `POLICY_SECONDS`). At the end of the chain the request expires.

    `reachable`: members of the chain that can be asked. The following are skipped: the author, an agent for a
    permission request, everyone but the user for a request that only a person may answer.
    """
    expired = expire(request, now)
    if isinstance(expired, AnswerRefusal):
        return expired
    approvers = () if request.escalation == "refuse" else CHAIN[CHAIN.index(request.escalation) :]
    to = next((approver for approver in approvers if approver in reachable and can_be_asked(request, approver)), None)
    if to is None:
        return expired
    behind = CHAIN[CHAIN.index(to) + 1 :]
    update: dict[str, object] = {
        "may_answer": request.may_answer if to in request.may_answer else (*request.may_answer, to),
        "escalation": behind[0] if behind else "refuse",
        "expires_at": now + (POLICY_SECONDS if to == "policy" else seconds),
    }
    return _with_entry(request, Said(at=now, by="runtime", what="escalated", reason=f"put to the {to}"), update)


def can_be_asked(request: Request, to: str) -> bool:
    """Return True if `to` could answer the request once it is put to `to`."""
    return may_answer(request.model_copy(update={"may_answer": (to,)}), to) is None


def withdraw(request: Request, by: str, reason: str, now: float) -> Request | AnswerRefusal:
    """Withdraw the request, by its author, the user or the runtime: no later answer is accepted."""
    if by not in {request.asked_by, "person", "runtime"}:
        return AnswerRefusal("not_yours", f"{request.id}: only {request.asked_by} or the person may withdraw it")
    if refusal := _refuse_closed(request):
        return refusal
    entry = Said(at=now, by=by, what="withdrawn", reason=reason)
    return _with_entry(request, entry, {"status": "withdrawn", "reason": reason})


def _refuse_closed(request: Request) -> AnswerRefusal | None:
    if request.status == "pending":
        return None
    by = f" by {request.answered_by}" if request.answered_by else ""
    return AnswerRefusal("decided", f"{request.id} is {request.status}{by} already")
